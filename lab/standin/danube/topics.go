package danube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// errNotServed says that the topic is not loaded here.
var errNotServed = errors.New("not served by this broker")

// storageRoot is the prefix of the storage metadata.
const storageRoot = "/danube-data/storage/topics"

// topics are those that are loaded: the broker's memory.
type topics struct {
	id        string
	dir       string // of the logs
	objects   string // where sealed logs go for the next owner; empty: nowhere
	store     *store
	disasters *disasters
	log       *slog.Logger

	mu     sync.Mutex
	loaded map[string]*topic
	loads  int // how often a topic was loaded
}

// topic is one that is loaded. Its messages are a file, one of them a line.
type topic struct {
	name string
	path string

	mu       sync.Mutex
	file     *os.File
	closed   bool
	messages []Message
	begin    uint64            // offset of the first one that may be here
	cursors  map[string]uint64 // next offset by subscription
}

// sealed is the storage metadata of a topic that was given up.
type sealed struct {
	Sealed    bool    `json:"sealed"`
	Last      *uint64 `json:"last_committed_offset"` // null: there never was a message
	BrokerID  uint64  `json:"broker_id"`
	Timestamp int64   `json:"timestamp"`
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

// load makes the broker serve the topic. One that is loaded is replaced by another with the
// same log, and its clients with it.
func (ts *topics) load(ctx context.Context, name string) error {
	if ts.take(name) != nil {
		ts.disasters.record(LoadedTwice, name, "it was assigned again while it was loaded; the live topic was replaced")
	}
	t := &topic{name: name, path: filepath.Join(ts.dir, filepath.FromSlash(name), "log"), cursors: map[string]uint64{}}
	value, found, err := ts.store.get(ctx, storageRoot+name+"/state")
	if err != nil {
		return fmt.Errorf("load %s: %w", name, err)
	}
	var s sealed
	if found && json.Unmarshal(value, &s) == nil && s.Last != nil {
		t.begin = *s.Last + 1
	}
	if err := t.open(ts.object(name)); err != nil {
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
			t.cursors[sub] = offset
		}
	}
	ts.mu.Lock()
	ts.loaded[name] = t
	ts.loads++
	ts.mu.Unlock()
	ts.log.Info("topic loaded", "topic", name)
	return nil
}

// object is where the log of a topic is that was sealed; empty: nowhere.
func (ts *topics) object(name string) string {
	if ts.objects == "" {
		return ""
	}
	return filepath.Join(ts.objects, filepath.FromSlash(name))
}

// open reads the log, or what the one before sealed if that is longer.
func (t *topic) open(object string) error {
	text, err := os.ReadFile(t.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if sealed, err := os.ReadFile(object); err == nil && len(sealed) > len(text) {
		text = sealed
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1] // a kill cut the rest short
	for line := range bytes.Lines(text) {
		var m Message
		if err := json.Unmarshal(line, &m); err != nil {
			return fmt.Errorf("%s: %w", t.path, err)
		}
		t.messages = append(t.messages, m)
	}
	err = errors.Join(os.MkdirAll(filepath.Dir(t.path), 0o755), os.WriteFile(t.path, text, 0o644))
	if err == nil {
		t.file, err = os.OpenFile(t.path, os.O_WRONLY|os.O_APPEND, 0o644)
	}
	return err
}

// take removes the topic from what is served, and its producers and consumers from it.
func (ts *topics) take(name string) *topic {
	ts.mu.Lock()
	t := ts.loaded[name]
	delete(ts.loaded, name)
	ts.mu.Unlock()
	if t != nil {
		t.mu.Lock()
		t.closed = true
		t.file.Close()
		t.mu.Unlock()
	}
	return t
}

// unload gives the topic up so that another broker can go on with it: cursors flushed,
// log sealed, where it ends said in the metadata.
func (ts *topics) unload(ctx context.Context, name string) error {
	t := ts.take(name)
	if t == nil {
		return fmt.Errorf("unload %s: %w", name, errNotServed)
	}
	for sub, offset := range t.cursors {
		if err := ts.store.put(ctx, cursorKey(name, sub), encode(offset)); err != nil {
			return fmt.Errorf("unload %s: %w", name, err)
		}
	}
	if object := ts.object(name); object != "" {
		text, err := os.ReadFile(t.path)
		if err = errors.Join(err, os.MkdirAll(filepath.Dir(object), 0o755), os.WriteFile(object, text, 0o644)); err != nil {
			return fmt.Errorf("unload %s: seal: %w", name, err)
		}
	}
	s := sealed{Sealed: true, BrokerID: number(ts.id), Timestamp: time.Now().Unix()}
	if next := t.end(); next > 0 {
		last := next - 1
		s.Last = &last
	}
	if err := ts.store.put(ctx, storageRoot+name+"/state", encode(s)); err != nil {
		return fmt.Errorf("unload %s: %w", name, err)
	}
	ts.log.Info("topic unloaded", "topic", name)
	return nil
}

// destroy is what a broker does when an assignment is deleted and nothing says that the
// topic is to be unloaded: its storage metadata and cursors go.
func (ts *topics) destroy(ctx context.Context, name, why string) error {
	if ts.get(name) == nil {
		return fmt.Errorf("delete %s: %w", name, errNotServed)
	}
	ts.disasters.record(Destroyed, name, why)
	ts.take(name)
	doomed, _, err := ts.store.list(ctx, storageRoot+name+"/")
	subs, _, err2 := ts.store.list(ctx, topicKey(name, "subscriptions/"))
	err = errors.Join(err, err2)
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

// end is the offset of the next message. Called with mu held, or of a topic that is closed.
func (t *topic) end() uint64 {
	if n := len(t.messages); n > 0 {
		return max(t.messages[n-1].Offset+1, t.begin)
	}
	return t.begin
}

// locked calls do if the topic is served; t may be nil.
func (t *topic) locked(do func() error) error {
	if t == nil {
		return errNotServed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return errNotServed
	}
	return do()
}

func (t *topic) produce(data []byte) (offset uint64, err error) {
	err = t.locked(func() error {
		m := Message{Offset: t.end(), Data: data}
		if _, err := t.file.Write(append(encode(m), '\n')); err != nil {
			return err
		}
		t.messages, offset = append(t.messages, m), m.Offset
		return nil
	})
	return offset, err
}

// consume returns the next messages of the subscription and moves its cursor on, in
// memory. A new subscription begins with what is here first.
func (t *topic) consume(sub string, limit int) (found []Message, cursor uint64, err error) {
	err = t.locked(func() error {
		for _, m := range t.messages {
			if m.Offset >= t.cursors[sub] && len(found) < limit {
				found = append(found, m)
			}
		}
		if n := len(found); n > 0 {
			t.cursors[sub] = found[n-1].Offset + 1
		}
		cursor = t.cursors[sub]
		return nil
	})
	return found, cursor, err
}

func (t *topic) next() (next uint64, err error) {
	err = t.locked(func() error { next = t.end(); return nil })
	return next, err
}
