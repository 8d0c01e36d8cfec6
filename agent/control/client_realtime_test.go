package control

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
		case "/v1/events":
			fmt.Fprint(w, `{"id":7,"kind":"mode","to":"active"}`+"\n"+`{"id":8,"kind":"mode","to":"drained"}`) // last line without a newline
		default:
			fmt.Fprint(w, `{"broker_id":"n1","later":true}`)
		}
	})
	ctx := t.Context()
	var s Status
	raw, err := c.Get(ctx, "/v1/status", &s)
	if err != nil || s.BrokerID != "n1" || string(raw) != `{"broker_id":"n1","later":true}` {
		t.Errorf("status: %+v %s %v", s, raw, err)
	}
	var ids []int64
	err = c.Events(ctx, 6, false, func(e Event, _ []byte) error { ids = append(ids, e.ID); return nil })
	if err != nil || len(ids) != 2 || ids[1] != 8 {
		t.Errorf("events: %v %v", ids, err)
	}
	if err := c.Post(ctx, "/v1/drain", map[string]any{"reason": "tested", "timeout_seconds": 1.5}, &s); err != nil {
		t.Error(err)
	}
	want := []string{
		"GET /v1/status", "GET /v1/events?since=6", `POST /v1/drain {"reason":"tested","timeout_seconds":1.5}`,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

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
			err := c.Post(t.Context(), "/v1/activate", struct{}{}, new(Status))
			var exit *ExitError
			if !errors.As(err, &exit) || exit.Code != tt.wantCode || exit.Error() != tt.wantText {
				t.Errorf("got %#v", err)
			}
		})
	}
}

func TestClientErrorsSayWhatToDoNext(t *testing.T) {
	t.Run("no socket", func(t *testing.T) {
		_, err := NewClient("/nowhere/control.sock", "/nowhere").Get(t.Context(), "/v1/status", new(Status))
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
		_, err = NewClient(socket, t.TempDir()).Get(t.Context(), "/v1/status", new(Status))
		if err == nil || !strings.HasPrefix(err.Error(), "no sidecar answers on "+socket) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("not a sidecar", func(t *testing.T) {
		c := sidecar(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") })
		_, err := c.Get(t.Context(), "/v1/status", new(Status))
		if err == nil || !strings.Contains(err.Error(), "the answer is not from a Holdfast sidecar of this version") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a path that is not known", func(t *testing.T) {
		c := sidecar(t, http.NotFound)
		_, err := c.Get(t.Context(), "/v1/status", new(Status))
		if err == nil || !strings.HasSuffix(err.Error(), "control.sock answered 404 Not Found to /v1/status: is the sidecar of the same version?") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no answer in time", func(t *testing.T) {
		c := sidecar(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := c.Get(ctx, "/v1/status", new(Status))
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
	if err := c.Events(ctx, 0, true, func(Event, []byte) error { cancel(); return nil }); err != nil {
		t.Errorf("context ended: %v", err)
	}
	err := c.Events(t.Context(), 0, true, func(Event, []byte) error { close(leave); return nil })
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
	_, err = NewClient(socket, t.TempDir()).Get(t.Context(), "/v1/status", new(Status))
	if !errors.Is(err, ErrNoSidecar) || !strings.Contains(err.Error(), "it ended while it was asked") {
		t.Errorf("error %v", err)
	}
}
