package agent

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"holdfast/agent/control"
	"holdfast/agent/process"
	"holdfast/probes"
	"holdfast/recovery"
)

// snapshot is what the loop knew after its last run; immutable.
type snapshot struct {
	brokerID string
	// registeredAs is the id that state and assignments are kept under.
	registeredAs string
	// Circumstances are those that the loop knows.
	recovery.Circumstances
	doubted  bool // no renewal was confirmed since the clocks jumped
	boot     control.BootStatus
	decided  *control.DecisionStatus // nil: others set the mode
	left     bool                    // its process has ended on purpose, and that is noted
	reassert bool                    // the state key in etcd is another than the mode
	instance string                  // broker process that was registered
	fence    recovery.Fence
	failure  recovery.FailureVerdict // what the failures of now mean; zero: nothing fails
	guarded  process.Target          // the process that its guard stood by for; zero: none
	held     recovery.Reason         // why a broker that is ill keeps its registration; empty: it does not
}

// brokerLiveChecks are for the broker container's own liveness probe. They fail only
// while a restart is the one thing left that keeps the broker from serving without a
// registration. A kubelet asks every few seconds and acts after several failures: that
// promises nothing about the deadline. The steps of the ladder and the guard do.
func (a *agent) brokerLiveChecks() []probes.Check {
	return []probes.Check{{Name: "fence", Err: func() error {
		if why := a.view.Load().Restart; why != "" {
			return errors.New("the broker must be restarted: " + why)
		}
		return nil
	}}}
}

func (a *agent) liveChecks() []probes.Check {
	return []probes.Check{{Name: recovery.Causes[len(recovery.Causes)-1], Err: func() error {
		if why := a.stuck(); why != "" {
			return errors.New(why)
		}
		return nil
	}}}
}

// stuck is why the loop counts as one that hangs; empty: it runs.
func (a *agent) stuck() string {
	if age := time.Since(*a.ran.Load()); age > loopBound {
		return fmt.Sprintf("agent loop has not run for %v", age.Round(time.Second))
	}
	return ""
}

// ranAt notes that the loop ran.
func (a *agent) ranAt(now time.Time) { a.ran.Store(&now) }

// startupChecks pass for good once startup has led somewhere: to a ready broker, or
// to a mode that a person must change.
func (a *agent) startupChecks() []probes.Check {
	return []probes.Check{{Name: "startup", Err: func() error {
		if a.view.Load().startupDone() {
			return nil
		}
		return errors.New("startup is not over: " + firstCause(a.notReady()))
	}}}
}

func (s *snapshot) startupDone() bool {
	return s.EverReady || s.Mode.Mode == recovery.Drained || s.Mode.Mode == recovery.Draining
}

func firstCause(causes []probes.Cause) string {
	if len(causes) == 0 {
		return "about to be ready"
	}
	return causes[0].Name + ": " + causes[0].Message
}

func (a *agent) probeHandler() http.Handler {
	return probes.NewEndpoints(a.shownChecks(), a.log.With("part", "probes"))
}
