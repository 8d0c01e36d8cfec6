package probes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

const (
	// minHastened bounds how often the broker is asked after a loss.
	minHastened = 50 * time.Millisecond
	// minSlack is the least lateness of a result that does not yet make a view stale.
	minSlack = 500 * time.Millisecond
)

// HealthSettings say how often the broker is asked and how many answers make a
// verdict. A broker that refuses is Down at most Fall × Interval after it began to;
// one that hangs, at most Fall × Interval + Timeout.
type HealthSettings struct {
	Interval time.Duration // between the starts of two checks
	Timeout  time.Duration // bound of one check
	Rise     int           // successes in a row that make Down into Up
	Fall     int           // failures in a row that make Down
}

// HealthView is the broker's health as last judged.
type HealthView struct {
	Verdict   Verdict
	LastError string // of the last result or loss; empty after a success
	// LastResultAt is when the last result was judged, and LastSuccessAt the last success; zero
	// before the first.
	LastResultAt, LastSuccessAt time.Time
	by                          HealthSettings // which the last result was judged by
}

// At is the verdict as far as it may be used at now: Unknown once the last result is too old,
// because then the probing itself is unwell. The next was due after Interval + Timeout at the
// latest; a further Interval (at least 500 ms) is allowed for a busy machine. Both times should
// carry Go's monotonic reading, which stands still while the host is suspended: a suspension
// alone does not make a view stale.
//
// An Up is also Unknown once the last success is too old: a broker that hangs makes each check
// wait for its timeout, and the Down comes that much later. It outlives its last success by
// Fall × Interval, and a twentieth of Interval for the time that the next answer takes. An answer
// may take up to Timeout, so it is Interval + Timeout at least: a broker that is slow, and in
// time, must not be Up and Unknown by turns. With a Fall of 1 every pause between two checks
// would be that long, so there the first bound alone counts.
func (v HealthView) At(now time.Time) Verdict {
	s := v.by
	stale := s.Interval + s.Timeout + max(s.Interval, minSlack)
	upFor := max(time.Duration(s.Fall)*s.Interval, s.Interval+s.Timeout) + s.Interval/20
	if v.LastResultAt.IsZero() || now.Sub(v.LastResultAt) > stale ||
		v.Verdict == Up && s.Fall > 1 && now.Sub(v.LastSuccessAt) > upFor {
		return Unknown
	}
	return v.Verdict
}

// Health asks the broker again and again and judges the answers.
type Health struct {
	settings atomic.Pointer[HealthSettings]
	looks    chan struct{}
	tuned    chan struct{}
	check    func(context.Context) error
	lost     <-chan struct{}
	log      *slog.Logger
	view     atomic.Pointer[HealthView]
	changes  chan struct{}
}

// NewHealth prepares the probing of one broker. check is called by one goroutine at
// a time, and returns when its context ends, as brokerapi.Broker promises: one that does not leaves
// the view to grow stale, hence Unknown. A value on lost says that the broker that was asked is gone: its process exited,
// or its port refuses; nil means that nobody can tell.
func NewHealth(s HealthSettings, check func(ctx context.Context) error, lost <-chan struct{}, log *slog.Logger, reg prometheus.Registerer) *Health {
	h := &Health{looks: make(chan struct{}, 1), tuned: make(chan struct{}, 1), check: check, lost: lost, log: log, changes: make(chan struct{}, 1)}
	h.settings.Store(&s)
	h.view.Store(&HealthView{})
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_broker_up",
		Help: "1 when the broker's health verdict is up and fresh, 0 when it is down, unknown or stale. 0: `holdfast status` has the last error; look at the broker and its admin API.",
	}, func() float64 {
		if h.Snapshot().At(time.Now()) == Up {
			return 1
		}
		return 0
	})
	return h
}

// Tune changes the settings. The broker is asked at once, and what was counted in a row stays
// counted. The verdict counts as long as before until that answer is judged.
func (h *Health) Tune(s HealthSettings) {
	h.settings.Store(&s)
	Signal(h.tuned)
}

// Look has the broker asked at once, and more often while it then fails, until the verdict
// is Down. What was judged so far counts.
func (h *Health) Look() { Signal(h.looks) }

// Snapshot is the view as last judged. Use HealthView.At to decide by it.
func (h *Health) Snapshot() HealthView { return *h.view.Load() }

// Changes receives a value after the verdict or the error changed.
func (h *Health) Changes() <-chan struct{} { return h.changes }

// Run probes until ctx ends and then returns nil; the check in flight ends by its own context, and
// nobody waits for it. The first check starts at once, and none has company.
func (h *Health) Run(ctx context.Context) error {
	l := &healthLoop{Health: h, ctx: ctx, tick: time.NewTimer(0)}
	defer l.tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.lost:
			l.onLost()
		case <-h.looks:
			l.hasten()
		case <-h.tuned:
			l.probeSoon()
		case <-l.tick.C:
			l.onTick()
		case err := <-l.done:
			l.onResult(err)
		}
	}
}

// healthLoop is what only Run's goroutine touches.
type healthLoop struct {
	*Health
	ctx       context.Context
	judge     judge
	tick      *time.Timer // the next check is due
	lastStart time.Time
	due       bool // another check is to begin when the one in flight ends
	hastened  bool // since a loss or look, until the next success, refusal of us or Down

	// of the check in flight
	done   chan error // nil: there is none
	cancel context.CancelFunc
	void   bool // it began before a loss: whatever it says is about the past
}

func (l *healthLoop) period() time.Duration {
	interval := l.settings.Load().Interval
	if l.hastened {
		return min(interval, max(interval/4, minHastened))
	}
	return UntilTick(interval)
}

func (l *healthLoop) onTick() {
	l.tick.Reset(l.period())
	if l.done == nil {
		l.start()
	} else {
		l.due = true
	}
}

func (l *healthLoop) start() {
	ctx, cancel := context.WithTimeout(l.ctx, l.settings.Load().Timeout)
	done := make(chan error, 1)
	l.done, l.cancel = done, cancel
	l.due, l.void, l.lastStart = false, false, time.Now()
	// A panic in a driver must not end the sidecar, which still has a lease to keep and a fence
	// to hold.
	go func() { done <- safely(l.log, "health", func() error { return l.check(ctx) }) }()
}

func (l *healthLoop) onResult(err error) {
	l.cancel()
	l.done = nil
	// The runtime forgets timers that were stopped, as a check leaves some, when another is
	// added. Until then each wakes the process when it would have been due.
	time.AfterFunc(time.Hour, func() {}).Stop()
	if !l.void {
		if errors.Is(err, context.DeadlineExceeded) && !strings.Contains(err.Error(), "no answer within") { // a shorter bound of its own
			err = fmt.Errorf("no answer within %v: %w", l.settings.Load().Timeout, err)
		}
		l.observe(err)
	}
	if l.due {
		l.probeSoon()
	}
}

func (l *healthLoop) onLost() {
	l.judge.lose()
	l.publish(l.Snapshot(), "the broker's process exited, or its port refuses")
	if l.done != nil {
		l.void = true
		l.cancel()
	}
	l.hasten()
}

// hasten has the broker asked now. What is in flight may have begun before there was anything
// to see.
func (l *healthLoop) hasten() {
	l.hastened = true
	if l.done == nil {
		l.probeSoon()
		return
	}
	l.due = true
	l.tick.Reset(l.period())
}

// probeSoon makes the next check due now, or, when losses come thick and fast, 50 ms
// after the last one began.
func (l *healthLoop) probeSoon() {
	l.tick.Reset(max(0, minHastened-time.Since(l.lastStart)))
}

// Unseen is the result of a check that says something of us and nothing of the broker: it is seen
// to be there, and did not talk to us. What its last answer said stays true.
type Unseen struct {
	Err    error
	Stands bool // it is known to be the one that was well when it was last asked, by whomever
}

func (u *Unseen) Error() string { return u.Err.Error() }
func (u *Unseen) Unwrap() error { return u.Err }

func (l *healthLoop) observe(err error) {
	var unseen *Unseen
	s := l.settings.Load()
	if errors.As(err, &unseen) && !unseen.Stands {
		l.judge.skip()
	} else {
		l.judge.observe(err == nil || unseen != nil, s.Rise, s.Fall)
	}
	if l.hastened && (unseen != nil || l.judge.verdict == Down || l.judge.verdict == Up && err == nil) {
		l.hastened = false
		l.tick.Reset(l.period())
	}
	v, message := l.Snapshot(), ""
	if err != nil {
		message = err.Error()
	}
	v.LastResultAt, v.by = time.Now(), *s
	if l.judge.failures == 0 {
		v.LastSuccessAt = v.LastResultAt
	}
	l.publish(v, message)
}

// publish completes the view by what was judged.
func (l *healthLoop) publish(v HealthView, message string) {
	before := v
	v.Verdict, v.LastError = l.judge.verdict, message
	l.view.Store(&v)
	if v.Verdict != before.Verdict || message != before.LastError {
		log := l.log
		if v.Verdict != before.Verdict {
			log = log.With("from", before.Verdict.String())
		}
		log.Info("broker health", "to", v.Verdict.String(), "error", message)
		Signal(l.changes)
	}
}
