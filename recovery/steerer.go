package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// ErrRemains is wrapped by SetMode(Active) when the broker is active, and something that an earlier
// drain left in its cluster is still to be removed.
var ErrRemains = errors.New("what a drain left is still to be removed")

// Steered is what the steerer needs of a broker. SetMode must return when its context ends,
// and bear repetition.
type Steered interface {
	SetMode(ctx context.Context, mode Mode, reason Reason) error
}

// SteerOrders are what the steerer acts under.
type SteerOrders struct {
	Epoch    int64  // create revision of the registration
	Instance string // the broker's process
	SteerFacts
}

// SteerView is how far the handing over is.
type SteerView struct {
	Steering  Steering
	To        Mode // what the broker is to be, or in a pause is; empty: see Hold
	Hold      Hold
	Told      Mode      // what it took last, in this life of its and under this registration
	At        time.Time // when
	LastError string    // of the last attempt; empty: it succeeded
}

// Steerer hands the mode over to a broker that has one of its own, until it has taken it.
// Drained is handed over again each audit, by which the broker undoes what brought topics back.
// Active is not, or a drain by the broker's own tool would be lifted (safety rule 6): it is only
// where something that we did ourselves may yet undo it, or remains of it.
//
// Guaranteed: one call at a time; none begins under older orders than those that SetOrders
// set last, and the result of one that was in flight then is dropped. After a detachment,
// and for each new process of the broker, the mode is handed over anew. A mode that was taken is
// not taken back by an audit that fails. Not guaranteed: that a call which was
// cancelled, or failed, does nothing; the next audit undoes it.
//
// All methods are safe for concurrent use. A nil one belongs to a broker without a mode of
// its own: it takes orders, and hands nothing over.
type Steerer struct {
	broker  Steered
	log     *slog.Logger
	count   func(to Mode, result string)
	wake    chan struct{}
	changes chan struct{}
	tasks   sync.WaitGroup

	mu         sync.Mutex
	bound      time.Duration
	audit      time.Duration
	base       context.Context // Run's
	orders     SteerOrders
	to         Mode
	hold       Hold
	generation uint64 // grows whenever what is under way is not wanted any more
	flying     bool
	cancel     context.CancelFunc // of the call in flight; nil: none
	told       Mode
	toldAt     time.Time
	again      bool // active is to be told once more an audit after it was taken
	failures   int  // in a row
	next       time.Time
	lastErr    string
}

// NewSteerer returns a steerer that does nothing until it has orders and runs. bound is
// that of one call, and audit the time between two while a drain lasts; 0: 30 s. A nil broker has
// no mode of its own, and Run has nothing to do; its metrics are there in any case.
func NewSteerer(b Steered, bound, audit time.Duration, log *slog.Logger, reg prometheus.Registerer) *Steerer {
	total := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_broker_steers_total",
		Help: "Times that the broker was told to be in a mode, by the mode and by result. A growing error or timeout share: see `holdfast events` and the broker's own log.",
	}, []string{"mode", "result"})
	for _, mode := range []Mode{Active, Drained} {
		for _, result := range []string{resultOK, resultError, resultTimeout, resultDropped} {
			total.WithLabelValues(string(mode), result)
		}
	}
	s := &Steerer{
		broker: b, log: log,
		count:   func(to Mode, result string) { total.WithLabelValues(string(to), result).Inc() },
		wake:    make(chan struct{}, 1),
		changes: make(chan struct{}, 1),
	}
	s.Tune(bound, audit)
	return s
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
	if old.Attached && !o.Attached { // the fence may drain the broker, and its call end late
		s.again = true
	}
	s.hold = hold
	if anew || to != s.to {
		if anew || s.cancel != nil && s.told != s.to { // it may have become anything
			s.told = ""
		}
		if s.to = to; to != "" && s.told != to {
			s.next = time.Time{}
		}
		s.generation++
		s.failures, s.lastErr = 0, ""
		if s.cancel != nil {
			s.cancel()
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
	v := SteerView{To: s.to, Hold: s.hold, Told: s.told, At: s.toldAt, LastError: s.lastErr}
	switch {
	case s.broker == nil:
		v.Steering = SteerNone
	case s.hold == HoldPaused && s.told != "" && s.told == s.orders.Mode.Mode:
		v.To, v.Steering = s.told, SteerDone // a pause takes nothing back
	case s.to == "":
		v.Steering = SteerWaiting
	case s.told == s.to:
		v.Steering = SteerDone
	case s.failures > 0:
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
	if s.to == "" || s.flying || s.to == Active && s.told == Active && !s.again {
		return time.Hour
	}
	if wait := time.Until(s.next); wait > 0 {
		return wait
	}
	ctx, cancel := context.WithTimeout(s.base, s.bound)
	s.flying, s.cancel = true, cancel
	generation, to, reason := s.generation, s.to, s.orders.Mode.Reason
	s.tasks.Go(func() {
		defer cancel()
		err := s.broker.SetMode(ctx, to, reason)
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
	if generation != s.generation { // safety rule 9
		s.count(to, resultDropped)
		s.again = s.again || to == Drained // it may yet come into force
		return
	}
	taken, remains := s.told == to, errors.Is(err, ErrRemains)
	if err == nil || remains {
		s.count(to, resultOK)
		if !taken {
			s.log.Info("mode handed over to the broker", "mode", string(to), "reason", string(s.orders.Mode.Reason), "failures", s.failures, "epoch", s.orders.Epoch)
			s.told, s.toldAt = to, time.Now()
		}
		if to == Active {
			s.again = remains || s.again && !taken
		}
		if !taken || s.lastErr != "" {
			s.changed()
		}
		s.failures, s.lastErr, s.next = 0, "", time.Now().Add(s.audit)
		return
	}
	result, text := resultError, err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		result, text = resultTimeout, fmt.Sprintf("not %s within %s", to, s.bound)
	}
	s.count(to, result)
	if s.failures == 0 {
		s.log.Warn("the broker does not take the mode; it is told again", "mode", string(to), "taken_before", taken, "err", text, "epoch", s.orders.Epoch)
	}
	s.failures++
	s.next = time.Now().Add(backoff(s.failures, maxQuiesceBackoff))
	s.again = s.again || to == Drained
	if !taken {
		s.told = "" // it may be on its way
	}
	if !taken || text != s.lastErr {
		s.lastErr = text
		s.changed()
	}
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
