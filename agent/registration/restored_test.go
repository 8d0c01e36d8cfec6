package registration

import (
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/recovery"
)

func TestAStateThatIsOlderThanItWasIsARestoredBackup(t *testing.T) {
	for name, row := range map[string]struct {
		known int64 // of the state key, beyond the store's revision
		row   recovery.Reason
	}{
		"the store has passed what is known": {0, recovery.ReasonRestoredBackup},
		"it was read before that":            {1, recovery.RowSurvived},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutage(t, "drain")
			s := o.snapshot()
			o.past.ModeRev = s.Revision + row.known
			if s.StateRevision >= s.Revision {
				t.Fatalf("the state is at %d, etcd at %d", s.StateRevision, s.Revision)
			}
			o.establish(o.first.LeaseID)
			out := o.outcomes[len(o.outcomes)-1]
			if out.Decision.Row != row.row || out.Restored != (row.row == recovery.ReasonRestoredBackup) {
				t.Errorf("%s by %s: %s", out.Decision, out.Decision.Row, out.Decision.Detail)
			}
		})
	}
}

func TestARevokeThatIsUndoneIsARestoredBackup(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(o *outage)
		want   recovery.Reason
	}{
		{"the registration stands that was given up", func(*outage) {}, recovery.ReasonRestoredBackup},
		{"one from before it stands", func(o *outage) { o.past.Past.Epoch += 7 }, recovery.ReasonRestoredBackup},
		{"it was not given up", func(o *outage) { o.past.Past.Released = false }, recovery.ReasonFastRestart},
		{"it was registered since, and that was not saved", func(o *outage) { o.past.Past.Epoch-- }, recovery.ReasonFastRestart},
		{"it is gone", func(o *outage) { o.lose() }, recovery.ReasonStaleRestart},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			o.Run, o.stood = "after", false
			o.past.Value, o.past.Instance = valueOfRun("after"), "process-2"
			o.past.Mode = recovery.ModeRecord{}
			m := &o.past.Past
			m.Released, m.Mode, m.Reason = true, string(recovery.Active), string(recovery.ReasonBoot)
			c.change(o)
			if _, err := o.Establish(t.Context(), 0, false); err != nil {
				t.Fatal(err)
			}
			if d := o.outcomes[len(o.outcomes)-1].Decision; d.Mode.Reason != c.want || (d.Mode.Mode == recovery.Active) != (c.want == recovery.ReasonFastRestart) {
				t.Errorf("%s: %s; want %s", d, d.Detail, c.want)
			}
		})
	}
}

// A renewal saw a revision that nobody wrote for this broker.
func TestARenewalsRevisionIsRemembered(t *testing.T) {
	o := newOutage(t, "drain")
	o.past.Past.ConfirmedAt = o.snapshot().Revision + 1
	o.past.Instance, o.past.Past.Mode = "process-2", string(recovery.Active)
	o.establish(0)
	if d := o.outcomes[len(o.outcomes)-1].Decision; d.Mode.Reason != recovery.ReasonRestoredBackup {
		t.Errorf("%s: %s", d, d.Detail)
	}
	o.takeUp()
	o.past.Instance = "process-3"
	if _, err := o.store.Put(t.Context(), &etcdserverpb.PutRequest{Key: []byte("life")}); err != nil {
		t.Fatal(err)
	}
	o.establish(0)
	if out := o.outcomes[len(o.outcomes)-1]; out.Restored {
		t.Errorf("%s: a restored etcd is one only until it was looked at", out.Decision)
	}
}
