package recovery

import (
	"strings"
	"testing"
)

// What could not be read, each in the words of its key.
var (
	noRecord = func(f *ClusterFacts) { f.KnownMember, f.OurEra, f.Unread.Record = false, 0, "members/n1 holds ?" }
	noEra    = func(f *ClusterFacts) { f.Unread.Era = "era holds ?" }
	noFleet  = func(f *ClusterFacts) { f.Era, f.Unread.Fleet = 4, "alive_until is ?" }
	noPeer   = func(f *ClusterFacts) { f.Peers, f.PeersSaid = Hidden, "members/n2 holds ?" }
	noNote   = func(f *StartupFacts) { f.Left = &PlannedStop{Unread: "left is ?"} }
)

func TestWhoCanOnlyBeExcusedByWhatCannotBeReadIsDrained(t *testing.T) {
	for _, c := range []struct {
		name   string
		unread func(*ClusterFacts)
		change func(*StartupFacts)
		row    Reason
	}{
		{"our record, others live", noRecord, nil, ReasonUnreadableRecord},
		{"our record, what stands may only linger", noRecord, func(f *StartupFacts) { f.Peers = Unwatched }, RowAwait},
		{"our record, what stood only lingered", noRecord, func(f *StartupFacts) { f.Peers = Lingering }, ReasonFullClusterRestart},
		{"our record, nobody is registered", noRecord, func(f *StartupFacts) { f.PeerPresent = false }, ReasonFullClusterRestart},
		{"our record, which may excuse it, and the fleet is known to have outlived us", noRecord, func(f *StartupFacts) { f.Outlived = "for long" }, ReasonUnreadableRecord},
		{"our record, adopted", noRecord, func(f *StartupFacts) { f.Adopted = true }, ReasonUnreadableRecord},
		{"our record, adopted, every peer younger than our last renewal", noRecord, func(f *StartupFacts) { f.Adopted, f.OldestPeer = true, 391 }, ReasonFullClusterRestart},
		{"our record, adopted, the broker's own registration is a new one", noRecord, func(f *StartupFacts) { f.Adopted, f.Holder, f.Reborn = true, Us, true }, ReasonUnreadableRecord},
		{"our record, the registration stands", noRecord, func(f *StartupFacts) { f.Holder = Us }, ReasonFastRestart},
		{"our record, drained by an operator", noRecord, func(f *StartupFacts) { f.Stored = byPerson(Drained) }, RowKept},
		{"our record, restored backup", noRecord, func(f *StartupFacts) { f.Revision = 399 }, ReasonRestoredBackup},
		{"our record, the data is missing", noRecord, func(f *StartupFacts) { f.Missing = "another disk" }, ReasonDataMissing},
		{"our record, the first boot", noRecord, func(f *StartupFacts) { f.Boot = FirstBoot }, ReasonBoot},
		{"our record, another incarnation is registered", noRecord, func(f *StartupFacts) { f.Holder = Another }, RowConflict},
		{"our record, without an etcd", noRecord, func(f *StartupFacts) { f.Told = true }, ReasonStaleRestart},
		{"the era, others live", noEra, nil, ReasonUnreadableRecord},
		{"the era, which has grown at least to that", noEra, func(f *StartupFacts) { f.Era = 4 }, ReasonFullClusterRestart},
		{"the era, what stands may only linger", noEra, func(f *StartupFacts) { f.Peers = Unwatched }, RowAwait},
		{"the era, what stood only lingered", noEra, func(f *StartupFacts) { f.Peers = Lingering }, ReasonFullClusterRestart},
		{"the era, nobody is registered", noEra, func(f *StartupFacts) { f.PeerPresent = false }, ReasonFullClusterRestart},
		{"the era, the registration stands", noEra, func(f *StartupFacts) { f.Holder = Us }, ReasonFastRestart},
		{"the era, after a planned stop", noEra, func(f *StartupFacts) { f.Left = &PlannedStop{At: noon} }, ReasonPlannedRestart},
		{"the era, first installation", noEra, func(f *StartupFacts) { f.Unknown = true }, ReasonFirstRegistration},
		{"until when the fleet was alive, in a new era", noFleet, nil, ReasonUnreadableRecord},
		{"until when the fleet was alive, and nobody is registered", noFleet, func(f *StartupFacts) { f.PeerPresent = false }, ReasonUnreadableRecord},
		{"until when the fleet was alive, in our own era", noFleet, func(f *StartupFacts) { f.Era = 3 }, ReasonStaleRestart},
		{"until when the fleet was alive, in our own era, and nobody is registered", noFleet, func(f *StartupFacts) { f.Era, f.PeerPresent = 3, false }, ReasonFullClusterRestart},
		{"until when the fleet was alive, the registration stands", noFleet, func(f *StartupFacts) { f.Holder = Us }, ReasonFastRestart},
		{"a peer's record", noPeer, nil, ReasonUnreadableRecord},
		{"a peer's record, in a new era", noPeer, func(f *StartupFacts) { f.Era = 4 }, ReasonFullClusterRestart},
		{"a peer's record, nobody is registered", noPeer, func(f *StartupFacts) { f.PeerPresent = false }, ReasonFullClusterRestart},
		{"the note of a planned stop, others live", nil, noNote, ReasonUnreadableRecord},
		{"the note of a planned stop, the fleet is known to have outlived us", nil, func(f *StartupFacts) { noNote(f); f.Outlived = "for long" }, ReasonUnreadableRecord},
		{"the note of a planned stop, in a new era", nil, func(f *StartupFacts) { noNote(f); f.Era = 4 }, ReasonFullClusterRestart},
		{"the note of a planned stop, the registration stands", nil, func(f *StartupFacts) { noNote(f); f.Holder = Us }, ReasonFastRestart},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := StartupFacts{ClusterFacts: member(c.unread), Boot: Restart, Return: hour}
			if c.change != nil {
				c.change(&f)
			}
			d := DecideStartup(f)
			if d.Row != c.row || d.Row == ReasonUnreadableRecord && (d.Mode != *byHoldfast(Drained, ReasonUnreadableRecord) || !d.Write) {
				t.Errorf("%s by %s: %s", d, d.Row, d.Detail)
			}
			if c.row == ReasonUnreadableRecord && (!strings.Contains(d.Detail, "?") || strings.Count(d.Detail, "?") > 1) {
				t.Errorf("%q does not say once what cannot be read", d.Detail)
			}
		})
	}
}

func TestALossThatOnlyWhatCannotBeReadCouldExcuseDrains(t *testing.T) {
	for _, c := range []struct {
		name   string
		unread func(*ClusterFacts)
		change func(*OutageFacts)
		row    Reason
	}{
		{"our record", noRecord, nil, ReasonUnreadableRecord},
		{"our record, policy shutdown", noRecord, func(f *OutageFacts) { f.Policy = PolicyShutdown }, ReasonUnreadableRecord},
		{"our record, policy reconnect", noRecord, func(f *OutageFacts) { f.Policy = PolicyReconnect }, RowReconnected},
		{"our record, policy reconnect, retries used up", noRecord, func(f *OutageFacts) { f.Policy, f.RetriesUsed = PolicyReconnect, true }, ReasonUnreadableRecord},
		{"our record, and others lost theirs", noRecord, func(f *OutageFacts) { f.LossShare, f.Beside = 0.5, SharedLoss{Looked: 2, Lost: 1} }, ReasonFleetExpired},
		{"our record, nobody is registered", noRecord, func(f *OutageFacts) { f.PeerPresent = false }, ReasonFleetExpired},
		{"our record, what stands may only linger", noRecord, func(f *OutageFacts) { f.Peers = Unwatched }, RowAwait},
		{"our record, the registration survived", noRecord, func(f *OutageFacts) { f.Holder = Us }, RowSurvived},
		{"our record, drained by an operator", noRecord, func(f *OutageFacts) { f.Stored = byPerson(Drained) }, RowKept},
		{"the era", noEra, nil, ReasonUnreadableRecord},
		{"the era, which has grown at least to that", noEra, func(f *OutageFacts) { f.Era = 4 }, ReasonFleetExpired},
		{"the era, nobody is registered", noEra, func(f *OutageFacts) { f.PeerPresent = false }, ReasonFleetExpired},
		{"until when the fleet was alive, in our own era", noFleet, func(f *OutageFacts) { f.Era = 3 }, ReasonRegistrationExpired},
		{"a peer's record", noPeer, nil, ReasonUnreadableRecord},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := OutageFacts{ClusterFacts: member(c.unread), Policy: PolicyDrain, Had: *byHoldfast(Active, ReasonBoot)}
			if c.change != nil {
				c.change(&f)
			}
			if d := DecideOutage(f); d.Row != c.row || d.Row == ReasonUnreadableRecord && d.Mode != *byHoldfast(Drained, ReasonUnreadableRecord) {
				t.Errorf("%s by %s: %s", d, d.Row, d.Detail)
			}
		})
	}
}
