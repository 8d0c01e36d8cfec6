package e2e

import (
	"errors"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// Three brokers go to the new version and back, one at a time. One is drained by an operator all
// the while, and another is cut off from etcd for nine tenths of its lease.
func TestAnUpgradeAndARollbackChangeNothing(t *testing.T) {
	takesLong(t)
	t.Parallel()
	before, err := harness.BuildBefore(t.Context())
	if errors.Is(err, harness.ErrNoHistory) {
		t.Skip(err)
	}
	s := newStage(t)
	s.must(err)
	now, err := harness.Build(harness.Holdfast)
	s.must(err)

	var nodes []*node
	for _, id := range []string{"n1", "n2", "n3"} {
		n := s.prepare(id, nodeOptions{TTL: 15 * time.Second, Cuttable: true, Binary: before, Flags: []string{"--leave-registered"}})
		n.sidecar.SetFlags("--broker-pid-file", n.nats.PIDFile)
		n.start()
		n.awaitReady()
		n.equip()
		n.awaitArmed()
		nodes = append(nodes, n)
	}
	drained := nodes[1]
	drained.verb("drain", "--reason", "disk")
	drained.awaitNotReady()
	publishers := map[*node]*traffic{nodes[0]: nodes[0].publishAlways(), nodes[2]: nodes[2].publishAlways()}
	for _, tr := range publishers {
		tr.await(served, time.Now())
	}

	for _, step := range []struct {
		what, binary string
		order        [3]int // the last one is cut off before it is its turn
	}{
		{"upgrade", now, [3]int{0, 1, 2}},
		{"rollback", before, [3]int{2, 1, 0}},
	} {
		t.Log(step.what)
		from, epochs := s.revision(), map[*node]harness.RegistrationKey{}
		for _, n := range nodes {
			epochs[n] = n.registration()
		}
		cut := nodes[step.order[2]]
		healed := make(chan time.Time, 1)
		began := time.Now()
		go func() { healed <- cut.cutUntilNearTheDeadline() }()
		for i, at := range step.order {
			n := nodes[at]
			if i == 2 {
				end := <-healed
				if end.IsZero() {
					t.Fatal("the cut was no cut")
				}
				n.awaitRenewal(end)
				n.awaitReady()
				publishers[n].await(served, end)
			}
			since := time.Now()
			s.must(n.sidecar.Stop(s.ctx))
			n.sidecar.Use(step.binary)
			s.must(n.sidecar.Start())
			if n == drained {
				n.await("what it was", func(st harness.Status) bool { return st.Attachment == "attached" && st.Mode == "drained" })
			} else {
				n.awaitReady()
			}
			n.awaitArmed()
			if n != drained {
				publishers[n].only(served, since, time.Now())
			}
		}
		if tr := publishers[nodes[step.order[0]]]; tr != nil {
			tr.only(served, began, time.Now())
		}
		for _, n := range nodes {
			if is, was := n.registration(), epochs[n]; is.CreateRevision != was.CreateRevision || is.Lease != was.Lease {
				t.Errorf("%s: %s made registration %+v of %+v", n.id, step.what, is, was)
			}
			if n == drained {
				n.isInMode("drained", "disk")
			} else {
				n.isInMode("active", "boot")
			}
		}
		s.revisionSeen()
		for _, c := range s.history.Changes() {
			for _, n := range nodes {
				if c.Revision > from && c.Key == n.keys.State(n.id) {
					t.Errorf("%s: the mode was written: %+v", n.id, c)
				}
			}
		}
	}
}

// awaitArmed waits for a guard that stands by.
func (n *node) awaitArmed() {
	n.t.Helper()
	n.await("a guard that stands by", func(st harness.Status) bool { return st.Guard.State == "stands_by" })
}

// cutUntilNearTheDeadline cuts the node off just after a renewal until a tenth of its lease is
// left, and returns when that was; zero: it failed. It may be called by another goroutine.
func (n *node) cutUntilNearTheDeadline() time.Time {
	left := func(below bool, share float64) bool {
		_, err := n.sidecar.Await(n.ctx, n.ttl+bound, "a lease to be young, or old", func(st harness.Status) bool {
			young := st.Lease.RemainingSeconds > share*st.Lease.TTLSeconds
			return st.Lease.TTLSeconds > 0 && young != below
		})
		n.should(err)
		return err == nil
	}
	if !left(false, 0.95) {
		return time.Time{}
	}
	n.should(n.link.Cut())
	ok := left(true, 0.1)
	healed := time.Now()
	n.should(n.link.Heal())
	if !ok {
		return time.Time{}
	}
	return healed
}
