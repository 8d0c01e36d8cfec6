package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"holdfast/brokerapi/rest"
)

const (
	silence      = 10 * time.Second       // without a line, of which there is one a second
	reconnectMin = 100 * time.Millisecond // jittered between these two
	reconnectMax = 250 * time.Millisecond
)

// watch holds GET /alive. Its end is the broker's.
type watch struct {
	rest *rest.Client
	log  *slog.Logger
	lost chan struct{}
	now  chan struct{} // has room for one: connect without a pause

	mu      sync.Mutex
	held    string        // the instance that is watched; empty: none
	changed chan struct{} // closed and made anew when held or lastErr changes
	lastErr error
	silent  bool // given up because nothing came over it
}

func newWatch(client *rest.Client, log *slog.Logger) *watch {
	return &watch{rest: client, log: log, lost: make(chan struct{}, 1), now: make(chan struct{}, 1), changed: make(chan struct{})}
}

// Lost implements brokerapi.LossWatcher: the broker ended the held answer, or died. One
// that only says nothing for ten seconds may hang and still serve: it is lost when its
// port refuses connections.
func (b *Broker) Lost() <-chan struct{} {
	if b.watch == nil {
		return nil
	}
	return b.watch.lost
}

// run holds the answer, again and again, until life ends.
func (w *watch) run(life context.Context) {
	for life.Err() == nil {
		err := w.hold(life)
		if life.Err() != nil {
			return
		}
		w.note(err)
		pause := time.NewTimer(reconnectMin + rand.N(reconnectMax-reconnectMin))
		select {
		case <-pause.C:
		case <-w.now:
		case <-life.Done():
		}
		pause.Stop()
	}
}

var errSilent = fmt.Errorf("nothing came for %v", silence)

// hold returns when the answer has ended, and why.
func (w *watch) hold(life context.Context) error {
	ctx, cancel := context.WithCancelCause(life)
	defer cancel(nil)
	h, err := w.rest.Hold(ctx, rest.Request{Path: base + "/alive", Accept: "application/x-ndjson"})
	if err != nil {
		return err
	}
	defer h.Close()
	quiet := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer quiet.Stop()
	for instance := ""; ; {
		line, err := h.Line()
		if err != nil {
			return err
		}
		var said healthBody
		if err := json.Unmarshal(line, &said); err != nil || said.Instance == "" {
			return h.Errorf(`%q is not a line such as {"instance":"…"}`, line)
		}
		if instance == "" {
			instance = said.Instance
		}
		if said.Instance != instance { // one connection is one process's
			return h.Errorf("a line names instance %q, and those before it %q: two brokers answer there", said.Instance, instance)
		}
		quiet.Reset(silence)
		w.up(said.Instance)
	}
}

// up notes that a line came.
func (w *watch) up(instance string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != instance {
		w.held, w.lastErr, w.silent = instance, nil, false
		w.log.Info("broker watched", "instance", instance)
		w.tell()
	}
}

// note takes the end of an attempt, and says whether it is the broker's.
func (w *watch) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wasHeld, wasSilent := w.held != "", w.silent
	isNew := w.lastErr == nil || w.lastErr.Error() != err.Error()
	w.held, w.lastErr = "", err
	w.silent = wasHeld && errors.Is(err, errSilent) || wasSilent && !errors.Is(err, syscall.ECONNREFUSED)
	if wasHeld && !w.silent || wasSilent && !w.silent {
		select {
		case w.lost <- struct{}{}:
		default:
		}
	}
	if isNew {
		w.log.Warn("broker watch not held", "error", err)
	}
	w.tell()
}

// tell wakes who waits. w.mu is held.
func (w *watch) tell() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// await is nil when that instance is watched. If it is not, it lets the watch connect at
// once and waits for it.
func (w *watch) await(ctx context.Context, instance string) error {
	for attempt := 0; ; attempt++ {
		w.mu.Lock()
		held, err, changed := w.held, w.lastErr, w.changed
		w.mu.Unlock()
		switch {
		case held == instance:
			return nil
		case attempt > 2 && err != nil: // the first may be from before, and so may the second
			return fmt.Errorf("held watch: %w", err)
		case attempt > 2:
			return fmt.Errorf("held watch: instance %q answers there, and %q elsewhere: two brokers", held, instance)
		}
		select {
		case w.now <- struct{}{}:
		default:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("held watch: %w (%w)", cmp.Or(err, errNoLine), context.Cause(ctx))
		}
	}
}

var errNoLine = errors.New("no line came")
