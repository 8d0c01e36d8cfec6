package cluster

import (
	"testing"
	"unicode/utf8"
)

func FuzzKeysThatAreTakenApartFitTogether(f *testing.F) {
	f.Add("/cluster/brokers/b1/default/orders")
	f.Add("/cluster/brokers/b1/default/state")
	f.Add("/cluster/brokers/b1/state")
	f.Add("/cluster/owners/default/orders")
	f.Add("/p/cluster/register/b1")
	f.Add("/topics//x")
	f.Fuzz(func(t *testing.T, key string) {
		for _, prefix := range []string{"", "/p"} {
			k := NewKeys(prefix)
			readings := 0
			same := func(ok bool, again string) {
				t.Helper()
				if ok && again != key {
					t.Fatalf("%q was read as the parts of %q", key, again)
				}
				if ok {
					readings++
				}
			}
			id, ok := k.ParseRegistration(key)
			same(ok, k.Registration(id))
			id, ok = k.ParseMember(key)
			same(ok, k.Member(id))
			id, ok = k.ParseState(key)
			same(ok, k.State(id))
			id, topic, ok := k.ParseAssignment(key)
			same(ok, k.Assignment(id, topic))
			topic, ok = k.ParseOwner(key)
			same(ok, k.Owner(topic))
			topic, ok = k.ParseTopicRecord(key)
			same(ok, k.TopicRecord(topic))
			if readings > 1 {
				t.Fatalf("%q has %d readings", key, readings)
			}
		}
	})
}

func FuzzValuesAreReadOrRefused(f *testing.F) {
	f.Add([]byte(`{"mode":"drained","reason":"stale_restart","by":"holdfast","at":"2026-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"mode":"active","reason":7,"by":null,"at":"yesterday"}`))
	f.Add([]byte(`{"era":3,"revision":9,"incarnation":"x","at":"2026-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"era":-1}`))
	f.Add([]byte(`{"broker_id":"b1","incarnation":"x","epoch":7}`))
	f.Add([]byte("null"))
	f.Add([]byte("\xff"))
	f.Fuzz(func(t *testing.T, value []byte) {
		kv := &KV{Key: "/k", Value: value, ModRevision: 1}
		s, err := ParseState(value)
		if known := s.Mode == ModeActive || s.Mode == ModeDraining || s.Mode == ModeDrained; known != (err == nil) {
			t.Fatalf("state %+v, %v", s, err)
		}
		if state, malformed := stateOf(kv); (state == nil) == (malformed == "") || !utf8.ValidString(malformed) {
			t.Fatalf("state %+v, malformed %q", state, malformed)
		}
		if member, malformed := memberOf(kv); (member == nil) == (malformed == "") || !utf8.ValidString(malformed) {
			t.Fatalf("member %+v, malformed %q", member, malformed)
		}
		if era := eraOf(kv); era.N < 0 || !utf8.ValidString(era.Unread) {
			t.Fatalf("era %+v", era)
		}
		if o := ownerOf("/a/b", kv); (o.BrokerID == "") == (o.Malformed == "") || !utf8.ValidString(o.Malformed) {
			t.Fatalf("owner %+v", o)
		}
		_, _ = registrationOf("b1", kv).Parse()
	})
}
