package control

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAStoppedSidecarIsNamed(t *testing.T) {
	frozen := exec.Command("sleep", "1000")
	if err := frozen.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		frozen.Process.Kill()
		frozen.Wait()
	}()
	dir := t.TempDir()
	if pid := stoppedSidecar(dir); pid != 0 {
		t.Errorf("without a lock file: %d", pid)
	}
	if err := os.WriteFile(filepath.Join(dir, LockFile), fmt.Appendf(nil, "%d\n", frozen.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid := stoppedSidecar(dir); pid != 0 {
		t.Errorf("one that runs: %d", pid)
	}
	if err := frozen.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(10 * time.Second); stoppedSidecar(dir) != frozen.Process.Pid; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("not seen as stopped within 10s")
		}
	}
	c := sidecar(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	c.stateDir = dir
	want := fmt.Sprintf(" does not answer: its process %d is stopped (SIGSTOP): kill -CONT %d", frozen.Process.Pid, frozen.Process.Pid)
	if _, err := c.Get(t.Context(), "/v1/status", new(Status)); err == nil || !strings.HasSuffix(err.Error(), want) { // however long it may wait
		t.Errorf("got %v, want %s", err, want)
	}
}
