// Package check tries settings as far as that needs no sidecar: etcd, the state directory, the timing in
// its worst case, and what settings choose. It writes no key of etcd; a lease is granted and revoked.
package check

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"holdfast/agent/control"
)

// Timeout bounds each of the things that 'holdfast check' tries.
const Timeout = 3 * time.Second

// Finding is one thing that 'holdfast check' tried.
type Finding struct {
	What string // etcd, broker, data dir, start, timing
	// Err is nil when all is well. An *ExitError with ExitUsage says that a setting
	// is wrong, with ExitRefused that it is unsafe; any other that it failed now.
	Err  error
	Text string // what was found; shown when Err is nil
	Warn bool   // it works, and not as it should
}

// Write prints one line for each finding.
func Write(w io.Writer, findings []Finding) {
	for _, f := range findings {
		verdict, text := "ok", f.Text
		switch {
		case f.Err != nil:
			verdict, text = "FAILED", "see below"
		case f.Warn:
			verdict = "warning"
		}
		fmt.Fprintf(w, "%-9s %-7s %s\n", f.What, verdict, control.Plain(text))
	}
}

// Verdict joins the errors of findings. Its exit code is that of a wrong setting
// if there is one, else of an unsafe one, else of a failure; nil: all is well.
func Verdict(findings []Finding) error {
	ranks, worst := []int{control.ExitDone, control.ExitFailed, control.ExitRefused, control.ExitUsage}, 0
	var errs []error
	for _, f := range findings {
		if f.Err == nil {
			continue
		}
		errs = append(errs, f.Err)
		worst = max(worst, slices.Index(ranks, control.Code(f.Err)))
	}
	if worst == 0 {
		return nil
	}
	return &control.ExitError{Code: ranks[worst], Err: errors.Join(errs...)}
}
