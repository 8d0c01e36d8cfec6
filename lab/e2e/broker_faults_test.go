package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// What may be wrong with a broker, or with the port at which its sidecar asks it.

// fronted is a couple whose sidecar reaches its broker through two fronts. Clients of
// the broker do not go through them.
type fronted struct {
	*couple
	admin, monitor *harness.Front
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// fronted starts a broker with one topic and its sidecar and waits until it is ready.
func (s *stand) fronted(id, topic string, flags ...string) *fronted {
	s.Helper()
	n := s.broker(id)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), id, topic))
	f := &fronted{}
	var err error
	f.admin, err = harness.NewFront(s.lab, address(n.Port))
	s.ok(err)
	f.monitor, err = harness.NewFront(s.lab, address(n.MonitorPort))
	s.ok(err)
	f.couple = s.beside(n, append([]string{
		"--broker-admin", "nats://" + f.admin.Addr(), "--nats-monitor", "http://" + f.monitor.Addr(),
	}, flags...)...)
	f.run()
	s.ok(f.AwaitReady(s.ctx, bound))
	f.serves(topic)
	return f
}

// awaitDown waits until the broker counts as down for a reason that is told in such
// words, and returns a moment from which on it is not ready.
func (c *couple) awaitDown(since time.Time, words string) time.Time {
	c.s.Helper()
	c.await("down because of "+words, func(st harness.Status) bool {
		return st.Broker.Up == "down" && strings.Contains(st.Broker.LastError, words)
	})
	return c.awaitUnreadySeen(since)
}

// staysWell checks that the sidecar is the process that it was, and alive all the while.
func (c *couple) staysWell(pid int) {
	c.s.Helper()
	if c.PID() != pid || !c.Running() {
		c.s.Errorf("the sidecar was process %d and is %d, running: %v", pid, c.PID(), c.Running())
	}
	c.stayedLive()
}

// pause lets time pass in which nothing may happen. Not a wait for a state.
func (s *stand) pause(d time.Duration) {
	s.Helper()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ctx.Done():
		s.Fatal("ended early")
	}
}

func TestABrokerFrozenPastItsTTLComesBackDrained(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	const topic = "/default/a"
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", topic))
	c, peer := s.couple("n1"), s.couple("n2", steady...)
	c.readyNow()
	reg, frozen, pid := c.registration(), peer.readyNow(), c.PID()
	s.ok(c.nats.Freeze())
	gone := s.awaitChange("the expiry", reg.ModRevision, harness.DeletedKey(s.keys.Registration("n1")))
	unready := c.awaitUnreadySeen(frozen)
	inOrder(t, "ready until", unready, "the key was gone", gone.At)
	c.await("detached, and the registration known to be gone", func(st harness.Status) bool {
		return st.Attachment == "detached" && !st.Registration.Present
	})
	s.ok(c.nats.Thaw())
	c.backDrained(gone.Revision, "registration_expired")
	s.notServed(c, topic)
	c.neverReady(unready)
	c.activate()
	c.serves(topic)
	peer.alwaysReady(frozen)
	c.staysWell(pid)
}

// Behind the ports is another broker. It is none of our business, and its topics least.
func TestAnotherBrokerAtTheAdminPortIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	const ours, theirs = "/default/ours", "/default/theirs"
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n2", theirs))
	peer := s.couple("n2", steady...)
	peer.serves(theirs)
	c := s.fronted("n1", ours)
	c.readyNow()
	reg, led, pid, peerReg := c.registration(), peer.readyNow(), c.PID(), peer.registration()
	stored := peer.storedFrom(ours)
	c.admin.Lead(address(peer.nats.Port))
	c.monitor.Lead(address(peer.nats.MonitorPort))

	unready := c.awaitDown(led, `is "n2" (not the expected broker)`)
	gone := s.awaitChange("the expiry", reg.ModRevision, harness.DeletedKey(s.keys.Registration("n1")))
	inOrder(t, "ready until", unready, "the key was gone", gone.At)
	// The fence point has passed, and a TTL more shall.
	peer.renewsOn()
	peer.serves(theirs)
	peer.alwaysReady(led)
	if n := stored(); n != 0 {
		t.Errorf(harness.Violation+"the other broker was given our topic: it stored %d messages", n)
	}
	if after := peer.registration(); after != peerReg {
		t.Errorf("the other's registration was %+v and is %+v", peerReg, after)
	}
	for _, ch := range s.changesOf(s.keys.Registration("n1"), gone.Revision) {
		t.Errorf(harness.Violation+"registered with another's broker: %v", ch)
	}
	c.neverReady(unready)

	c.admin.Lead(address(c.nats.Port))
	c.monitor.Lead(address(c.nats.MonitorPort))
	c.backDrained(gone.Revision, "registration_expired")
	s.notServed(c.couple, ours)
	c.neverReady(unready)
	c.activate()
	c.serves(ours)
	c.staysWell(pid)
}
