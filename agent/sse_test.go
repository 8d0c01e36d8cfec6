package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/agent/control"
)

// streamed is a client of /api/events in virtual time.
type streamed struct {
	*httptest.ResponseRecorder
	mu        sync.Mutex
	readUntil time.Time
}

func (s *streamed) SetWriteDeadline(time.Time) error { return nil }
func (s *streamed) FlushError() error                { return nil }
func (s *streamed) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readUntil = t
	return nil
}
func (s *streamed) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ResponseRecorder.Write(b)
}

// of lists the data of the events of that name that came so far.
func (s *streamed) of(name string) (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for block := range strings.SplitSeq(s.Body.String(), "\n\n") {
		if head, data, ok := strings.Cut(block, "\ndata: "); ok && strings.HasSuffix("\n"+head, "\nevent: "+name) {
			all = append(all, data)
		}
	}
	return all
}

// watch opens the stream; leave closes it.
func (n *numbered) watch() (s *streamed, leave func()) {
	n.mu.Lock()
	h := n.servers["--web-listen"]
	n.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	s = &streamed{ResponseRecorder: httptest.NewRecorder()}
	ended := make(chan struct{})
	n.all.Go(func() {
		defer close(ended)
		h.ServeHTTP(s, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/events", nil))
	})
	return s, func() { cancel(); <-ended }
}

func TestTheStreamTellsWhatTheControlSocketTells(t *testing.T) {
	attached(t, someTopics(3), func(n *numbered, _ func(error) error) {
		s, leave := n.watch()
		defer leave()
		time.Sleep(time.Second)
		n.order("drain")
		time.Sleep(time.Second)
		statuses, entries := s.of("status"), s.of("journal")
		var first, last control.Status
		if err := json.Unmarshal([]byte(statuses[0]), &first); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(statuses[len(statuses)-1]), &last); err != nil {
			t.Fatal(err)
		}
		if !first.Ready.OK || first.Severity != "ok" || last.Mode != "drained" || last.Severity != "info" || last.Summary != n.status().Summary {
			t.Errorf("first %+v, last %+v", first, last)
		}
		var e struct {
			control.Event
			Why, Next string
		}
		for _, entry := range entries {
			if err := json.Unmarshal([]byte(entry), &e); err != nil {
				t.Fatal(err)
			}
			if e.Kind == "mode" && e.To == "drained" {
				break
			}
		}
		if e.To != "drained" || e.Reason != "disk swap" || e.Why == "" || !strings.Contains(e.Next, "holdfast activate") {
			t.Errorf("of the drain the journal says %+v", e)
		}
	})
}

// A server takes the end of the time to read a request for the end of its client.
func TestTheStreamHasNoEndButItsOwn(t *testing.T) {
	attached(t, someTopics(1), func(n *numbered, _ func(error) error) {
		s, leave := n.watch()
		defer leave()
		time.Sleep(time.Minute)
		s.mu.Lock()
		until := s.readUntil
		s.mu.Unlock()
		if told := len(s.of("status")); !until.IsZero() || told < 60 {
			t.Errorf("read until %s, %d statuses in a minute", until, told)
		}
	})
}

func TestTheStreamEndsWithTheSidecar(t *testing.T) {
	attached(t, someTopics(1), func(n *numbered, stop func(error) error) {
		s, leave := n.watch()
		time.Sleep(time.Second)
		if err := stop(nil); err != nil {
			t.Errorf("stop: %v", err)
		}
		told := len(s.of("status"))
		time.Sleep(time.Minute)
		if now := len(s.of("status")); told == 0 || now != told {
			t.Errorf("%d statuses, then %d", told, now)
		}
		leave()
	})
}

func TestASteadySidecarIsToldOfOnceASecond(t *testing.T) {
	attached(t, someTopics(1), func(n *numbered, _ func(error) error) {
		n.order("pause")
		s, leave := n.watch()
		defer leave()
		time.Sleep(30 * time.Second)
		all := s.of("status")
		if len(all) < 30 || len(all) > 32 { // the pause counts down in the sentence
			t.Errorf("%d statuses in 30 s", len(all))
		}
	})
}

func TestThePageIsAtTheRootAndOnlyThere(t *testing.T) {
	attached(t, nil, func(n *numbered, _ func(error) error) {
		for path, want := range map[string]int{"/": http.StatusOK, "/index.html": http.StatusNotFound, "/api": http.StatusNotFound} {
			w := httptest.NewRecorder()
			n.servers["--web-listen"].ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if w.Code != want {
				t.Errorf("%s: %d, want %d", path, w.Code, want)
			}
		}
		w := httptest.NewRecorder()
		n.servers["--web-listen"].ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", nil))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("POST: %d", w.Code)
		}
	})
}
