package recovery

import (
	"strings"
	"testing"
	"time"
)

func TestABrokerThatIsIllLosesItsRegistrationOnlyBesideAWellPeer(t *testing.T) {
	held, letGo := Illness{Care: CareHold, Reason: ReasonAlone}, Illness{Care: CareLetGo, Reason: ReasonPeerWell}
	for _, row := range []struct {
		name   string
		facts  IllFacts
		care   Care
		reason Reason
	}{
		{"it is well", IllFacts{Held: true, Looked: true}, CareUndecided, ""},
		{"its process has ended", IllFacts{Held: true, Looked: true, Before: held}, CareUndecided, ""},
		{"its registration is not surely held", IllFacts{Ill: true, Looked: true, Before: held}, CareUndecided, ""},
		{"nobody looked", IllFacts{Ill: true, Held: true}, CareUndecided, ""},
		{"etcd does not answer while it is held", IllFacts{Ill: true, Held: true, Before: held}, CareHold, ReasonAlone},
		{"etcd does not answer while it is let go", IllFacts{Ill: true, Held: true, Before: letGo}, CareLetGo, ReasonPeerWell},
		{"alone", IllFacts{Ill: true, Held: true, Looked: true}, CareHold, ReasonAlone},
		{"alone by now", IllFacts{Ill: true, Held: true, Looked: true, Before: letGo}, CareHold, ReasonAlone},
		{"all are ill", IllFacts{Ill: true, Held: true, Looked: true, Others: Others{Ill: 2}}, CareHold, ReasonAllIll},
		{"all are ill, and some are gone", IllFacts{Ill: true, Held: true, Looked: true, Others: Others{Ill: 2, Sunk: 1}}, CareHold, ReasonAllIll},
		{"one is ill, one is older than the word", IllFacts{Ill: true, Held: true, Looked: true, Others: Others{Ill: 1, Silent: 1}}, CareHold, ReasonNoneKnown},
		{"all are older than the word", IllFacts{Ill: true, Held: true, Looked: true, Others: Others{Silent: 2}}, CareHold, ReasonNoneKnown},
		{"the others say well, and are gone", IllFacts{Ill: true, Held: true, Looked: true, Others: Others{Sunk: 2}}, CareHold, ReasonNoneKnown},
		{"one is well", IllFacts{Ill: true, Held: true, Looked: true, Others: Others{Well: "n2", Ill: 3, Silent: 1}}, CareLetGo, ReasonPeerWell},
		{"one was found well while it was held", IllFacts{Ill: true, Held: true, Looked: true, Before: held, Others: Others{Well: "n2"}}, CareLetGo, ReasonPeerWell},
		{"one says well, and is looked at once more", IllFacts{Ill: true, Held: true, Looked: true, Others: Others{Awaits: "n2", Ill: 1}}, CareUndecided, ""},
		{"the same while it is held", IllFacts{Ill: true, Held: true, Looked: true, Before: held, Others: Others{Awaits: "n2"}}, CareHold, ReasonAlone},
	} {
		if got := RuleIllness(row.facts); got.Care != row.care || got.Reason != row.reason {
			t.Errorf("%s: %+v", row.name, got)
		}
	}
	for _, r := range HeldReasons {
		if HeldWords(r) == "" {
			t.Errorf("no words for %s", r)
		}
	}
}

// peerAt is a peer that says so at a moment, with that left of its lease of 32 s.
func peerAt(h Health, at, left time.Duration) PeerSeen {
	return PeerSeen{Health: h, Sighting: Sighting{Peer: "n2", Lease: 7, Asked: at, Answered: at + time.Millisecond, Left: left, Granted: 32 * time.Second}}
}

func TestAPeerIsWellOnlyWhileItSaysSoAndItsLeaseRises(t *testing.T) {
	const s = time.Second
	type look struct {
		term uint64
		seen PeerSeen
		want Others
	}
	well, awaits, sunk := Others{Well: "n2"}, Others{Awaits: "n2"}, Others{Sunk: 1}
	short := func(at time.Duration) PeerSeen {
		p := peerAt(HealthWell, at, 0)
		p.Granted = 5 * s
		return p
	}
	for name, looks := range map[string][]look{
		"its lease rises":                         {{1, peerAt(HealthWell, 10*s, 30*s), awaits}, {1, peerAt(HealthWell, 14*s, 31*s), well}},
		"its lease stays, renewed between":        {{1, peerAt(HealthWell, 10*s, 30*s), awaits}, {1, peerAt(HealthWell, 14*s, 30*s), well}},
		"its lease sinks":                         {{1, peerAt(HealthWell, 10*s, 30*s), awaits}, {1, peerAt(HealthWell, 14*s, 26*s), sunk}},
		"its lease stands still":                  {{1, peerAt(HealthWell, 10*s, 20*s), awaits}, {1, peerAt(HealthWell, 14*s, 20*s), sunk}},
		"it is renewed less often than we look":   {{1, peerAt(HealthWell, 10*s, 30*s), awaits}, {1, peerAt(HealthWell, 14*s, 26*s), sunk}, {1, peerAt(HealthWell, 18*s, 31*s), well}, {1, peerAt(HealthWell, 22*s, 27*s), well}},
		"it rose, and that is long ago":           {{1, peerAt(HealthWell, 10*s, 30*s), awaits}, {1, peerAt(HealthWell, 14*s, 31*s), well}, {1, peerAt(HealthWell, 23*s, 22*s), sunk}},
		"it rose, and says that it is ill by now": {{1, peerAt(HealthWell, 10*s, 30*s), awaits}, {1, peerAt(HealthWell, 14*s, 31*s), well}, {1, peerAt(HealthIll, 18*s, 31*s), Others{Ill: 1}}},
		"a leader was elected between":            {{1, peerAt(HealthWell, 10*s, 20*s), awaits}, {2, peerAt(HealthWell, 14*s, 32*s), awaits}, {2, peerAt(HealthWell, 18*s, 28*s), sunk}},
		"it was looked at a moment ago":           {{1, peerAt(HealthWell, 10*s, 31*s), awaits}, {1, peerAt(HealthWell, 10*s+100*time.Millisecond, 31*s), awaits}},
		"a short lease stays at its end":          {{1, short(10 * s), awaits}, {1, short(16 * s), sunk}},
		"it says a word that is not known here":   {{1, peerAt("fair", 10*s, 30*s), Others{Silent: 1}}, {1, peerAt("fair", 14*s, 31*s), Others{Silent: 1}}},
		"its sidecar is older than the word":      {{1, peerAt(HealthUntold, 10*s, 30*s), Others{Silent: 1}}},
		"etcd does not let us ask":                {{1, PeerSeen{Health: HealthWell, Sighting: Sighting{Peer: "n2", Refused: "no right"}}, Others{Silent: 1, Refused: "no right"}}},
		"the leader does not know its lease yet":  {{1, PeerSeen{Health: HealthWell, Sighting: Sighting{Peer: "n2", Lease: 7, Unknown: true}}, Others{Silent: 1}}},
	} {
		var w Witnesses
		for i, l := range looks {
			if got := w.Look(l.term, []PeerSeen{l.seen}, l.seen.Answered); got != l.want {
				t.Errorf("%s: look %d: %+v, want %+v", name, i+1, got, l.want)
			}
		}
	}
}

// Peers notice a moment after us what befalls all, so the look is late, and there is time for a second.
func TestTheOthersAreLookedAtShortlyBeforeTheFencePoint(t *testing.T) {
	const s = time.Second
	hold, renewal, ttl := Illness{Care: CareHold}, 4*s, 32*s
	for _, row := range []struct {
		name   string
		ruling Illness
		awaits bool
		last   time.Duration
		want   time.Duration
	}{
		{"the first time", Illness{}, false, 0, 93 * s},
		{"once more", Illness{}, true, 93 * s, 97 * s},
		{"it is let go", Illness{Care: CareLetGo}, false, 97 * s, 101 * s},
		{"it was let go long before", Illness{Care: CareLetGo}, false, 70 * s, 93 * s},
		{"it is held", hold, false, 97 * s, 113 * s},
		{"it is held, and a peer says that it is well", hold, true, 97 * s, 101 * s},
	} {
		if got := NextLook(row.ruling, row.awaits, row.last, 100*s, renewal, ttl); got != row.want {
			t.Errorf("%s: at %v, want %v", row.name, got, row.want)
		}
	}
	if got := NextLook(hold, false, 100*s, 104*s, s/2, 2*s); got != 101*s {
		t.Errorf("with a TTL of 2 s: at %v", got)
	}
}

func TestHowTheOthersAreIsSaid(t *testing.T) {
	for o, want := range map[Others]string{
		{Ill: 1}:                                "and 2 do not renew their leases",
		{Silent: 1, Refused: "etcd refuses n1"}: "(etcd refuses n1)",
	} {
		o.Sunk = 2
		got := RuleIllness(IllFacts{Ill: true, Held: true, Looked: true, Others: o}).Detail
		if !strings.HasSuffix(got, want) {
			t.Errorf("%+v: %q", o, got)
		}
	}
}
