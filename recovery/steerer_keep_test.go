package recovery

import (
	"context"
	"slices"
	"testing"
	"time"
)

// kept is a broker whose cluster may undo what it was told.
type kept struct {
	steered
	looks  []Mode
	back   []string // at the next look
	speaks string   // against the mode
}

func (b *kept) Keep(_ context.Context, mode Mode) (returned []string, flaw string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looks = append(b.looks, mode)
	returned, b.back = b.back, nil
	return returned, b.speaks
}

func (b *kept) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func (b *kept) looked(t *testing.T, want ...Mode) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.looks, want) {
		t.Errorf("looked %v, want %v", b.looks, want)
	}
	b.looks = nil
}

func TestADrainIsSeenToEachFewSeconds(t *testing.T) {
	b := &kept{steered: steered{takes: time.Second}}
	inSteering(t, b, func(s *Steerer) {
		s.SetOrders(steerOrders(Drained))
		passes(time.Second - 1)
		b.looked(t)
		passes(1)
		b.looked(t, Drained) // once it is drained
		passes(2*keepEvery - 1)
		b.looked(t, Drained)
		passes(1)
		b.looked(t, Drained)
		s.wants(t, &b.steered, SteerDone, Drained)

		b.set(func() { b.back, b.speaks = []string{"/ns/a", "/ns/b"}, "no other takes any" })
		passes(keepEvery)
		want := Kept{Flaw: "no other takes any", Times: 1, Returned: []string{"/ns/a", "/ns/b"}}
		if v := s.View(); v.Steering != SteerDone || v.Kept.Flaw != want.Flaw || v.Kept.Times != 1 || !slices.Equal(v.Kept.Returned, want.Returned) {
			t.Errorf("%+v, want %+v and done", v, want)
		}
		b.looked(t, Drained)
		b.set(func() { b.speaks = "" })
		passes(keepEvery)
		if v := s.View(); v.Kept.Flaw != "" || v.Kept.Times != 1 {
			t.Errorf("%+v", v.Kept)
		}
	})
}

func TestTopicsThatWereSeenAreSeenToSooner(t *testing.T) {
	b := &kept{}
	inSteering(t, b, func(s *Steerer) {
		s.SetOrders(steerOrders(Drained))
		passes(0)
		b.looked(t, Drained)
		passes(time.Millisecond)
		o := steerOrders(Drained)
		o.Relapsed = time.Now()
		s.SetOrders(o)
		passes(steerAgain)
		b.looked(t, Drained)
		s.wants(t, &b.steered, SteerDone, Drained)
	})
}

func TestAnActiveBrokerIsSeenToUntilNothingKeepsTopicsAway(t *testing.T) {
	b := &kept{speaks: "the policy is not removed"}
	inSteering(t, b, func(s *Steerer) {
		s.SetOrders(steerOrders(Active))
		passes(keepEvery)
		b.looked(t, Active, Active)
		s.wants(t, &b.steered, SteerDone, Active) // clients may come
		if v := s.View(); v.Kept.Flaw != "the policy is not removed" {
			t.Errorf("%+v", v.Kept)
		}
		b.set(func() { b.speaks = "" })
		passes(time.Hour)
		b.looked(t, Active)
	})
}

func TestNothingIsSeenToWhileDetached(t *testing.T) {
	b := &kept{speaks: "no other takes any"}
	inSteering(t, b, func(s *Steerer) {
		s.SetOrders(steerOrders(Drained))
		passes(0)
		o := steerOrders(Drained)
		o.Attached = false
		s.SetOrders(o)
		b.looked(t, Drained)
		passes(time.Hour)
		b.looked(t)
		if v := s.View(); v.Kept.Flaw != "" {
			t.Errorf("%+v", v.Kept)
		}
	})
}

// slowKept takes time to look.
type slowKept struct {
	kept
	lasts time.Duration
}

func (b *slowKept) Keep(ctx context.Context, mode Mode) ([]string, string) {
	select {
	case <-time.After(b.lasts):
	case <-ctx.Done():
	}
	return b.kept.Keep(ctx, mode)
}

func TestAPauseDuringALookKeepsTheModeThatWasTaken(t *testing.T) {
	b := &slowKept{lasts: 100 * time.Millisecond}
	inSteering(t, b, func(s *Steerer) {
		o := steerOrders(Active)
		o.Mode.By = ByHoldfast
		s.SetOrders(o)
		passes(b.lasts / 2) // taken, and looked at
		o.Paused = true
		s.SetOrders(o)
		passes(time.Hour)
		if v := s.View(); v.Steering != SteerDone {
			t.Errorf("an active broker is %s (%s) for the whole pause", v.Steering, v.Hold)
		}
	})
}

func TestAPauseWhileAModeIsToldOnceMoreKeepsIt(t *testing.T) {
	b := &steered{takes: 500 * time.Millisecond}
	inSteering(t, b, func(s *Steerer) {
		o := steerOrders(Drained)
		s.SetOrders(o)
		passes(100 * time.Millisecond)
		o = steerOrders(Active)
		o.Mode.By = ByHoldfast
		s.SetOrders(o)
		passes(time.Second)
		if v := s.View(); v.Steering != SteerDone {
			t.Fatalf("%+v", v)
		}
		passes(700 * time.Millisecond)
		o.Paused = true
		s.SetOrders(o)
		passes(time.Hour)
		if v := s.View(); v.Steering != SteerDone {
			t.Errorf("an active broker is %s (%s) for the whole pause", v.Steering, v.Hold)
		}
	})
}

func TestADrainThatIsToldOnceMoreIsTold(t *testing.T) {
	b := &steered{}
	inSteering(t, b, func(s *Steerer) {
		s.SetOrders(steerOrders(Drained))
		passes(5 * time.Second)
		first := s.View().At
		select {
		case <-s.Changes():
		default:
		}
		o := steerOrders(Drained)
		o.Relapsed = time.Now()
		s.SetOrders(o)
		passes(2 * time.Second)
		if len(b.heard()) != 2 {
			t.Fatal(b.heard())
		}
		if !s.View().At.After(first) {
			t.Error("nobody looks at what it serves now: View.At did not move, no Kick")
		}
	})
}
