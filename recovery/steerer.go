package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// steerAgain is the shortest time between being drained and being drained once more,
// because topics came back.
const steerAgain = time.Second

// steerSettles is for how long a call that was cancelled may still do something: a broker goes
// on with what it was asked. Meanwhile it is told each second what it is to be.
const steerSettles = 10 * time.Second

// Steered is what the steerer needs of a broker. Steer must return when its context ends,
// and bear repetition.
type Steered interface {
	Steer(ctx context.Context, mode Mode, reason Reason) error
}

// SteerOrders are what the steerer acts under.
type SteerOrders struct {
	Epoch    int64  // create revision of the registration
	Instance string // the broker's process
	SteerFacts
	// Relapsed is when topics were seen to be served by a broker that had taken drained;
	// zero: they were not. Clusters that assign topics may give it some again.
	Relapsed time.Time
}

// SteerView is how far the handing over is.
type SteerView struct {
	Steering  Steering
	To        Mode // what the broker is to be, or in a pause is; empty: see Hold
	Hold      Hold
	Told      Mode      // what it took last, in this life of its and under this registration
	At        time.Time // when
	LastError string    // of the last attempt; empty: it succeeded
	Kept      Kept
}

// Steerer hands the mode over to a broker that has one of its own, until it has taken it.
//
// Guaranteed: one call at a time; none begins under older orders than those that SetOrders
// set last, and the result of one that was in flight then is dropped. After a detachment,
// and for each new process of the broker, the mode is handed over anew. What a cancelled call
// does within 10 s of its end is undone within a second. Not guaranteed: that it does nothing.
//
// A broker that is a Keeper is asked each 3 s whether it is still drained, and, once it is
// active, until nothing speaks against it. What that finds never takes a mode back.
//
// All methods are safe for concurrent use. A nil one belongs to a broker without a mode of
// its own: it takes orders, and hands nothing over.
type Steerer struct {
	broker  Steered
	keeper  Keeper // nil: what it has taken holds
	log     *slog.Logger
	count   func(to Mode, result string)
	wake    chan struct{}
	changes chan struct{}
	tasks   sync.WaitGroup

	mu         sync.Mutex
	bound      time.Duration
	base       context.Context // Run's
	orders     SteerOrders
	to         Mode
	hold       Hold
	generation uint64 // grows whenever what is under way is not wanted any more
	flying     bool
	cancel     context.CancelFunc // of the call in flight; nil: none
	told       Mode
	toldAt     time.Time
	saidAt     time.Time // when it was told so the last time
	settledAt  time.Time // when the calls that were cancelled cannot do anything any more
	attempt    int
	retryAt    time.Time
	lastErr    string
	keptAt     time.Time // when the mode that was taken was seen to; zero: it was not
	kept       Kept
}

// NewSteerer returns a steerer that does nothing until it has orders and runs. bound is
// that of one call; 0: 30 s. A nil broker has no mode of its own, and Run has nothing to
// do; its metrics are there in any case.
func NewSteerer(b Steered, bound time.Duration, log *slog.Logger, reg prometheus.Registerer) *Steerer {
	total := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_broker_steers_total",
		Help: "Times that the broker was told to be in a mode, by the mode and by result. A growing error or timeout share: see `holdfast events` and the broker's own log.",
	}, []string{"mode", "result"})
	for _, mode := range []Mode{Active, Drained} {
		for _, result := range []string{resultOK, resultError, resultTimeout, resultDropped} {
			total.WithLabelValues(string(mode), result)
		}
	}
	keeper, _ := b.(Keeper)
	return &Steerer{
		broker: b, keeper: keeper, bound: cmp.Or(max(bound, 0), 30*time.Second), log: log,
		count:   func(to Mode, result string) { total.WithLabelValues(string(to), result).Inc() },
		wake:    make(chan struct{}, 1),
		changes: make(chan struct{}, 1),
	}
}

// SetOrders sets what the steerer acts under. A call that they do not ask for any more is
// cancelled before SetOrders returns, and its result is dropped.
func (s *Steerer) SetOrders(o SteerOrders) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.orders
	s.orders = o
	to, hold := DecideSteer(o.SteerFacts)
	anew := o.Epoch != old.Epoch || o.Instance != old.Instance || o.Attached != old.Attached
	if anew {
		s.told = ""
	}
	s.hold = hold
	if was := s.to; anew || to != was {
		s.to = to
		s.generation++
		s.attempt, s.retryAt, s.lastErr, s.kept.Flaw = 0, time.Time{}, "", ""
		if s.cancel != nil {
			s.cancel()
			if s.told != was { // else it was only told, or looked at, once more
				s.told = "" // it may have become anything
			}
		}
		s.changed()
	}
	s.poke()
}

// View is how far the handing over is now.
func (s *Steerer) View() SteerView {
	if s == nil {
		return SteerView{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := SteerView{To: s.to, Hold: s.hold, Told: s.told, At: s.toldAt, LastError: s.lastErr, Kept: s.kept}
	switch {
	case s.broker == nil:
		v.Steering = SteerNone
	case s.hold == HoldPaused && s.told != "" && s.told == s.orders.Mode.Mode:
		v.To, v.Steering = s.told, SteerDone // a pause takes nothing back
	case s.to == "":
		v.Steering = SteerWaiting
	case s.told == s.to:
		v.Steering = SteerDone
	case s.attempt > 0:
		v.Steering = SteerFailing
	default:
		v.Steering = SteerPending
	}
	return v
}

// Changes receives a value after View may have changed. It has room for one.
func (s *Steerer) Changes() <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.changes
}

// Run hands over until ctx ends, then ends the call in flight, waits for it, and returns
// nil. It is called once.
func (s *Steerer) Run(ctx context.Context) error {
	if s.broker == nil {
		<-ctx.Done()
		return nil
	}
	s.mu.Lock()
	s.base = ctx
	s.mu.Unlock()
	defer s.tasks.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(s.step())
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// step begins the call that is due, and returns how long the loop may sleep.
func (s *Steerer) step() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.to == "" || s.flying {
		return time.Hour
	}
	due := s.retryAt
	taken := s.told == s.to
	if taken {
		var ever bool
		if due, ever = s.again(); !ever {
			return time.Hour
		}
	}
	if now.Before(due) {
		return due.Sub(now)
	}
	if taken && s.keeper != nil && s.settled() {
		s.keep()
		return time.Hour
	}
	ctx, cancel := context.WithTimeout(s.base, s.bound)
	s.flying, s.cancel = true, cancel
	generation, to, reason := s.generation, s.to, s.orders.Mode.Reason
	s.tasks.Go(func() {
		defer cancel()
		err := s.broker.Steer(ctx, to, reason)
		s.land(generation, to, err)
	})
	return time.Hour
}

// land takes the result of a call, unless its orders do not stand any more.
func (s *Steerer) land(generation uint64, to Mode, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying, s.cancel = false, nil
	s.poke()
	now := time.Now()
	if generation != s.generation { // safety rule 9
		s.count(to, resultDropped)
		s.settledAt = now.Add(steerSettles)
		return
	}
	if err == nil {
		s.count(to, resultOK)
		s.saidAt = now
		if s.told == to && s.attempt == 0 {
			if to == Drained { // what does it serve now?
				s.toldAt = now
				s.changed()
			}
			return
		}
		s.log.Info("mode handed over to the broker", "mode", string(to), "reason", string(s.orders.Mode.Reason), "failures", s.attempt, "epoch", s.orders.Epoch)
		s.told, s.toldAt, s.attempt, s.lastErr, s.keptAt = to, now, 0, "", time.Time{}
		s.changed()
		return
	}
	result, text := resultError, err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		result, text = resultTimeout, fmt.Sprintf("not %s within %s", to, s.bound)
	}
	s.count(to, result)
	if s.told == to && to == Active { // it was taken, and was only told once more
		s.saidAt = now
		if s.settledAt.Before(now) {
			s.settledAt = now
		}
		return
	}
	s.changed()
	if s.attempt == 0 {
		s.log.Warn("the broker does not take the mode; it is told again", "mode", string(to), "err", text, "epoch", s.orders.Epoch)
	}
	s.told = "" // it may be on its way
	s.attempt++
	s.lastErr = text
	s.retryAt = now.Add(backoff(s.attempt, maxQuiesceBackoff))
}

func (s *Steerer) changed() {
	select {
	case s.changes <- struct{}{}:
	default:
	}
}

func (s *Steerer) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
