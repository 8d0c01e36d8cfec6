package agent

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"holdfast/probes"
)

// A process that lives may only hang, and serve when it comes to itself.
func TestTheGraceDoesNotRevokeWhileTheProcessLives(t *testing.T) {
	a := built(t)
	if a.forbears() {
		t.Error("the lease of a broker of which no process is seen is kept")
	}
	broker := exec.Command("sleep", "60")
	if err := broker.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = broker.Process.Kill(); _ = broker.Wait() }()
	pid := filepath.Join(t.TempDir(), "broker.pid")
	if err := os.WriteFile(pid, fmt.Appendf(nil, "%d\n", broker.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	a.process = probes.NewProcess(pid, "", slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- a.process.Run(t.Context()) }()
	bound := time.After(20 * time.Second)
	for a.process.Pid() == 0 {
		select {
		case <-a.process.Changes():
		case err := <-done:
			t.Fatal(err)
		case <-bound:
			t.Fatal("the process is not found")
		}
	}
	if !a.forbears() {
		t.Error("the lease of a process that lives is revoked")
	}
}
