package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// comesBackBlind has start start a node that is not registered any more and cannot
// read etcd, and checks that it waits. restore lets it read; the node must then do
// what etcd says, and not what an empty answer would have said.
func (n *node) comesBackBlind(from int64, start, restore func()) {
	n.t.Helper()
	began := time.Now()
	start()
	st := n.await("some failed reads", func(st harness.Status) bool {
		return st.Broker.Up == "up" && st.Lease.FailureStreak >= 3
	})
	decided := st.Boot.Kind != "unknown" // in an earlier life of the broker
	if !decided && st.Mode != "" || st.Attachment != "detached" || st.Ready.OK {
		n.t.Errorf("status before etcd could be read: %v", st)
	}
	if code, body, err := n.sidecar.Probe(n.ctx, "/live"); err != nil || code != 200 {
		n.t.Errorf("/live while etcd cannot be read: %d %s %v", code, body, err)
	}
	blind := time.Now()
	restore()
	registered := n.awaitRegistered(from)
	if registered.At.Before(blind) {
		n.t.Errorf("registered before etcd could be read: %v", registered)
	}
	n.withState(registered, "drained", "stale_restart")
	n.await("drained and attached", func(st harness.Status) bool {
		return st.Mode == "drained" && st.Attachment == "attached"
	})
	n.neverReady(began)
	n.never("written before the registration, or active", from, func(c harness.Change) bool {
		ours := strings.Contains(c.Key+"/", "/"+n.id+"/")
		return ours && c.Revision < registered.Revision || c.Key == n.keys.State(n.id) && isMode(c, "active")
	})
	n.activate()
	n.publishes()
}

func TestStoreErrorIsNotAbsence(t *testing.T) {
	t.Parallel()
	t.Run("etcd unreachable", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		n := s.add("n1", nodeOptions{Cuttable: true})
		s.add("n2", nodeOptions{})
		down := s.allDown([]*node{n})
		s.must(n.link.Cut())
		n.comesBackBlind(down, n.start, func() { s.must(n.link.Heal()) })
	})
	t.Run("etcd frozen", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		n := s.add("n1", nodeOptions{})
		// Frozen, etcd renews nobody; the peer must outlive that.
		s.add("n2", nodeOptions{TTL: longTTL})
		down := s.allDown([]*node{n})
		s.must(s.etcd.Freeze())
		n.comesBackBlind(down, n.start, func() { s.must(s.etcd.Thaw()) })
	})
	// At the very start it is a setting, and whoever started the sidecar is told.
	t.Run("auth refused at the start", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		s.must(s.etcd.EnableAuth(s.ctx, "root-word", "hf", "hf-word", ""))
		s.watch()
		from := s.revision()
		password := filepath.Join(s.Dir, "password")
		s.must(os.WriteFile(password, []byte("another-word\n"), 0o600))
		n := s.prepare("n1", nodeOptions{Flags: []string{"--etcd-user", "hf", "--etcd-password-file", password}})
		n.start()
		select {
		case <-n.sidecar.Exited():
		case <-time.After(bound):
			t.Fatal("the sidecar did not end")
		}
		if code, err := n.sidecar.ExitCode(); err != nil || code != 2 {
			t.Errorf("exit code %d, %v; want 2", code, err)
		}
		s.never("written", from, func(c harness.Change) bool {
			return strings.HasPrefix(c.Key, "/cluster/") && c.Key != s.keys.Assignment(n.id, n.topics[0]) && c.Key != s.keys.Assignment(n.id, n.topics[1])
		})
		s.must(os.WriteFile(password, []byte("hf-word\n"), 0o600))
		s.must(n.sidecar.Start())
		n.awaitReady()
		n.publishes()
	})
}

// etcd is away for longer than the TTL, and nobody can know: when it is back, it
// gives every lease its full TTL again.
func TestOutageOfEtcdItself(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	nodes := []*node{s.add("n1", nodeOptions{}), s.add("n2", nodeOptions{})}
	var before []harness.RegistrationKey
	var publishers []*traffic
	for _, n := range nodes {
		before = append(before, n.registration())
		publishers = append(publishers, n.publishAlways())
	}
	s.revisionSeen()
	from, killed := s.revision(), time.Now()
	s.must(s.etcd.Kill())
	for i, n := range nodes {
		unready := n.awaitNotReady()
		st := n.await("the deadline to pass", func(st harness.Status) bool { return st.Lease.RemainingSeconds < 0 })
		if st.Attachment != "detached" {
			t.Errorf(harness.Violation+"%s is %s past the deadline", n.id, st.Attachment)
		}
		// Nobody may serve past the deadline, not even for nothing.
		stopped := publishers[i].await(refused, killed)
		publishers[i].only(refused, stopped, time.Now())
		n.neverReady(unready)
	}
	// A second TTL, so that the outage is longer than the TTL by any count.
	for _, n := range nodes {
		n.await("an outage of two TTLs", func(st harness.Status) bool { return st.Lease.FailingSeconds > 2*ttl.Seconds() })
	}
	back := time.Now()
	s.must(s.etcd.Start(s.ctx))
	answers := time.Now()
	for i, n := range nodes {
		n.awaitReady()
		took := publishers[i].await(served, back).Sub(answers)
		t.Logf("%s serves %v after etcd answers", n.id, took)
		within(t, n.id+" serves again after etcd answers", answers, took, time.Second+recoverWindow)
		n.alwaysLive(killed)
		n.isInMode("active", "boot")
		n.unchanged(before[i], from)
	}
	s.never("something of the cluster was written", from, func(c harness.Change) bool {
		return strings.HasPrefix(c.Key, "/cluster/") && !s.isCutNote(c)
	})
}
