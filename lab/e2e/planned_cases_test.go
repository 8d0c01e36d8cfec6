package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
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

func TestTwoThatLeaveAtOnceComeBackActive(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	stays, going := s.couple("n3"), []*couple{s.couple("n1"), s.couple("n2")}
	epochs := []int64{going[0].registration().CreateRevision, going[1].registration().CreateRevision}
	var all sync.WaitGroup
	exits := make([]harness.Result, len(going))
	for i, c := range going {
		all.Go(func() { exits[i], _ = c.Verb(s.ctx, "leave") })
	}
	all.Wait()
	for i, c := range going {
		if exits[i].Exit != 0 {
			t.Fatalf("%s: exit code %d: %s", c.id, exits[i].Exit, exits[i].Stderr)
		}
		s.ok(c.nats.Stop(s.ctx))
		s.ok(c.nats.Start(s.ctx))
	}
	for i, c := range going {
		c.back(epochs[i], "active", "planned_restart")
	}
	stays.neverDetached()
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

func TestWhoIsKilledAfterItHasLeftComesBackActive(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	peer, c := s.couple("n2"), s.couple("n1")
	epoch := c.registration().CreateRevision
	c.says("leave")
	s.ok(c.killBoth())
	s.ok(c.startBoth())
	c.back(epoch, "active", "planned_restart")
	peer.neverDetached()
}

func TestABrokerThatWasDownWhenItsSidecarWasStoppedLeavesNoNote(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	peer, c := s.couple("n2"), s.couple("n1")
	from := s.caughtUp()
	s.ok(c.nats.Kill())
	s.ok(c.AwaitNotReady(s.ctx, bound))
	c.terminate()
	gone := s.awaitChange("the end of the registration", from, harness.DeletedKey(s.keys.Registration(c.id)))
	if m := c.left(); strings.Contains(m, `"left"`) {
		t.Errorf("it crashed, and its member record says that it left: %s", m)
	}
	s.ok(c.nats.Start(s.ctx))
	c.run()
	c.backDrained(gone.Revision, "stale_restart")
	peer.neverDetached()
}

func TestADrainThatIsLiftedWhileItIsAwayHoldsNobodyBack(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	peer, c := s.couple("n2"), s.couple("n1")
	epoch := c.registration().CreateRevision
	c.terminate()
	for _, state := range []string{`{"mode":"drained","reason":"new disks","by":"operator"}`, `{"mode":"active","reason":"they are in","by":"operator"}`} {
		_, err := s.etcd.Client().Put(s.ctx, s.keys.State(c.id), state)
		s.ok(err)
	}
	s.ok(c.nats.Stop(s.ctx))
	s.ok(c.nats.Start(s.ctx))
	c.run()
	c.back(epoch, "active", "planned_restart")
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
