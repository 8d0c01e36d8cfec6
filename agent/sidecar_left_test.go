package agent

import (
	"fmt"
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
	if err := os.WriteFile(filepath.Join(dir, lockFile), fmt.Appendf(nil, "%d\n", frozen.Process.Pid), 0o600); err != nil {
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
}

func TestTheJournalOfASidecarThatRunsIsNotTakenForALeftOne(t *testing.T) {
	path := t.TempDir()
	dir, err := openStateDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LeftJournal(path); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d holds", os.Getpid())) {
		t.Errorf("%v", err)
	}
	dir.close()
	if events, err := LeftJournal(path); err != nil || len(events) != 0 {
		t.Errorf("%v, %v", events, err)
	}
}
