package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"holdfast/brokerapi"
)

// Some brokers can be asked to do their work once. That says whether clients are well served
// here, and rests on what is behind the broker, too: a storage that hangs makes every broker of
// the cluster fail. So it decides readiness, and never the lease, the fence or a stop.

const (
	// workEvery is between two tries of a broker's work, each of which leaves 5 kB in the log
	// of a Pulsar broker. After one that failed the next is workSoon later, then twice as long.
	workEvery, workSoon = 15 * time.Second, time.Second
	// workTimeout bounds one.
	workTimeout = 10 * time.Second
	// workFall is how many have to fail in a row for clients to be kept away.
	workFall = 2
)

// work tries a broker's work, again and again.
type work struct {
	works func(context.Context) error
	log   *slog.Logger
	last  atomic.Pointer[tried]
	now   chan struct{}

	instance string // both are the agent's loop's
	up       bool
}

// tried is what the tries of one process of the broker showed up to now. One that was not tried
// has its own, empty: by that a try which began with another process is told apart.
type tried struct {
	done     bool // it was seen to do it
	failures int  // in a row, since
	err      error
}

// none reports whether nothing was tried.
func (t *tried) none() bool { return t == nil || !t.done && t.failures == 0 }

// newWork is nil where the broker cannot be asked.
func (a *agent) newWork() *work {
	b, ok := a.broker.(brokerapi.Worker)
	if !ok || !a.can.Work {
		return nil
	}
	return &work{works: b.Works, log: a.log.With("part", "work"), now: make(chan struct{}, 1)}
}

// Run tries until ctx ends.
func (w *work) Run(ctx context.Context) error {
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-w.now:
		}
		w.try(ctx)
		tick.Reset(w.pause())
	}
}

// pause is between the last try and the next.
func (w *work) pause() time.Duration {
	t := w.last.Load()
	if t == nil || t.failures == 0 {
		return workEvery
	}
	return min(workSoon<<min(t.failures-1, 4), workEvery)
}

func (w *work) try(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	before := w.last.Load()
	after := &tried{err: w.works(ctx)}
	after.done = after.err == nil || before != nil && before.done
	if errors.Is(after.err, context.DeadlineExceeded) {
		after.err = fmt.Errorf("not done within %v: %w", workTimeout, after.err)
	}
	if after.err != nil {
		after.failures = 1
		if before != nil {
			after.failures += before.failures
		}
	}
	if !w.last.CompareAndSwap(before, after) {
		return // it was another process that was asked
	}
	switch failed := before != nil && before.err != nil; {
	case after.err != nil && !failed:
		w.log.Warn("the broker fails to do its work", "err", after.err)
	case after.err == nil && failed:
		w.log.Info("the broker does its work again", "failures", before.failures)
	}
}

// of forgets what was seen of another process of the broker. That one is tried at once, as is
// one that answers again. It is called by the agent's loop.
func (w *work) of(instance string, up bool) {
	if w == nil {
		return
	}
	another, again := instance != "" && instance != w.instance, up && !w.up
	w.up = up
	if another {
		w.instance = instance
		w.last.Store(&tried{})
	}
	if !another && !again {
		return
	}
	select {
	case w.now <- struct{}{}:
	default:
	}
}

// untried reports whether nobody can tell yet whether the broker does its work.
func (w *work) untried() bool { return w != nil && w.last.Load().none() }

// err is why clients are not well served here; nil: they are, or nobody can tell.
func (w *work) err() error {
	if w == nil {
		return nil
	}
	switch t := w.last.Load(); {
	case t.none():
		return errors.New("the broker was not seen to do its work yet")
	case t.err == nil, t.done && t.failures < workFall:
		return nil
	default:
		return fmt.Errorf("the broker's process is well, and its work fails (%d times in a row): %w", t.failures, t.err)
	}
}
