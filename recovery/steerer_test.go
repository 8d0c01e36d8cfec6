package recovery

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// steered is a broker with a mode of its own.
type steered struct {
	mu     sync.Mutex
	told   []Mode
	flying int
	takes  time.Duration
	fails  int
	hangs  bool
}

func (b *steered) Steer(ctx context.Context, mode Mode, _ Reason) error {
	b.mu.Lock()
	b.told = append(b.told, mode)
	b.flying++
	together, takes, hangs := b.flying, b.takes, b.hangs
	fail := b.fails > 0
	if fail {
		b.fails--
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
	if fail {
		return errors.New("no")
	}
	return nil
}

func (b *steered) heard() []Mode {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.told)
}

func steerOrders(m Mode) SteerOrders {
	return SteerOrders{Epoch: 1, Instance: "a", SteerFacts: SteerFacts{Mode: *byPerson(m), Decided: true, Attached: true}}
}

// inSteering runs a claim beside a steerer, in virtual time.
func inSteering(t *testing.T, b Steered, claim func(s *Steerer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := NewSteerer(b, 10*time.Second, discard(), prometheus.NewPedanticRegistry())
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

func (s *Steerer) wants(t *testing.T, b *steered, state Steering, told ...Mode) {
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
		s.wants(t, b, SteerWaiting)
		s.SetOrders(steerOrders(Active))
		passes(time.Second - 1)
		s.wants(t, b, SteerPending, Active)
		passes(1)
		s.wants(t, b, SteerDone, Active)
		s.SetOrders(steerOrders(Active))
		passes(time.Hour)
		s.wants(t, b, SteerDone, Active)
	})
}

func TestTheModeIsHandedOverUntilItIsTaken(t *testing.T) {
	b := &steered{fails: 3}
	inSteering(t, b, func(s *Steerer) {
		s.SetOrders(steerOrders(Drained))
		passes(0)
		s.wants(t, b, SteerFailing, Drained)
		if v := s.View(); v.LastError != "no" {
			t.Errorf("%+v", v)
		}
		passes(time.Minute)
		s.wants(t, b, SteerDone, Drained, Drained, Drained, Drained)
		if v := s.View(); v.LastError != "" {
			t.Errorf("%+v", v)
		}
	})
}

func TestOneCallIsBounded(t *testing.T) {
	b := &steered{hangs: true}
	inSteering(t, b, func(s *Steerer) {
		s.SetOrders(steerOrders(Active))
		passes(10 * time.Second)
		s.wants(t, b, SteerFailing, Active)
		if v := s.View(); v.LastError != "not active within 10s" {
			t.Errorf("%+v", v)
		}
	})
}

func TestWhatIsNotWantedAnyMoreIsDropped(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*SteerOrders)
		state  Steering
		told   []Mode
	}{
		{"detached", func(o *SteerOrders) { o.Attached = false }, SteerWaiting, []Mode{Active}},
		{"another mode", func(o *SteerOrders) { o.Mode = *byPerson(Drained) }, SteerDone, []Mode{Active, Drained}},
		{"another process", func(o *SteerOrders) { o.Instance = "b" }, SteerDone, []Mode{Active, Active}},
		{"another registration", func(o *SteerOrders) { o.Epoch = 2 }, SteerDone, []Mode{Active, Active}},
	} {
		for name, after := range map[string]time.Duration{"under way": time.Second, "done": time.Minute} {
			t.Run(row.name+", "+name, func(t *testing.T) {
				b := &steered{takes: 5 * time.Second}
				inSteering(t, b, func(s *Steerer) {
					o := steerOrders(Active)
					s.SetOrders(o)
					passes(after)
					row.change(&o)
					s.SetOrders(o)
					if s.View().Steering == SteerDone {
						t.Error("done before the broker was told")
					}
					passes(time.Minute)
					told := row.told
					if name == "under way" && row.state == SteerDone { // what was cancelled may still do something
						told = append(slices.Clone(told), told[1])
					}
					s.wants(t, b, row.state, told...)
				})
			})
		}
	}
}

func TestAReturnAfterADetachmentIsHandedOverAnew(t *testing.T) {
	b := &steered{}
	inSteering(t, b, func(s *Steerer) {
		o := steerOrders(Active)
		s.SetOrders(o)
		passes(time.Second)
		o.Attached = false
		s.SetOrders(o)
		passes(time.Hour)
		s.wants(t, b, SteerWaiting, Active)
		o.Attached = true
		s.SetOrders(o)
		passes(time.Second)
		s.wants(t, b, SteerDone, Active, Active)
	})
}

func TestADrainedBrokerThatWasGivenTopicsIsDrainedAgain(t *testing.T) {
	b := &steered{}
	inSteering(t, b, func(s *Steerer) {
		o := steerOrders(Drained)
		s.SetOrders(o)
		passes(time.Second)
		o.Relapsed = time.Now()
		s.SetOrders(o)
		passes(time.Minute)
		s.wants(t, b, SteerDone, Drained, Drained)
		o.Mode = *byPerson(Active)
		s.SetOrders(o)
		passes(time.Minute)
		s.wants(t, b, SteerDone, Drained, Drained, Active)
	})
}

func TestABrokerWithoutAModeIsToldNothing(t *testing.T) {
	s := NewSteerer(nil, 0, discard(), prometheus.NewPedanticRegistry())
	s.SetOrders(steerOrders(Active))
	if v := s.View(); v.Steering != SteerNone || !v.Steering.Obeys() {
		t.Errorf("%+v", v)
	}
}

func TestAPauseTakesNothingBackThatTheBrokerHasTaken(t *testing.T) {
	b := &steered{}
	inSteering(t, b, func(s *Steerer) {
		o := steerOrders(Active)
		o.Mode.By = ByHoldfast
		s.SetOrders(o)
		passes(time.Second)
		before := s.View()
		o.Paused = true
		s.SetOrders(o)
		passes(time.Hour)
		if v := s.View(); v.Steering != SteerDone || v.To != before.To || v.Hold != HoldPaused {
			t.Errorf("paused: %+v, before: %+v", v, before)
		}
		drained := o
		drained.Mode.Mode = Drained
		s.SetOrders(drained) // what recovery decides now waits
		passes(time.Minute)
		s.wants(t, b, SteerWaiting, Active)
		o.Paused = false
		s.SetOrders(o)
		passes(time.Minute)
		s.wants(t, b, SteerDone, Active)
	})
}

// sluggish goes on with a call that was cancelled, and ends it later.
type sluggish struct {
	mu    sync.Mutex
	is    Mode
	calls int
	late  time.Duration
	fails int
}

func (b *sluggish) Steer(ctx context.Context, mode Mode, _ Reason) error {
	b.mu.Lock()
	b.calls++
	fails := b.calls > 2 && b.fails > 0
	if fails {
		b.fails--
	}
	b.mu.Unlock()
	if fails {
		return errors.New("no answer")
	}
	if mode == Drained {
		<-ctx.Done()
		time.AfterFunc(b.late, func() { b.become(Drained) })
		return ctx.Err()
	}
	b.become(mode)
	return nil
}

func (b *sluggish) become(mode Mode) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.is = mode
}

func (b *sluggish) now() Mode {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.is
}

func (b *sluggish) called() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls
}

func TestWhatACancelledCallDoesLaterIsUndone(t *testing.T) {
	for _, row := range []struct {
		late  time.Duration
		fails int
	}{{late: 1}, {late: time.Second / 2}, {late: 4500 * time.Millisecond}, {late: steerSettles - 1}, {late: steerSettles - 1, fails: 20}} {
		b := &sluggish{late: row.late, fails: row.fails}
		inSteering(t, b, func(s *Steerer) {
			s.SetOrders(steerOrders(Drained))
			passes(time.Second)
			s.SetOrders(steerOrders(Active))
			passes(0)
			taken := s.View()
			passes(row.late + steerAgain + time.Duration(row.fails)*steerAgain)
			if v := s.View(); b.now() != Active || v.Steering != SteerDone || v.At != taken.At {
				t.Errorf("%+v: it is %s, %+v, taken %v", row, b.now(), v, taken.At)
			}
			passes(steerSettles)
			calls := b.called()
			passes(time.Hour)
			if more := b.called() - calls; more != 0 {
				t.Errorf("%+v: told %d times more", row, more)
			}
		})
	}
}
