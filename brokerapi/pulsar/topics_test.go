package pulsar

import (
	"encoding/json"
	"strings"
	"testing"
)

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
		"../default/0x00000000_0x40000000":                     {bad: true},
		"a b/c/0x00000000_0x40000000":                          {bad: true},
		"public/default/orders/x/0x00000000_0x40000000":        {bad: true},
		"pulsar/a/b/c/d/broker-1:8080/0x00000000_0xffffffff":   {bad: true},
		"pulsar/broker-1:8080/0x00000000_0xffffffff\n":         {bad: true},
		strings.Repeat("x/", 1000) + "0x00000000_0xffffffff":   {bad: true},
		"pulsar/cl:1/ns/0x00000000_0x40000000":                 {bad: true},
		"tenant/host:8080/0x00000000_0x40000000":               {},
		"public/default/0x00000000_0x40000000/0x00000000_0xff": {bad: true},
	} {
		o := parseOwned(map[string]json.RawMessage{name: nil})
		if own, bad := len(o.serving)+len(o.unreadable) == 0, len(o.unreadable) > 0; own != want.own || bad != want.bad {
			t.Errorf("%q: %+v", name, o)
		}
	}
}

func TestWhatIsNoBundleIsNotUnloaded(t *testing.T) {
	b := answering(t, nil, nil) // answers 404 to every unload, and owns nothing
	for topic, unloads := range map[string]bool{
		"/public~default/0x00000000_0x40000000": true, "/public~default/orders": false, "/default/0x00000000_0x40000000": false,
		"/..~default/0x00000000_0x40000000": false, "/a~b~c/0x00000000_0x40000000": false, "/a~b/c/0x00000000_0x40000000": false, "": false,
	} {
		if err := b.Withdraw(t.Context(), topic); (err == nil) != unloads {
			t.Errorf("%q: %v", topic, err)
		}
	}
}
