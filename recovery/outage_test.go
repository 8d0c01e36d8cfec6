package recovery

import "testing"

func TestOutageTable(t *testing.T) {
	all := []Policy{PolicyDrain, PolicyReconnect, PolicyShutdown}
	had := *byHoldfast(Active, ReasonBoot)
	for _, c := range []struct {
		name     string
		policies []Policy
		f        OutageFacts
		step     Step
		mode     ModeRecord
		write    bool
	}{
		{"the registration survived", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Holder = Us }), Had: had}, Keep, had, false},
		{"it survived, the state key did not", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Holder, f.Stored = Us, nil }), Had: had}, Keep, had, true},
		{"it survived, a person drained meanwhile", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Holder, f.Stored = Us, byPerson(Drained) }), Had: had}, Keep, *byPerson(Drained), false},
		{"it survived, a person activated meanwhile", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Holder, f.Stored = Us, byPerson(Active) }), Had: *byHoldfast(Drained, ReasonJoin)}, Keep, *byPerson(Active), false},
		{"it survived, the broker wrote active over a drained", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Holder, f.Stored = Us, byBroker }), Had: *byHoldfast(Drained, ReasonJoin)}, Keep, *byHoldfast(Drained, ReasonJoin), true},
		{"it survived, the mode is garbled", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Holder, f.Stored, f.StoredGarbled = Us, nil, true }), Had: had}, Keep, had, true},
		{"another incarnation", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Holder = Another }), Had: had}, Conflict, had, false},
		{"the era has grown", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Era = 4 }), Had: had}, Register, *byHoldfast(Active, ReasonFleetExpired), true},
		{"nobody is registered", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.PeerPresent = false }), Had: had}, Register, *byHoldfast(Active, ReasonFleetExpired), true},
		{"nobody, and no state key", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.PeerPresent, f.Stored = false, nil }), Had: had}, Register, *byHoldfast(Active, ReasonFleetExpired), true},
		{"nobody, while drained by a person", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.PeerPresent, f.Stored = false, byPerson(Drained) }), Had: *byPerson(Drained)}, Register, *byPerson(Drained), false},
		{"nobody, activated by a person meanwhile", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.PeerPresent, f.Stored = false, byPerson(Active) }), Had: *byHoldfast(Drained, ReasonJoin)}, Register, *byHoldfast(Active, ReasonFleetExpired), true},
		{"adopted, every peer younger than our last renewal", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Adopted, f.OldestPeer = true, 391 }), Had: had}, Register, *byHoldfast(Active, ReasonFleetExpired), true},
		{"what stands may only linger", []Policy{PolicyDrain, PolicyShutdown}, OutageFacts{ClusterFacts: member(watched(Unwatched)), Had: had}, Await, ModeRecord{}, false},
		{"what stands may only linger: active either way", []Policy{PolicyReconnect}, OutageFacts{ClusterFacts: member(watched(Unwatched)), Had: had}, Register, had, true},
		{"what stands may only linger, retries used up", []Policy{PolicyReconnect}, OutageFacts{ClusterFacts: member(watched(Unwatched)), Had: had, RetriesUsed: true}, Await, ModeRecord{}, false},
		{"what stands may only linger, drained by a person", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Stored, f.Peers = byPerson(Drained), Unwatched }), Had: *byPerson(Drained)}, Register, *byPerson(Drained), false},
		{"what stood only lingered", all, OutageFacts{ClusterFacts: member(watched(Lingering)), Had: had}, Register, *byHoldfast(Active, ReasonFleetExpired), true},
		{"the cluster lived on", []Policy{PolicyDrain}, OutageFacts{ClusterFacts: member(nil), Had: had}, Register, *byHoldfast(Drained, ReasonRegistrationExpired), true},
		{"the cluster lived on", []Policy{""}, OutageFacts{ClusterFacts: member(nil), Had: had}, Register, *byHoldfast(Drained, ReasonRegistrationExpired), true},
		{"the cluster lived on", []Policy{PolicyReconnect}, OutageFacts{ClusterFacts: member(nil), Had: had}, Register, had, true},
		{"the cluster lived on, retries used up", []Policy{PolicyReconnect}, OutageFacts{ClusterFacts: member(nil), Had: had, RetriesUsed: true}, Shutdown, had, false},
		{"the cluster lived on", []Policy{PolicyShutdown}, OutageFacts{ClusterFacts: member(nil), Had: had}, Shutdown, had, false},
		{"the cluster lived on, state key deleted", []Policy{PolicyReconnect}, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Stored = nil }), Had: had}, Register, had, true},
		{"the cluster lived on, state key deleted", []Policy{PolicyShutdown}, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Stored = nil }), Had: had}, Shutdown, had, false},
		{"the cluster lived on, no member record", []Policy{PolicyReconnect}, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.KnownMember, f.OurEra, f.Era = false, 0, 4 }), Had: had}, Register, had, true},
		{"the cluster lived on, no member record", []Policy{PolicyShutdown}, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.KnownMember, f.OurEra, f.Era = false, 0, 4 }), Had: had}, Shutdown, had, false},
		{"the cluster lived on, retries used up, another policy", []Policy{PolicyDrain}, OutageFacts{ClusterFacts: member(nil), Had: had, RetriesUsed: true}, Register, *byHoldfast(Drained, ReasonRegistrationExpired), true},
		{"it survived, retries used up", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Holder = Us }), Had: had, RetriesUsed: true}, Keep, had, false},
		{"the whole fleet expired, retries used up", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Era = 4 }), Had: had, RetriesUsed: true}, Register, *byHoldfast(Active, ReasonFleetExpired), true},
		{"another incarnation, retries used up", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Holder = Another }), Had: had, RetriesUsed: true}, Conflict, had, false},
		{"a person activated meanwhile", []Policy{PolicyReconnect}, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Stored = byPerson(Active) }), Had: *byHoldfast(Drained, ReasonJoin)}, Register, *byPerson(Active), true},
		{"the broker brought the key back", []Policy{PolicyDrain}, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Holder, f.Reborn = Us, true }), Had: had}, Keep, *byHoldfast(Drained, ReasonRegistrationExpired), true},
		{"the broker brought the key back", []Policy{PolicyReconnect}, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Holder, f.Reborn = Us, true }), Had: had}, Keep, had, true},
		{"the broker brought the key back", []Policy{PolicyShutdown}, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Holder, f.Reborn = Us, true }), Had: had}, Shutdown, had, false},
		{"the cluster lived on, state key deleted", []Policy{PolicyDrain}, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Stored = nil }), Had: had}, Register, *byHoldfast(Drained, ReasonRegistrationExpired), true},
		{"the cluster lived on, no member record", []Policy{PolicyDrain}, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.KnownMember, f.OurEra, f.Era = false, 0, 4 }), Had: had}, Register, *byHoldfast(Drained, ReasonRegistrationExpired), true},
		{"the cluster lived on, draining by a person", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Stored = byPerson(Draining) }), Had: *byPerson(Draining)}, Register, *byPerson(Draining), false},
		{"the cluster lived on, drained while we were away", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Stored = byPerson(Drained) }), Had: had}, Register, *byPerson(Drained), false},
		{"drained by recovery, state key deleted", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Stored, f.Last = nil, byHoldfast(Drained, ReasonStaleRestart) }), Had: *byHoldfast(Drained, ReasonStaleRestart)}, Register, *byHoldfast(Drained, ReasonStaleRestart), true},
		{"drained by recovery, the broker wrote active", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Stored, f.Last = byBroker, byHoldfast(Drained, ReasonStaleRestart) }), Had: *byHoldfast(Drained, ReasonStaleRestart)}, Register, *byHoldfast(Drained, ReasonStaleRestart), true},
		{"restored backup", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Revision = 399 }), Had: had}, Register, *byHoldfast(Drained, ReasonRestoredBackup), true},
		{"garbled mode", all, OutageFacts{ClusterFacts: member(func(f *ClusterFacts) { f.Stored, f.StoredGarbled = nil, true }), Had: had}, Register, *byHoldfast(Drained, ReasonUnreadableMode), true},
	} {
		for _, p := range c.policies {
			t.Run(c.name+", policy "+string(p), func(t *testing.T) {
				c.f.Policy = p
				d := DecideOutage(c.f)
				if d.Step != c.step || d.Mode != c.mode || d.Write != c.write {
					t.Errorf("%s by %s, write %v: %s; want %s %v, write %v", d, d.Mode.By, d.Write, d.Detail, c.step, c.mode, c.write)
				}
				if d.Detail == "" && d.Step != Await {
					t.Error("no sentence says why")
				}
			})
		}
	}
}

// Safety rule 3 and the default policy, over every combination of the facts: the
// broker that was singled out is never active, the one that was not is never stopped.
func TestOnlyABrokerThatWasSingledOutIsDrained(t *testing.T) {
	each(func(c ClusterFacts) {
		if c.Last == nil {
			return // an outage needs a mode that we had
		}
		for _, p := range []Policy{PolicyDrain, PolicyReconnect, PolicyShutdown} {
			d := DecideOutage(OutageFacts{ClusterFacts: c, Policy: p, Had: *c.Last})
			alive := c.Holder == Us
			fleet := !c.PeerPresent || c.KnownMember && c.Era > c.OurEra || c.Peers == Lingering && (!c.Adopted || c.KnownMember)
			if d.Step == Await {
				if alive || fleet || c.Adopted || c.Peers != Unwatched {
					t.Errorf("%s from %+v", d, c)
				}
				continue
			}
			switch {
			case alive && d.Step != Keep, c.Holder == Another && d.Step != Conflict, c.Holder == Another && d.Write:
				t.Errorf("%s from %+v", d, c)
			case c.Holder == Nobody && fleet && d.Step != Register:
				t.Errorf("%s though the whole fleet expired, from %+v", d, c)
			case c.Holder == Nobody && !fleet && p == PolicyDrain && d.Mode.Mode == Active:
				t.Errorf("%s though others lived on, from %+v", d, c)
			case !d.Mode.Mode.Known():
				t.Errorf("%s from %+v", d, c)
			}
		}
	})
}
