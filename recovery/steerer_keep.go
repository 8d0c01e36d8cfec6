package recovery

import (
	"context"
	"time"
)

// keepEvery is the time between two looks at whether a mode that was taken still holds.
const keepEvery = 3 * time.Second

// Keeper is a Steered whose cluster may undo what it was told: topics come back to a broker
// that is drained, or stay away from one that is active.
type Keeper interface {
	// Keep makes the mode hold again that the broker has taken. returned are the topics that
	// had come back to a drained broker, and were given up; flaw says why the mode may not
	// hold, empty: nothing speaks against it. Keep must return when its context ends.
	Keep(ctx context.Context, mode Mode) (returned []string, flaw string)
}

// Kept is how a mode held that the broker had taken.
type Kept struct {
	Flaw     string   // why it may not hold; empty: nothing speaks against it
	Times    uint64   // how often topics had come back, in the life of the steerer
	Returned []string // which, the last time
}

// again is when a mode that was taken is seen to once more, and whether it ever is.
func (s *Steerer) again() (due time.Time, ever bool) {
	switch {
	case !s.settled():
		return s.saidAt.Add(steerAgain), true
	case s.keeper == nil:
		return s.saidAt.Add(steerAgain), s.to == Drained && s.orders.Relapsed.After(s.saidAt)
	case s.keptAt.IsZero():
		return s.toldAt, true
	case s.to == Drained && s.orders.Relapsed.After(s.keptAt):
		return s.keptAt.Add(steerAgain), true
	}
	return s.keptAt.Add(keepEvery), s.to == Drained || s.kept.Flaw != ""
}

// settled reports whether the broker was told its mode after a cancelled call could do
// something for the last time.
func (s *Steerer) settled() bool { return s.saidAt.After(s.settledAt) }

// keep is called with the mutex held.
func (s *Steerer) keep() {
	ctx, cancel := context.WithTimeout(s.base, s.bound)
	s.flying, s.cancel = true, cancel
	generation, to := s.generation, s.to
	s.tasks.Go(func() {
		defer cancel()
		returned, flaw := s.keeper.Keep(ctx, to)
		s.landKept(generation, returned, flaw)
	})
}

// landKept takes what a look found, unless its orders do not stand any more.
func (s *Steerer) landKept(generation uint64, returned []string, flaw string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying, s.cancel = false, nil
	s.poke()
	if generation != s.generation {
		s.settledAt = time.Now().Add(steerSettles)
		return
	}
	s.keptAt = time.Now()
	if flaw != s.kept.Flaw {
		if flaw != "" {
			s.log.Warn("the mode of the broker may not hold", "mode", string(s.to), "why", flaw, "epoch", s.orders.Epoch)
		}
		s.kept.Flaw = flaw
		s.changed()
	}
	if len(returned) > 0 {
		s.log.Warn("topics came back to the drained broker; they were given up again", "topics", len(returned), "first", returned[0], "epoch", s.orders.Epoch)
		s.kept.Times, s.kept.Returned = s.kept.Times+1, returned
		s.changed()
	}
}
