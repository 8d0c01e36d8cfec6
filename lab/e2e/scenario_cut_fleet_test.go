package e2e

import (
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// A cut of about one TTL for everybody ends the lease that was renewed first, and leaves the
// others standing. Nobody was singled out.
func TestACutOfAboutOneTTLForAllDrainsNobody(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const long = 10 * time.Second
	nodes := s.fleet(nodeOptions{TTL: long, Cuttable: true})
	loser, others := nodes[0], nodes[1:]
	from := s.revision()
	loser.awaitPhase(long / 8 * 3 / 4)
	s.must(loser.link.Cut())
	for _, n := range others {
		n.renews()
		s.must(n.link.Cut())
	}
	for _, n := range others {
		n.await("past the fence point", func(st harness.Status) bool { return st.Attachment == "detached" })
	}
	gone := loser.awaitExpiry(from)
	for _, n := range nodes {
		s.must(n.link.Heal())
	}
	registered := loser.awaitRegistered(gone.Revision)
	loser.withState(registered, "active", "fleet_expired")
	for _, n := range nodes {
		n.await("attached and active", func(st harness.Status) bool { return st.Attachment == "attached" && st.Mode == "active" })
		n.awaitReady()
		n.publishes()
	}
	s.nobodyDrained(from)
	s.never("the cluster was empty", from, func(c harness.Change) bool { return c.Key == s.keys.Era() })
	res, err := loser.sidecar.Verb(s.ctx, "events")
	s.must(err)
	for _, n := range others {
		if before := n.registration().CreateRevision; before > from {
			t.Errorf("%s lost its registration, too: the cut was too long for this test", n.id)
		}
	}
	// One of two is enough, so the other may not have noted it by then.
	if said := res.Stdout; !strings.Contains(said, "of 2 that were registered beside it") || !strings.Contains(said, "n2") && !strings.Contains(said, "n3") {
		t.Errorf("the events of %s do not name who was cut off as well:\n%s", loser.id, said)
	}
}

// The same at the default TTL, for whatever time since its last renewal each was cut off at:
// no lease ends, or some, or all.
func TestACutOfTheDefaultTTLForAllDrainsNobody(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	t.Parallel()
	for _, length := range []time.Duration{28 * time.Second, 30 * time.Second, 32 * time.Second} {
		t.Run(length.String(), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			var nodes []*node
			for _, id := range []string{"n1", "n2", "n3"} { // one after the other, so that they renew at different times
				nodes = append(nodes, s.add(id, nodeOptions{TTL: longTTL, Cuttable: true}))
			}
			from := s.revision()
			nodes[0].awaitPhase(longTTL / 8 * 3 / 4)
			for _, n := range nodes[1:] {
				s.must(n.link.Cut())
			}
			nodes[0].cutFor(length)
			for _, n := range nodes[1:] {
				s.must(n.link.Heal())
			}
			for _, n := range nodes {
				n.await("attached and active", func(st harness.Status) bool { return st.Attachment == "attached" && st.Mode == "active" })
				n.awaitReady()
				n.publishes()
			}
			s.nobodyDrained(from)
			lost := 0
			for _, n := range nodes {
				if n.registration().CreateRevision > from {
					lost++
				}
			}
			t.Logf("%d of %d lost their registrations", lost, len(nodes))
		})
	}
}
