package recovery

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// WakeStore is what the waker needs of etcd. Every call must return when its context ends.
type WakeStore interface {
	// Leads reports whether our broker is its cluster's leader.
	Leads(ctx context.Context) (bool, error)
	// Taker reports whether some broker is registered and active.
	Taker(ctx context.Context) (bool, error)
	// Unassigned lists the topics that wait for a broker.
	Unassigned(ctx context.Context) ([]Marker, error)
	// Wake puts the marker again, its bytes unchanged; false: it is another by now, or gone.
	Wake(ctx context.Context, m Marker) (bool, error)
}

// WakeOrders are what the waker acts under.
type WakeOrders struct {
	Epoch    int64
	Attached bool
	Paused   bool // by a person
}

// Waker puts markers again that a cluster's leader has overlooked.
//
// Guaranteed: it writes nothing but what stood there, only if it still stands unchanged,
// and nothing once it is detached or paused, or its orders are others. All methods are safe
// for concurrent use.
type Waker struct {
	store WakeStore
	log   *slog.Logger
	told  func(woken int, first string, epoch int64)
	woken map[string]prometheus.Counter // by result
	wake  chan struct{}
	tuned chan struct{}

	mu         sync.Mutex
	every      time.Duration
	orders     WakeOrders
	generation uint64
	cancel     context.CancelFunc // of the round under way; nil: none

	seen    Overlooked // owned by Run, as is failing
	failing bool
}

// Results of waking, as metric labels.
const resultChanged = "changed" // somebody was faster

// NewWaker returns a waker that looks every audit interval (0: 30 s) and gives a marker two
// of them. told, which may be nil, is told of what was woken. A nil store has nothing to
// wake; the metrics are there in any case.
func NewWaker(store WakeStore, every time.Duration, told func(woken int, first string, epoch int64), log *slog.Logger, reg prometheus.Registerer) *Waker {
	total := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_topics_woken_total",
		Help: "Topics without a broker whose marker was put again because their cluster had overlooked it, by result. Growing: the cluster's leader does not see what is there; restart that broker.",
	}, []string{"result"})
	w := &Waker{store: store, every: cmp.Or(max(every, 0), 30*time.Second), told: told, log: log,
		woken: map[string]prometheus.Counter{}, wake: make(chan struct{}, 1), tuned: make(chan struct{}, 1)}
	for _, result := range []string{resultOK, resultChanged, resultError} {
		w.woken[result] = total.WithLabelValues(result)
	}
	return w
}

// SetOrders sets what to act under. A round under others is ended before SetOrders returns.
func (w *Waker) SetOrders(o WakeOrders) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o == w.orders {
		return
	}
	w.orders = o
	w.generation++
	if w.cancel != nil {
		w.cancel()
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run looks until ctx ends, and returns nil. It is called once.
func (w *Waker) Run(ctx context.Context) error {
	if w.store == nil {
		<-ctx.Done()
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
			w.seen = nil // what stood while we were away may have been seen to
		case <-w.tuned:
			timer.Reset(w.interval())
			continue
		case <-timer.C:
		}
		w.round(ctx)
		timer.Reset(w.interval())
	}
}

func (w *Waker) round(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.interval())
	defer cancel()
	w.mu.Lock()
	orders, generation := w.orders, w.generation
	if !orders.Attached || orders.Paused {
		w.mu.Unlock()
		w.seen = nil
		return
	}
	w.cancel = cancel
	w.mu.Unlock()
	defer func() { w.mu.Lock(); w.cancel = nil; w.mu.Unlock() }()

	due, err := w.due(ctx)
	var done []Marker
	for _, m := range due {
		if err != nil || !w.stands(generation) { // safety rule 9
			break
		}
		var put bool
		switch put, err = w.store.Wake(ctx, m); {
		case err != nil:
			w.woken[resultError].Inc()
		case put:
			w.woken[resultOK].Inc()
			done = append(done, m)
		default:
			w.woken[resultChanged].Inc()
		}
	}
	if err != nil && !w.failing && w.stands(generation) {
		w.log.Warn("topics that wait for a broker cannot be looked after", "err", err, "epoch", orders.Epoch)
	}
	w.failing = err != nil
	if len(done) == 0 {
		return
	}
	w.seen = w.seen.without(done)
	w.log.Warn("topics that no broker took were put before their cluster again", "topics", len(done), "first", done[0].Topic, "epoch", orders.Epoch)
	if w.told != nil {
		w.told(len(done), done[0].Topic, orders.Epoch)
	}
}

// due reads what there is and decides.
func (w *Waker) due(ctx context.Context) ([]Marker, error) {
	f := WakeFacts{Patience: 2 * w.interval()}
	var err error
	if f.Leads, err = w.store.Leads(ctx); err != nil {
		return nil, fmt.Errorf("read the cluster's leader: %w", err)
	}
	if f.Leads {
		if f.Markers, err = w.store.Unassigned(ctx); err != nil {
			return nil, fmt.Errorf("read the topics that wait: %w", err)
		}
	}
	if len(f.Markers) > 0 {
		if f.Taker, err = w.store.Taker(ctx); err != nil {
			return nil, fmt.Errorf("read the active brokers: %w", err)
		}
	}
	f.Now = time.Now()
	next, due := w.seen.Next(f)
	w.seen = next
	return due, nil
}

func (w *Waker) stands(generation uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return generation == w.generation
}
