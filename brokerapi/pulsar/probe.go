package pulsar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"holdfast/brokerapi"
)

// identityEvery is how often a healthy broker is asked again who it is.
const identityEvery = 10 * time.Second

// probed is who answered last.
type probed struct {
	who   brokerapi.Report
	doubt int64
	at    time.Time // zero: none is known
}

// Probe implements brokerapi.Broker.
func (b *Broker) Probe(ctx context.Context) (brokerapi.Report, error) {
	doubt := b.doubts.Load()
	b.mu.Lock()
	last := b.probed
	b.mu.Unlock()
	if last.doubt != doubt || time.Since(last.at) >= identityEvery {
		who, err := b.identify(ctx)
		if err != nil {
			b.forget()
			return brokerapi.Report{}, err
		}
		last = probed{who, b.doubts.Load(), time.Now()}
	}
	if err := b.ready(ctx); err != nil {
		b.forget()
		return last.who, err
	}
	b.mu.Lock()
	b.probed = last
	b.mu.Unlock()
	last.who.Unable = b.work.unable(last.who.Instance)
	return last.who, nil
}

// forget has the next probe ask who it is, and what it is able to.
func (b *Broker) forget() {
	b.mu.Lock()
	b.probed = probed{}
	b.mu.Unlock()
	b.work.soon()
}

// The broker can be asked to do its work once. That says whether clients are well served here, and
// rests on what is behind the broker, too: a storage that hangs makes every broker of the cluster
// fail. So it is asked beside the probes, which say what it did last.
const (
	// workEvery is between two tries, each of which leaves 5 kB in the log of a broker. After one
	// that failed the next is workSoon later, then twice as long.
	workEvery, workSoon = 15 * time.Second, time.Second
	// workTimeout bounds one.
	workTimeout = 10 * time.Second
	// workFall is how many have to fail in a row for clients to be kept away.
	workFall = 2
)

type work struct {
	works func(context.Context) error
	log   *slog.Logger
	life  context.Context
	end   context.CancelFunc
	tasks sync.WaitGroup

	mu   sync.Mutex
	last *tried
}

// tried is what the tries of one process of the broker showed up to now.
type tried struct {
	of       string
	done     bool // it was seen to do it
	failures int  // in a row, since
	err      error
	underway bool
	due      time.Time
}

func newWork(works func(context.Context) error, log *slog.Logger) *work {
	w := &work{works: works, log: log, last: &tried{}}
	w.life, w.end = context.WithCancel(context.Background())
	return w
}

func (w *work) close() {
	w.mu.Lock()
	w.end()
	w.mu.Unlock()
	w.tasks.Wait()
}

// soon makes the next try due.
func (w *work) soon() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last.due = time.Time{}
}

// unable is why clients are not well served by that process; nil: they are. It begins a try when
// one is due.
func (w *work) unable(instance string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.of != instance {
		w.last = &tried{of: instance}
	}
	t := w.last
	if !t.underway && !time.Now().Before(t.due) && w.life.Err() == nil {
		t.underway = true
		w.tasks.Go(func() { w.try(t) })
	}
	switch {
	case !t.done && t.failures == 0:
		return fmt.Errorf("the broker was not seen to do its work: %w", brokerapi.ErrUntried)
	case t.err == nil, t.done && t.failures < workFall:
		return nil
	}
	return fmt.Errorf("the broker's process is well, and its work fails (%d times in a row): %w", t.failures, t.err)
}

func (w *work) try(t *tried) {
	ctx, cancel := context.WithTimeout(w.life, workTimeout)
	defer cancel()
	err := w.works(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not done within %v: %w", workTimeout, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case t != w.last || w.life.Err() != nil: // it was another process that was asked
		return
	case err != nil && t.err == nil:
		w.log.Warn("the broker fails to do its work", "err", err)
	case err == nil && t.err != nil:
		w.log.Info("the broker does its work again", "failures", t.failures)
	}
	t.underway, t.err = false, err
	if err == nil {
		t.done, t.failures, t.due = true, 0, time.Now().Add(workEvery)
		return
	}
	t.due = time.Now().Add(min(workSoon<<min(t.failures, 4), workEvery))
	t.failures++
}
