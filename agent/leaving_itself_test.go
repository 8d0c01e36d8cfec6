package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/registration"
	"holdfast/recovery"
)

// saysThatItEnds has the broker say so once, and then be silent, as the last connection ends.
func (l *sidecarLife) saysThatItEnds() {
	who, _ := l.identity.get()
	l.identity.leaves.Store(&lastWord{who.Instance, "lame duck"})
	l.until(l.age() + 2*time.Second)
	l.set(func() { l.frozen, l.serving = true, false })
}

func TestABrokerThatSaysThatItEndsIsLeftToEndBesideAPeerThatIsWell(t *testing.T) {
	drain := func(l *sidecarLife) {
		l.inLoop(func() {
			l.setMode(recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}, l.modeRev+1, "")
		})
	}
	for _, row := range []struct {
		name          string
		before, after func(l *sidecarLife)
		fails         error
		notes         int
	}{
		{"it ends", nil, nil, nil, 1},
		{"the note is refused", nil, nil, recovery.ErrNothingToLeave, 0},
		{"drained meanwhile", nil, drain, nil, 0},
		{"it does not answer any more when it says so", func(l *sidecarLife) { l.set(func() { l.frozen = true }); l.until(l.age() + 9*time.Second) }, nil, nil, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			besidePeers(t, []recovery.Health{recovery.HealthWell}, true, func(l *sidecarLife, _ *besideOf) {
				notes := 0
				l.note = func(_ context.Context, d registration.Departure) error {
					if d.Crash || d.Stop {
						t.Errorf("%+v", d)
					}
					if row.fails == nil {
						notes++
					}
					return row.fails
				}
				epoch := l.status().Epoch
				for _, do := range []func(l *sidecarLife){row.before, (*sidecarLife).saysThatItEnds, row.after} {
					if do != nil {
						do(l)
					}
				}
				quiesces := l.quiesces
				l.until(l.age() + 4*time.Minute)
				if s := l.status(); len(l.stops) > 0 || l.quiesces > quiesces || notes > 0 || s.Ready.OK || s.Attachment != "attached" || s.Epoch != epoch {
					t.Errorf("stopped at %v, %d quiesced, %d notes, %+v", l.stops, l.quiesces, notes, s)
				}
				endProcess(l)
				l.until(l.age() + 3*time.Second)
				if left := strings.Contains(l.status().Summary, "it has left on purpose: back within 1h0m0s it comes back active"); left != (row.notes > 0) {
					t.Errorf("left on purpose: %v, of %s", left, l.status().Summary)
				}
				if notes != row.notes || l.life.Load().Leaves || l.revokes > 0 {
					t.Errorf("%d notes, want %d; still leaves: %v; %d revoked", notes, row.notes, l.life.Load().Leaves, l.revokes)
				}
				l.set(func() { l.frozen = false })
				l.start()
				l.until(l.age() + 10*time.Second)
				if s := l.status(); s.Epoch != epoch || s.Attachment != "attached" {
					t.Errorf("the next process: %+v", s)
				}
			})
		})
	}
}

// A word is good for --leave-timeout, once for each process.
func TestABrokerThatSaysThatItEndsAndStaysIsAnyOther(t *testing.T) {
	besidePeers(t, []recovery.Health{recovery.HealthWell}, true, func(l *sidecarLife, _ *besideOf) {
		l.inLoop(func() { l.cfg.LeaveTimeout = 3 * time.Minute })
		l.note = func(context.Context, registration.Departure) error { t.Error("noted"); return nil }
		said := l.age()
		l.saysThatItEnds()
		l.becomes(recovery.Detached, said+4*time.Minute)
		l.until(l.age() + 10*time.Second)
		if len(l.stops) != 1 || l.stops[0] < said+3*time.Minute {
			t.Errorf("said at %v, stopped at %v", said, l.stops)
		}
	})
}

// Whoever keeps its registrations for a while gives that one up, once it is noted.
func TestTheRegistrationOfABrokerThatEndedByItselfIsGivenUpAfterTheGrace(t *testing.T) {
	graced := func(c *config.Config) { stoppable(c); c.RestartGrace = 3 * time.Second }
	inLifeOf(t, kind{}, graced, nil, func(l *sidecarLife) {
		notes := 0
		l.guard = nil
		l.note = func(context.Context, registration.Departure) error {
			if notes++; l.revokes > 0 {
				t.Error("revoked first")
			}
			return nil
		}
		l.inLoop(func() { l.reached.Store(true) })
		l.saysThatItEnds()
		endProcess(l)
		l.until(l.age() + 2*time.Second)
		if notes != 1 || l.revokes > 0 {
			t.Errorf("%d notes, %d revoked", notes, l.revokes)
		}
		l.until(l.age() + 3*time.Second)
		if l.revokes == 0 {
			t.Error("not given up")
		}
	})
}
