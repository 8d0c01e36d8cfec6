package agent

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
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
	c := NewClient(socket, dir)
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if status < 200 || status > 599 {
			return
		}
		says.Store(&said{status, body})
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, _, statusErr := c.Status(ctx)
		_, _, topicsErr := c.Topics(ctx)
		_, _, eventErr := c.Event(ctx, 1)
		_, _, drainErr := c.Drain(ctx, "x", time.Second)
		_, pauseErr := c.Pause(ctx, PauseRequest{})
		eventsErr := c.Events(ctx, EventOptions{}, func(Event, []byte) error { return nil })
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

func FuzzStateFilesAreReadOrPutAside(f *testing.F) {
	f.Add([]byte(`{"format":1,"broker_id":"n1","incarnation":"0123456789abcdef0123456789abcdef","mode":"active","pause":{"until":"x"}}`))
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{`))
	f.Add([]byte{0, 0, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "state.json"), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := (&stateDir{path: dir}).load()
		if err != nil || m.Format != memoryFormat || len(m.Incarnation) != 32 {
			t.Fatalf("%q became %+v, %v", raw, m, err)
		}
		kept, err := os.ReadFile(filepath.Join(dir, "state.json.corrupt"))
		if aside := err == nil; aside && (string(kept) != string(raw) || m.Distrust == "") {
			t.Fatalf("%q was put aside as %q, distrust %q", raw, kept, m.Distrust)
		}
	})
}

func FuzzSettingsFiles(f *testing.F) {
	f.Add([]byte("driver: nats\nlease-ttl: 32s\netcd-endpoints: [http://a:1, http://b:2]\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("driver: http\nbroker-admin: http://[::1]:80/x\nhttp-capabilities: move\n"))
	f.Add([]byte("lease-ttl: 1h\nlease-detach-margin: 59m59s\nrenew-interval: -1s\n"))
	f.Add([]byte("--- a\n--- b\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		text := string(raw)
		for _, touches := range []string{"-file", "cert", "key", "state-dir"} { // these look at the disk
			if strings.Contains(text, touches) {
				return
			}
		}
		c, err := Load(Sources{File: "f.yaml", Flags: map[string][]string{"state-dir": {os.TempDir()}},
			Read: func(string) ([]byte, error) { return raw, nil }})
		if err == nil && c.Validate() != nil {
			t.Fatalf("%q is loaded and not valid: %v", raw, c.Validate())
		}
	})
}
