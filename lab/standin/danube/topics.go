package danube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// errNotServed says that the topic is not loaded here.
var errNotServed = errors.New("not served by this broker")

// topics are those that are loaded: the broker's memory.
type topics struct {
	id        string
	dir       string // of the logs
	objects   string // where sealed segments go for the next owner; empty: nowhere
	metaRoot  string // of the storage metadata
	limit     int64
	store     store
	cache     *cache
	disasters *disasters
	log       *slog.Logger

	mu     sync.Mutex
	loaded map[string]*topic
	loads  int // how often a topic was loaded
}

// topic is one that is loaded.
type topic struct {
	name     string
	reliable bool

	mu      sync.Mutex
	log     *wal
	closed  bool
	cursors map[string]uint64 // next offset by subscription
}

// sealed is the storage metadata of a reliable topic.
type sealed struct {
	Sealed    bool    `json:"sealed"`
	Last      *uint64 `json:"last_committed_offset"` // null: there never was a message
	BrokerID  uint64  `json:"broker_id"`
	Timestamp int64   `json:"timestamp"`
}

func (ts *topics) storagePrefix(name string) string {
	return ts.metaRoot + "/storage/topics" + name + "/"
}

func (ts *topics) get(name string) *topic {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.loaded[name]
}

func (ts *topics) names() []string {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	names := make([]string, 0, len(ts.loaded))
	for name := range ts.loaded {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (ts *topics) loadCount() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.loads
}

// load makes the topic served. Its metadata must be in the cache. If it is loaded, the
// live topic is replaced, which is a disaster.
func (ts *topics) load(ctx context.Context, name string) error {
	delivery, ok := ts.cache.delivery(name)
	if !ok {
		return fmt.Errorf("load %s: it has no dispatch strategy", name)
	}
	if old := ts.get(name); old != nil {
		ts.disasters.record(LoadedTwice, name, "it was assigned again while it was loaded; the live topic was replaced")
		old.close()
	}
	next := &topic{name: name, reliable: delivery == "Reliable", cursors: map[string]uint64{}}
	from := uint64(0)
	key := ts.storagePrefix(name) + "state"
	value, found, err := ts.store.get(ctx, key)
	if err != nil {
		return fmt.Errorf("load %s: %w", name, err)
	}
	if found {
		var s sealed
		if err := json.Unmarshal(value, &s); err != nil {
			return fmt.Errorf("load %s: its sealed state is malformed: %w", name, err)
		}
		if s.Last != nil {
			from = *s.Last + 1
		}
	}
	dir := filepath.Join(ts.dir, filepath.FromSlash(name))
	if ts.objects != "" {
		if err := copySegments(filepath.Join(ts.objects, filepath.FromSlash(name)), dir); err != nil {
			return fmt.Errorf("load %s: fetch what was sealed: %w", name, err)
		}
	}
	if next.log, err = openWAL(dir, ts.limit, from); err != nil {
		return fmt.Errorf("load %s: %w", name, err)
	}
	prefix := topicKey(name, "subscriptions/")
	keys, _, err := ts.store.list(ctx, prefix)
	if err != nil {
		return fmt.Errorf("load %s: %w", name, err)
	}
	for key, value := range keys {
		var offset uint64
		if sub, ok := strings.CutSuffix(strings.TrimPrefix(key, prefix), "/cursor"); ok && json.Unmarshal(value, &offset) == nil {
			next.cursors[sub] = offset
		}
	}
	ts.mu.Lock()
	ts.loaded[name] = next
	ts.loads++
	ts.mu.Unlock()
	ts.log.Info("topic loaded", "topic", name)
	return nil
}

// take removes the topic from what is served, and its producers and consumers from it.
func (ts *topics) take(name string) *topic {
	ts.mu.Lock()
	t := ts.loaded[name]
	delete(ts.loaded, name)
	ts.mu.Unlock()
	if t != nil {
		t.close()
	}
	return t
}

// unload gives the topic up so that another broker can go on with it: cursors flushed,
// log sealed.
func (ts *topics) unload(ctx context.Context, name string) error {
	t := ts.get(name)
	if t == nil {
		return fmt.Errorf("unload %s: %w", name, errNotServed)
	}
	defer ts.take(name)
	if err := ts.flushCursors(ctx, t); err != nil {
		return fmt.Errorf("unload %s: %w", name, err)
	}
	if !t.reliable {
		return nil
	}
	if err := ts.seal(ctx, t); err != nil {
		return fmt.Errorf("unload %s: %w", name, err)
	}
	ts.log.Info("topic unloaded", "topic", name)
	return nil
}

func (ts *topics) flushCursors(ctx context.Context, t *topic) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for sub, offset := range t.cursors {
		if err := ts.store.put(ctx, cursorKey(t.name, sub), encode(offset)); err != nil {
			return err
		}
	}
	return nil
}

// seal lets nothing be appended any more and says in the metadata where the log ends.
func (ts *topics) seal(ctx context.Context, t *topic) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if err := t.log.rotate(); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	if ts.objects != "" {
		if err := copySegments(t.log.dir, filepath.Join(ts.objects, filepath.FromSlash(t.name))); err != nil {
			return fmt.Errorf("seal: %w", err)
		}
	}
	s := sealed{Sealed: true, BrokerID: number(ts.id), Timestamp: time.Now().Unix()}
	if t.log.next > 0 {
		last := t.log.next - 1
		s.Last = &last
	}
	return ts.store.put(ctx, ts.storagePrefix(t.name)+"state", encode(s))
}

// destroy is what a broker does when an assignment is deleted and nothing says that the
// topic is to be unloaded: its storage metadata and cursors go.
func (ts *topics) destroy(ctx context.Context, name, why string) error {
	t := ts.take(name)
	if t == nil {
		return fmt.Errorf("delete %s: %w", name, errNotServed)
	}
	ts.disasters.record(Destroyed, name, why)
	doomed, _, err := ts.store.list(ctx, ts.storagePrefix(name))
	if err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	subs, _, err := ts.store.list(ctx, topicKey(name, "subscriptions/"))
	if err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	for key := range subs {
		if strings.HasSuffix(key, "/cursor") {
			doomed[key] = nil
		}
	}
	for key := range doomed {
		err = errors.Join(err, ts.store.delete(ctx, key))
	}
	return err
}

// closeAll ends the logs, as the end of a process does.
func (ts *topics) closeAll() {
	for _, name := range ts.names() {
		ts.take(name)
	}
}

func (t *topic) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.log.rotate() // what was acknowledged is on disk already
}

func (t *topic) produce(message []byte) (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0, errNotServed
	}
	return t.log.append(message)
}

// consume returns the next messages of the subscription and moves its cursor on, in
// memory. A new subscription begins with what is here first.
func (t *topic) consume(sub string, limit int) ([]Message, uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, 0, errNotServed
	}
	messages := t.log.read(t.cursors[sub], limit)
	if n := len(messages); n > 0 {
		t.cursors[sub] = messages[n-1].Offset + 1
	} else if _, ok := t.cursors[sub]; !ok {
		t.cursors[sub] = 0
	}
	return messages, t.cursors[sub], nil
}

func (t *topic) count() (n, next uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.log.count(), t.log.next
}
