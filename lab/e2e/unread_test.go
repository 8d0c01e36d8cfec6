package e2e

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/lab/harness"
)

// One key that cannot be read concerns only whom it alone could excuse.
func TestAGarbledEraHoldsUpNobodyAndAGarbledMemberRecordItsOwnBroker(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	couples := []*couple{s.couple("n1"), s.couple("n2"), s.couple("n3")}
	bystander := couples[2].registration()
	s.put(s.keys.Era(), "garbled")
	for i, garbled := range []string{s.keys.Member("n1"), ""} {
		c := couples[i]
		down := s.caughtUp()
		s.ok(c.Kill())
		s.ok(c.nats.Kill())
		s.awaitChange("the expiry of "+c.id, down, harness.DeletedKey(s.keys.Registration(c.id)))
		want := "stale_restart"
		if garbled != "" {
			want = "unreadable_record"
			s.put(garbled, "garbled")
		}
		s.ok(c.nats.Start(s.ctx))
		c.run()
		st := c.awaitBooted()
		if st.Mode != "drained" || st.Reason != want {
			t.Errorf("%s is %s (%s), want drained, %s", c.id, st.Mode, st.Reason, want)
		}
		said := fmt.Sprint(c.told(1, "registration", "unreadable_record"))
		if !strings.Contains(said, "at key "+s.keys.Era()) || garbled != "" && !strings.Contains(said, "at key "+garbled) {
			t.Errorf("%s: not every key is named: %s", c.id, said)
		}
		if res, err := c.Verb(s.ctx, "activate", "--reason", "test"); err != nil || res.Exit != 0 {
			t.Errorf("activate %s: %+v, %v", c.id, res, err)
		}
		s.ok(c.AwaitReady(s.ctx, bound))
	}
	if res, err := s.etcd.Client().Get(s.ctx, s.keys.Era()); err != nil || string(res.Kvs[0].Value) != "garbled" {
		t.Errorf("the era is %v, %v; want it as it was", res, err)
	}
	if now := couples[2].registration(); now.CreateRevision != bystander.CreateRevision || couples[2].state().Mode != "active" {
		t.Errorf("n3 was %+v, and is %+v", bystander, now)
	}
	couples[2].stayedLive()
}

func (s *stand) put(key, value string) {
	s.Helper()
	_, err := s.etcd.Client().Put(s.ctx, key, value)
	s.ok(err)
}
