package control

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAGateWaitsForASidecarAndSaysWhyItDidNotOpen(t *testing.T) {
	t.Run("nobody is there", func(t *testing.T) {
		var said []string
		err := NewClient("/nowhere/control.sock", "/nowhere").AwaitGate(t.Context(), 600*time.Millisecond, func(why error) { said = append(said, why.Error()) })
		want := "no sidecar answers on /nowhere/control.sock: is 'holdfast run' running here? give --control-socket or --state-dir"
		if err == nil || err.Error() != want || len(said) != 1 || said[0] != want {
			t.Errorf("%v, said %q", err, said)
		}
	})
	t.Run("a sidecar comes, holds it back, and lets it go", func(t *testing.T) {
		asked := 0
		c := sidecar(t, func(w http.ResponseWriter, _ *http.Request) {
			if asked++; asked < 3 {
				Reply(w, GateAnswer{Reason: "fenced", Detail: "etcd does not answer"})
				return
			}
			Reply(w, GateAnswer{MayStart: true})
		})
		var said []string
		if err := c.AwaitGate(t.Context(), time.Minute, func(why error) { said = append(said, why.Error()) }); err != nil || asked != 3 {
			t.Errorf("asked %d times: %v", asked, err)
		}
		want := "the sidecar on " + c.socket + " holds the broker back (fenced): etcd does not answer: see 'holdfast status'"
		if len(said) != 1 || said[0] != want {
			t.Errorf("said %q, want %q", said, want)
		}
	})
	t.Run("it is interrupted", func(t *testing.T) {
		for name, answer := range map[string]http.HandlerFunc{
			"while it is held back":          func(w http.ResponseWriter, _ *http.Request) { Reply(w, GateAnswer{Reason: "fenced"}) },
			"while the sidecar is silent":    func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			"as the sidecar lets it through": func(w http.ResponseWriter, _ *http.Request) { Reply(w, GateAnswer{MayStart: true}) },
		} {
			ctx, interrupt := context.WithCancel(t.Context())
			c := sidecar(t, func(w http.ResponseWriter, r *http.Request) {
				interrupt()
				answer(w, r)
			})
			if err := c.AwaitGate(ctx, time.Hour, func(error) {}); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("a sidecar that is frozen", func(t *testing.T) {
		c := sidecar(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		err := c.AwaitGate(t.Context(), 50*time.Millisecond, func(error) {})
		if err == nil || !strings.HasSuffix(err.Error(), filepath.Base(c.socket)+" did not answer in time: see its log") {
			t.Errorf("%v", err)
		}
	})
}
