package agent

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/agent/control"
)

func FuzzAnswersOnTheControlSocket(f *testing.F) {
	f.Add(200, []byte(`{"broker_id":"n1","lease":{"id":"7"},"topics":{"assigned":1}}`))
	f.Add(200, []byte(`[{"topic":"/a/b","state":"served"}]`))
	f.Add(200, []byte("{\"id\":7}\n{\"id\":8}\n{"))
	f.Add(500, []byte(`{"error":"no","exit_code":99}`))
	f.Add(204, []byte(""))
	type said struct {
		status int
		body   []byte
	}
	var says atomic.Pointer[said]
	dir := f.TempDir()
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		f.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(says.Load().status)
		_, _ = w.Write(says.Load().body) // a status without a body refuses one
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	f.Cleanup(func() { srv.Close(); <-done })
	c := control.NewClient(socket, dir)
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if status < 200 || status > 599 {
			return
		}
		says.Store(&said{status, body})
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, statusErr := c.Get(ctx, "/v1/status", new(control.Status))
		_, topicsErr := c.Get(ctx, "/v1/topics", new([]control.TopicStatus))
		_, eventErr := c.Get(ctx, "/v1/events/1", new(control.Explanation))
		drainErr := c.Post(ctx, "/v1/drain", map[string]any{"reason": "x"}, new(control.Status))
		pauseErr := c.Post(ctx, "/v1/pause", control.PauseRequest{}, new(control.PauseAnswer))
		eventsErr := c.Events(ctx, 0, false, func(control.Event, []byte) error { return nil })
		for _, err := range []error{statusErr, topicsErr, eventErr, drainErr, pauseErr, eventsErr} {
			if err == nil && status/100 != 2 {
				t.Fatalf("%d %q is no error", status, body)
			}
		}
		if ctx.Err() != nil {
			t.Fatal("the calls lasted longer than the answers")
		}
	})
}
