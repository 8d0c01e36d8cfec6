package agent

import (
	"context"
	"testing"
	"time"

	"holdfast/agent/lease"
	"holdfast/agent/registration"
	"holdfast/recovery"
)

func TestADetachmentIsNotedUntilTheRegistrarHasWrittenIt(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		noted := func() time.Time { return l.life.Load().CutFrom }
		if at := noted(); !at.IsZero() {
			t.Errorf("cut off since %v, and attached", at)
		}
		l.set(func() { l.away = true })
		l.until(9*time.Second + l.cfg.LeaseTTL - time.Second)
		at := noted()
		if l.state() != recovery.Detached || at.IsZero() || at.After(l.born.Add(9*time.Second)) || at.Before(l.born.Add(9*time.Second-2*l.cfg.RenewInterval)) {
			t.Fatalf("%s, cut off since %v; the last renewal was confirmed before %v", l.state(), at, l.born.Add(9*time.Second))
		}
		l.deliverOutcome(t, registration.Outcome{}) // of a question from before the detachment
		if !noted().Equal(at) {
			t.Error("it is forgotten before it was written")
		}
		l.deliverOutcome(t, registration.Outcome{CutFrom: at})
		if now := noted(); !now.IsZero() {
			t.Errorf("still to be written: %v", now)
		}
	})
}

// deliverOutcome has the loop take up that the registration survived.
func (l *sidecarLife) deliverOutcome(t *testing.T, o registration.Outcome) {
	t.Helper()
	mode := recovery.ModeRecord{Mode: recovery.Active, Reason: recovery.ReasonBoot, By: recovery.ByHoldfast}
	o.Decision, o.Instance = recovery.Decision{Step: recovery.Keep, Mode: mode}, "process-1"
	o.Grant = lease.Grant{LeaseID: 1, SentAt: l.clock().Add(-l.cfg.LeaseTTL), TTL: l.cfg.LeaseTTL, Epoch: 1, Revision: 10}
	if err := l.deliver(context.Background(), o); err != nil {
		t.Fatal(err)
	}
}

// A detachment may come between a look at the registration and its answer, and a pause may hold
// the note back: whoever compares losses must not take its end for later than it was.
func TestTheEndOfACutIsRememberedUntilItIsNoted(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.until(l.age() + 10*time.Second)
		l.inLoop(func() {
			l.noteCutOver()
			if l.cutOver != 0 {
				t.Error("a cut is over, and none began")
			}
			l.noteCut(recovery.WhyFencePoint)
			l.noteCutOver()
			if back := l.keeper.View().Grant.Revision; l.cutOver != back || back == 0 {
				t.Errorf("back at %d, want %d", l.cutOver, back)
			}
			l.noteCut(recovery.WhyFencePoint)
			if l.cutOver != 0 {
				t.Error("the cut is over, and it is cut off again")
			}
		})
	})
}
