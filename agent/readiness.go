package agent

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
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
	attachment   recovery.Attachment
	mode         recovery.ModeRecord
	boot         control.BootStatus
	decided      *control.DecisionStatus // nil: others set the mode
	suspect      bool                    // see loopState
	everReady    bool                    // startup is over
	conflict     string
	leaving      string // why a broker that leaves keeps clients away; empty: it does not leave
	left         bool   // its process has ended on purpose, and that is noted
	reassert     bool   // the state key in etcd is another than the mode
	instance     string // broker process that was registered
	fence        recovery.Fence
	restart      string                  // why the broker must be restarted by somebody else; empty: nobody must
	failure      recovery.FailureVerdict // what the failures of now mean; zero: nothing fails
	// awaitsGuard: clients wait for the guard of the broker's process; unguarded: it did
	// not come, and they wait no more.
	awaitsGuard, unguarded bool
	doubted                bool            // no renewal was confirmed since the clocks jumped
	foreign                string          // why the process that was to be the broker's is not; empty: it may be
	guarded                process.Target  // the process that its guard stood by for; zero: none
	wasRegistered          bool            // the broker, in this sidecar's life or before
	held                   recovery.Reason // why a broker that is ill keeps its registration; empty: it does not
}

// readyChecks are the conditions for sending clients here. Those that time can
// falsify are compared with the clock in the request itself, so that a loop that
// is late cannot keep a broker ready past its fence point.
func (a *agent) readyChecks() []probes.Check {
	return []probes.Check{
		{Name: "lease", Err: func() error {
			v := a.keeper.View()
			switch {
			case a.presence != nil && v.Validity.ExpiredAt(a.clock()):
				return errors.New("what becomes of this broker process is not decided yet")
			case !v.Validity.Known():
				return errors.New("no registration is held")
			case a.cfg.Detach && !v.Validity.HeldAt(a.clock()):
				return errors.New("the fence point has passed without a confirmed renewal")
			case a.inDoubt():
				return errors.New("this host did not run for a while, or its clock was set: no renewal was confirmed since")
			}
			return nil
		}},
		{Name: "attached", Err: func() error {
			s := a.view.Load()
			if s.leaving != "" {
				return errors.New(s.leaving)
			}
			if s.attachment != recovery.Detached {
				return nil
			}
			if s.conflict != "" {
				return errors.New(s.conflict)
			}
			return errors.New("detached from the cluster")
		}},
		{Name: "mode", Err: func() error {
			switch m := a.view.Load().mode; m.Mode {
			case recovery.Active:
				return nil
			case "":
				return errors.New("mode not known yet")
			default:
				return errors.New(string(m.Mode) + " (" + string(m.Reason) + ")")
			}
		}},
		{Name: "broker", Err: func() error {
			h := a.health.Snapshot()
			who, _ := a.identity.get()
			switch v := h.At(time.Now()); {
			case v == probes.Up && who.Instance != a.view.Load().instance:
				return errors.New("another broker process answers: the decision about it is to come")
			case a.brokerGone():
				return errors.New("its process has ended")
			case v == probes.Up:
				return nil
			case a.view.Load().held != "":
				return errors.New(v.String() + ", held (" + recovery.HeldWords(a.view.Load().held) + "): " + h.LastError)
			case h.LastError != "":
				return errors.New(v.String() + ": " + h.LastError)
			default:
				return errors.New(v.String())
			}
		}},
		{Name: "guard", Err: func() error {
			if a.view.Load().awaitsGuard {
				return errors.New("the guard of the broker's process does not stand by yet")
			}
			return nil
		}},
		{Name: "work", Err: a.unable},
		{Name: "steer", Err: func() error {
			v := a.steerer.View()
			if v.Steering.Obeys() || a.view.Load().mode.Mode != recovery.Active {
				return nil
			}
			return errors.New(notTaken(v))
		}},
		{Name: "topics", Err: func() error {
			p := a.reconciler.Snapshot()
			switch {
			case p.Reconciled:
				return nil
			case !p.AssignedKnown:
				return errors.New("assignments not read yet")
			case a.view.Load().mode.Mode == recovery.Drained:
				return errors.New("held back while the broker is drained")
			case !p.ServedKnown:
				return errors.New("topics of the broker not listed yet")
			case p.Missing == 0 && p.Orphan > 0:
				return errors.New(control.Plural(p.Orphan, "topic") + " served that belong elsewhere: to be quarantined first")
			case p.Missing == 0:
				return errors.New("to be looked at again when the broker is up and attached")
			}
			return errors.New(control.Plural(p.Missing, "topic") + " of " + strconv.Itoa(p.Assigned) + " not loaded yet" + a.lockTrouble())
		}},
	}
}

// brokerLiveChecks are for the broker container's own liveness probe. They fail only
// while a restart is the one thing left that keeps the broker from serving without a
// registration. A kubelet asks every few seconds and acts after several failures: that
// promises nothing about the deadline. The steps of the ladder and the guard do.
func (a *agent) brokerLiveChecks() []probes.Check {
	return []probes.Check{{Name: "fence", Err: func() error {
		if why := a.view.Load().restart; why != "" {
			return errors.New("the broker must be restarted: " + why)
		}
		return nil
	}}}
}

func (a *agent) liveChecks() []probes.Check {
	return []probes.Check{{Name: "agent", Err: func() error {
		if age := time.Since(*a.ran.Load()); age > loopBound {
			return fmt.Errorf("agent loop has not run for %v", age.Round(time.Second))
		}
		return nil
	}}}
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
	return s.everReady || s.mode.Mode == recovery.Drained || s.mode.Mode == recovery.Draining
}

// notReady lists why clients may not be sent here; empty: they may.
func (a *agent) notReady() []probes.Cause {
	return probes.Causes(a.clientChecks(), a.log)
}

// clientChecks are the conditions for sending clients here: a broker whose sidecar hangs
// is not ready either.
func (a *agent) clientChecks() []probes.Check { return append(a.readyChecks(), a.liveChecks()...) }

func firstCause(causes []probes.Cause) string {
	if len(causes) == 0 {
		return "about to be ready"
	}
	return causes[0].Name + ": " + causes[0].Message
}

func (a *agent) probeHandler() http.Handler {
	return probes.NewEndpoints(a.shownChecks(), a.log.With("part", "probes"))
}
