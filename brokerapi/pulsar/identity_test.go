package pulsar

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"sync/atomic"
	"testing"

	"holdfast/brokerapi"
)

// restarting is a broker whose processes follow each other.
type restarting struct {
	t      *testing.T
	b      *Broker
	server *httptest.Server
	began  atomic.Int64 // ms; 0: there is none, less: it does not tell
	asked  atomic.Int64 // for its metrics
	list   atomic.Pointer[http.HandlerFunc]
	last   func() // as the last thing of what tells who it is is asked; nil: nothing happens
}

func (p *restarting) driver(change func(*Config)) *Broker {
	p.says(status(http.StatusOK, "{}"))
	p.b, p.server = answeringAt(p.t, map[string]http.HandlerFunc{
		"owned": func(w http.ResponseWriter, r *http.Request) { (*p.list.Load())(w, r) },
		"/admin/v2/clusters": func(w http.ResponseWriter, r *http.Request) {
			if p.last != nil {
				p.last()
			}
			status(http.StatusOK, `["cl"]`)(w, r)
		},
		"/admin/v2/brokers/ready": func(w http.ResponseWriter, r *http.Request) {
			if p.began.Load() == 0 {
				panic(http.ErrAbortHandler)
			}
			status(http.StatusOK, "ok")(w, r)
		},
		"/metrics/": func(w http.ResponseWriter, r *http.Request) {
			p.asked.Add(1)
			if ms := p.began.Load(); ms > 0 {
				fmt.Fprintf(w, "process_start_time_seconds{cluster=\"cl\"} %.3f\n", float64(ms)/1000)
				return
			}
			http.NotFound(w, r)
		},
	}, change)
	return p.b
}

// starts has the process be followed by one that began then.
func (p *restarting) starts(ms int64) {
	p.began.Store(ms)
	if p.server != nil {
		p.server.CloseClientConnections()
	}
}

func (p *restarting) says(f http.HandlerFunc) { p.list.Store(&f) }

func (p *restarting) who() brokerapi.Report {
	p.t.Helper()
	who, err := p.b.identify(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return who
}

func TestAnotherStartIsAnotherInstance(t *testing.T) {
	p := &restarting{t: t}
	p.starts(1000)
	b := p.driver(nil)
	if err := b.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := p.who()
	if first.Instance != "started-1000" || first.StartedAt.UnixMilli() != 1000 {
		t.Errorf("%+v", first)
	}
	asked := p.asked.Load()
	for range 5 {
		if again := p.who(); !reflect.DeepEqual(again, first) {
			t.Errorf("%+v, then %+v", first, again)
		}
	}
	if n := p.asked.Load(); n != asked {
		t.Errorf("asked %d times for the metrics of one process", n-asked+1)
	}
	p.starts(2000)
	if next := p.who(); next.Instance != "started-1000" && next.Instance != "started-2000" {
		t.Errorf("%+v", next)
	}
	if next := p.who(); next.Instance != "started-2000" {
		t.Errorf("another process is %+v", next)
	}
	p.starts(-1)
	_ = b.ready(t.Context())
	if next := p.who(); next.Instance != "" || next.Name == "" {
		t.Errorf("one that does not tell is %+v", next)
	}
}

// What it owns is in its metadata store, of which it may know nothing for a while: whether it is
// alive, /admin/v2/brokers/ready decides.
func TestABrokerThatCannotListWhatItOwnsIsTheSame(t *testing.T) {
	for name, ms := range map[string]int64{"it tells when it started": 1000, "it does not": -1} {
		t.Run(name, func(t *testing.T) {
			p := &restarting{t: t}
			p.starts(ms)
			b := p.driver(nil)
			fails := status(http.StatusInternalServerError, `{"reason":"\n --- An unexpected error occurred in the server ---"}`)
			p.says(fails)
			if err := b.ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			if who, err := b.identify(t.Context()); err == nil {
				t.Errorf("%+v: it has never proved who it is", who)
			}
			p.says(status(http.StatusOK, "{}"))
			before := p.who()
			p.says(fails)
			if who := p.who(); !reflect.DeepEqual(who, before) {
				t.Errorf("%+v; was %+v", who, before)
			}
			if _, err := b.Topics(t.Context()); err == nil {
				t.Error("nobody knows what it owns")
			}
			for name, f := range map[string]http.HandlerFunc{
				"it is another":        redirect("http://other:8080/"),
				"it is not registered": status(http.StatusNotFound, `{"reason":"no"}`),
				"it does not know us":  status(http.StatusForbidden, "{}"),
			} {
				p.says(f)
				if who, err := b.identify(t.Context()); err == nil {
					t.Errorf("%s: taken for %+v", name, who)
				}
			}
			p.says(fails)
			p.starts(2 * ms) // the next process
			_ = b.ready(t.Context())
			if who, err := b.identify(t.Context()); err == nil {
				t.Errorf("%+v: it may be another process", who)
			}
		})
	}
}

// A process that comes while the one before is asked is asked itself at the next probe.
func TestWhoComesWhileItIsAskedIsAskedNext(t *testing.T) {
	p := &restarting{t: t}
	p.starts(1000)
	b := p.driver(nil)
	p.last = func() {
		p.began.Store(2000)
		b.doubts.Add(1) // it is reached over another connection
	}
	for _, want := range []string{"started-1000", "started-2000"} {
		if who, err := b.Probe(t.Context()); err != nil || who.Instance != want {
			t.Errorf("%+v, %v; want %s", who, err, want)
		}
	}
}
