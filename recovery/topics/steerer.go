package topics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"holdfast/recovery"
)

// ErrRemains is wrapped by SetMode(Active) when the broker is active, and something that an earlier
// drain left in its cluster is still to be removed.
var ErrRemains = errors.New("what a drain left is still to be removed")

// Steered is what the steerer needs of a broker. SetMode must return when its context ends,
// and bear repetition.
type Steered interface {
	SetMode(ctx context.Context, mode recovery.Mode, reason recovery.Reason) error
}

// SteerOrders are what the steerer acts under.
type SteerOrders struct {
	Epoch    int64  // create revision of the registration
	Instance string // the broker's process
	recovery.SteerFacts
}

// SteerView is how far the handing over is.
type SteerView struct {
	Steering  recovery.Steering
	To        recovery.Mode // what the broker is to be, or in a pause is; empty: see Hold
	Hold      recovery.Halt
	Told      recovery.Mode // what it took last, in this life of its and under this registration
	At        time.Time     // when
	LastError string        // of the last attempt; empty: it succeeded
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
	total   *prometheus.CounterVec
	wake    chan struct{}
	changes chan struct{}

	mu       sync.Mutex
	bound    time.Duration
	audit    time.Duration
	orders   SteerOrders
	cancel   context.CancelFunc // of the call in flight; nil: none, or it is not wanted any more
	told     recovery.Mode
	toldAt   time.Time
	again    bool // active is to be told once more an audit after it was taken
	failures int  // in a row
	next     time.Time
	lastErr  string
}

// NewSteerer returns a steerer that does nothing until it has orders and runs. bound is
// that of one call, and audit the time between two while a drain lasts; 0: 30 s. A nil broker has
// no mode of its own, and Run has nothing to do; its metrics are there in any case.
func NewSteerer(b Steered, bound, audit time.Duration, log *slog.Logger, reg prometheus.Registerer) *Steerer {
	s := &Steerer{broker: b, log: log, wake: make(chan struct{}, 1), changes: make(chan struct{}, 1)}
	s.total = promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_broker_steers_total",
		Help: "Times that the broker was told to be in a mode, by the mode and by result. A growing error or timeout share: see `holdfast events` and the broker's own log.",
	}, []string{"mode", "result"})
	for _, result := range []string{resultOK, resultError, resultTimeout, resultDropped} {
		s.total.WithLabelValues(string(recovery.Active), result)
		s.total.WithLabelValues(string(recovery.Drained), result)
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
	was, _ := recovery.DecideSteer(old.SteerFacts)
	to, _ := recovery.DecideSteer(o.SteerFacts)
	anew := o.Epoch != old.Epoch || o.Instance != old.Instance || o.Attached != old.Attached
	if old.Attached && !o.Attached { // the fence may drain the broker, and its call end late
		s.again = true
	}
	if anew || to != was {
		if anew || s.cancel != nil && s.told != was { // it may have become anything
			s.told = ""
		}
		if to != "" && s.told != to {
			s.next = time.Time{}
		}
		s.failures, s.lastErr = 0, ""
		if s.cancel != nil {
			s.cancel()
			s.cancel = nil
		}
		signal(s.changes)
	}
	signal(s.wake)
}

// View is how far the handing over is now.
func (s *Steerer) View() SteerView {
	if s == nil {
		return SteerView{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	to, hold := recovery.DecideSteer(s.orders.SteerFacts)
	v := SteerView{To: to, Hold: hold, Told: s.told, At: s.toldAt, LastError: s.lastErr}
	switch {
	case s.broker == nil:
		v.Steering = recovery.SteerNone
	case hold == recovery.HaltPaused && s.told == s.orders.Mode.Mode:
		v.To, v.Steering = s.told, recovery.SteerDone // a pause takes nothing back
	case to == "":
		v.Steering = recovery.SteerWaiting
	case s.told == to:
		v.Steering = recovery.SteerDone
	case s.failures > 0:
		v.Steering = recovery.SteerFailing
	default:
		v.Steering = recovery.SteerPending
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

// Run hands over until ctx ends, then waits for the call in flight, which ends with it, and returns
// nil. It is called once.
func (s *Steerer) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		timer := time.NewTimer(s.step(ctx))
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// step makes the call that is due, and returns how long nothing else is.
func (s *Steerer) step(ctx context.Context) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	to, _ := recovery.DecideSteer(s.orders.SteerFacts)
	if s.broker == nil || to == "" || to == recovery.Active && s.told == recovery.Active && !s.again {
		return time.Hour
	}
	if wait := time.Until(s.next); wait > 0 {
		return wait
	}
	ctx, cancel := context.WithTimeout(ctx, s.bound)
	defer cancel()
	s.cancel = cancel
	reason := s.orders.Mode.Reason
	s.mu.Unlock()
	err := s.broker.SetMode(ctx, to, reason)
	s.mu.Lock()
	s.land(to, err)
	return 0
}

// land takes the result of a call, unless its orders do not stand any more. The caller holds the mutex.
func (s *Steerer) land(to recovery.Mode, err error) {
	result, taken, remains := resultOK, s.told == to, errors.Is(err, ErrRemains)
	ok := err == nil || remains
	switch {
	case s.cancel == nil: // safety rule 9
		result = resultDropped
	case ok:
	case errors.Is(err, context.DeadlineExceeded):
		result, err = resultTimeout, fmt.Errorf("not %s within %s", to, s.bound)
	default:
		result = resultError
	}
	s.total.WithLabelValues(string(to), result).Inc()
	s.again = s.again || to == recovery.Drained && result != resultOK // it may yet come into force
	if s.cancel == nil {
		return
	}
	s.cancel = nil
	signal(s.changes)
	if ok {
		if !taken {
			s.log.Info("mode handed over to the broker", "mode", string(to), "reason", string(s.orders.Mode.Reason), "failures", s.failures, "epoch", s.orders.Epoch)
			s.told, s.toldAt = to, time.Now()
		}
		if to == recovery.Active {
			s.again = remains || s.again && !taken
		}
		s.failures, s.lastErr, s.next = 0, "", time.Now().Add(s.audit)
		return
	}
	if s.failures == 0 {
		s.log.Warn("the broker does not take the mode; it is told again", "mode", string(to), "taken_before", taken, "err", err, "epoch", s.orders.Epoch)
	}
	s.failures++
	s.next = time.Now().Add(backoff(s.failures, maxQuiesceBackoff))
	if !taken {
		s.told = "" // it may be on its way
	}
	s.lastErr = err.Error()
}

// signal wakes whoever waits, or is to look later.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
