package topics

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/recovery"
)

// auditOfTests is longer than most of them last.
const auditOfTests = 100 * time.Hour

// steered is a broker with a mode of its own.
type steered struct {
	mu     sync.Mutex
	told   []recovery.Mode
	flying int
	takes  time.Duration
	fails  int
	with   error // nil: one that says no
	hangs  bool
}

// answers has the next calls fail.
func (b *steered) answers(times int, with error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fails, b.with = times, with
}

func (b *steered) SetMode(ctx context.Context, mode recovery.Mode, _ recovery.Reason) error {
	b.mu.Lock()
	b.told = append(b.told, mode)
	b.flying++
	together, takes, hangs := b.flying, b.takes, b.hangs
	var fail error
	if b.fails > 0 {
		b.fails--
		fail = cmp.Or(b.with, errors.New("no"))
	}
	b.mu.Unlock()
	defer func() { b.mu.Lock(); b.flying--; b.mu.Unlock() }()
	if together > 1 {
		panic("two calls at a time")
	}
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	return fail
}

func (b *steered) heard() []recovery.Mode {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.told)
}

func steerOrders(m recovery.Mode) SteerOrders {
	return SteerOrders{Epoch: 1, Instance: "a", SteerFacts: recovery.SteerFacts{Mode: *byPerson(m), Decided: true, Attached: true}}
}

// inSteering runs a claim beside a steerer, in virtual time.
func inSteering(t *testing.T, b Steered, claim func(s *Steerer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := NewSteerer(b, 10*time.Second, auditOfTests, discard(), prometheus.NewPedanticRegistry())
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		claim(s)
		cancel()
		running.Wait()
	})
}

func passes(d time.Duration) { time.Sleep(d); synctest.Wait() }

func (s *Steerer) wants(t *testing.T, b *steered, state recovery.Steering, told ...recovery.Mode) {
	t.Helper()
	if v := s.View(); v.Steering != state {
		t.Errorf("%s (%+v), want %s", v.Steering, v, state)
	}
	if got := b.heard(); !slices.Equal(got, told) {
		t.Errorf("told %v, want %v", got, told)
	}
}

func TestTheModeIsHandedOverOnce(t *testing.T) {
	b := &steered{takes: time.Second}
	inSteering(t, b, func(s *Steerer) {
		passes(time.Minute)
		s.wants(t, b, recovery.SteerWaiting)
		s.SetOrders(steerOrders(recovery.Active))
		passes(time.Second - 1)
		s.wants(t, b, recovery.SteerPending, recovery.Active)
		passes(1)
		s.wants(t, b, recovery.SteerDone, recovery.Active)
		s.SetOrders(steerOrders(recovery.Active))
		passes(time.Hour)
		s.wants(t, b, recovery.SteerDone, recovery.Active)
		o := steerOrders(recovery.Active)
		o.Decided = false
		s.SetOrders(o)
		s.wants(t, b, recovery.SteerWaiting, recovery.Active)
	})
}

func TestTheModeIsHandedOverUntilItIsTaken(t *testing.T) {
	b := &steered{fails: 3}
	inSteering(t, b, func(s *Steerer) {
		var log strings.Builder
		s.log = slog.New(slog.NewTextHandler(&log, nil))
		s.SetOrders(steerOrders(recovery.Drained))
		<-s.Changes() // of the orders
		passes(0)
		s.wants(t, b, recovery.SteerFailing, recovery.Drained)
		if v := s.View(); v.LastError != "no" || len(s.Changes()) != 1 {
			t.Errorf("%+v, %d changes", v, len(s.Changes()))
		}
		passes(time.Minute)
		s.wants(t, b, recovery.SteerDone, recovery.Drained, recovery.Drained, recovery.Drained, recovery.Drained)
		if v := s.View(); v.LastError != "" || strings.Count(log.String(), "does not take the mode") != 1 {
			t.Errorf("%+v, log %s", v, log.String())
		}
	})
}

func TestOneCallIsBounded(t *testing.T) {
	b := &steered{hangs: true}
	inSteering(t, b, func(s *Steerer) {
		s.SetOrders(steerOrders(recovery.Active))
		passes(10 * time.Second)
		s.wants(t, b, recovery.SteerFailing, recovery.Active)
		if v := s.View(); v.LastError != "not active within 10s" {
			t.Errorf("%+v", v)
		}
	})
}

func TestWhatIsNotWantedAnyMoreIsDropped(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*SteerOrders)
		state  recovery.Steering
		told   []recovery.Mode
	}{
		{"detached", func(o *SteerOrders) { o.Attached = false }, recovery.SteerWaiting, []recovery.Mode{recovery.Active}},
		{"another mode", func(o *SteerOrders) { o.Mode = *byPerson(recovery.Drained) }, recovery.SteerDone, []recovery.Mode{recovery.Active, recovery.Drained}},
		{"another process", func(o *SteerOrders) { o.Instance = "b" }, recovery.SteerDone, []recovery.Mode{recovery.Active, recovery.Active}},
		{"another registration", func(o *SteerOrders) { o.Epoch = 2 }, recovery.SteerDone, []recovery.Mode{recovery.Active, recovery.Active}},
	} {
		for name, after := range map[string]time.Duration{"under way": time.Second, "done": time.Minute} {
			t.Run(row.name+", "+name, func(t *testing.T) {
				b := &steered{takes: 5 * time.Second}
				inSteering(t, b, func(s *Steerer) {
					o := steerOrders(recovery.Active)
					s.SetOrders(o)
					passes(after)
					row.change(&o)
					s.SetOrders(o)
					if s.View().Steering == recovery.SteerDone {
						t.Error("done before the broker was told")
					}
					passes(time.Minute)
					s.wants(t, b, row.state, row.told...)
				})
			})
		}
	}
}

func TestABrokerWithoutAModeIsToldNothing(t *testing.T) {
	inSteering(t, nil, func(s *Steerer) {
		s.SetOrders(steerOrders(recovery.Active))
		passes(time.Second)
		if v := s.View(); v.Steering != recovery.SteerNone || !v.Steering.Obeys() {
			t.Errorf("%+v", v)
		}
	})
}

func TestAPauseTakesNothingBackThatTheBrokerHasTaken(t *testing.T) {
	b := &steered{}
	inSteering(t, b, func(s *Steerer) {
		o := steerOrders(recovery.Active)
		o.Mode.By = recovery.ByHoldfast
		s.SetOrders(o)
		passes(time.Second)
		before := s.View()
		o.Paused = true
		s.SetOrders(o)
		passes(time.Hour)
		if v := s.View(); v.Steering != recovery.SteerDone || v.To != before.To || v.Hold != recovery.HaltPaused {
			t.Errorf("paused: %+v, before: %+v", v, before)
		}
		drained := o
		drained.Mode.Mode = recovery.Drained
		s.SetOrders(drained) // what recovery decides now waits
		passes(time.Minute)
		s.wants(t, b, recovery.SteerWaiting, recovery.Active)
		o.Paused = false
		s.SetOrders(o)
		passes(time.Minute)
		s.wants(t, b, recovery.SteerDone, recovery.Active)
	})
}

func TestAPauseTakesNoDrainBackAndADrainIsNotHandedOverForItsEnd(t *testing.T) {
	for at, told := range map[time.Duration]int{time.Minute: 1, auditOfTests + time.Second + 1: 3} { // the latter in an audit
		b := &steered{takes: time.Second}
		inSteering(t, b, func(s *Steerer) {
			o := steerOrders(recovery.Drained)
			o.Mode.By = recovery.ByHoldfast
			s.SetOrders(o)
			passes(at)
			for _, o.Paused = range []bool{true, false} {
				s.SetOrders(o)
				if v := s.View(); o.Paused && v.Steering != recovery.SteerDone {
					t.Errorf("%+v", v)
				}
				passes(time.Minute)
			}
			if v := s.View(); v.Steering != recovery.SteerDone || len(b.heard()) != told {
				t.Errorf("%+v, told %v", v, b.heard())
			}
		})
	}
}

func TestADrainThatWasTakenIsHandedOverAgainEachAuditAndNeverTakenBack(t *testing.T) {
	b := &steered{}
	inSteering(t, b, func(s *Steerer) {
		s.SetOrders(steerOrders(recovery.Drained))
		passes(2 * auditOfTests)
		s.wants(t, b, recovery.SteerDone, recovery.Drained, recovery.Drained, recovery.Drained)
		b.answers(2, nil)
		passes(auditOfTests)
		if v := s.View(); v.Steering != recovery.SteerDone || v.Told != recovery.Drained || v.LastError != "no" {
			t.Errorf("after an audit that failed: %+v", v)
		}
		passes(time.Minute) // it is repeated sooner
		s.wants(t, b, recovery.SteerDone, recovery.Drained, recovery.Drained, recovery.Drained, recovery.Drained, recovery.Drained, recovery.Drained)
		if v := s.View(); v.LastError != "" {
			t.Errorf("after an audit that succeeded: %+v", v)
		}
	})
}

// TestAnActiveBrokerIsLetBe: what its own tool makes of it is an operator's word (safety rule 6), and
// only what we did ourselves is undone.
func TestAnActiveBrokerIsLetBe(t *testing.T) {
	active, drained := steerOrders(recovery.Active), steerOrders(recovery.Drained)
	detached := active
	detached.Attached = false
	for _, row := range []struct {
		name  string
		doing func(b *steered, s *Steerer)
		audit []recovery.Mode // what it is told beyond the change, in many audits
	}{
		{"nothing was before", func(*steered, *Steerer) {}, nil},
		{"a drain that was taken", func(_ *steered, s *Steerer) {
			s.SetOrders(drained)
			passes(time.Minute)
		}, nil},
		{"a drain that was cancelled may end late", func(_ *steered, s *Steerer) {
			s.SetOrders(drained)
			passes(time.Millisecond)
		}, []recovery.Mode{recovery.Active}},
		{"an audit of a drain that was cancelled, too", func(_ *steered, s *Steerer) {
			s.SetOrders(drained)
			passes(auditOfTests + time.Second + time.Millisecond)
		}, []recovery.Mode{recovery.Active}},
		{"a drain that failed, too", func(b *steered, s *Steerer) {
			b.answers(1, nil)
			s.SetOrders(drained)
			passes(time.Second)
		}, []recovery.Mode{recovery.Active}},
		{"it did not take that at first", func(b *steered, s *Steerer) {
			b.answers(1, nil)
			anew := active
			anew.Epoch = 2
			s.SetOrders(anew)
			passes(time.Second)
		}, nil},
		{"the fence may have drained it", func(_ *steered, s *Steerer) {
			s.SetOrders(detached)
			passes(time.Minute)
		}, []recovery.Mode{recovery.Active}},
		{"what a drain left is removed until it is gone", func(b *steered, s *Steerer) {
			s.SetOrders(drained)
			passes(time.Minute)
			b.answers(3, ErrRemains)
		}, []recovery.Mode{recovery.Active, recovery.Active, recovery.Active}},
		{"what may be left is not seen in time, too", func(b *steered, s *Steerer) {
			s.SetOrders(drained)
			passes(time.Minute)
			b.answers(1, errors.Join(ErrRemains, context.DeadlineExceeded))
		}, []recovery.Mode{recovery.Active}},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := &steered{takes: time.Second}
			inSteering(t, b, func(s *Steerer) {
				s.SetOrders(detached) // as a sidecar begins
				s.SetOrders(active)
				passes(10 * auditOfTests)
				s.wants(t, b, recovery.SteerDone, recovery.Active)
				row.doing(b, s)
				s.SetOrders(active)
				passes(time.Minute)
				told := b.heard()
				if v := s.View(); v.Steering != recovery.SteerDone || v.LastError != "" || told[len(told)-1] != recovery.Active {
					t.Fatalf("%+v, told %v", v, told)
				}
				passes(10 * auditOfTests)
				s.wants(t, b, recovery.SteerDone, append(told, row.audit...)...)
			})
		})
	}
}
