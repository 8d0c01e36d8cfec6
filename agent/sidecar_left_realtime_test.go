package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/agent/check"
	"holdfast/agent/control"
)

func TestTheJournalOfASidecarThatRunsIsNotTakenForALeftOne(t *testing.T) {
	path := t.TempDir()
	dir, err := openStateDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := control.LeftJournal(path); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d holds", os.Getpid())) {
		t.Errorf("%v", err)
	}
	dir.close()
	if events, err := control.LeftJournal(path); err != nil || len(events) != 0 {
		t.Errorf("%v, %v", events, err)
	}
}

// standingBy is a process that has the lock of a state directory as a guard has it.
func standingBy(t *testing.T, dir string) (pid int) {
	t.Helper()
	lock, err := os.OpenFile(filepath.Join(dir, "guard.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	guard := exec.Command("sleep", "1000")
	guard.ExtraFiles = []*os.File{lock, lock}
	if err := guard.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		guard.Process.Kill()
		guard.Wait()
	})
	if _, err := fmt.Fprintf(lock, "%-10d\n", guard.Process.Pid); err != nil {
		t.Fatal(err)
	}
	return guard.Process.Pid
}

func TestAGuardThatStandsWithoutASidecarIsNamed(t *testing.T) {
	dir := t.TempDir()
	pid := standingBy(t, dir)
	socket := filepath.Join(dir, "control.sock")
	stands := fmt.Sprintf("\nthe guard of %s, process %d, stands by", dir, pid)
	byHand := fmt.Sprintf("; only if no sidecar is to run here again: kill -KILL %d ends the guard, and nobody guards what the broker then serves", pid)

	c := control.NewClient(socket, dir)
	_, status := c.Get(t.Context(), "/v1/status", new(control.Status))
	want := "no sidecar answers on " + socket + ": is 'holdfast run' running here? give --control-socket or --state-dir" +
		stands + ": start 'holdfast run' again" + byHand
	if status == nil || status.Error() != want || !errors.Is(status, control.ErrNoSidecar) {
		t.Errorf("status: got\n%v\nwant\n%s", status, want)
	}
	if err := c.Gate(t.Context()); err == nil || err.Error() != want {
		t.Errorf("gate: got\n%v\nwant\n%s", err, want)
	}

	set := natsDefaults()
	set.StateDir = dir
	want = fmt.Sprintf("%s; no sidecar runs, and%s: 'holdfast run' takes it over%s", dir, strings.Replace(stands, "\n", " ", 1), byHand)
	if f := check.StateDir(set); f.Err != nil || !f.Warn || f.Text != want {
		t.Errorf("check: got %t %v\n%s\nwant\n%s", f.Warn, f.Err, f.Text, want)
	}

	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })}
	served := make(chan error)
	go func() { served <- server.Serve(l) }()
	defer func() { server.Close(); <-served }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Get(ctx, "/v1/status", new(control.Status)); err == nil || !strings.HasSuffix(err.Error(), "did not answer in time: see its log"+stands+byHand) {
		t.Errorf("beside a sidecar that is silent: %v", err)
	}
}
