package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/cluster"
	"holdfast/recovery"
)

// Only a broker that was up and active, and is proven to serve nothing, leaves on purpose.
func TestWhoLeavesANoteAtAStop(t *testing.T) {
	drained := func(m recovery.Mode, by string) func(l *sidecarLife) {
		return func(l *sidecarLife) {
			l.inLoop(func() { l.setMode(recovery.ModeRecord{Mode: m, Reason: "disk swap", By: by}, l.modeRev+1, "") })
		}
	}
	for _, row := range []struct {
		name   string
		config func(*config.Config)
		before func(l *sidecarLife) // the stop is asked for
		after  func(l *sidecarLife)
		noted  bool
	}{
		{"up and active", stoppable, nil, nil, true},
		{"without a way to stop it", nil, nil, nil, true},
		{"drained by an operator", stoppable, drained(recovery.Drained, recovery.ByOperator), nil, false},
		{"drained after the stop was asked for", stoppable, nil, drained(recovery.Drained, recovery.ByOperator), false},
		{"its broker's process ends meanwhile", stoppable, nil, endProcess, true},
		{"its broker goes down meanwhile, and no process is seen to end", nil, nil, func(l *sidecarLife) { l.set(func() { l.ended = true }) }, false},
		{"another process than the registered one answers", stoppable, func(l *sidecarLife) {
			l.set(func() { l.storeErr = true })
			l.start()
		}, nil, false},
		{"it cannot be quiesced", stoppable, nil, func(l *sidecarLife) { l.set(func() { l.refuses = 1000 }) }, false},
		{"etcd has been away beyond the fence point", stoppable, nil, func(l *sidecarLife) {
			l.set(func() { l.away = true })
			l.becomes(recovery.Detached, time.Minute)
		}, false},
		{"it is registered, and was not attached yet", stoppable, nil, func(l *sidecarLife) {
			l.halt()
			l.attachment, l.everAttached = recovery.Detached, false
		}, true},
		{"--leave-registered", func(c *config.Config) { stoppable(c); c.LeaveRegistered = true }, nil, nil, false},
		{"a shadow", func(c *config.Config) { c.Shadow = true }, nil, nil, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			inLife(t, row.config, func(l *sidecarLife) {
				var notes []departure
				l.note = func(_ context.Context, d departure) error {
					if l.serving && !l.ended {
						t.Error("noted while it serves")
					}
					if revoked(l) {
						t.Error("revoked before it is noted")
					}
					notes = append(notes, d)
					return nil
				}
				if row.before != nil {
					row.before(l)
				}
				l.until(l.age() + 5*time.Second)
				l.stopAsked()
				if row.after != nil {
					row.after(l)
					l.until(l.age() + 5*time.Second)
				}
				g := l.grant
				l.halt()
				_ = l.leave()
				if noted := len(notes) == 1 && notes[0].grant.LeaseID == g.LeaseID && notes[0].grant.Epoch == g.Epoch && !notes[0].stop; noted != row.noted || !noted && len(notes) > 0 {
					t.Errorf("noted %+v", notes)
				}
				if got := l.why("agent"); strings.HasSuffix(got, "stopped:left") != row.noted {
					t.Errorf("the last word is %q", got)
				}
			})
		})
	}
}

// endProcess ends the broker, whose process is watched.
func endProcess(l *sidecarLife) {
	who, _ := l.identity.get()
	l.inLoop(func() {
		l.set(func() { l.ended = true })
		l.served = process.Target{Pid: 1<<22 + 1, StartTicks: 1}
		l.recognizer.Settle(l.served, who.Instance, recognize.IsBroker, "")
	})
}

// It is stopped instead: what it served is gone with it.
func TestABrokerThatMustStopLeavesANoteWhenItIsStopped(t *testing.T) {
	for _, immortal := range []bool{false, true} {
		inLifeOf(t, mustStop, stoppable, nil, func(l *sidecarLife) {
			notes := 0
			l.note = func(context.Context, departure) error { notes++; return nil }
			l.set(func() { l.immortal = immortal })
			l.stopAsked()
			l.halt()
			if err := l.leave(); (err != nil) != immortal || (notes == 1) == immortal || revoked(l) == immortal {
				t.Errorf("immortal %t: %v, %d notes, revoked %v", immortal, err, notes, revoked(l))
			}
		})
	}
}

func TestANoteThatIsRefusedKeepsNobodyFromLeaving(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.note = func(context.Context, departure) error { return cluster.ErrChanged }
		l.stopAsked()
		l.halt()
		if err := l.leave(); err != nil || !revoked(l) || !strings.HasSuffix(l.why("agent"), "stopped:released") {
			t.Errorf("%v, revoked %v, %s", err, revoked(l), l.why("agent"))
		}
	})
}

// Etcd is asked for many reasons while a broker leaves: a look between note and revoke would
// take the note away.
func TestARegistrationIsNotTakenUpWhileItsDepartureIsNoted(t *testing.T) {
	o := newOutage(t, "drain")
	o.leave()
	o.past.leaves = true
	revision, _ := o.holds()
	if _, err := o.Establish(t.Context(), o.first.LeaseID, false); !errors.Is(err, lease.ErrDeferred) {
		t.Errorf("%v, want a deferral", err)
	}
	if now, _ := o.holds(); now != revision || !noted(o.snapshot()) {
		t.Errorf("noted %v, revision %d after %d", noted(o.snapshot()), now, revision)
	}
	o.lose()
	o.past.memory.Incarnation, o.past.value = "other", []byte(`{"incarnation":"other"}`)
	o.past.leaves = false
	o.establish(0)
	o.past.memory.Incarnation, o.past.leaves = "mine", true
	if _, err := o.Establish(t.Context(), 0, false); !errors.Is(err, lease.ErrConflict) {
		t.Errorf("%v, want a conflict", err)
	}
}

func TestTheRegistrarKnowsOfADepartureBeforeItIsNoted(t *testing.T) {
	inLeaver(t, kind{}, stoppable, func(l *leaver) {
		note := l.note
		l.note = func(ctx context.Context, d departure) error {
			if !l.life.Load().leaves {
				t.Error("it may take the note away")
			}
			if !d.stop {
				t.Error("a sidecar that is killed now would have its broker taken back")
			}
			return note(ctx, d)
		}
		c := make(chan error, 1)
		l.inLoop(func() {
			if l.beginLeaving(5*time.Second, false, c); !l.life.Load().leaves {
				t.Error("it may take a note away that is written at once")
			}
		})
		if err := <-c; err != nil || !l.life.Load().leaves {
			t.Errorf("%v, it leaves: %v", err, l.life.Load().leaves)
		}
		l.inLoop(func() {
			if l.keepHere(); l.life.Load().leaves {
				t.Error("it is looked at again, and cannot be taken up")
			}
		})
	})
}

// A note that takes all its time leaves some for the revocation.
func TestANoteThatTakesTooLongDoesNotCostTheRevocation(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.note = func(ctx context.Context, _ departure) error { <-ctx.Done(); return ctx.Err() }
		l.stopAsked()
		l.halt()
		began := l.age()
		if err := l.leave(); err != nil || !revoked(l) || l.age()-began > 4*time.Second {
			t.Errorf("%v, revoked %v, took %v", err, revoked(l), l.age()-began)
		}
	})
}

// departs is the departure of the broker whose registration is lost next.
func (o *outage) departs() departure {
	return departure{who: cluster.Who{Name: "n1", Registered: "n1"}, grant: o.first, instance: o.past.memory.Instance, incarnation: "mine"}
}

func (o *outage) leave() {
	o.t.Helper()
	if err := noteLeft(o.t.Context(), o.client, o.departs()); err != nil {
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
			err := noteLeft(t.Context(), o.client, d)
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
	if err := noteLeft(ctx, o.client, o.departs()); !errors.Is(err, context.Canceled) || noted(o.snapshot()) {
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
func (o *outage) backAs(change func(m *memory)) {
	o.past.mode, o.past.memory.Mode, o.past.memory.Reason, o.past.memory.By = recovery.ModeRecord{}, "active", "boot", recovery.ByHoldfast
	o.past.instance = "process-2"
	o.past.boot = recovery.BootFacts{OldestMarker: time.Now().Add(-time.Hour), MarkerPath: "data", BrokerStartedAt: time.Now()}
	if change != nil {
		change(&o.past.memory)
	}
}

func TestABrokerThatLeftOnPurposeComesBackActive(t *testing.T) {
	nothing := func(*outage) {}
	released := func(m *memory) { m.LeaseID, m.Released = 0, true }
	for _, row := range []struct {
		name   string
		gone   bool // the lease
		change func(o *outage)
		back   func(m *memory)
		mode   recovery.Mode
		reason recovery.Reason
	}{
		{"its lease was revoked", true, nothing, released, recovery.Active, recovery.ReasonPlannedRestart},
		{"its state directory is lost", true, nothing, func(m *memory) { *m = memory{Format: memoryFormat, Incarnation: "new"} }, recovery.Active, recovery.ReasonPlannedRestart},
		{"the revoke was not confirmed, and the lease ran out", true, nothing, nil, recovery.Active, recovery.ReasonPlannedRestart},
		{"the same, of a broker that runs on", true, func(o *outage) { o.past.instance = "process-1" }, nil, recovery.Active, recovery.ReasonPlannedRestart},
		{"the revoke failed, and it is back within the TTL", false, nothing, nil, recovery.Active, recovery.ReasonFastRestart},
		{"an operator drained meanwhile", true, func(o *outage) { o.set(cluster.ModeDrained, recovery.ByOperator) }, released, recovery.Drained, "disk swap"},
		{"an operator drained and activated meanwhile", true, func(o *outage) {
			o.set(cluster.ModeDrained, recovery.ByOperator)
			o.set(cluster.ModeActive, recovery.ByOperator)
		}, released, recovery.Active, recovery.ReasonPlannedRestart},
		{"recovery is paused", true, func(o *outage) { o.onPause = true }, released, recovery.Active, recovery.ReasonPlannedRestart},
		{"--return-within is over", true, func(o *outage) { o.cfg.ReturnWithin = -time.Second }, released, recovery.Drained, recovery.ReasonStaleRestart},
		{"the same, and the pause lasts", true, func(o *outage) {
			o.cfg.ReturnWithin, o.onPause = -time.Second, true
			o.pauseEnds = func() time.Time { return time.Now().Add(time.Minute) }
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
			if held = o.past.memory.LeaseID; held != 0 && row.gone {
				held = 0
			}
			o.establish(held)
			d := o.outcomes[len(o.outcomes)-1].decision
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
			d.data = "jetstream@7:1"
			if err := noteLeft(t.Context(), o.client, d); err != nil {
				t.Fatal(err)
			}
			o.lose()
			o.backAs(func(m *memory) { m.LeaseID, m.Released = 0, true })
			o.past.data = found
			o.establish(0)
			if d := o.outcomes[len(o.outcomes)-1].decision; d.Mode.Reason != reason {
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
		o.backAs(func(m *memory) { m.LeaseID, m.Released = 0, true })
		o.first = o.establish(0)
		o.takeUp()
		o.lose()
		o.backAs(nil)
		o.past.instance = "process-3"
		o.establish(0)
		if d := o.outcomes[len(o.outcomes)-1].decision; d.Mode.Reason != recovery.ReasonStaleRestart {
			t.Errorf("%s: %s", d, d.Detail)
		}
	})
}

func TestAnAdoptedRegistrationTakesTheNoteAwayToo(t *testing.T) {
	o := newOutage(t, "drain")
	o.leave()
	o.cfg.Registration = "adopt"
	if g := o.establish(o.first.LeaseID); g.LeaseID != o.first.LeaseID || noted(o.snapshot()) {
		t.Errorf("%+v, noted %v", g, noted(o.snapshot()))
	}
}

// The note is whoever's is first: the second finds it gone, and the first registered.
func TestTwoThatComeBackWithOneNameDoNotShareOneNote(t *testing.T) {
	o := newOutage(t, "drain")
	o.leave()
	o.lose()
	o.backAs(func(m *memory) { m.LeaseID, m.Released = 0, true })
	seen := o.snapshot()
	o.establish(0)
	copied := *o.registrar
	other := o.past
	other.memory.Incarnation, other.value = "copy", []byte(`{"incarnation":"copy"}`)
	copied.life = func() life { return other }
	var out outcome
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
	o.past.unsure = 2
	o.establish(o.first.LeaseID)
	if out := o.outcomes[len(o.outcomes)-1]; out.unsure != 2 || out.grant.Epoch != o.first.Epoch {
		t.Errorf("%+v", out)
	}
	if _, err := o.client.Leave(t.Context(), late); !errors.Is(err, cluster.ErrChanged) {
		t.Errorf("%v, want that it is refused", err)
	}
}
