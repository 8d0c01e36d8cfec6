package harness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Change is one change of one key.
type Change struct {
	At             time.Time // when we heard of it
	Key            string
	Deleted        bool
	Value          string
	Revision       int64 // at which it was made; equal in one transaction
	CreateRevision int64 // 0 if deleted
	Lease          int64
}

func (c Change) String() string {
	what := "put " + c.Value
	if c.Deleted {
		what = "deleted"
	}
	return fmt.Sprintf("%s revision %d %s: %s", c.At.Format("15:04:05.000"), c.Revision, c.Key, what)
}

// History is every change below a prefix since a revision, in order and without
// gaps; if etcd compacted some away, Err says so. Safe for concurrent use.
type History struct {
	From int64 // first revision that is watched
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	changes []Change
	err     error
	news    chan struct{} // closed at the next change
}

// Watch starts a history of the keys below prefix, from the next revision on. It
// ends with Stop or with the lab. It sees etcd from the host, so no cut hides
// anything from it, and it outlives a restart of etcd.
func (l *Lab) Watch(ctx context.Context, e *Etcd, prefix string) (*History, error) {
	res, err := e.Client().Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return nil, fmt.Errorf("watch %s: read revision: %w", prefix, err)
	}
	wctx, cancel := context.WithCancel(context.Background())
	h := &History{From: res.Header.Revision + 1, stop: cancel, done: make(chan struct{}), news: make(chan struct{})}
	go h.run(wctx, e.Client(), prefix)
	l.onClose(func() error { h.Stop(); return nil })
	return h, nil
}

// Stop ends the watching; what was seen stays.
func (h *History) Stop() {
	h.stop()
	<-h.done
}

func (h *History) run(ctx context.Context, c *clientv3.Client, prefix string) {
	defer close(h.done)
	next := h.From
	for ctx.Err() == nil {
		wctx, cancel := context.WithCancel(ctx)
		for res := range c.Watch(wctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(next)) {
			if err := res.Err(); err != nil {
				h.fail(err)
				if errors.Is(err, rpctypes.ErrCompacted) {
					next = res.CompactRevision
				}
				break
			}
			h.add(res.Events)
			next = res.Header.Revision + 1
		}
		cancel()
		select {
		case <-time.After(PollEvery):
		case <-ctx.Done():
		}
	}
}

func (h *History) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if errors.Is(err, rpctypes.ErrCompacted) {
		h.err = fmt.Errorf("history has a gap: %w", err)
	}
}

func (h *History) add(events []*clientv3.Event) {
	if len(events) == 0 {
		return
	}
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		h.changes = append(h.changes, Change{
			At: now, Key: string(e.Kv.Key), Deleted: e.Type == clientv3.EventTypeDelete,
			Value: string(e.Kv.Value), Revision: e.Kv.ModRevision,
			CreateRevision: e.Kv.CreateRevision, Lease: e.Kv.Lease,
		})
	}
	close(h.news)
	h.news = make(chan struct{})
}

// Err is not nil if changes were lost.
func (h *History) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// Changes is what was seen so far.
func (h *History) Changes() []Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Change(nil), h.changes...)
}

// At is the changes of one revision: of one transaction.
func (h *History) At(revision int64) []Change {
	var at []Change
	for _, c := range h.Changes() {
		if c.Revision == revision {
			at = append(at, c)
		}
	}
	return at
}

// Find is the first change at revision from or later for which match holds.
func (h *History) Find(from int64, match func(Change) bool) (Change, bool) {
	for _, c := range h.Changes() {
		if c.Revision >= from && match(c) {
			return c, true
		}
	}
	return Change{}, false
}

// Await waits for the first change at revision from or later for which match holds.
func (h *History) Await(ctx context.Context, bound time.Duration, what string, from int64, match func(Change) bool) (Change, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for {
		h.mu.Lock()
		news := h.news
		h.mu.Unlock()
		if c, ok := h.Find(from, match); ok {
			return c, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return Change{}, fmt.Errorf("await %s for %v: %w; changes since revision %d:\n%s", what, bound, ctx.Err(), from, h.since(from))
		}
	}
}

func (h *History) since(revision int64) string {
	var b strings.Builder
	for _, c := range h.Changes() {
		if c.Revision >= revision {
			fmt.Fprintln(&b, c)
		}
	}
	return b.String()
}

// DeletedKey matches the deletion of a key.
func DeletedKey(key string) func(Change) bool {
	return func(c Change) bool { return c.Key == key && c.Deleted }
}

// PutKey matches a put of a key.
func PutKey(key string) func(Change) bool {
	return func(c Change) bool { return c.Key == key && !c.Deleted }
}
