package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// sidecar serves h on a control socket until the test ends.
func sidecar(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "control.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
	return NewClient(socket, t.TempDir())
}

func TestClientSpeaksTheControlSocketsPaths(t *testing.T) {
	var got []string
	c := sidecar(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = append(got, strings.TrimSpace(r.Method+" "+r.RequestURI+" "+string(body)))
		switch r.URL.Path {
		case "/v1/topics":
			fmt.Fprint(w, `[{"topic":"/a/b","state":"served"}]`)
		case "/v1/events":
			fmt.Fprint(w, `{"id":7,"kind":"mode","to":"active"}`+"\n"+`{"id":8,"kind":"mode","to":"drained"}`) // last line without a newline
		case "/v1/events/7":
			fmt.Fprint(w, `{"event":{"id":7},"why":"because"}`)
		default:
			fmt.Fprint(w, `{"broker_id":"n1","later":true}`)
		}
	})
	ctx := t.Context()
	s, raw, err := c.Status(ctx)
	if err != nil || s.BrokerID != "n1" || string(raw) != `{"broker_id":"n1","later":true}` {
		t.Errorf("status: %+v %s %v", s, raw, err)
	}
	if topics, _, err := c.Topics(ctx); err != nil || len(topics) != 1 || topics[0].Topic != "/a/b" {
		t.Errorf("topics: %v %v", topics, err)
	}
	var ids []int64
	err = c.Events(ctx, EventOptions{Since: 6}, func(e Event, _ []byte) error { ids = append(ids, e.ID); return nil })
	if err != nil || len(ids) != 2 || ids[1] != 8 {
		t.Errorf("events: %v %v", ids, err)
	}
	if x, _, err := c.Event(ctx, 7); err != nil || x.Why != "because" {
		t.Errorf("event: %+v %v", x, err)
	}
	for _, err := range []error{
		third(c.Activate(ctx, "tested")), third(c.Drain(ctx, "tested", 1500*time.Millisecond)), third(c.Confirm(ctx)),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	want := []string{
		"GET /v1/status", "GET /v1/topics", "GET /v1/events?since=6", "GET /v1/events/7",
		`POST /v1/activate {"reason":"tested"}`, `POST /v1/drain {"reason":"tested","timeout_seconds":1.5}`, `POST /v1/confirm {}`,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func third(_ Status, _ []byte, err error) error { return err }

func TestClientKeepsTheSidecarsExitCodeAndWords(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		wantCode   int
		wantText   string
	}{
		{"refused", `{"error":"drained by an operator: activate it first","exit_code":3}`, 3, "drained by an operator: activate it first"},
		{"a code that is not in the contract", `{"error":"no","exit_code":17}`, 1, "no"},
		{"success as the code of an error", `{"error":"no","exit_code":0}`, 1, "no"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := sidecar(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusConflict)
				fmt.Fprint(w, tt.body)
			})
			_, _, err := c.Activate(t.Context(), "")
			var exit *ExitError
			if !errors.As(err, &exit) || exit.Code != tt.wantCode || exit.Error() != tt.wantText {
				t.Errorf("got %#v", err)
			}
		})
	}
}

func TestClientErrorsSayWhatToDoNext(t *testing.T) {
	t.Run("no socket", func(t *testing.T) {
		_, _, err := NewClient("/nowhere/control.sock", "/nowhere").Status(t.Context())
		want := "no sidecar answers on /nowhere/control.sock: is 'holdfast run' running here? give --control-socket or --state-dir"
		if err == nil || err.Error() != want {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a socket that nobody listens on", func(t *testing.T) {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
		_, _, err = NewClient(socket, t.TempDir()).Status(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), "no sidecar answers on "+socket) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("not a sidecar", func(t *testing.T) {
		c := sidecar(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") })
		_, _, err := c.Status(t.Context())
		if err == nil || !strings.Contains(err.Error(), "the answer is not from a Holdfast sidecar of this version") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a path that is not known", func(t *testing.T) {
		c := sidecar(t, http.NotFound)
		_, _, err := c.Status(t.Context())
		if err == nil || !strings.HasSuffix(err.Error(), "control.sock answered 404 Not Found to /v1/status: is the sidecar of the same version?") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no answer in time", func(t *testing.T) {
		c := sidecar(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, _, err := c.Status(ctx)
		if err == nil || !strings.HasSuffix(err.Error(), "did not answer in time: see its log") {
			t.Errorf("got %v", err)
		}
	})
}

func TestFollowingEndsWellWithItsContextAndBadlyWithTheSidecar(t *testing.T) {
	leave := make(chan struct{})
	c := sidecar(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("follow") != "1" {
			t.Errorf("asked %s", r.RequestURI)
		}
		fmt.Fprintln(w, `{"id":1,"to":"active"}`)
		w.(http.Flusher).Flush()
		select {
		case <-leave:
		case <-r.Context().Done():
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.Events(ctx, EventOptions{Follow: true}, func(Event, []byte) error { cancel(); return nil }); err != nil {
		t.Errorf("context ended: %v", err)
	}
	err := c.Events(t.Context(), EventOptions{Follow: true}, func(Event, []byte) error { close(leave); return nil })
	if err == nil || !strings.HasSuffix(err.Error(), "ended: run the command again when it is back") {
		t.Errorf("sidecar ended: %v", err)
	}
}

// A supervisor that stops all at once may end the sidecar while others still ask it.
func TestAClientSaysThatTheSidecarEndedWhileItWasAsked(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "control.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1))
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	_, _, err = NewClient(socket, t.TempDir()).Status(t.Context())
	if !errors.Is(err, ErrNoSidecar) || !strings.Contains(err.Error(), "it ended while it was asked") {
		t.Errorf("error %v", err)
	}
}
