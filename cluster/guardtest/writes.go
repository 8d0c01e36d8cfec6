package guardtest

import (
	"context"
	"strings"

	"holdfast/cluster"
)

// The changes that a guard alone refuses, each as somebody else makes it.

func registeredAgain(id string) func(s *stand) {
	return func(s *stand) { s.put(s.Keys().Registration(id), `{"n":2}`) }
}

func spokenOf(id string) func(s *stand) {
	return func(s *stand) { s.put(s.Keys().State(id), drained) }
}

func recorded(s *stand) { s.put(s.Keys().Member("b1"), `{"era":1,"revision":2,"incarnation":"other"}`) }

// kept are the guards of a registration that is kept. The first of them needs a look that
// found none, which has mod revision 0 as an absent key does.
func kept(first bool) []guard {
	guards := []guard{
		{1, "the registration was written", registeredAgain("b1")},
		{2, "the member record was written", recorded},
		{3, "an operator drained", spokenOf("b1")},
	}
	if first {
		guards = append(guards, guard{0, "the registration is not there", func(s *stand) {
			s.remove(s.Keys().Registration("b1"))
			s.seen.Registration.ModRevision = 0
		}})
	}
	return guards
}

const topic = "/ns/t"

// claimed are the guards of who acts under its registration.
func claimed(at int) []guard {
	return []guard{
		{at, "the registration is a newer one", func(s *stand) {
			s.remove(s.Keys().Registration("b1"))
			s.putUnder(s.Keys().Registration("b1"), "{}", s.held)
		}},
		{at + 1, "the registration is under another lease", func(s *stand) { s.putUnder(s.Keys().Registration("b1"), "{}", s.lease()) }},
	}
}

var writes = []write{
	{name: "register beside a peer",
		ready: func(s *stand) func(func()) error {
			s.put(s.Keys().Registration("peer"), "{}")
			s.b1(false)
			return func(meanwhile func()) error { meanwhile(); return s.register() }
		},
		guards: []guard{
			{0, "the registration appeared", registeredAgain("b1")},
			{1, "the era moved", func(s *stand) { s.put(s.Keys().Era(), `{"era":2}`) }},
			{2, "an operator drained", spokenOf("b1")},
			{3, "the member record was written", recorded},
			{4, "the peer registered anew", func(s *stand) {
				s.remove(s.Keys().Registration("peer"))
				s.put(s.Keys().Registration("peer"), "{}")
			}},
		}},
	{name: "register alone", part: true,
		ready: func(s *stand) func(func()) error {
			s.b1(false)
			return func(meanwhile func()) error { meanwhile(); return s.register() }
		},
		guards: []guard{{4, "a peer registered", registeredAgain("peer")}}},
	{name: "register beside a former process", part: true,
		ready: func(s *stand) func(func()) error {
			s.putUnder(s.Keys().Registration("11"), "{}", s.lease())
			s.look(cluster.Who{Name: "b1", Registered: "22", Former: "11"})
			return func(meanwhile func()) error { meanwhile(); return s.register() }
		},
		guards: []guard{{4, "nobody is registered any more", func(s *stand) { s.remove(s.Keys().Registration("11")) }}}},
	{name: "leave",
		ready: func(s *stand) func(func()) error {
			s.b1(true)
			return func(meanwhile func()) error {
				meanwhile()
				epoch := s.seen.Registration.CreateRevision
				_, err := s.Leave(s.t.Context(), cluster.LeaveRequest{Seen: s.seen, Epoch: epoch, LeaseID: s.held, Left: cluster.Left{At: at, Epoch: epoch}})
				return err
			}
		},
		guards: append(claimed(0), guard{2, "an operator drained", spokenOf("b1")}, guard{3, "the member record was written", recorded})},
	{name: "note the health",
		ready: func(s *stand) func(func()) error {
			s.b1(true)
			return func(meanwhile func()) error {
				s.before = meanwhile // it looks by itself
				_, err := s.NoteHealth(s.t.Context(), cluster.HealthNote{Who: cluster.Who{Name: "b1", Registered: "b1"},
					Epoch: s.seen.Registration.CreateRevision, LeaseID: s.held, Incarnation: "i", Health: cluster.HealthIll})
				return err
			}
		},
		guards: []guard{
			{0, "the registration was written", func(s *stand) { s.putUnder(s.Keys().Registration("b1"), `{"n":2}`, s.held) }},
			{1, "the member record was written", recorded},
		}},
	{name: "rebind", part: true, // etcd itself refuses to put an absent key under a lease
		ready: func(s *stand) func(func()) error {
			s.b1(true)
			return func(meanwhile func()) error {
				meanwhile()
				return s.keep(s.lease(), nil)
			}
		},
		guards: kept(false)},
	{name: "rewrite",
		ready: func(s *stand) func(func()) error {
			s.b1(true)
			return func(meanwhile func()) error {
				meanwhile()
				return s.keep(s.lease(), []byte(`{"run":"2"}`))
			}
		},
		guards: kept(true)},
	{name: "join",
		ready: func(s *stand) func(func()) error {
			s.b1(true)
			return func(meanwhile func()) error {
				meanwhile()
				return s.keep(0, nil)
			}
		},
		guards: kept(true)},
	{name: "succeed",
		ready: func(s *stand) func(func()) error {
			plan := s.restarted(1)
			plan.Begins = true
			return func(meanwhile func()) error {
				meanwhile()
				_, err := s.Succeed(s.t.Context(), plan, nil)
				return err
			}
		},
		guards: []guard{
			{0, "the successor registered itself again", registeredAgain("22")},
			{1, "an operator drained the successor", spokenOf("22")},
			{2, "the member record was written", recorded},
			{3, "the former process registered itself again", registeredAgain("11")},
			{4, "an operator drained the former process", spokenOf("11")},
			{5, "the era moved", func(s *stand) { s.put(s.Keys().Era(), `{"era":2}`) }},
		}},
	{name: "succeed with the rest of many topics",
		ready: func(s *stand) func(func()) error {
			plan := s.restarted(101)
			return func(meanwhile func()) error {
				_, err := s.Succeed(s.t.Context(), plan, func(context.Context) error { meanwhile(); return nil })
				return err
			}
		},
		guards: []guard{
			{0, "the successor registered itself again", registeredAgain("22")},
			{1, "an operator drained the successor", spokenOf("22")},
			{2, "the member record was written", recorded},
			{3, "the former process registered itself again", registeredAgain("11")},
			{4, "an operator drained the former process", spokenOf("11")},
		}},
	{name: "write the state",
		ready: func(s *stand) func(func()) error {
			s.b1(true)
			return func(meanwhile func()) error {
				meanwhile()
				_, err := s.PutState(s.t.Context(), "b1", cluster.State{Mode: cluster.ModeActive, At: at}, s.seen.StateRevision)
				return err
			}
		},
		guards: []guard{{0, "an operator drained", spokenOf("b1")}}},
	{name: "hand a topic over",
		ready: func(s *stand) func(func()) error {
			s.b1(true)
			s.put(s.Keys().Registration("b2"), "{}")
			s.put(s.Keys().Assignment("b1", topic), "null")
			revision, err := s.Assigned(s.t.Context(), "b1", topic)
			s.ok(err)
			s.journal = cluster.JournalWrite{Key: s.Keys().Move(topic), Value: []byte("{}"), From: "b1", To: "b2", Topic: topic, Assigned: revision, Locked: true}
			s.putUnder(s.Keys().Owner(topic), "{}", s.claimant().LeaseID)
			return func(meanwhile func()) error {
				who := s.claimant()
				meanwhile()
				_, err := s.WriteJournal(s.t.Context(), &who, s.journal)
				return err
			}
		},
		guards: append(claimed(1),
			guard{0, "the journal was written", func(s *stand) { s.put(s.Keys().Move(topic), `{"by":"other"}`) }},
			guard{3, "the topic is not assigned", func(s *stand) {
				s.remove(s.Keys().Assignment("b1", topic))
				s.journal.Assigned = 0
			}},
			guard{4, "the topic was assigned anew", func(s *stand) { s.put(s.Keys().Assignment("b1", topic), "null") }},
			guard{5, "the target is not registered", func(s *stand) { s.remove(s.Keys().Registration("b2")) }},
			guard{6, "another has the lock", func(s *stand) { s.putUnder(s.Keys().Owner(topic), "{}", s.lease()) }})},
	{name: "take a lock for a drain",
		ready: func(s *stand) func(func()) error {
			s.b1(true)
			return func(meanwhile func()) error {
				s.before = meanwhile
				_, err := s.LockDrain(s.t.Context(), s.claimant(), 1)
				return err
			}
		},
		guards: append(claimed(0), guard{2, "another drains", func(s *stand) { s.put(strings.Replace(s.Keys().Era(), "era", "locks/drain", 1), "{}") }})},
	{name: "take locks of topics",
		ready: func(s *stand) func(func()) error {
			s.b1(true)
			return func(meanwhile func()) error {
				who := s.claimant()
				meanwhile()
				_, err := s.Lock(s.t.Context(), who, []cluster.LockRequest{{Act: cluster.Take, Topic: topic}})
				return err
			}
		},
		guards: claimed(0)},
	{name: "put an assignment again",
		ready: func(s *stand) func(func()) error {
			s.b1(true)
			s.put(s.Keys().Assignment("b1", topic), "null")
			revision, err := s.Assigned(s.t.Context(), "b1", topic)
			s.ok(err)
			return func(meanwhile func()) error {
				s.before = meanwhile
				_, err := s.Reassign(s.t.Context(), "b1", topic, revision)
				return err
			}
		},
		guards: []guard{
			{0, "it was assigned anew", func(s *stand) { s.put(s.Keys().Assignment("b1", topic), "null") }},
			{1, "an operator drained", spokenOf("b1")},
		}},
}
