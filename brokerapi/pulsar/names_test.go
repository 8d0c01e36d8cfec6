package pulsar

import (
	"hash/crc32"
	"strings"
	"testing"
)

func TestTopicsNameTopicsAndBundlesOfPulsar(t *testing.T) {
	for _, c := range []struct {
		topic, path, canonical string
		bundle                 bool
	}{
		{"/default/orders", "public/default/orders", "/public~default/orders", false},
		{"/my-tenant~my-ns/orders", "my-tenant/my-ns/orders", "/my-tenant~my-ns/orders", false},
		{"/public~default/0x00000000_0x40000000", "public/default/0x00000000_0x40000000", "/public~default/0x00000000_0x40000000", true},
		{"/public~default/0x00000000_0x4000000", "public/default/0x00000000_0x4000000", "/public~default/0x00000000_0x4000000", false},
		{"/public~default/0XFFFFFFFF_0XFFFFFFFF", "public/default/0XFFFFFFFF_0XFFFFFFFF", "/public~default/0XFFFFFFFF_0XFFFFFFFF", false},
		{"/public~default/a~b", "public/default/a~b", "/public~default/a~b", false},
	} {
		p, err := parseTopic(c.topic)
		if err != nil || p.path() != c.path || p.topic() != c.canonical || p.bundle() != c.bundle {
			t.Errorf("%s: got %+v, %v", c.topic, p, err)
		}
	}
	for name, topic := range map[string]string{
		"no namespace":         "orders",
		"three segments":       "/a/b/c",
		"empty tenant":         "/~default/orders",
		"empty namespace":      "/public~/orders",
		"two tildes":           "/a~b~c/orders",
		"space":                "/my ns/orders",
		"slash as percent":     "/a%2Fb/orders",
		"dots":                 "/public~default/..",
		"range that runs back": "/public~default/0x40000000_0x00000000",
		"empty range":          "/public~default/0x40000000_0x40000000",
	} {
		if p, err := parseTopic(topic); err == nil {
			t.Errorf("%s: %q is taken for %+v", name, topic, p)
		}
	}
}

func TestNamespacesOfOneBrokerAreNotListed(t *testing.T) {
	for name, want := range map[string]struct{ own, bad bool }{
		"pulsar/broker-1:8080/0x00000000_0xffffffff":           {own: true},
		"pulsar/cl/broker-1:8080/0x00000000_0xffffffff":        {own: true},
		"sla-monitor/cl/broker-1:8080/0x00000000_0xffffffff":   {own: true},
		"pulsar/system/0x00000000_0x40000000":                  {},
		"public/default/0x00000000_0x40000000":                 {},
		"property/cluster/ns/0x00000000_0x40000000":            {bad: true},
		"public/default/0x0_0x4":                               {bad: true},
		"public/default":                                       {bad: true},
		"public//0x00000000_0x40000000":                        {bad: true},
		"":                                                     {bad: true},
		"../../0x00000000_0x40000000/0x00000000_0x4000000":     {bad: true},
		"a b/c/0x00000000_0x40000000":                          {bad: true},
		"public/default/0x40000000_0x00000000":                 {bad: true},
		"public/default/orders/x/0x00000000_0x40000000":        {bad: true},
		"pulsar/a/b/c/d/broker-1:8080/0x00000000_0xffffffff":   {bad: true},
		"pulsar/broker-1:8080/0x00000000_0xffffffff\n":         {bad: true},
		strings.Repeat("x/", 1000) + "0x00000000_0xffffffff":   {bad: true},
		"pulsar/cl:1/ns/0x00000000_0x40000000":                 {bad: true},
		"tenant/host:8080/0x00000000_0x40000000":               {},
		"public/default/0x00000000_0x40000000/0x00000000_0xff": {bad: true},
	} {
		_, own, err := parseOwned(name)
		if own != want.own || (err != nil) != want.bad {
			t.Errorf("%q: own %v, %v", name, own, err)
		}
	}
}

func TestALookupIsMadeOfANameInsideTheBundle(t *testing.T) {
	for _, text := range []string{"0x00000000_0x40000000", "0xc0000000_0xffffffff", "0x12340000_0x12350000", "0xffff0000_0xffffffff"} {
		p, err := parseTopic("/public~default/" + text)
		if err != nil {
			t.Fatal(err)
		}
		name, ok := p.inside()
		hash := uint64(crc32.ChecksumIEEE([]byte("persistent://public/default/" + name)))
		if inside := hash >= p.from && (hash < p.to || p.to == full); !ok || !inside {
			t.Errorf("%s: %q hashes to %x", text, name, hash)
		}
	}
}
