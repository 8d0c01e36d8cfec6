package pulsar

import (
	"encoding/json"
	"strings"
	"testing"

	"holdfast/brokerapi"
)

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
		o := parseOwned(list)
		if len(o.serving)+len(o.leaving)+len(o.unreadable) > len(list) {
			t.Fatalf("%d, %d and %d bundles of %d", len(o.serving), len(o.leaving), len(o.unreadable), len(list))
		}
		for _, shown := range o.unreadable {
			if len(shown) > brokerapi.MaxUnreadable || strings.ContainsFunc(shown, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Fatalf("shown as %q", shown)
			}
		}
		for _, bundle := range append(o.serving, o.leaving...) {
			if topic := topicOf(bundle); !topics.MatchString(topic) {
				t.Fatalf("%q is listed as %q", bundle, topic)
			}
		}
	})
}
