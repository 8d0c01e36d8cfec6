//go:build pulsar

package main

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

// highestLoad is the highest load of the machine: gaps on a busy one say little.
type highestLoad struct {
	mu   sync.Mutex
	load float64
}

// watch looks each second until ctx ends.
func (h *highestLoad) watch(ctx context.Context) {
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

// forget has it count from now on.
func (h *highestLoad) forget() { h.mu.Lock(); h.load = 0; h.mu.Unlock() }

// get is the highest so far.
func (h *highestLoad) get() float64 { h.mu.Lock(); defer h.mu.Unlock(); return h.load }

// keepLogs copies the lab's logs into dir.
func keepLogs(lab *harness.Lab, dir string) error {
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

// supervise starts a broker again, pause after each of its ends, as a unit with Restart=always does;
// never: 0. It calls ended for each end.
func supervise(ctx context.Context, p *harness.ApacheBroker, pause time.Duration, ended func()) {
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

// unready is what an operator must do about a broker's sidecar; empty: nothing, or there is none.
func unready(ctx context.Context, name string, sidecar *harness.Sidecar) string {
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
