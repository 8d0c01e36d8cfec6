package pulsar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	at    time.Time
}

// Probe implements brokerapi.Broker.
func (b *Broker) Probe(ctx context.Context) (brokerapi.Report, error) {
	doubt := b.doubts.Load()
	last := b.probed.Swap(nil) // nobody is known until it answers
	again := last == nil
	if again || last.doubt != doubt || time.Since(last.at) >= identityEvery {
		who, err := b.identify(ctx)
		if err != nil {
			return brokerapi.Report{}, err
		}
		last = &probed{who, doubt, time.Now()} // of before: who came meanwhile is asked next
	}
	if err := b.ready(ctx); err != nil {
		return last.who, err
	}
	b.probed.Store(last)
	who := last.who
	who.Unable = b.work.unable(cmp.Or(who.Instance, fmt.Sprint("connected-", last.doubt)), again)
	return who, nil
}

func saysOK(text string) bool { return text == "ok" }

// ready rests on the process alone. 4.0.7 answers it in 3 to 7 ms while its bookie hangs (2026-11-23).
func (b *Broker) ready(ctx context.Context) error {
	_, err := b.plain(ctx, "/admin/v2/brokers/ready", "ok", saysOK)
	return err
}

// works is nil when the broker did its work once. It is asked to produce and read a message, for
// which it takes as long as its bookies like: that says nothing of its process.
func (b *Broker) works(ctx context.Context) error {
	seen := b.noteSession(ctx)
	_, err := b.plain(ctx, "/admin/v2/brokers/health?topicVersion=V2", "ok", saysOK)
	if !seen { // the next try is a while away, and the process may end before it
		b.noteSession(ctx)
	}
	return err
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

func newWork(works func(context.Context) error) *work {
	w := &work{works: works, last: &tried{}}
	w.life, w.end = context.WithCancel(context.Background())
	return w
}

func (w *work) close() {
	w.mu.Lock()
	w.end()
	w.mu.Unlock()
	w.tasks.Wait()
}

// unable is why clients are not well served by that process; nil: they are. It begins a try when
// one is due, and for one that answers again at once.
func (w *work) unable(instance string, again bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.of != instance {
		w.last = &tried{of: instance}
	}
	t := w.last
	if !t.underway && (again || !time.Now().Before(t.due)) && w.life.Err() == nil {
		t.underway = true
		w.tasks.Go(func() { w.try(t) })
	}
	switch {
	case !t.done && t.failures == 0:
		return fmt.Errorf("the broker was not seen to do its work: %w", brokerapi.ErrUntried)
	case t.failures == 0, t.done && t.failures < workFall:
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
	t.underway, t.err, t.due = false, err, time.Now().Add(workEvery)
	if err == nil {
		t.done, t.failures = true, 0
		return
	}
	t.due = time.Now().Add(min(workSoon<<min(t.failures, 4), workEvery))
	t.failures++
}
