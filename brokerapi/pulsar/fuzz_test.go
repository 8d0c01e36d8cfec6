package pulsar

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"holdfast/brokerapi"
)

func FuzzTopicName(f *testing.F) {
	for _, s := range []string{"/default/orders", "/a~b/0x00000000_0x40000000", "/a~b/..", "//", "/a~b/0xffffffff_0x00000000"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, topic string) {
		p, err := parseTopic(topic)
		if err != nil {
			return
		}
		again, err := parseTopic(p.topic())
		if err != nil || again != p {
			t.Fatalf("%q is %+v, and by its one name %q it is %+v, %v", topic, p, p.topic(), again, err)
		}
	})
}

func FuzzOwnedNamespaces(f *testing.F) {
	for _, s := range []string{`{}`, `null`, `{"public/default/0x00000000_0x40000000":{"broker_assignment":"shared","is_controlled":false,"is_active":true}}`,
		`{"pulsar/h:1/0x00000000_0xffffffff":{"is_active":false}}`, `{"a/b/c":{}}`, `{"public/default/0x00000000_0x40000000":{"is_active":"yes"}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var list map[string]json.RawMessage
		if json.Unmarshal(body, &list) != nil {
			return
		}
		o := parseOwnedList(list)
		if len(o.serving)+len(o.leaving)+len(o.unreadable) > len(list) {
			t.Fatalf("%d, %d and %d bundles of %d", len(o.serving), len(o.leaving), len(o.unreadable), len(list))
		}
		for _, shown := range o.unreadable {
			if len(shown) > brokerapi.MaxUnreadable || strings.ContainsFunc(shown, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Fatalf("shown as %q", shown)
			}
		}
		for _, p := range append(o.serving, o.leaving...) {
			if q, err := parseTopic(p.topic()); err != nil || q != p {
				t.Fatalf("%+v is listed as %q, which is %+v, %v", p, p.topic(), q, err)
			}
		}
	})
}

func FuzzLookup(f *testing.F) {
	for _, s := range []string{`{"httpUrl":"http://h:8080"}`, `{"httpUrl":""}`, `{"httpUrlTls":"https://h:8443"}`, `{"httpUrl":"http://"}`, `{"httpUrl":"http://a@b:1/"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var l lookup
		if json.Unmarshal(body, &l) != nil {
			return
		}
		if owner, err := l.owner(); err == nil && owner == "" {
			t.Fatalf("%s: nobody", body)
		}
	})
}

func FuzzVersion(f *testing.F) {
	for _, s := range []string{"3.0.0", `"3.0.0"`, "\x00", "<html>", ""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		v, err := parseVersion(body)
		if err == nil && (v == "" || len(v) > maxVersion || !utf8.ValidString(v)) {
			t.Fatalf("%q is the version %q", body, v)
		}
	})
}
