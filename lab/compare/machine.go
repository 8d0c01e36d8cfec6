package compare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"holdfast/lab/harness"
)

// Load is the highest load of the machine: gaps on a busy one say little. The zero value is fine.
type Load struct {
	mu   sync.Mutex
	load float64
}

// Watch looks each second until ctx ends.
func (h *Load) Watch(ctx context.Context) {
	for harness.Wait(ctx, time.Second) == nil {
		text, err := os.ReadFile("/proc/loadavg")
		if err != nil {
			continue
		}
		var now float64
		if _, err := fmt.Sscan(string(text), &now); err == nil {
			h.mu.Lock()
			h.load = max(h.load, now)
			h.mu.Unlock()
		}
	}
}

// Forget has it count from now on.
func (h *Load) Forget() { h.mu.Lock(); h.load = 0; h.mu.Unlock() }

// Get is the highest so far.
func (h *Load) Get() float64 { h.mu.Lock(); defer h.mu.Unlock(); return h.load }

// KeepLogs copies the lab's logs into dir.
func KeepLogs(lab *harness.Lab, dir string) error {
	logs, err := filepath.Glob(filepath.Join(lab.Dir, "*.log"))
	if err != nil {
		return err
	}
	errs := []error{os.MkdirAll(dir, 0o755)}
	for _, log := range logs {
		text, err := os.ReadFile(log)
		errs = append(errs, err, os.WriteFile(filepath.Join(dir, filepath.Base(log)), text, 0o644))
	}
	return errors.Join(errs...)
}

// Supervised is a process that is started again.
type Supervised interface {
	Exited() <-chan struct{}
	Launch() error
}

// Supervise starts it again, pause after each of its ends, as a unit with Restart=always does;
// never: 0. It calls ended for each end.
func Supervise(ctx context.Context, p Supervised, pause time.Duration, ended func()) {
	for {
		select {
		case <-p.Exited():
		case <-ctx.Done():
			return
		}
		ended()
		if pause == 0 {
			return
		}
		if harness.Wait(ctx, pause) != nil || p.Launch() != nil {
			return
		}
	}
}

// Unready is what an operator must do about a broker's sidecar; empty: nothing, or there is none.
func Unready(ctx context.Context, name string, sidecar *harness.Sidecar) string {
	if sidecar == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if !sidecar.Running() {
		return "start the sidecar of " + name
	}
	switch st, err := sidecar.Status(ctx); {
	case err != nil:
		return "restart the sidecar of " + name + ": it does not answer"
	case st.Mode != "active":
		return fmt.Sprintf("activate %s: %s (%s)", name, st.Mode, st.Reason)
	case !st.Ready.OK:
		return fmt.Sprintf("make %s ready: %s", name, strings.Join(st.Ready.Causes, ", "))
	}
	return ""
}
