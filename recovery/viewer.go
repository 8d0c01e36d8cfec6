package recovery

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"
)

// viewLook is the pause between two looks while the views differ and it is not yet known
// whether that lasts.
const viewLook = 2 * time.Second

// ViewSource tells what is so, by etcd, and what the broker believes; only differences
// count. Compare is not called twice at once, and must return when its context ends. It must ask
// etcd itself: a watch of ours may be as blind as the broker's.
type ViewSource interface {
	Compare(ctx context.Context, under ViewOrders) (is, believed []string, err error)
}

// ViewOrders are what the viewer looks under.
type ViewOrders struct {
	Epoch    int64
	Instance string
	Attached bool // and the broker answers
}

// Viewer looks whether a broker still sees what etcd holds, at each audit, and more often
// while it does not. It only reports.
//
// Guaranteed: what was found under other orders is forgotten; a read that failed neither
// makes a view stale nor clears it. All methods are safe for concurrent use.
type Viewer struct {
	source  ViewSource
	log     *slog.Logger
	wake    chan struct{}
	changes chan struct{}

	mu         sync.Mutex
	every      time.Duration
	bound      time.Duration
	orders     ViewOrders
	generation uint64
	cancel     context.CancelFunc // of the look under way; nil: none
	view       StaleView
	failing    bool
}

// NewViewer returns a viewer that looks every audit interval (0: 30 s), each read bounded
// by bound (0: 30 s).
func NewViewer(source ViewSource, every, bound time.Duration, log *slog.Logger) *Viewer {
	return &Viewer{source: source, every: cmp.Or(max(every, 0), 30*time.Second), bound: cmp.Or(max(bound, 0), 30*time.Second),
		log: log, wake: make(chan struct{}, 1), changes: make(chan struct{}, 1)}
}

// SetOrders sets what to look under. Other orders begin anew.
func (v *Viewer) SetOrders(o ViewOrders) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if o == v.orders {
		return
	}
	v.orders = o
	v.generation++
	if v.cancel != nil {
		v.cancel()
	}
	v.set(StaleView{})
	v.Look()
}

// Look has the viewer look now: etcd has come back, and what did not come back with it shows
// from here on.
func (v *Viewer) Look() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// View is what the last look showed.
func (v *Viewer) View() StaleView {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.view
}

// Changes receives a value after View may have changed. It has room for one.
func (v *Viewer) Changes() <-chan struct{} { return v.changes }

// Run looks until ctx ends, and returns nil. It is called once.
func (v *Viewer) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-v.wake:
		case <-timer.C:
		}
		timer.Reset(v.look(ctx))
	}
}

// look compares once, and returns how long to wait for the next time.
func (v *Viewer) look(ctx context.Context) time.Duration {
	v.mu.Lock()
	if !v.orders.Attached {
		v.mu.Unlock()
		return time.Hour
	}
	ctx, cancel := context.WithTimeout(ctx, v.bound)
	defer cancel()
	v.cancel = cancel
	generation, orders := v.generation, v.orders
	v.mu.Unlock()

	is, believed, err := v.source.Compare(ctx, orders)

	v.mu.Lock()
	defer v.mu.Unlock()
	v.cancel = nil
	if generation != v.generation { // safety rule 9
		return 0
	}
	if err != nil {
		if !v.failing {
			v.log.Warn("the broker's view cannot be compared with etcd's", "err", err, "epoch", v.orders.Epoch)
		}
		v.failing = true
		v.set(v.view.Unread())
		return v.every
	}
	v.failing = false
	v.set(v.view.Next(is, believed, time.Now()))
	if v.view.Differs() && !v.view.Stale {
		return min(v.every, viewLook)
	}
	return v.every
}

func (v *Viewer) set(next StaleView) {
	was := v.view.Stale
	v.view = next
	if next.Stale == was {
		return
	}
	select {
	case v.changes <- struct{}{}:
	default:
	}
}
