package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// fleet adds three nodes and waits until all are ready.
func (s *stage) fleet(o nodeOptions) []*node {
	s.t.Helper()
	var nodes []*node
	for _, id := range []string{"n1", "n2", "n3"} {
		n := s.prepare(id, o)
		n.start()
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		n.awaitReady()
		n.equip()
	}
	return nodes
}

// allDown kills everything of the nodes and waits until nobody is registered.
func (s *stage) allDown(nodes []*node) (revision int64) {
	s.t.Helper()
	from := s.revision()
	for _, n := range nodes {
		n.kill()
	}
	for _, n := range nodes {
		revision = max(revision, n.awaitExpiry(from).Revision)
	}
	return revision
}

// comesBackByItself checks that the node starts active after a full restart.
func (n *node) comesBackByItself(down int64) {
	n.t.Helper()
	n.withState(n.awaitRegistered(down), "active", "full_cluster_restart")
	n.awaitReady()
	n.publishes()
	st := n.await("its status", func(st harness.Status) bool { return st.Ready.OK })
	if st.Boot.Kind != "restart" || st.Boot.Reason != "full_cluster_restart" {
		n.t.Errorf("%s: boot %+v, want a restart, full_cluster_restart", n.id, st.Boot)
	}
}

// nobodyDrained checks the state keys of all brokers.
func (s *stage) nobodyDrained(after int64) {
	s.t.Helper()
	s.never("drained", after, func(c harness.Change) bool { return isMode(c, "drained") || isMode(c, "draining") })
}

// eraGrewOnce checks that exactly one registration found nobody registered, where it is
// for a sidecar to find.
func (s *stage) eraGrewOnce(after int64) {
	s.t.Helper()
	s.revisionSeen()
	var grown []harness.Change
	for _, c := range s.history.Changes() {
		if c.Key == s.keys.Era() && c.Revision > after {
			grown = append(grown, c)
		}
	}
	if len(grown) > 1 || len(grown) == 0 && s.kind.uncounted == "" { // of brokers that register themselves two may be there before a sidecar looks
		s.t.Errorf("the era was written %d times, want 1: %v", len(grown), grown)
	}
}

func TestScenario4_FullClusterRestart(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		// The last of each order is late by more than a TTL.
		orders := map[string][]int{
			"n1 n2 n3": {0, 1, 2}, "n1 n3 n2": {0, 2, 1}, "n2 n1 n3": {1, 0, 2},
			"n2 n3 n1": {1, 2, 0}, "n3 n1 n2": {2, 0, 1}, "n3 n2 n1": {2, 1, 0},
		}
		for name, order := range orders {
			t.Run(name, func(t *testing.T) {
				if testing.Short() && name != "n2 n3 n1" {
					t.Skip("one order is enough for the fast tests")
				}
				t.Parallel()
				s := newQuietStageOf(t, k)
				nodes := s.fleet(nodeOptions{})
				down := s.allDown(nodes)
				for i, k := range order {
					n := nodes[k]
					if i == len(order)-1 {
						s.waitOut(ttl)
					}
					if i%2 == 0 {
						n.start()
					} else { // the broker first; its guard holds it until the sidecar runs
						s.must(n.broker.Launch())
						s.must(n.sidecar.Start())
					}
					n.comesBackByItself(down)
				}
				s.nobodyDrained(down)
				s.eraGrewOnce(down)
				for _, n := range nodes {
					n.publishes()
				}
			})
		}
		t.Run("all at once", func(t *testing.T) {
			t.Parallel()
			s := newQuietStageOf(t, k)
			nodes := s.fleet(nodeOptions{})
			down := s.allDown(nodes)
			for _, n := range nodes {
				n.start()
			}
			for _, n := range nodes {
				n.comesBackByItself(down)
			}
			s.nobodyDrained(down)
			s.eraGrewOnce(down)
			for _, n := range nodes {
				n.publishes()
			}
		})
	})
}

func TestFullRestartWithLostStateDirs(t *testing.T) {
	t.Parallel()
	s := newSharedStage(t)
	nodes := s.fleet(nodeOptions{})
	down := s.allDown(nodes)
	for i, n := range nodes {
		n.loseStateDir()
		if i == len(nodes)-1 {
			s.waitOut(ttl)
		}
		n.start()
		n.comesBackByItself(down)
	}
	s.nobodyDrained(down)
	s.eraGrewOnce(down)
}

// Every broker that is up when the late one returns has registered since that one
// went, so neither "nobody is older" nor "somebody is registered" tells the two
// kinds of restart apart. That the cluster was never empty does.
func TestRollingRestartIsNotAFullRestart(t *testing.T) {
	t.Parallel()
	s := newSharedStage(t)
	nodes := s.fleet(nodeOptions{})
	late := nodes[2]
	from := s.revision()
	late.kill()
	unready := late.awaitNotReady()
	for _, n := range nodes[:2] {
		before := s.revision()
		s.must(n.sidecar.Stop(s.ctx)) // gives its registration up
		gone := n.awaitExpiry(before)
		s.must(n.broker.Kill())
		n.start()
		n.awaitRegistered(gone.Revision)
		n.await("attached", func(st harness.Status) bool { return st.Attachment == "attached" && st.Mode != "" })
		n.activate()
	}
	deleted := late.awaitExpiry(from)
	late.start()
	registered := late.awaitRegistered(deleted.Revision)
	late.withState(registered, "drained", "stale_restart")
	late.await("drained and attached", func(st harness.Status) bool {
		return st.Mode == "drained" && st.Attachment == "attached"
	})
	late.neverReady(unready)
	s.never("the late one was active", from, func(c harness.Change) bool {
		return c.Key == s.keys.State(late.id) && isMode(c, "active")
	})
	s.never("a full restart was seen", from, func(c harness.Change) bool {
		return c.Key == s.keys.Era() || strings.Contains(c.Value, "full_cluster_restart")
	})
}

func TestFleetExpiryKeepsModes(t *testing.T) {
	t.Parallel()
	t.Run("all leases revoked at once", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		s.expireFleet(s.fleet(nodeOptions{}), func(nodes []*node) {
			// etcd has no call that revokes several leases at one moment, so the sidecars
			// are kept from answering the first revocation before the last.
			var errs []error
			for _, n := range nodes {
				errs = append(errs, n.sidecar.Freeze())
			}
			for _, n := range nodes {
				_, err := s.etcd.Client().Revoke(s.ctx, n.registration().Lease)
				errs = append(errs, err)
			}
			for _, n := range nodes {
				errs = append(errs, n.sidecar.Thaw())
			}
			s.must(errors.Join(errs...))
		})
	})
	t.Run("etcd out of reach for everybody", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		s.expireFleet(s.fleet(nodeOptions{Cuttable: true}), func(nodes []*node) {
			from := s.revision()
			for _, n := range nodes {
				s.must(n.link.Cut())
			}
			for _, n := range nodes {
				n.awaitExpiry(from)
			}
			for i, n := range nodes {
				if i == 1 {
					s.waitOut(ttl) // the first is back for longer than a TTL
				}
				s.must(n.link.Heal())
			}
		})
	})
}

// expireFleet drains the last node by hand, has expire end all registrations, and
// checks that everybody comes back in the mode that they had.
func (s *stage) expireFleet(nodes []*node, expire func([]*node)) {
	s.t.Helper()
	byHand := nodes[len(nodes)-1]
	byHand.verb("drain", "--reason", "new disks")
	unready := byHand.awaitNotReady()
	from, began := s.revision(), time.Now()
	expire(nodes)
	gone := from
	for _, n := range nodes {
		deleted := n.awaitExpiry(from)
		gone = max(gone, deleted.Revision)
		registered := n.awaitRegistered(deleted.Revision)
		if n != byHand {
			n.withState(registered, "active", "fleet_expired")
		}
	}
	for _, n := range nodes {
		n.await("attached again", func(st harness.Status) bool {
			return st.Attachment == "attached" && st.Epoch > gone
		})
		n.alwaysLive(began)
	}
	for _, n := range nodes[:len(nodes)-1] {
		n.awaitReady()
		n.publishes()
	}
	byHand.isOperatorDrain(from)
	byHand.neverReady(unready)
	s.never("a broker was drained that no person drained", from, func(c harness.Change) bool {
		return (isMode(c, "drained") || isMode(c, "draining")) && c.Key != s.keys.State(byHand.id)
	})
	s.eraGrewOnce(gone)
}
