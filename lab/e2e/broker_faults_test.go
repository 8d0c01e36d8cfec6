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

// A check is two answers: under the timeout is 0.6 of it, which leaves a busy machine
// 0.8 s for its own part, and over is 1.2.
func TestASlowBrokerIsUpUntilItsAnswersTakeTheTimeout(t *testing.T) {
	long(t)
	const timeout, under, over = 2 * time.Second, 600 * time.Millisecond, 1200 * time.Millisecond
	for _, tt := range []struct {
		name     string
		interval time.Duration
	}{
		{"a check each timeout", timeout},
		{"five checks each timeout", timeout / 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			c := s.fronted("n1", "/default/a", "--lease-ttl", "32s",
				"--health-interval", tt.interval.String(), "--health-timeout", timeout.String(), "--health-fall", "3")
			reg, ready, pid := c.registration(), c.readyNow(), c.PID()
			c.admin.Delay(under)
			c.monitor.Delay(under)
			s.pause(4 * timeout)
			c.alwaysReady(ready)

			slow := time.Now()
			c.admin.Delay(over)
			c.monitor.Delay(over)
			unready := c.awaitDown(slow, "no answer within")
			s.pause(timeout)
			c.neverReady(unready)

			c.admin.Delay(0)
			c.monitor.Delay(0)
			s.ok(c.AwaitReady(s.ctx, bound))
			if after := c.registration(); after != reg {
				t.Errorf("registration %+v, want %+v", after, reg)
			}
			c.neverDetached()
			c.staysWell(pid)
			within(t, "not ready", slow, unready.Sub(slow), 4*timeout+3*tt.interval)
		})
	}
}

func TestABrokerThatAnswersGarbageIsDownAndNoHarmToTheSidecar(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		front func(*fronted) *harness.Front
		names string // in the reason
	}{
		{"at the admin port", func(f *fronted) *harness.Front { return f.admin }, "--broker-admin"},
		{"at the monitor port", func(f *fronted) *harness.Front { return f.monitor }, "--nats-monitor"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			c := s.fronted("n1", "/default/a", "--lease-ttl", "16s", "--health-fall", "3")
			reg, pid, spoilt := c.registration(), c.PID(), time.Now()
			front := tt.front(c)
			t.Logf("seed %d", front.Seed())
			front.Spoil(true)
			unready := c.awaitDown(spoilt, tt.names)
			s.pause(2 * time.Second)
			c.neverReady(unready)
			if st := c.await("the word", func(st harness.Status) bool { return st.Broker.LastError != "" }); strings.ContainsFunc(st.Broker.LastError, func(r rune) bool { return r < ' ' }) {
				t.Errorf("the reason is not printable: %q", st.Broker.LastError)
			}
			c.serves("/default/a") // the broker is well, and its deadline is far
			front.Spoil(false)
			s.ok(c.AwaitReady(s.ctx, bound))
			if after := c.registration(); after != reg {
				t.Errorf("registration %+v, want %+v", after, reg)
			}
			if st := c.state(); st.Mode != "active" {
				t.Errorf("state %+v", st)
			}
			c.neverDetached()
			c.staysWell(pid)
		})
	}
	t.Run("until the deadline is near", func(t *testing.T) {
		t.Parallel()
		s := newStand(t)
		s.fronted("n2", "/default/b") // alone n1 would be held
		n := "n1"
		c := s.fronted(n, "/default/a")
		c.SetFlags("--broker-pid-file", c.nats.PIDFile)
		s.ok(c.Kill())
		c.run()
		s.ok(c.AwaitReady(s.ctx, bound))
		reg := c.registration()
		t.Logf("seed %d", c.admin.Seed())
		c.admin.Spoil(true)
		s.stoppedBeforeItsKeyIsGone(c.couple, reg)
	})
}

// stoppedBeforeItsKeyIsGone checks that the broker's process ends, and then its key.
func (s *stand) stoppedBeforeItsKeyIsGone(c *couple, reg harness.RegistrationKey) {
	s.Helper()
	ended := make(chan time.Time, 1)
	exited := c.nats.Exited()
	go func() { <-exited; ended <- time.Now() }()
	gone := s.awaitChange("the expiry", reg.ModRevision, harness.DeletedKey(s.keys.Registration(c.id)))
	select {
	case at := <-ended:
		inOrder(s, "the broker ended", at, "its key was gone", gone.At)
		s.Logf("ended %v before the key was gone", gone.At.Sub(at).Round(time.Millisecond))
	default:
		s.Error(harness.Violation + "the broker runs, and its key is gone")
	}
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

func TestABrokerWhoseAdminPortMovedIsFencedBeforeItsKeyIsGone(t *testing.T) {
	t.Parallel()
	t.Run("the same process at another port", func(t *testing.T) {
		t.Parallel()
		s := newStand(t)
		peer := s.couple("n2", steady...)
		c := s.fronted("n1", "/default/a")
		c.SetFlags("--broker-pid-file", c.nats.PIDFile)
		s.ok(c.Kill())
		c.run()
		s.ok(c.AwaitReady(s.ctx, bound))
		c.readyNow()
		reg, moved, pid := c.registration(), peer.readyNow(), c.PID()
		c.admin.SetDown(true)
		c.monitor.SetDown(true)
		s.stoppedBeforeItsKeyIsGone(c.couple, reg)
		unready := c.awaitDown(moved, "--broker-admin nats://"+c.admin.Addr())
		s.ok(c.nats.Start(s.ctx)) // by its supervisor, still elsewhere
		s.pause(time.Second)
		c.neverReady(unready)
		c.admin.SetDown(false)
		c.monitor.SetDown(false)
		st := c.await("a decision", func(st harness.Status) bool { return st.Mode == "drained" && st.Registration.Present })
		if st.Reason != "stale_restart" {
			t.Errorf("drained with reason %s, want stale_restart: it was another process, and the peer lived on", st.Reason)
		}
		s.notServed(c.couple, "/default/a")
		c.neverReady(unready)
		c.activate()
		c.serves("/default/a")
		peer.alwaysReady(moved)
		c.staysWell(pid)
	})
	t.Run("restarted at another port", func(t *testing.T) {
		t.Parallel()
		s := newStand(t)
		s.couple("n2")
		n := s.broker("n1")
		s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
		c := s.beside(n, "--broker-pid-file", n.PIDFile)
		c.run()
		s.ok(c.AwaitReady(s.ctx, bound))
		c.readyNow()
		reg, moved, port := c.registration(), time.Now(), n.Port
		elsewhere, err := s.lab.Port()
		s.ok(err)
		s.ok(n.Kill())
		s.ok(n.MovePort(elsewhere))
		s.ok(n.Start(s.ctx))
		gone := s.awaitChange("the expiry", reg.ModRevision, harness.DeletedKey(s.keys.Registration("n1")))
		unready := c.awaitUnreadySeen(moved)
		inOrder(t, "ready until", unready, "the key was gone", gone.At)
		// What this does not say: that the new process serves nothing. Nobody can tell it
		// from one that is slow to start, and that one would never come up if it were
		// stopped; see TestAProcessThatStartsWhileTheLeaseRunsOutIsLeftAlone.
		c.told(1, "fence", "gone") // the end of the process that was registered
		c.neverReady(unready)

		s.ok(n.Kill())
		s.ok(n.MovePort(port))
		s.ok(n.Start(s.ctx))
		c.backDrained(gone.Revision, "stale_restart")
		s.notServed(c, "/default/a")
		c.neverReady(unready)
		c.activate()
		c.serves("/default/a")
		c.stayedLive()
	})
}
