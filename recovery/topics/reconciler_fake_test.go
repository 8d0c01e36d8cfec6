package topics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"holdfast/recovery"
)

var errRefused = errors.New("refused by the broker")

// fakeBroker keeps the promises of Broker, with latency, errors and hangs.
type fakeBroker struct {
	mu       sync.Mutex
	serving  map[string]bool
	quiesced map[string]bool

	latency    time.Duration          // of each call
	listErr    error                  // of Topics
	unreadable []string               // as Topics tells it
	loadErr    map[string]error       // by topic
	quiesceErr map[string]error       // by topic
	hangs      map[string]bool        // Load of these topics ends with its context
	deaf       time.Duration          // Load takes this long, whatever its context says, and succeeds
	stubborn   bool                   // Quiesce succeeds and does nothing
	listHangs  bool                   // Topics ends with its context
	listDeaf   time.Duration          // Topics takes this long, whatever its context says, and succeeds
	loads      map[string]int         // calls begun, by topic
	loadTimes  map[string][]time.Time // when they began
	quiesces   map[string]int
	records    map[string]string
	listings   int
	flying     int
	maxFlying  int
	cancelled  int // calls whose context was cancelled
	onServe    func(topic string)
}

func newFakeBroker(serving ...string) *fakeBroker {
	b := &fakeBroker{
		serving: map[string]bool{}, quiesced: map[string]bool{},
		loadErr: map[string]error{}, quiesceErr: map[string]error{}, hangs: map[string]bool{},
		loads: map[string]int{}, loadTimes: map[string][]time.Time{}, quiesces: map[string]int{}, records: map[string]string{},
	}
	for _, name := range serving {
		b.serving[name] = true
	}
	return b
}

// pass is the way of every call: it counts, takes its time, and obeys its context.
func (b *fakeBroker) pass(ctx context.Context, hang bool) error {
	b.mu.Lock()
	b.flying++
	b.maxFlying = max(b.maxFlying, b.flying)
	latency := b.latency
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.flying--
		if ctx.Err() == context.Canceled {
			b.cancelled++
		}
		b.mu.Unlock()
	}()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	// Never at once: what a claim does at one moment is done before anything answers. And not by the channel of a
	// timer: the race detector dies of thousands of those.
	over, cancel := context.WithTimeout(ctx, max(latency, 1))
	defer cancel()
	<-over.Done()
	return ctx.Err()
}

func (b *fakeBroker) Topics(ctx context.Context) (Held, error) {
	b.mu.Lock()
	b.listings++
	hang, deaf, listErr := b.listHangs, b.listDeaf, b.listErr
	held := Held{Serving: slices.Collect(maps.Keys(b.serving)), Withdrawn: slices.Collect(maps.Keys(b.quiesced)), Unreadable: b.unreadable} // as it is when asked
	b.mu.Unlock()
	if deaf > 0 {
		time.Sleep(deaf)
		return held, nil
	}
	if err := errors.Join(b.pass(ctx, hang), listErr); err != nil {
		return Held{}, err
	}
	return held, nil
}

func (b *fakeBroker) Serve(ctx context.Context, topic string, record []byte) error {
	b.mu.Lock()
	b.loads[topic]++
	b.loadTimes[topic] = append(b.loadTimes[topic], time.Now())
	b.records[topic] = string(record)
	hang, deaf, fail := b.hangs[topic], b.deaf, b.loadErr[topic]
	b.mu.Unlock()
	if deaf > 0 {
		time.Sleep(deaf)
	} else if err := errors.Join(b.pass(ctx, hang), fail); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.onServe != nil {
		b.onServe(topic)
	}
	b.serving[topic] = true
	delete(b.quiesced, topic)
	return nil
}

func (b *fakeBroker) Withdraw(ctx context.Context, topic string) error {
	b.mu.Lock()
	b.quiesces[topic]++
	fail := b.quiesceErr[topic]
	b.mu.Unlock()
	if err := errors.Join(b.pass(ctx, false), fail); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stubborn {
		return nil
	}
	delete(b.serving, topic)
	b.quiesced[topic] = true
	return nil
}

func (b *fakeBroker) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func (b *fakeBroker) served() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.serving))
}

func (b *fakeBroker) totals() (listings, loads, quiesces int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.loads {
		loads += n
	}
	for _, n := range b.quiesces {
		quiesces += n
	}
	return b.listings, loads, quiesces
}

// fakeRecords knows the record of every topic, unless it fails.
type fakeRecords struct {
	mu    sync.Mutex
	err   error
	none  string // topic without a record
	slow  time.Duration
	calls int
}

func (f *fakeRecords) Records(_ context.Context, topics []string) (map[string][]byte, error) {
	time.Sleep(f.slow)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.err != nil {
		return nil, f.err
	}
	records := map[string][]byte{}
	for _, name := range topics {
		if name != f.none {
			records[name] = []byte("record of " + name)
		}
	}
	return records, nil
}

func (f *fakeRecords) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// world is a running reconciler beside a fake broker, in virtual time.
type world struct {
	*Reconciler
	t   *testing.T
	b   *fakeBroker
	rec *fakeRecords
	reg *prometheus.Registry
	log *bytes.Buffer // read it only after synctest.Wait
}

var testSettings = ReconcilerSettings{
	Concurrency: 4, LoadTimeout: 30 * time.Second, AuditInterval: 30 * time.Second, MassChangeShare: 0.5,
}

var (
	attached = recovery.Orders{Epoch: 1, Mode: recovery.Active, Attached: true, Instance: "a"}
	detached = with(func(o *recovery.Orders) { o.Attached = false })
	paused   = with(func(o *recovery.Orders) { o.Paused = true })
	draining = with(func(o *recovery.Orders) { o.Mode = recovery.Draining })
	drained  = with(func(o *recovery.Orders) { o.Mode = recovery.Drained })
	another  = with(func(o *recovery.Orders) { o.Instance = "b" }) // process
	renewed  = with(func(o *recovery.Orders) { o.Epoch = 2 })
)

func with(change func(*recovery.Orders)) recovery.Orders {
	o := attached
	change(&o)
	return o
}

// inWorld runs a claim in virtual time; the reconciler is ended and waited for.
func inWorld(t *testing.T, s ReconcilerSettings, b *fakeBroker, claim func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, b: b, rec: &fakeRecords{}, reg: prometheus.NewPedanticRegistry(), log: &bytes.Buffer{}}
		w.Reconciler = NewReconciler(s, b, w.rec, slog.New(slog.NewTextHandler(w.log, nil)), w.reg)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run returned %v, want nil", err)
			}
		}()
		claim(w)
	})
}

// begin attaches the broker, to which these topics are assigned, and lets virtual time pass.
func (w *world) begin(d time.Duration, topics ...string) {
	w.SetOrders(attached)
	w.SetAssigned(1, true, topics, nil)
	w.after(d)
}

// after lets virtual time pass and everything settle.
func (w *world) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) wantServed(names ...string) {
	w.t.Helper()
	slices.Sort(names)
	if got := w.b.served(); !slices.Equal(got, names) {
		w.t.Errorf("served %s, want %s", brief(got), brief(names))
	}
}

// wantCalls checks how many calls have begun.
func (w *world) wantCalls(loads, quiesces int) {
	w.t.Helper()
	if _, l, q := w.b.totals(); l != loads || q != quiesces {
		w.t.Errorf("%d loads, %d quiesces; want %d, %d", l, q, loads, quiesces)
	}
}

// wantLog checks how often the log says so.
func (w *world) wantLog(text string, times int) {
	w.t.Helper()
	synctest.Wait()
	if n := strings.Count(w.log.String(), text); n != times {
		w.t.Errorf("%d times in the log, want %d: %s", n, times, text)
	}
}

// want checks the progress: what is not zero in it, and what holds it up.
func (w *world) want(progress string) {
	w.t.Helper()
	p := w.Snapshot()
	var got []string
	for _, c := range []struct {
		n    int
		what string
	}{{p.Assigned, "assigned"}, {p.Served, "served"}, {p.Missing, "missing"}, {p.Loading, "loading"}, {p.Orphan, "orphan"}, {p.Quarantined, "quarantined"},
		{p.Elsewhere, "elsewhere"}, {p.Foreign, "foreign"}, {p.Failed, "failed"}, {p.Unreadable, "unreadable"}} {
		if c.n != 0 {
			got = append(got, fmt.Sprint(c.n, " ", c.what))
		}
	}
	for _, c := range []struct {
		is   bool
		what string
	}{{!p.AssignedKnown, "not assigned"}, {!p.ServedKnown, "not listed"}, {p.GuardTripped, "tripped"}, {p.LastError != "", "error"}, {p.Reconciled, p.GateOpenedBy}} {
		if c.is {
			got = append(got, c.what)
		}
	}
	if got := strings.Join(got, ", "); got != progress {
		w.t.Errorf("progress %q, want %q: %s", got, progress, p.LastError)
	}
}

func brief(names []string) string {
	if len(names) <= 5 {
		return fmt.Sprintf("%q", names)
	}
	return fmt.Sprintf("%d topics %q…", len(names), names[:3])
}

// names makes n topic names.
func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("/n/%s-%05d", prefix, i)
	}
	return out
}

// wantMetric checks one sample, written as in the text format.
func (w *world) wantMetric(sample string) {
	w.t.Helper()
	families, err := w.reg.Gather()
	var text bytes.Buffer
	for _, f := range families {
		_, bad := expfmt.MetricFamilyToText(&text, f)
		err = errors.Join(err, bad)
	}
	if err != nil || !strings.Contains(text.String(), "\n"+sample+"\n") {
		w.t.Errorf("no sample %s (%v) in\n%s", sample, err, text.String())
	}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
