package agent

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/probes"
	"holdfast/recovery"
)

// In a pod the sidecar is ended right after its broker, whose health is still what it was.
func TestABrokerThatEndedRightBeforeUsLeavesNoRegistration(t *testing.T) {
	ended := process.Target{Pid: 1<<22 + 1, StartTicks: 1}
	living, err := process.TargetOf(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name    string
		target  process.Target
		verdict recognize.Verdict
		gone    bool // the registration
	}{
		{"its process has ended", ended, recognize.IsBroker, true},
		{"its process lives", living, recognize.IsBroker, false},
		{"the process that ended was another's", ended, recognize.IsForeign, false},
		{"the process that ended was not told from another's", ended, recognize.Unknown, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			inLife(t, stoppable, func(l *sidecarLife) {
				l.until(l.age() + 5*time.Second)
				who, _ := l.identity.get()
				l.halt()
				l.set(func() { l.ended, l.words = true, nil })
				l.recognizer.Settle(row.target, who.Instance, row.verdict, "it is another's")
				if verdict := l.health.Snapshot().At(time.Now()); verdict == probes.Down {
					t.Fatal("its health has told already")
				}
				if err := l.leave(); (err == nil) != row.gone || revoked(l) != row.gone {
					t.Errorf("%v, revoked %v", err, revoked(l))
				}
			})
		})
	}
}

// Its pid file led to a script that started it, or it was started again right away.
func TestABrokerThatAnswersIsQuiescedBeforeItsRegistrationIsGivenUp(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(l *sidecarLife)
	}{
		{"the process that ended was not it", func(*sidecarLife) {}},
		{"another process of it has come up", func(l *sidecarLife) { l.start() }},
	} {
		t.Run(row.name, func(t *testing.T) {
			inLife(t, stoppable, func(l *sidecarLife) {
				l.until(l.age() + 5*time.Second)
				who, _ := l.identity.get()
				l.halt()
				l.set(func() { l.serving = true })
				row.change(l)
				l.recognizer.Settle(process.Target{Pid: 1<<22 + 1, StartTicks: 1}, who.Instance, recognize.IsBroker, "")
				err := l.leave()
				l.mu.Lock()
				defer l.mu.Unlock()
				if err != nil || l.serving || !revoked(l) {
					t.Errorf("%v, serving %v, revoked %v", err, l.serving, revoked(l))
				}
			})
		})
	}
}

// One command stops both units: the broker ends while it is being quiesced.
func TestABrokerThatEndsWhileItIsQuiescedLeavesNoRegistration(t *testing.T) {
	living, err := process.TargetOf(1)
	if err != nil {
		t.Fatal(err)
	}
	inLife(t, stoppable, func(l *sidecarLife) {
		l.until(l.age() + 5*time.Second)
		who, _ := l.identity.get()
		l.halt()
		l.recognizer.Settle(living, who.Instance, recognize.IsBroker, "")
		l.set(func() {
			l.serving = true
			l.quiesced = func() error {
				l.ended, l.words = true, nil
				l.recognizer.Settle(process.Target{Pid: 1<<22 + 1, StartTicks: 1}, who.Instance, recognize.IsBroker, "")
				return errors.New("connection refused")
			}
		})
		if err := l.leave(); err != nil || !revoked(l) {
			t.Errorf("%v, revoked %v", err, revoked(l))
		}
	})
}

// The guard outlives its sidecar, and would hold each broker that is started from then on.
func TestASidecarThatHoldsNothingLetsTheGuardGoWhenNothingIsServed(t *testing.T) {
	ended := process.Target{Pid: 1<<22 + 1, StartTicks: 1}
	for name, row := range map[string]struct {
		change  func(l *sidecarLife)
		reached recovery.Fence
	}{
		"the broker ended, and its lease was revoked": {func(l *sidecarLife) {
			who, _ := l.identity.get()
			l.inLoop(func() {
				l.set(func() { l.ended = true })
				l.served = ended
				l.recognizer.Settle(ended, who.Instance, recognize.IsBroker, "")
			})
		}, recovery.FenceGone},
		"the registration is lost, and the broker quiesced": {func(l *sidecarLife) {
			l.set(func() { l.lost, l.storeErr = true, true })
		}, recovery.FenceQuiesced},
	} {
		for _, stay := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, --leave-registered=%t", name, stay), func(t *testing.T) {
				inLife(t, func(c *config.Config) { stoppable(c); c.RestartGrace, c.LeaveRegistered = 2*time.Second, stay }, func(l *sidecarLife) {
					row.change(l)
					l.until(l.age() + 10*time.Second)
					if got := l.view.Load().fence; got != row.reached || l.keeper.View().Validity.Known() {
						t.Errorf("the ladder has reached %q, the lease is %v", got, l.keeper.View().Validity)
					}
					l.halt()
					l.set(func() { l.words, l.stops = nil, nil })
					if err := l.leave(); err != nil || l.said() != "disarm" || len(l.stops) > 0 {
						t.Errorf("%v, guard %q, stopped at %v", err, l.said(), l.stops)
					}
				})
			})
		}
	}
}

// watchfulStopper is one that sees the process that a stop would hit.
type watchfulStopper struct {
	Stopper
	target process.Target
}

func (s watchfulStopper) Target() (process.Target, bool) { return s.target, s.target.Pid != 0 }

// Whoever starts the broker again may have done so: what the ladder stopped says nothing of the
// process that boots, and with a stop command alone nobody sees that one.
func TestAGuardStaysWhereTheNextProcessRunsOrWouldNotBeSeen(t *testing.T) {
	for name, next := range map[string]process.Target{"it is not seen": {}, "it is seen": {Pid: 1, StartTicks: 1}} {
		t.Run(name, func(t *testing.T) {
			inLife(t, stoppable, func(l *sidecarLife) {
				l.until(l.age() + 5*time.Second)
				l.set(func() { l.lost, l.storeErr, l.refuses = true, true, 1000 })
				l.until(l.age() + 10*time.Second)
				if got := l.view.Load().fence; got != recovery.FenceGone {
					t.Fatalf("the ladder has reached %q", got)
				}
				l.halt()
				l.set(func() { l.words = nil })
				l.stopper = watchfulStopper{l.stopper, next}
				if err := l.leave(); (err != nil) != (next.Pid != 0) || l.said() != "" {
					t.Errorf("%v, guard %q", err, l.said())
				}
			})
		})
	}
}

func TestTheEndOfAProcessProvesNothingOfTheNextOne(t *testing.T) {
	for _, row := range []struct {
		reached recovery.Fence
		runs    bool // some process of the broker
		want    bool
	}{
		{recovery.FenceQuiesced, true, true},
		{recovery.FenceGone, false, true},
		{recovery.FenceGone, true, false},
		{recovery.FenceOpen, false, false},
		{recovery.FencePausing, true, false},
		{recovery.FenceAwaiting, false, false},
		{"", false, false},
	} {
		if got := provesIdle(row.reached, row.runs); got != row.want {
			t.Errorf("%q, runs %t: %t", row.reached, row.runs, got)
		}
	}
}
