package moving

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"log/slog"

	"holdfast/cluster"
	"holdfast/recovery/moves"
)

// New returns a worker that does nothing until it has orders and runs.
func New(s Settings, store *cluster.Client, t Topics, log *slog.Logger, reg prometheus.Registerer) *Worker {
	w := &Worker{set: s, store: store, topics: t, log: log, metrics: newMetrics(reg),
		slots: make(chan struct{}, max(s.AtOnce, 1)), own: map[string]*under{}, changed: make(chan struct{}),
		limit: rate.NewLimiter(rate.Inf, 1<<20)}
	if s.Rate > 0 {
		w.limit = rate.NewLimiter(rate.Limit(s.Rate), max(1<<16, int(s.Rate)/10))
	}
	return w
}

// Shown is a move as people see it. Its JSON is stable.
type Shown struct {
	Topic string `json:"topic"`
	moves.Move
	// Stalled says why the move gets no further; empty: it does.
	Stalled string `json:"stalled,omitempty"`
	// Unreadable: the journal cannot be read, and is left alone.
	Unreadable string `json:"unreadable,omitempty"`
}

// List reads all moves from etcd, over or not, the younger ones last.
func (w *Worker) List(ctx context.Context) ([]Shown, error) {
	journals, err := w.store.Moves(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]Shown, 0, len(journals))
	for topic, kv := range journals {
		s := Shown{Topic: topic}
		if s.Move, err = moves.Parse(topic, kv.Value); err != nil {
			s.Unreadable = err.Error()
		}
		since := s.Since[s.Phase]
		if s.MovedAt.After(since) {
			since = s.MovedAt
		}
		if quiet := time.Since(since); s.Unreadable == "" && !s.Phase.Over() && quiet > stalled {
			s.Stalled = s.stall(quiet)
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Shown) int {
		if c := a.At.Compare(b.At); c != 0 {
			return c
		}
		return strings.Compare(a.Topic, b.Topic)
	})
	return list, nil
}

// stall names what a move waits for, and the next command.
func (s Shown) stall(d time.Duration) string {
	turn := s.From
	if step := s.Next(moves.Facts{Side: moves.Target}); step.Act != moves.Wait {
		turn = s.To
	}
	why := s.Error
	if why == "" {
		why = "it has said nothing"
	}
	next := fmt.Sprintf("'holdfast status' at %s", turn)
	if !s.Phase.HandedOver() {
		next += fmt.Sprintf(", or 'holdfast moves cancel %s'", s.ID)
	}
	return fmt.Sprintf("%s for %s, which is %s's turn: %s: %s", s.Phase, d.Round(time.Second), turn, why, next)
}

// Begin writes the journal of a new move. It fails with cluster.ErrChanged where another began.
func (w *Worker) Begin(ctx context.Context, m moves.Move, seen int64) error {
	w.mu.Lock()
	o := w.orders
	w.mu.Unlock()
	if !o.Attached {
		return fmt.Errorf("broker %s is not attached: 'holdfast status' says why", w.set.Me())
	}
	m = m.Begun(time.Now())
	if err := w.write(ctx, &o.Who, cluster.MoveWrite{Topic: m.Topic, Value: m.Value(), Seen: seen}); err != nil {
		return err
	}
	w.tell(moves.Move{}, m)
	return nil
}

// Cancel calls a move off.
func (w *Worker) Cancel(ctx context.Context, id, by string) (moves.Move, error) {
	for {
		journals, err := w.store.Moves(ctx)
		if err != nil {
			return moves.Move{}, err
		}
		found := false
		for topic, kv := range journals {
			m, err := moves.Parse(topic, kv.Value)
			if err != nil || m.ID != id {
				continue
			}
			found = true
			next, err := m.Cancel(by, time.Now())
			if err != nil {
				return m, err
			}
			if w.write(ctx, nil, cluster.MoveWrite{Topic: topic, Value: next.Value(), Seen: kv.ModRevision}) == nil {
				w.tell(m, next)
				return next, nil
			}
		}
		if !found {
			return moves.Move{}, fmt.Errorf("move %q: unknown: 'holdfast moves' lists them", id)
		}
		if ctx.Err() != nil {
			return moves.Move{}, ctx.Err()
		}
	}
}
