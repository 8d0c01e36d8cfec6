package page

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// open serves a feed on a socket, and returns its server and what ends the feed.
func open(t *testing.T, f *Feed, start func(*httptest.Server)) (server *httptest.Server, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = f.Run(ctx) })
	end = func() { cancel(); running.Wait() }
	server = httptest.NewUnstartedServer(f)
	server.Config.WriteTimeout = 100 * time.Millisecond
	start(server)
	t.Cleanup(server.Close)
	t.Cleanup(end)
	return server, end
}

func TestAStreamOutlivesTheServersWriteTimeout(t *testing.T) {
	for _, row := range []struct {
		name  string
		start func(*httptest.Server)
		major int
	}{
		{"HTTP/1.1", (*httptest.Server).Start, 1},
		{"HTTP/2", func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() }, 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			server, _ := open(t, NewFeed(newSidecar(0)), row.start)
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			began, statuses := time.Now(), 0
			for lines := bufio.NewScanner(answer.Body); statuses < 2 && lines.Scan(); {
				if lines.Text() == "event: status" {
					statuses++
				}
			}
			if statuses < 2 || time.Since(began) < server.Config.WriteTimeout || answer.ProtoMajor != row.major {
				t.Errorf("%d statuses in %s over %s", statuses, time.Since(began), answer.Proto)
			}
		})
	}
}

func TestAGracefulStopDoesNotWaitForStreams(t *testing.T) {
	server, end := open(t, NewFeed(newSidecar(0)), (*httptest.Server).Start)
	answer, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	end()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if err := server.Config.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		t.Errorf("the stream did not end in order: %v", err)
	}
}
