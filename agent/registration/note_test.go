package registration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// departs is the departure of the broker whose registration is lost next.
func (o *outage) departs() Departure {
	return Departure{Who: cluster.Who{Name: "n1", Registered: "n1"}, Grant: o.first, Instance: o.past.Past.Instance, Incarnation: "mine"}
}

func (o *outage) leave() {
	o.t.Helper()
	if err := NoteDeparture(o.t.Context(), o.client, o.departs()); err != nil {
		o.t.Fatal(err)
	}
}

func (o *outage) set(mode, by string) {
	o.t.Helper()
	if _, err := o.client.PutState(o.t.Context(), "n1", cluster.State{Mode: mode, Reason: "disk swap", By: by}, o.snapshot().StateRevision); err != nil {
		o.t.Fatal(err)
	}
}

func TestANoteRestsOnWhatEtcdHolds(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(o *outage)
		says   string // empty: it is noted
	}{
		{"nothing changed", func(*outage) {}, ""},
		{"activated by an operator", func(o *outage) { o.set(cluster.ModeActive, recovery.ByOperator) }, ""},
		{"drained by an operator", func(o *outage) { o.set(cluster.ModeDrained, recovery.ByOperator) }, "drained (disk swap)"},
		{"draining by an operator", func(o *outage) { o.set(cluster.ModeDraining, recovery.ByOperator) }, "draining (disk swap)"},
		{"the lease has gone", (*outage).lose, "the registration is not the one"},
		{"another incarnation's member record", func(o *outage) { o.lose(); o.peer("n1") }, "the registration is not the one"},
		{"the member record is deleted", func(o *outage) { o.erase(o.client.Keys().Member("n1")) }, "member record"},
		{"the state key is deleted", func(o *outage) { o.erase(o.client.Keys().State("n1")) }, "mode"},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			d := o.departs()
			row.change(o)
			err := NoteDeparture(t.Context(), o.client, d)
			if row.says == "" && err != nil || row.says != "" && (err == nil || !strings.Contains(err.Error(), row.says)) {
				t.Errorf("%v, want %q", err, row.says)
			}
			if left := noted(o.snapshot()); left != (row.says == "") {
				t.Errorf("noted: %v", left)
			}
		})
	}
}

func TestAnEtcdThatDoesNotAnswerLeavesNoNote(t *testing.T) {
	o := newOutage(t, "drain")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := NoteDeparture(ctx, o.client, o.departs()); !errors.Is(err, context.Canceled) || noted(o.snapshot()) {
		t.Errorf("%v, noted %v", err, noted(o.snapshot()))
	}
}

func (o *outage) erase(key string) {
	o.t.Helper()
	if _, err := o.store.DeleteRange(o.t.Context(), &etcdserverpb.DeleteRangeRequest{Key: []byte(key)}); err != nil {
		o.t.Fatal(err)
	}
}

// backAs is a sidecar that is started again, with what its state file holds.
func (o *outage) backAs(change func(m *Past)) {
	o.past.Mode, o.past.Past.Mode, o.past.Past.Reason, o.past.Past.By = recovery.ModeRecord{}, "active", "boot", recovery.ByHoldfast
	o.past.Instance = "process-2"
	o.past.Boot = recovery.BootFacts{OldestMarker: time.Now().Add(-time.Hour), MarkerPath: "data", BrokerStartedAt: time.Now()}
	if change != nil {
		change(&o.past.Past)
	}
}

func TestABrokerThatLeftOnPurposeComesBackActive(t *testing.T) {
	nothing := func(*outage) {}
	released := func(m *Past) { m.LeaseID, m.Released = 0, true }
	for _, row := range []struct {
		name   string
		gone   bool // the lease
		change func(o *outage)
		back   func(m *Past)
		mode   recovery.Mode
		reason recovery.Reason
	}{
		{"its lease was revoked", true, nothing, released, recovery.Active, recovery.ReasonPlannedRestart},
		{"its state directory is lost", true, nothing, func(m *Past) { *m = Past{Incarnation: "new"} }, recovery.Active, recovery.ReasonPlannedRestart},
		{"the revoke was not confirmed, and the lease ran out", true, nothing, nil, recovery.Active, recovery.ReasonPlannedRestart},
		{"the same, of a broker that runs on", true, func(o *outage) { o.past.Instance = "process-1" }, nil, recovery.Active, recovery.ReasonPlannedRestart},
		{"the revoke failed, and it is back within the TTL", false, nothing, nil, recovery.Active, recovery.ReasonFastRestart},
		{"an operator drained meanwhile", true, func(o *outage) { o.set(cluster.ModeDrained, recovery.ByOperator) }, released, recovery.Drained, "disk swap"},
		{"an operator drained and activated meanwhile", true, func(o *outage) {
			o.set(cluster.ModeDrained, recovery.ByOperator)
			o.set(cluster.ModeActive, recovery.ByOperator)
		}, released, recovery.Active, recovery.ReasonPlannedRestart},
		{"recovery is paused", true, func(o *outage) { o.onPause = true }, released, recovery.Active, recovery.ReasonPlannedRestart},
		{"--return-within is over", true, func(o *outage) { o.Config.ReturnWithin = -time.Second }, released, recovery.Drained, recovery.ReasonStaleRestart},
		{"the same, and the pause lasts", true, func(o *outage) {
			o.Config.ReturnWithin, o.onPause = -time.Second, true
		}, released, recovery.Active, recovery.ReasonPlannedRestart},
	} {
		inBubble(t, row.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			o.leave()
			held := int64(0)
			if row.gone {
				o.lose()
			}
			o.backAs(row.back)
			row.change(o)
			if held = o.past.Past.LeaseID; held != 0 && row.gone {
				held = 0
			}
			o.establish(held)
			d := o.outcomes[len(o.outcomes)-1].Decision
			if d.Mode.Mode != row.mode || d.Mode.Reason != row.reason {
				t.Errorf("%s: %s", d, d.Detail)
			}
			if s := o.snapshot(); noted(s) || s.State == nil || s.State.Mode != string(row.mode) {
				t.Errorf("noted %v, state %+v", noted(s), s.State)
			}
		})
	}
}

func TestWhoLeftAndIsBackOnOtherDataIsJudgedByTheRowsBelow(t *testing.T) {
	for found, reason := range map[recovery.DataID]recovery.Reason{
		"jetstream@7:1": recovery.ReasonPlannedRestart, "": recovery.ReasonPlannedRestart, "jetstream@8:2": recovery.ReasonStaleRestart,
	} {
		inBubble(t, string(found), func(t *testing.T) {
			o := newOutage(t, "drain")
			d := o.departs()
			d.Data = "jetstream@7:1"
			if err := NoteDeparture(t.Context(), o.client, d); err != nil {
				t.Fatal(err)
			}
			o.lose()
			o.backAs(func(m *Past) { m.LeaseID, m.Released = 0, true })
			o.past.Data = found
			o.establish(0)
			if d := o.outcomes[len(o.outcomes)-1].Decision; d.Mode.Reason != reason {
				t.Errorf("%s: %s", d, d.Detail)
			}
		})
	}
}

// A note that stays would excuse the next crash.
func TestABrokerThatCameBackAndCrashedIsNotExcusedByItsNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutage(t, "drain")
		o.leave()
		o.lose()
		o.backAs(func(m *Past) { m.LeaseID, m.Released = 0, true })
		o.first = o.establish(0)
		o.takeUp()
		o.lose()
		o.backAs(nil)
		o.past.Instance = "process-3"
		o.establish(0)
		if d := o.outcomes[len(o.outcomes)-1].Decision; d.Mode.Reason != recovery.ReasonStaleRestart {
			t.Errorf("%s: %s", d, d.Detail)
		}
	})
}

func TestAnAdoptedRegistrationTakesTheNoteAwayToo(t *testing.T) {
	o := newOutage(t, "drain")
	o.leave()
	o.Config.Registration = "adopt"
	if g := o.establish(o.first.LeaseID); g.LeaseID != o.first.LeaseID || noted(o.snapshot()) {
		t.Errorf("%+v, noted %v", g, noted(o.snapshot()))
	}
}

// The note is whoever's is first: the second finds it gone, and the first registered.
func TestTwoThatComeBackWithOneNameDoNotShareOneNote(t *testing.T) {
	o := newOutage(t, "drain")
	o.leave()
	o.lose()
	o.backAs(func(m *Past) { m.LeaseID, m.Released = 0, true })
	seen := o.snapshot()
	o.establish(0)
	copied := New(o.Deps)
	other := o.past
	other.Past.Incarnation, other.Value = "copy", []byte(`{"incarnation":"copy"}`)
	copied.Life = func() Life { return other }
	var out Outcome
	err := copied.register(t.Context(), o.client, seen, 0, other, &out)
	if !errors.Is(err, cluster.ErrChanged) {
		t.Errorf("registered on the note that it saw: %v", err)
	}
	if _, err := copied.Establish(t.Context(), 0, false); !errors.Is(err, lease.ErrConflict) {
		t.Errorf("%v, want a conflict", err)
	}
}

// etcd does not drop a request whose sender has gone away: a note may be written after it was
// given up, and would excuse a crash.
func TestANoteThatComesLateIsRefused(t *testing.T) {
	o := newOutage(t, "drain")
	late := cluster.LeaveRequest{Seen: o.snapshot(), Epoch: o.first.Epoch, LeaseID: o.first.LeaseID,
		Left: cluster.Left{At: time.Now(), Epoch: o.first.Epoch, Instance: "process-1"}}
	o.past.Unsure = 2
	o.establish(o.first.LeaseID)
	if out := o.outcomes[len(o.outcomes)-1]; out.Unsure != 2 || out.Grant.Epoch != o.first.Epoch {
		t.Errorf("%+v", out)
	}
	if _, err := o.client.Leave(t.Context(), late); !errors.Is(err, cluster.ErrChanged) {
		t.Errorf("%v, want that it is refused", err)
	}
}

// The sidecar was killed after it had noted the departure, and had not remembered it yet.
func TestAProcessThatHasLeftIsKnownByItsNote(t *testing.T) {
	for _, row := range []struct {
		name   string
		stop   bool // its process was to end
		change func(o *outage)
		waits  bool
	}{
		{"its lease lives", true, func(*outage) {}, true},
		{"its lease has ended", true, func(o *outage) { o.lose(); o.past.Past.LeaseID = 0 }, true},
		{"only its sidecar was to end", false, func(*outage) {}, false},
		{"another process answers", true, func(o *outage) { o.past.Instance = "process-2" }, false},
		{"it was registered again since", true, func(o *outage) { o.past.Past.Epoch++ }, false},
		{"--leave-timeout is over", true, func(o *outage) { o.Config.LeaveTimeout = time.Minute; time.Sleep(time.Minute) }, false},
		{"it was called back, or is registered by this sidecar", true, func(o *outage) { o.past.Recalls = false }, false},
	} {
		inBubble(t, row.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			d := o.departs()
			d.Stop, o.past.Recalls = row.stop, true
			var recalled []LeftProcess
			o.Recall = func(_ context.Context, left LeftProcess) { recalled = append(recalled, left) }
			if err := NoteDeparture(t.Context(), o.client, d); err != nil {
				t.Fatal(err)
			}
			row.change(o)
			_, err := o.Establish(t.Context(), o.past.Past.LeaseID, false)
			if waits := errors.Is(err, lease.ErrDeferred) && strings.Contains(err.Error(), "has left on purpose"); waits != row.waits || !waits && err != nil {
				t.Errorf("%v", err)
			}
			if got := len(recalled) == 1 && recalled[0].Instance == "process-1" && time.Since(recalled[0].At) < time.Second; got != row.waits {
				t.Errorf("recalled %+v", recalled)
			}
			if noted(o.snapshot()) != row.waits {
				t.Error("whoever is registered takes the note away, and nobody else")
			}
		})
	}
}

// Etcd is asked for many reasons while a broker leaves: a look between note and revoke would
// take the note away.
func TestARegistrationIsNotTakenUpWhileItsDepartureIsNoted(t *testing.T) {
	o := newOutage(t, "drain")
	o.leave()
	o.past.Leaves = true
	revision, _ := o.holds()
	if _, err := o.Establish(t.Context(), o.first.LeaseID, false); !errors.Is(err, lease.ErrDeferred) {
		t.Errorf("%v, want a deferral", err)
	}
	if now, _ := o.holds(); now != revision || !noted(o.snapshot()) {
		t.Errorf("noted %v, revision %d after %d", noted(o.snapshot()), now, revision)
	}
	o.lose()
	o.past.Past.Incarnation, o.past.Value = "other", []byte(`{"incarnation":"other"}`)
	o.past.Leaves = false
	o.establish(0)
	o.past.Past.Incarnation, o.past.Leaves = "mine", true
	if _, err := o.Establish(t.Context(), 0, false); !errors.Is(err, lease.ErrConflict) {
		t.Errorf("%v, want a conflict", err)
	}
}
