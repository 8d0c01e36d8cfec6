package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast/agent/control"
)

// sidecarThatRefuses answers a status for each question, the last one again and again, and
// refuses to leave. asked is what it was asked.
func sidecarThatRefuses(t *testing.T, statuses ...control.Status) (socket string, asked *[]string) {
	asked = new([]string)
	return sidecar(t, func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.URL.Path)
		if r.URL.Path == "/v1/status" {
			_ = json.NewEncoder(w).Encode(statuses[0])
			statuses = statuses[min(1, len(statuses)-1):]
			return
		}
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(map[string]any{"error": "no planned stop is noted: the broker is drained (new disks)", "exit_code": control.ExitRefused})
	}), asked
}

// The pod ends, or the unit stops, as soon as the verb has ended.
func TestLeaveWaitsForTheEndOfADrain(t *testing.T) {
	busy, idle := control.Status{Mode: "drained", Topics: control.TopicCounts{Served: 1, Orphan: 1}}, control.Status{Mode: "drained"}
	active := control.Status{Mode: "active", Topics: busy.Topics}
	for name, row := range map[string]struct {
		timeout  string
		statuses []control.Status
		asked    int // how often for the status; 0: several times
	}{
		"of one that is under way":           {"1m", []control.Status{busy, busy, idle}, 3},
		"of one that has ended":              {"1m", []control.Status{idle}, 1},
		"of one that does not end in time":   {"300ms", []control.Status{busy}, 0},
		"but not of a broker that is active": {"1m", []control.Status{active}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			socket, asked := sidecarThatRefuses(t, row.statuses...)
			code, _, stderr := holdfast(t, "leave", "--timeout", row.timeout, "--control-socket", socket)
			if code != control.ExitRefused || !strings.Contains(stderr, "drained (new disks)") {
				t.Errorf("code %d, %q", code, stderr)
			}
			n := len(*asked) - 1
			if n < 1 || (*asked)[n] != "/v1/leave" || row.asked > 0 && n != row.asked || row.asked == 0 && n < 2 {
				t.Errorf("asked %q", *asked)
			}
		})
	}
}

// A sidecar that is stopped has closed its socket, and has its broker leave. It holds its
// state directory to the end.
func TestLeaveWaitsForTheEndOfASidecarThatIsBeingStopped(t *testing.T) {
	dir := t.TempDir()
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ended := make(chan string)
	go func() {
		_, _, stderr := holdfast(t, "leave", "--timeout", "1m", "--state-dir", dir)
		ended <- stderr
	}()
	select {
	case said := <-ended:
		t.Fatalf("it did not wait: %q", said)
	case <-time.After(300 * time.Millisecond):
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	select {
	case said := <-ended:
		if !strings.Contains(said, "no sidecar answers") {
			t.Errorf("it says %q", said)
		}
	case <-time.After(30 * time.Second):
		t.Error("it waits for a sidecar that has ended")
	}
}

// A frozen sidecar accepts connections, and would have a stop of the broker wait for it.
func TestLeaveGivesUpSoonOnASidecarThatIsFrozen(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for five seconds")
	}
	frozen := make(chan struct{})
	defer close(frozen)
	var left atomic.Bool
	socket := sidecar(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/leave" {
			left.Store(true)
		}
		<-frozen
	})
	code, _, stderr := holdfast(t, "leave", "--timeout", "1h", "--control-socket", socket)
	if code != control.ExitFailed || !strings.Contains(stderr, "did not answer in time") || left.Load() {
		t.Errorf("code %d, asked to leave: %t, %q", code, left.Load(), stderr)
	}
}
