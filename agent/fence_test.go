package agent

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/lease"
	"holdfast/agent/registration"
	"holdfast/recovery"
)

// inLoop runs f in the loop and waits until the loop has acted on it.
func (l *sidecarLife) inLoop(f func()) {
	l.t.Helper()
	if err := l.await(l.life0, f); err != nil {
		l.t.Fatal(err)
	}
}

func TestAFenceThatFailedIsBegunAnewUntilItSucceeded(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.set(func() { l.away, l.refuses = true, 7 })
		at := l.fencePoint()
		l.until(at + 8*time.Second)
		if l.refuses != 0 {
			t.Errorf("given up with %d refusals to come", l.refuses)
		}
		if got := l.why("fence"); got != "failed:quiesce quiesced:" {
			t.Error(got)
		}
	})
}

func TestADeletedRegistrationDetachesAndFences(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.set(func() { l.away = true }) // the registrar cannot mend it
		l.inLoop(func() { l.registrationSeen(keySeen{id: "n1", revision: 1_000_000}) })
		if l.state() != recovery.Detached || len(l.notReady()) == 0 {
			t.Errorf("%s, %v", l.state(), l.notReady())
		}
		l.until(l.age() + time.Second)
		if l.quiesces == 0 {
			t.Error("nothing was quiesced")
		}
		if got := l.why("registration"); got != "registered: lost:key_deleted" {
			t.Error(got)
		}
	})
}

// Within its TTL no lease ends by itself: the broker is down, and that is not why the key has gone.
func TestAKeyThatIsDeletedWhileTheBrokerIsDownIsToldAsDeleted(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.set(func() { l.ended = true })
		l.becomes(recovery.Degraded, l.age()+10*time.Second)
		l.inLoop(func() { l.registrationSeen(keySeen{id: "n1", revision: 1_000_000}) })
		l.until(l.age() + time.Second)
		if got := l.why("registration"); got != "registered: lost:key_deleted" {
			t.Error(got)
		}
		if got := l.why("attachment"); !strings.HasSuffix(got, "degraded:broker_down detached:lease_lost") {
			t.Error(got)
		}
	})
}

// The registrar's answer may be longer on its way than what the watch has to tell.
func TestADeletionThatIsSeenBeforeTheOutcomeIsNotForgotten(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.inLoop(func() {
			again := registration.Outcome{Decision: recovery.Decision{Step: recovery.Register, Mode: l.mode}, Grant: l.grant, Instance: "process-1"}
			again.Grant.LeaseID, again.Grant.Epoch, again.Grant.Revision = 2, 2_000_000, 2_000_000
			l.noteLoss("key_deleted")
			l.registrationSeen(keySeen{id: "n1", revision: 2_000_001})
			l.takeUp(again)
			if l.grant.LeaseID != 0 {
				t.Error("the registration counts as held, and it is gone")
			}
		})
	})
}

// An outcome was decided on an older view than the watch has shown since.
func TestAnOlderOutcomeDoesNotUndoAnOperatorsDrain(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		drained := recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}
		old := registration.Outcome{Decision: recovery.Decision{Step: recovery.Keep, Mode: l.mode}, Instance: "process-1", StateRevision: 2_000_000}
		l.inLoop(func() {
			old.Grant = l.grant
			l.setMode(drained, 2_000_001, "")
			l.takeUp(old)
		})
		if got := l.view.Load().Mode; got != drained {
			t.Errorf("mode %+v", got)
		}
	})
}

func TestModesAreTakenUpAgainAfterARestoredBackup(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		drained := recovery.ModeRecord{Mode: recovery.Drained, Reason: recovery.ReasonRestoredBackup, By: recovery.ByHoldfast}
		active := recovery.ModeRecord{Mode: recovery.Active, Reason: recovery.ReasonOperator, By: recovery.ByOperator}
		l.inLoop(func() {
			l.setMode(l.mode, 2_000_000, "")
			l.takeUp(registration.Outcome{Decision: recovery.Decision{Step: recovery.Keep, Mode: drained}, Grant: l.grant,
				Instance: "process-1", StateRevision: 50, Restored: true})
			l.stateSeen(&active, "", 60, 60, 60)
		})
		if got := l.view.Load().Mode; got != active {
			t.Errorf("mode %+v", got)
		}
	})
}

// etcd has grown past what we remember of it, and a key has not: what it says may be of before.
func TestAStateThatIsOlderThanItWasInAnEtcdThatIsNotIsLookedAt(t *testing.T) {
	active := recovery.ModeRecord{Mode: recovery.Active, Reason: recovery.ReasonOperator, By: recovery.ByOperator}
	for name, row := range map[string]struct {
		key, store int64
		looks      bool
	}{
		"older":                        {50, 70, true},
		"older, in an etcd that is so": {50, 55, false}, // an answer that was on its way
		"the one that we know":         {60, 70, false},
		"absent":                       {0, 55, false},
	} {
		t.Run(name, func(t *testing.T) {
			inLife(t, nil, func(l *sidecarLife) {
				asked, mode := l.asked, l.mode
				l.inLoop(func() {
					l.modeRev = 60
					l.stateSeen(&active, "", max(row.key, 1), row.key, row.store)
				})
				l.until(l.age() + 5*time.Second)
				if looks := l.asked > asked; looks != row.looks {
					t.Errorf("the registrar looks: %v", looks)
				}
				if got := l.view.Load().Mode; got != mode {
					t.Errorf("mode %+v", got)
				}
			})
		})
	}
}

// What the watch shows before the first decision is judged after it.
func TestAModeSeenBeforeTheFirstDecisionIsNotForgotten(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		drained := recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}
		l.inLoop(func() {
			first := registration.Outcome{Decision: recovery.Decision{Step: recovery.Keep, Mode: l.mode}, Grant: l.grant, Instance: "process-1", StateRevision: 70}
			l.mode, l.modeRev = recovery.ModeRecord{}, 0
			l.stateSeen(&drained, "", 71, 71, 71)
			l.takeUp(first)
		})
		if got := l.view.Load().Mode; got != drained {
			t.Errorf("mode %+v", got)
		}
	})
}

// A sidecar that finds the broker of its predecessor, and no etcd, fences it when the
// predecessor's lease must be over, and not before.
func TestABrokerLeftBehindIsFencedWhenItsLeaseMustBeOver(t *testing.T) {
	a := &agent{cfg: natsDefaults().Effective(), clock: lease.BootClock, begun: lease.BootClock(), registrar: &registration.Registrar{}}
	a.keeper = lease.NewKeeper(lease.Settings{}, nil, nil, 0, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	a.identity = newIdentityCheck(nil, a.cfg, "")
	mustFence := func() bool { a.noteFormer(); return a.mustFence() }
	if mustFence() {
		t.Error("a broker that never was registered is fenced")
	}
	a.memory.Epoch = 7
	a.former = lease.Validity{SentAt: a.begun, TTL: time.Minute}
	if mustFence() {
		t.Error("fenced while its lease may live")
	}
	a.begun = lease.BootClock().Add(a.cfg.HealthInterval - a.cfg.LeaseTTL)
	if !mustFence() {
		t.Error("not fenced after the TTL")
	}
	a.verified, a.grant = true, lease.Grant{LeaseID: 1, SentAt: lease.BootClock(), TTL: time.Minute}
	if a.mustFence() {
		t.Error("fenced as soon as we registered it: it took longer to come up than the lease before could last")
	}
	if a.welcome() {
		t.Error("taken for a process that came up after a fence")
	}
	a.fencing.newcomer = true
	if !a.welcome() {
		t.Error("stopped again while it waits to be attached")
	}
	a.grant.SentAt = lease.BootClock().Add(-time.Minute)
	if a.welcome() || !a.mustFence() {
		t.Error("not fenced although what we registered may be gone")
	}
	a.verified = false
	a.conflict = "another holds it"
	if a.mustFence() {
		t.Error("a sidecar that never held the id touches the broker")
	}
}
