package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/lab/harness"
)

// What may be mistaken for a planned restart, and what may come between stop and return.

// left is the member record as it stands.
func (c *couple) left() string {
	c.s.Helper()
	answer, err := c.s.etcd.Client().Get(c.s.ctx, c.s.keys.Member(c.id))
	c.s.ok(err)
	if len(answer.Kvs) == 0 {
		return ""
	}
	return string(answer.Kvs[0].Value)
}

// back waits until it is registered anew, in that mode for that reason.
func (c *couple) back(epoch int64, mode, reason string) {
	c.s.Helper()
	st := c.await("the next registration", func(st harness.Status) bool {
		return st.Registration.CreateRevision > epoch && st.Attachment == "attached" && st.Ready.OK == (mode == "active")
	})
	if st.Mode != mode || st.Reason != reason {
		c.s.Errorf("%s: %s (%s), want %s (%s)", c.id, st.Mode, st.Reason, mode, reason)
	}
}

func TestALeaveAfterWhichNobodyStopsTheBrokerIsTakenBack(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
	peer, c := s.couple("n2"), s.couple("n1", "--leave-timeout", "2s", "--return-within", "2s")
	epoch := c.registration().CreateRevision
	c.says("leave")
	st := c.await("the next registration", func(st harness.Status) bool { return st.Registration.CreateRevision > epoch && st.Ready.OK })
	if st.Mode != "active" {
		t.Errorf("%s (%s), want active", st.Mode, st.Reason)
	}
	c.serves("/default/a")
	if m := c.left(); m == "" || strings.Contains(m, `"left"`) {
		t.Errorf("the member record still says that it left: %s", m)
	}
	peer.neverDetached()
}

func TestWhoLeftAndComesBackOnAnotherDiskIsDrained(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
	peer, c := s.couple("n2"), s.couple("n1")
	c.serves("/default/a")
	epoch := c.registration().CreateRevision
	c.says("leave")
	s.ok(c.nats.Stop(s.ctx))
	held := filepath.Join(c.nats.StoreDir, "jetstream")
	s.ok(os.Rename(held, held+".broken"))
	s.ok(os.Mkdir(held, 0o755))
	s.ok(c.nats.Start(s.ctx))
	c.back(epoch, "drained", "data_missing")
	peer.neverDetached()
}
