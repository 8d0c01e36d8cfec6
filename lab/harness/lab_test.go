package harness

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// probeServer is a sidecar as far as its probes go.
func probeServer(t *testing.T) (s *Sidecar, ready, live *atomic.Int64) {
	ready, live = new(atomic.Int64), new(atomic.Int64)
	ready.Store(http.StatusServiceUnavailable)
	live.Store(http.StatusOK)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code := live
		if r.URL.Path == "/ready" {
			code = ready
		}
		w.WriteHeader(int(code.Load()))
	}))
	t.Cleanup(srv.Close)
	return &Sidecar{
		Process:   &Process{Name: "s"},
		ProbePort: srv.Listener.Addr().(*net.TCPAddr).Port,
		probe:     httpClient(Place{}.DialContext, time.Second),
	}, ready, live
}

// The broker died while the question was on its way: the answer says nothing of later.
func TestAnAnswerAskedForBeforeIsNotReadyAfter(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }
	r := &Recorder{sidecar: &Sidecar{Process: &Process{Name: "s"}}}
	r.add(ProbeSample{At: at(0), Asked: at(0), Until: at(10), Ready: http.StatusOK})
	r.add(ProbeSample{At: at(100), Asked: at(100), Until: at(130), Ready: http.StatusOK})
	r.add(ProbeSample{At: at(200), Asked: at(200), Until: at(210), Ready: http.StatusServiceUnavailable})
	if err := r.NeverReady(at(110), at(300)); err != nil {
		t.Error(err)
	}
	if err := r.NeverReady(at(90), at(300)); err == nil {
		t.Error("what was asked at 100 ms and was ready is forgotten")
	}
}

func TestRecorderTellsWhenASidecarWasReady(t *testing.T) {
	ctx := t.Context()
	l := ForTest(t)
	s, ready, live := probeServer(t)
	r := l.Record(s)
	runs := func(n int) {
		t.Helper()
		err := Await(ctx, Patience, "the recorder", func(context.Context) (bool, string) {
			// A run that was seen twice is long enough to ask questions about.
			tl := r.Timeline()
			return len(tl) >= n && tl[len(tl)-1].Until.Sub(tl[len(tl)-1].At) > PollEvery, r.String()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	runs(1)
	// The end of the last answer seen: nothing that was asked before it is under way.
	last := func() time.Time { tl := r.Timeline(); return tl[len(tl)-1].Until }
	notYet := last()
	ready.Store(http.StatusOK)
	runs(2)
	isReady, _ := r.FirstReady(notYet)
	if isReady.Before(notYet) {
		t.Errorf("first ready at %v, before %v", isReady, notYet)
	}
	later := last()
	ready.Store(http.StatusServiceUnavailable)
	live.Store(http.StatusServiceUnavailable)
	runs(3)
	end := time.Now()

	for _, claim := range []struct {
		name string
		err  error
		want bool
	}{
		{"never ready before", r.NeverReady(start, notYet), true},
		{"never ready at all", r.NeverReady(start, end), false},
		{"ready throughout the middle", r.AlwaysReady(isReady, later), true},
		{"ready from the start", r.AlwaysReady(start, end), false},
		{"live until the last change", r.AlwaysLive(start, later), true},
		{"live to the end", r.AlwaysLive(start, end), false},
		{"something about the future", r.AlwaysLive(end.Add(time.Hour), end.Add(2*time.Hour)), false},
	} {
		if (claim.err == nil) != claim.want {
			t.Errorf("%s: %v, want it to hold: %v", claim.name, claim.err, claim.want)
		}
	}
	if at, ok := r.FirstNotReady(later); !ok || at.Before(later) || at.After(end) {
		t.Errorf("first not ready at %v, %v; want between %v and %v", at, ok, later, end)
	}
}
