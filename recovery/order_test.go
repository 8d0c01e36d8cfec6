package recovery

import (
	"reflect"
	"strings"
	"testing"
)

// rule is a row of a table, with facts that fit it.
type rule[F any] struct {
	name string
	row  Reason
	of   string // what the facts are about; two rules may contradict each other about the same
	fit  func(f *F)
}

// contradicts reports whether both are about the same.
func (r rule[F]) contradicts(other rule[F]) bool {
	for _, what := range strings.Fields(r.of) {
		if strings.Contains(other.of, what) {
			return true
		}
	}
	return false
}

// decidesFirst holds a table against its order: facts that fit two rows give the earlier one.
func decidesFirst[F any](t *testing.T, base F, decide func(F) Decision, rules []rule[F]) {
	t.Helper()
	pairs := 0
	for i, first := range rules {
		f := base
		first.fit(&f)
		if d := decide(f); d.Row != first.row {
			t.Errorf("%s: row %s (%s), want %s", first.name, d.Row, d.Detail, first.row)
		}
		for _, later := range rules[i+1:] {
			if first.row == later.row {
				continue
			}
			both, either := base, base
			later.fit(&both)
			first.fit(&both)
			first.fit(&either)
			later.fit(&either)
			if !reflect.DeepEqual(both, either) {
				if !first.contradicts(later) {
					t.Errorf("%s, and %s: both cannot be", first.name, later.name)
				}
				continue
			}
			pairs++
			if d := decide(both); d.Row != first.row {
				t.Errorf("%s, and %s: row %s (%s), want %s", first.name, later.name, d.Row, d.Detail, first.row)
			}
		}
	}
	if all := len(rules) * (len(rules) - 1) / 2; pairs < all*3/4 {
		t.Errorf("only %d of %d pairs compete", pairs, all)
	}
}

var justLeft = &PlannedStop{At: hour.Now}

func TestOfTwoRowsOfTheStartupTableTheEarlierDecides(t *testing.T) {
	type f = *StartupFacts
	byOperator, byRecovery := byPerson(Drained), byHoldfast(Drained, ReasonStaleRestart)
	draining := byPerson(Draining)
	base := StartupFacts{ClusterFacts: member(nil), Boot: Restart, Return: hour}
	decidesFirst(t, base, DecideStartup, []rule[StartupFacts]{
		{"another incarnation is registered", RowConflict, "holder", func(f f) { f.Holder = Another }},
		{"a revision above etcd's is remembered", ReasonRestoredBackup, "", func(f f) { f.Remembered = 501 }},
		{"a confirmed revoke is undone", ReasonRestoredBackup, "holder", func(f f) { f.Undone, f.Holder = true, Us }},
		{"the state file is torn", ReasonCorruptState, "", func(f f) { f.StateFileCorrupt = "torn" }},
		{"the mode is garbled", ReasonUnreadableMode, "state", func(f f) { f.StoredGarbled, f.Stored = true, nil }},
		{"an operator drained it", RowKept, "state", func(f f) { f.Stored = byOperator }},
		{"an operator drains it", RowKept, "state", func(f f) { f.Stored = draining }},
		{"recovery drained it", RowKept, "state", func(f f) { f.Stored, f.Last = byRecovery, byRecovery }},
		{"it was drained, and its state key is gone", RowKept, "state", func(f f) { f.Stored, f.Last = nil, byOperator }},
		{"--join, no member yet", ReasonJoin, "state", func(f f) { f.Join, f.KnownMember, f.Stored = true, false, nil }},
		{"--join, a broker that registers itself", ReasonJoin, "", func(f f) { f.Join, f.KnownMember, f.Adopted = true, false, true }},
		{"its data is gone", ReasonDataMissing, "", func(f f) { f.Missing = "another disk" }},
		{"first boot", ReasonBoot, "", func(f f) { f.Boot = FirstBoot }},
		{"its registration is there", ReasonFastRestart, "holder", func(f f) { f.Holder = Us }},
		{"never registered here, and serves what is others'", ReasonUnknownData, "", func(f f) { f.Unknown, f.Strange = true, "/default/a" }},
		{"never registered here", ReasonFirstRegistration, "", func(f f) { f.Unknown = true }},
		{"it left on purpose", ReasonPlannedRestart, "", func(f f) { f.Left = justLeft }},
		{"the fleet outlived it, and restarted later", ReasonStaleRestart, "", func(f f) { f.Era, f.Outlived = 4, "the fleet lived on" }},
		{"nobody is registered", ReasonFullClusterRestart, "", func(f f) { f.PeerPresent = false }},
		{"somebody came first in a new era", ReasonFullClusterRestart, "", func(f f) { f.Era = 4 }},
		{"keys stand, and nobody looked at them yet", RowAwait, "peers", func(f f) { f.Peers = Unwatched }},
		{"keys only linger", ReasonFullClusterRestart, "peers", func(f f) { f.Peers = Lingering }},
		{"a peer lived on", ReasonStaleRestart, "peers", func(f f) { f.Peers = Alive }},
	})
}

func TestOfTwoRowsOfTheOutageTableTheEarlierDecides(t *testing.T) {
	type f = *OutageFacts
	byOperator, byRecovery := byPerson(Drained), byHoldfast(Drained, ReasonStaleRestart)
	shared := CompareLoss([]Companion{{ID: "n1", Lost: true}, {ID: "n2"}}, 390)
	base := OutageFacts{ClusterFacts: member(nil), Policy: PolicyDrain, Had: *byHoldfast(Active, ReasonBoot), LossShare: 0.5}
	decidesFirst(t, base, DecideOutage, []rule[OutageFacts]{
		{"another incarnation is registered", RowConflict, "holder", func(f f) { f.Holder = Another }},
		{"a revision above etcd's is remembered", ReasonRestoredBackup, "", func(f f) { f.Remembered = 501 }},
		{"a confirmed revoke is undone", ReasonRestoredBackup, "holder", func(f f) { f.Undone, f.Holder = true, Us }},
		{"the registration survived", RowSurvived, "holder", func(f f) { f.Holder = Us }},
		{"the state file is torn", ReasonCorruptState, "", func(f f) { f.StateFileCorrupt = "torn" }},
		{"the mode is garbled", ReasonUnreadableMode, "state", func(f f) { f.StoredGarbled, f.Stored = true, nil }},
		{"an operator drained it meanwhile", RowKept, "state", func(f f) { f.Stored = byOperator }},
		{"it was drained, and its state key is gone", RowKept, "state", func(f f) { f.Stored, f.Last, f.Had = nil, byRecovery, *byRecovery }},
		{"nobody is registered", ReasonFleetExpired, "", func(f f) { f.PeerPresent = false }},
		{"somebody came first in a new era", ReasonFleetExpired, "", func(f f) { f.Era = 4 }},
		{"keys only linger", ReasonFleetExpired, "peers", func(f f) { f.Peers = Lingering }},
		{"keys stand, and nobody looked at them yet", RowAwait, "peers policy", func(f f) { f.Peers, f.Policy = Unwatched, PolicyDrain }},
		{"the same, and the policy is shutdown", RowAwait, "peers policy", func(f f) { f.Peers, f.Policy = Unwatched, PolicyShutdown }},
		{"others lost theirs, too", ReasonFleetExpired, "", func(f f) { f.Beside = shared }},
		{"the policy is shutdown", ReasonSessionExpired, "policy", func(f f) { f.Policy = PolicyShutdown }},
		{"the policy is reconnect, retries used up", ReasonSessionExpired, "policy", func(f f) { f.Policy, f.RetriesUsed = PolicyReconnect, true }},
		{"the policy is reconnect", RowReconnected, "policy", func(f f) { f.Policy = PolicyReconnect }},
		{"a peer lived on", ReasonRegistrationExpired, "peers", func(f f) { f.Peers = Alive }},
	})
}
