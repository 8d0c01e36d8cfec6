package probes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// logText is a log that may be read while it is written.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// fakeBroker answers checks as it is told.
type fakeBroker struct {
	mu     sync.Mutex
	err    error
	mode   string // "", "hang" until the context ends, "deaf" until released
	starts []time.Time
	active int
	most   int
	freed  chan struct{}
}

func (b *fakeBroker) set(mode string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mode, b.err = mode, err
}

func (b *fakeBroker) check(ctx context.Context) error {
	b.mu.Lock()
	b.starts = append(b.starts, time.Now())
	b.active++
	b.most = max(b.most, b.active)
	mode, err := b.mode, b.err
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.active--
		b.mu.Unlock()
	}()
	switch mode {
	case "hang":
		<-ctx.Done()
		return ctx.Err()
	case "deaf":
		<-b.freed
		return nil
	case "panic":
		panic("driver bug")
	}
	return err
}

func (b *fakeBroker) startCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.starts)
}

// mostAtOnce is how many checks ran at the same time, at the worst.
func (b *fakeBroker) mostAtOnce() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most
}

// probing runs a Health in the bubble and stops it at the end of the test.
type probing struct {
	*Health
	broker *fakeBroker
	lost   chan struct{}
	log    *logText
	begin  time.Time
	stop   func() error
}

func probe(t *testing.T, s HealthSettings, mode string, err error) *probing {
	t.Helper()
	p := &probing{
		broker: &fakeBroker{mode: mode, err: err, freed: make(chan struct{})},
		lost:   make(chan struct{}, 1), log: &logText{}, begin: time.Now(),
	}
	p.Health = NewHealth(s, p.broker.check, p.lost, slog.New(slog.NewTextHandler(p.log, nil)), nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	p.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { p.stop() })
	return p
}

// at moves virtual time to d after the begin, and a millisecond before that it
// requires the verdict to be still the earlier one.
func (p *probing) at(t *testing.T, d time.Duration, before, after Verdict) {
	t.Helper()
	time.Sleep(time.Until(p.begin.Add(d - time.Millisecond)))
	synctest.Wait()
	if got := p.Snapshot().Verdict; got != before {
		t.Fatalf("1 ms before %v: %v, want %v (%+v)", d, got, before, p.Snapshot())
	}
	time.Sleep(time.Millisecond)
	synctest.Wait()
	if got := p.Snapshot().Verdict; got != after {
		t.Fatalf("at %v: %v, want %v (%+v)", d, got, after, p.Snapshot())
	}
}

// usual are the defaults of --health-interval, -timeout, -rise and -fall.
var usual = HealthSettings{Interval: time.Second, Timeout: time.Second, Rise: 2, Fall: 3}

var errRefused = errors.New("connection refused")

func TestRefusingBrokerIsDownAfterFallIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probe(t, usual, "", nil)
		synctest.Wait()
		if v := p.Snapshot(); v.Verdict != Up || v.LastError != "" {
			t.Fatalf("after the first answer: %+v", v)
		}
		p.broker.set("", errRefused) // just after a success: the worst moment
		p.at(t, 3*time.Second, Up, Down)
		if v := p.Snapshot(); v.LastError != "connection refused" {
			t.Errorf("down: %+v", v)
		}
		p.broker.set("", nil)
		p.at(t, 5*time.Second, Down, Up)
	})
}

func TestBrokerThatNeverAnsweredIsDownAfterFallFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probe(t, usual, "", errRefused)
		p.at(t, 2*time.Second, Unknown, Down) // failures at 0, 1 and 2 s
	})
}

func TestSlowBrokerIsDownAfterFallIntervalsAndOneTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probe(t, usual, "", nil)
		synctest.Wait()
		p.broker.set("hang", nil)
		p.at(t, 4*time.Second, Up, Down)
		if e := p.Snapshot().LastError; e != "no answer within 1s: context deadline exceeded" {
			t.Errorf("error %q", e)
		}
	})
}

// No driver does that. Should one, nothing is known of the broker, and clients are kept away.
func TestCheckThatIgnoresItsContextIsUnknownAndHasNoCompany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probe(t, usual, "", nil)
		synctest.Wait()
		p.broker.set("deaf", nil)
		time.Sleep(14 * time.Second)
		synctest.Wait()
		if n, v := p.broker.startCount(), p.Snapshot(); n != 2 || v.At(time.Now()) != Unknown {
			t.Errorf("%d checks were started, want 2: one that answered and the deaf one; %+v", n, v)
		}
		p.broker.set("", nil)
		close(p.broker.freed)
		synctest.Wait()
		if v := p.Snapshot(); v.At(time.Now()) != Up || p.broker.mostAtOnce() != 1 {
			t.Errorf("after it returned: %+v, at most %d at a time", v, p.broker.mostAtOnce())
		}
	})
}

func TestTimeoutLongerThanIntervalNeverOverlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probe(t, HealthSettings{Interval: time.Second, Timeout: 2500 * time.Millisecond, Rise: 1, Fall: 2}, "hang", nil)
		p.at(t, 5*time.Second, Unknown, Down)
		if p.broker.mostAtOnce() != 1 {
			t.Errorf("%d checks at a time", p.broker.mostAtOnce())
		}
	})
}

func TestLossIsUnknownAtOnceAndHastensTheProbing(t *testing.T) {
	for name, tt := range map[string]struct {
		err    error
		mode   string
		before Verdict
		after  Verdict
		at     time.Duration // after the loss
	}{
		"the broker answers": {nil, "", Unknown, Up, 0},
		"the broker refuses": {errRefused, "", Unknown, Down, 500 * time.Millisecond},
		"the broker hangs":   {nil, "hang", Unknown, Down, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := probe(t, usual, "", nil)
				time.Sleep(5400 * time.Millisecond)
				synctest.Wait()
				drain(p.Changes())
				p.broker.set(tt.mode, tt.err)
				p.lost <- struct{}{}
				synctest.Wait()
				select {
				case <-p.Changes():
				default:
					t.Error("nothing on Changes")
				}
				if !strings.Contains(p.log.String(), "from=up to=unknown") {
					t.Errorf("no transition to unknown in the log:\n%s", p.log)
				}
				if tt.at > 0 {
					p.at(t, 5400*time.Millisecond+tt.at, tt.before, tt.after)
				} else if got := p.Snapshot().Verdict; got != tt.after {
					t.Errorf("at once: %v, want %v", got, tt.after)
				}
			})
		})
	}
}

func TestHastenedProbingReturnsToTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probe(t, usual, "", nil)
		time.Sleep(1500 * time.Millisecond)
		p.broker.set("", errRefused)
		p.lost <- struct{}{}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		var got []time.Duration
		for _, at := range p.broker.starts {
			got = append(got, at.Sub(p.begin))
		}
		want := []time.Duration{0, 1000, 1500, 1750, 2000, 3000, 4000, 5000, 6000}
		if len(got) != len(want) {
			t.Fatalf("checks at %v", got)
		}
		for i := range want {
			if got[i] != want[i]*time.Millisecond {
				t.Errorf("check %d at %v, want %v ms", i, got[i], int64(want[i]))
			}
		}
	})
}

func TestAnswerFromBeforeALossIsVoid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		calls := 0
		lost := make(chan struct{}, 1)
		check := func(ctx context.Context) error {
			if calls++; calls == 1 {
				<-release // the process that is about to die, answering late
				return nil
			}
			<-ctx.Done()
			return errRefused
		}
		h := NewHealth(HealthSettings{Interval: time.Second, Timeout: time.Second, Rise: 2, Fall: 1}, check, lost, quiet(), nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		time.Sleep(100 * time.Millisecond)
		lost <- struct{}{}
		synctest.Wait()
		close(release)
		synctest.Wait()
		if v := h.Snapshot(); v.Verdict != Unknown || !v.LastResultAt.IsZero() || calls != 2 {
			t.Errorf("%+v after %d calls: the answer of the dead process was believed", v, calls)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestStormOfLossesIsAnsweredAtMostTwentyTimesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probe(t, usual, "", nil)
		for range 1000 {
			time.Sleep(time.Millisecond)
			p.lost <- struct{}{}
		}
		synctest.Wait()
		if n := p.broker.startCount(); n > 22 {
			t.Errorf("%d checks in one second", n)
		}
	})
}

func TestRepeatedErrorIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probe(t, usual, "", errRefused)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(p.log.String(), "connection refused"); n != 2 {
			t.Errorf("%d lines, want 2: the first failure and the verdict\n%s", n, p.log)
		}
		drain(p.Changes())
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case <-p.Changes():
			t.Error("a change was signalled although nothing changed")
		default:
		}
	})
}

func TestPanickingCheckIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probe(t, usual, "panic", nil)
		p.at(t, 2*time.Second, Unknown, Down)
		if e := p.Snapshot().LastError; e != errPanicked.Error() {
			t.Errorf("error %q", e)
		}
	})
}

func TestTheEndWaitsForNoCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probe(t, usual, "deaf", nil)
		time.Sleep(500 * time.Millisecond)
		if err := p.stop(); err != nil || time.Since(p.begin) != 500*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(p.begin))
		}
		close(p.broker.freed)
	})
}

func TestAnswersWithinTheTimeoutKeepItUp(t *testing.T) {
	const timeout, answer = time.Second, 999 * time.Millisecond
	for _, s := range []HealthSettings{
		{Interval: 100 * time.Millisecond, Timeout: timeout, Rise: 1, Fall: 3},
		{Interval: 700 * time.Millisecond, Timeout: timeout, Rise: 2, Fall: 2},
		{Interval: time.Second, Timeout: timeout, Rise: 2, Fall: 3},
		{Interval: 3 * time.Second, Timeout: timeout, Rise: 2, Fall: 2},
	} {
		t.Run(fmt.Sprintf("every %v, fall %d", s.Interval, s.Fall), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := NewHealth(s, func(context.Context) error { time.Sleep(answer); return nil }, nil, slog.New(slog.DiscardHandler), nil)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- h.Run(ctx) }()
				time.Sleep(timeout)
				for range 2000 {
					synctest.Wait()
					if v := h.Snapshot(); v.At(time.Now()) != Up {
						t.Errorf("%v, %v after the last success: %+v", v.At(time.Now()), time.Since(v.LastSuccessAt), v)
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				time.Sleep(answer) // of the check in flight
			})
		})
	}
}

func TestViewIsUnknownWhenOld(t *testing.T) {
	s := HealthSettings{Interval: time.Second, Timeout: 2 * time.Second, Fall: 1}
	bounded := s
	bounded.Fall = 3 // an Up for 3.05 s
	at := time.Unix(1000, 0)
	tests := []struct {
		name string
		view HealthView
		age  time.Duration
		want Verdict
	}{
		{"fresh and up", HealthView{Verdict: Up, LastResultAt: at}, time.Second, Up},
		{"at the bound", HealthView{Verdict: Up, LastResultAt: at}, 4 * time.Second, Up},
		{"past the bound", HealthView{Verdict: Up, LastResultAt: at}, 4*time.Second + 1, Unknown},
		{"up, and the last success just recent enough", HealthView{Verdict: Up, LastResultAt: at, LastSuccessAt: at.Add(-2 * time.Second), by: bounded}, 1050 * time.Millisecond, Up},
		{"up, and the last success too long ago", HealthView{Verdict: Up, LastResultAt: at, LastSuccessAt: at.Add(-2 * time.Second), by: bounded}, 1050*time.Millisecond + 1, Unknown},
		{"down and past the bound", HealthView{Verdict: Down, LastResultAt: at}, time.Minute, Unknown},
		{"no result yet", HealthView{Verdict: Up}, 0, Unknown},
		{"lost just now", HealthView{Verdict: Unknown, LastResultAt: at}, 0, Unknown},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.view.by == (HealthSettings{}) {
				tt.view.by = s
			}
			if got := tt.view.At(at.Add(tt.age)); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

func TestBrokerUpMetricIsOneOnlyWhileUpAndFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		b := &fakeBroker{}
		h := NewHealth(usual, b.check, nil, quiet(), reg)
		expect := func(when string, want string) {
			t.Helper()
			text := "# HELP holdfast_broker_up 1 when the broker's health verdict is up and fresh, 0 when it is down, unknown or stale. 0: `holdfast status` has the last error; look at the broker and its admin API.\n# TYPE holdfast_broker_up gauge\nholdfast_broker_up " + want + "\n"
			if err := testutil.GatherAndCompare(reg, strings.NewReader(text)); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		expect("before the first result", "0")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		synctest.Wait()
		expect("up", "1")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		expect("nobody probes any more", "0")
		if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
			t.Errorf("lint: %v %v", problems, err)
		}
	})
}

func drain(c <-chan struct{}) {
	select {
	case <-c:
	default:
	}
}

func TestALookAsksAtOnceAndIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probe(t, usual, "", nil)
		time.Sleep(1500 * time.Millisecond)
		p.Look()
		synctest.Wait()
		if n := p.broker.startCount(); n != 3 || p.Snapshot().Verdict != Up {
			t.Errorf("asked %d times, want 3; verdict %v", n, p.Snapshot().Verdict)
		}
		time.Sleep(500*time.Millisecond - time.Millisecond) // it answered: asked as before, each whole second
		if n := p.broker.startCount(); n != 3 {
			t.Errorf("asked %d times, want 3", n)
		}
		p.broker.set("", errors.New("refused"))
		p.begin = time.Now()
		p.Look()
		p.at(t, 500*time.Millisecond, Up, Down) // three, 250 ms apart
	})
}

func TestARefusalOfUsEndsTheHaste(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := probe(t, usual, "", &Unseen{Err: errors.New("full")})
		p.lost <- struct{}{}
		synctest.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		before := p.broker.startCount()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := p.broker.startCount() - before; n != 10 {
			t.Errorf("asked %d times within 10 s", n)
		}
	})
}

func TestARefusalOfUsLeavesWhatWasKnown(t *testing.T) {
	refused := &Unseen{Err: errors.New("full")}
	known := &Unseen{Err: refused.Err, Stands: true}
	silence := errors.New("refused")
	for _, tt := range []struct {
		name string
		errs []error // one after another; the last stays
		want Verdict
	}{
		{"it was up", []error{nil, refused}, Up},
		{"it was up, and failed once", []error{nil, silence, refused}, Up},
		{"never seen", []error{refused}, Unknown},
		{"known from before", []error{known, refused}, Up},
		{"it was down", []error{silence, silence, silence, refused}, Unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				h := NewHealth(usual, func(context.Context) error {
					asked++
					return tt.errs[min(asked, len(tt.errs))-1]
				}, nil, quiet(), prometheus.NewRegistry())
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go h.Run(ctx)
				time.Sleep(time.Minute + time.Millisecond)
				synctest.Wait()
				if v := h.Snapshot(); v.At(time.Now()) != tt.want || v.LastError != "full" {
					t.Errorf("%v (%s), want %v", v.At(time.Now()), v.LastError, tt.want)
				}
			})
		})
	}
}
