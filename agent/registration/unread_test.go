package registration

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/cluster"
	"holdfast/recovery"
)

const garbledEra = `{"era":"many"}`

// garbleNote leaves a note of a planned stop that cannot be read.
func (o *outage) garbleNote() {
	o.t.Helper()
	o.putValue(o.client.Keys().Member("n1"), `{"era":1,"incarnation":"mine","left":{"at":"soon"}}`)
}

// A sidecar is restarted with its broker, or only the registration was lost (again is false). What
// is foretold of it is what it decides.
func TestARecordThatCannotBeReadConcernsWhomOnlyItCouldExcuse(t *testing.T) {
	const whole = "" // nothing that cannot be read is left afterwards
	for _, c := range []struct {
		name  string
		again bool
		play  func(o *outage)
		row   recovery.Reason
		left  string // what cannot be read of the era afterwards
	}{
		{"the era, the registration stands", true, func(o *outage) { o.writeEra(garbledEra) }, recovery.ReasonFastRestart, garbledEra},
		{"the era, the process and its registration stand", false, func(o *outage) { o.writeEra(garbledEra) }, recovery.RowSurvived, garbledEra},
		{"the era, written since, others are registered", true, func(o *outage) { o.lose(); o.writeEra(garbledEra) }, recovery.ReasonUnreadableRecord, garbledEra},
		{"the era, written before", true, func(o *outage) { o.writeEra(garbledEra); o.past.Past.ConfirmedAt = o.snapshot().Revision; o.lose() }, recovery.ReasonStaleRestart, garbledEra},
		{"the era, and the whole cluster restarts", true, func(o *outage) { o.writeEra(garbledEra); o.everybodyElseGoes() }, recovery.ReasonFullClusterRestart, whole},
		{"the era, and the whole cluster has restarted", true, func(o *outage) { o.writeEra(garbledEra); o.everybodyElseGoes(); o.peer("n2") }, recovery.ReasonFullClusterRestart, whole},
		{"the era, after all leases ended and the process runs on", false, func(o *outage) { o.everybodyElseGoes(); o.writeEra(garbledEra) }, recovery.ReasonFleetExpired, whole},
		{"a member record of others", true, func(o *outage) { o.lose(); o.garble("n2") }, recovery.ReasonStaleRestart, whole},
		{"our member record, the registration stands", true, func(o *outage) { o.garble("n1") }, recovery.ReasonFastRestart, whole},
		{"our member record, the process and its registration stand", false, func(o *outage) { o.garble("n1") }, recovery.RowSurvived, whole},
		{"our member record, others lived on", true, func(o *outage) { o.lose(); o.garble("n1") }, recovery.ReasonUnreadableRecord, whole},
		{"our member record, the registration was lost", false, func(o *outage) { o.lose(); o.garble("n1") }, recovery.ReasonUnreadableRecord, whole},
		{"our member record, policy reconnect", false, func(o *outage) { o.Config.SessionExpiredPolicy = "reconnect"; o.lose(); o.garble("n1") }, recovery.RowReconnected, whole},
		{"our member record, and the whole cluster restarts", true, func(o *outage) { o.everybodyElseGoes(); o.garble("n1") }, recovery.ReasonFullClusterRestart, whole},
		{"our member record and the era, nobody else is registered", true,
			func(o *outage) { o.everybodyElseGoes(); o.garble("n1"); o.writeEra(garbledEra) }, recovery.ReasonFullClusterRestart, whole},
		{"the note of our planned stop, others lived on", true, func(o *outage) { o.lose(); o.garbleNote() }, recovery.ReasonUnreadableRecord, whole},
		{"the note of our planned stop, nobody else is registered", true, func(o *outage) { o.everybodyElseGoes(); o.garbleNote() }, recovery.ReasonFullClusterRestart, whole},
		{"drained by an operator", true, func(o *outage) {
			o.past.Mode = recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}
			if _, err := o.client.PutState(o.t.Context(), "n1", *StateOf(o.past.Mode), o.snapshot().StateRevision); err != nil {
				o.t.Fatal(err)
			}
			o.lose()
			o.garble("n1")
		}, recovery.RowKept, whole},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			c.play(o)
			if c.again {
				o.restartsAs("process-2")
				o.stood = false
			}
			seen := o.snapshot()
			keys := o.client.Keys()
			f, err := o.foretells()
			if err != nil || f.Decision.Row != c.row || f.Unread != unreadable(seen) ||
				seen.Era.Unread != "" && !strings.Contains(f.Unread, "at key "+keys.Era()) || seen.MemberMalformed != "" && !strings.Contains(f.Unread, "at key "+keys.Member("n1")) {
				t.Errorf("foretold %+v, %v", f, err)
			}
			o.establish(o.past.Past.LeaseID)
			out := o.outcomes[len(o.outcomes)-1]
			if d := out.Decision; d.Row != c.row || d.Row == recovery.ReasonUnreadableRecord && (o.snapshot().State.Mode != cluster.ModeDrained || !strings.Contains(d.Detail, "at key /cluster/")) {
				t.Errorf("%s by %s: %s; %+v", d, d.Row, d.Detail, o.snapshot().State)
			}
			if (out.Unread == "") != (unreadable(seen) == "") || !strings.HasPrefix(out.Unread, unreadable(seen)) {
				t.Errorf("it says that %q cannot be read, and that is %q", out.Unread, unreadable(seen))
			}
			after := o.snapshot()
			if left := fmt.Sprintf("%q at key %s", c.left, keys.Era()); c.left == whole && unreadable(after) != "" || c.left != whole && unreadable(after) != "era "+left {
				t.Errorf("afterwards %q cannot be read, want %q", unreadable(after), c.left)
			}
			if after.Member == nil || after.Member.Era < seen.Era.N || after.Era.N < after.Member.Era {
				t.Errorf("era %+v, our record %+v; they were %+v and %+v", after.Era, after.Member, seen.Era, seen.Member)
			}
		})
	}
}

// A lease is given up on purpose only if that can be noted.
func TestWhoseRecordCannotBeReadDoesNotLeave(t *testing.T) {
	o := newOutage(t, "drain")
	o.garble("n1")
	if err := NoteDeparture(t.Context(), o.client, o.departs()); err == nil || !strings.Contains(err.Error(), "at key "+o.client.Keys().Member("n1")) {
		t.Errorf("%v", err)
	}
}
