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
	loser.withState(registered, "drained", "registration_expired") // at once, as a suspicion
	for _, n := range nodes {
		n.await("attached and active, by itself", func(st harness.Status) bool { return st.Attachment == "attached" && st.Mode == "active" })
		n.awaitReady()
		n.publishes()
	}
	s.never("the cluster was empty", from, func(c harness.Change) bool { return c.Key == s.keys.Era() })
	res, err := loser.sidecar.Verb(s.ctx, "events")
	s.must(err)
	for _, n := range others {
		if before := n.registration().CreateRevision; before > from {
			t.Errorf("%s lost its registration, too: the cut was too long for this test", n.id)
		}
	}
	// One of two is enough, so the other may not have noted it by then.
	if said := res.Stdout; !strings.Contains(said, "fleet_expired") || !strings.Contains(said, "of 2 others that are registered") || !strings.Contains(said, "n2") && !strings.Contains(said, "n3") {
		t.Errorf("the events of %s do not name who was cut off as well:\n%s", loser.id, said)
	}
}
