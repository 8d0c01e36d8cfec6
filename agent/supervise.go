package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/brokerapi"
	"holdfast/probes"
	"holdfast/recovery"
)

// openStopper is the one way to stop the broker with these settings; nil: none.
func openStopper(c config.Config, log *slog.Logger) (Stopper, error) {
	stopper, err := recognize.Stopper(c, log)
	if stopper == nil || err != nil {
		return nil, err // and no typed nil
	}
	return stopper, nil
}

// openChild prepares the broker of `run -- CMD`; nil: somebody else starts it, who may
// ask by 'holdfast gate'.
func (a *agent) openChild() {
	registered := a.memory.LeaseID != 0 || a.memory.FirstBootDone || a.former.Known() // by an earlier life; the loop does not run yet
	a.mayStart = a.childGate(registered)
	if len(a.cfg.Command) == 0 || a.world.Child == nil {
		return
	}
	a.child = a.world.Child(process.ChildSettings{
		Command: a.cfg.Command, Policy: process.Policy(a.cfg.BrokerRestart), Record: recognize.ChildRecord(a.cfg),
		MayStart: a.mayStart, Fenced: a.childIsFenced,
		Tell: func(c process.Change) {
			if c.To == "started" || c.To == "adopted" {
				a.childRan.Store(true)
			}
			a.event(control.Event{Kind: "process", To: c.To, Reason: c.Reason, Epoch: a.keeper.View().Grant.Epoch, Detail: c.Detail})
			a.metrics.child(c.To)
		},
		Log: a.log.With("part", "process"),
	})
}

// strangerProbe bounds the question whether a broker answers before ours was started.
const strangerProbe = time.Second

// refuseStranger looks whether a broker answers that is not our child. It would be taken
// for the child, and nothing could stop it; the child would find its port taken.
func (a *agent) refuseStranger(ctx context.Context) error {
	if a.child == nil || a.cfg.Shadow {
		return nil
	}
	// What cannot be read is for the child's own start to say.
	if _, runs, err := process.FindChild(recognize.ChildRecord(a.cfg)); runs || err != nil {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, strangerProbe)
	defer cancel()
	said, err := a.broker.Probe(asking)
	switch {
	case errors.Is(err, brokerapi.ErrIdentity):
		return control.UsageError(fmt.Errorf("%w: '-- CMD' would find its port taken", err))
	case err != nil && said.Instance == "":
		return nil // nobody is there
	}
	return control.UsageError(errors.New(recognize.Stranger(ctx, a.cfg)))
}

// childGate is asked before each start of the broker, by who starts it. The first start of
// a child is a person's wish; those after it are recovery, which a pause holds back. Whose
// wish another's start is, we cannot know: no pause holds it back.
func (a *agent) childGate(registered bool) func() (ok bool, word, detail string) {
	return func() (bool, string, string) {
		if a.childRan.Load() && a.paused() {
			return false, "paused", "recovery is paused: 'holdfast resume' ends that"
		}
		if ok, detail := a.mayStartChild(registered); !ok {
			return false, "fenced", detail
		}
		return true, "", ""
	}
}

// mayStartChild is the gate without the pause. It is open for a broker that was
// never registered, and while the lease is held, unless the clocks jumped since. Otherwise
// only an answer of etcd opens it, which may then tell others of us: the broker's start is
// what brings the registration back, since renewals rest while it is down. registered says
// that an earlier life of this sidecar was.
func (a *agent) mayStartChild(registered bool) (bool, string) {
	v := a.keeper.View()
	if !a.cfg.Detach || a.shadow != nil || !v.Validity.Known() && v.Losses == 0 && !registered || !a.circumstances(a.view.Load).Holds(recovery.Start) {
		return true, ""
	}
	ctx, cancel := context.WithTimeout(a.life0, control.ChildProbe)
	defer cancel()
	if err := a.main.Reach(ctx); err != nil {
		return false, "its lease may be gone, and etcd does not answer: " + control.Short(err).Error()
	}
	return true, ""
}

func (a *agent) pastFencePoint() bool {
	v := a.keeper.View().Validity
	return a.cfg.Detach && v.Known() && !v.HeldAt(a.clock())
}

// childIsFenced says whether a broker that ended now was stopped by the ladder or
// the guard, and did not end by itself. A sidecar that comes to itself may have renewed
// the lease before it sees the end, so the guard's own word counts too.
func (a *agent) childIsFenced(was process.Target) bool {
	if p, ok := a.guard.(guardProcess); ok && p.Fired(was) {
		return true
	}
	return a.pastFencePoint() || a.cfg.Detach && a.view.Load().Attachment == recovery.Detached && a.view.Load().EverReady
}

// runChild has the end of a broker that is not started again end the sidecar.
func (a *agent) runChild(ctx context.Context) error {
	err := a.child.Run(ctx)
	var start *process.StartError
	var end *process.EndError
	switch {
	case errors.As(err, &start):
		return control.UsageError(err)
	case errors.As(err, &end):
		a.log.Warn("holdfast ends with its broker", "detail", end.Ending.String(), "broker_restart", a.cfg.BrokerRestart)
		a.childEnded.Store(true)
		if !end.Ending.Failed() && !end.Ending.Fenced {
			return nil
		}
		return &control.ExitError{Code: control.ExitFailed, Err: fmt.Errorf("%w: --broker-restart %s does not start it again: see the broker's own log", err, a.cfg.BrokerRestart)}
	}
	return err
}

// stopChild stops the broker of `run -- CMD` at a clean stop: SIGTERM, and SIGKILL
// after --broker-stop-timeout, or at the fence point if that comes first. Nobody
// renews the lease any more, so it must not serve longer.
func (a *agent) stopChild() error {
	if _, runs := a.child.Target(); !runs {
		return nil
	}
	patience := a.cfg.BrokerStopTimeout
	if v := a.keeper.View().Validity; a.cfg.Detach && v.Known() {
		patience = min(patience, max(v.FencePoint().Sub(a.clock()), 0))
	}
	ctx, cancel := context.WithTimeout(a.life0, 2*patience) // SIGKILL comes at half of it
	defer cancel()
	how, err := a.child.Stop(ctx)
	if err != nil {
		return err
	}
	a.log.Info("broker stopped", "by", how)
	a.event(control.Event{Kind: "process", To: "stopped", Reason: "clean_stop", Detail: "by " + how})
	return nil
}

// brokerProcessStart is when the broker's process started, as far as we watch it.
func (a *agent) brokerProcessStart() time.Time {
	if a.child != nil {
		if at := a.child.StartedAt(); !at.IsZero() {
			return at
		}
	}
	if a.process != nil {
		if a.recognizer.Foreign() == "" {
			return a.process.Snapshot().StartedAt
		}
	}
	return time.Time{}
}

// endChild stops the broker of `run -- CMD`, quiesced if it can be, so that clients
// lose nothing of what they sent last. It returns nil when it is proven gone.
func (a *agent) endChild(ctx context.Context) error {
	_, runs := a.child.Target()
	if runs && a.health.Snapshot().At(time.Now()) != probes.Down {
		qctx, cancel := context.WithTimeout(ctx, stopTimeout/2)
		if n, err := a.reconciler.Fence(qctx); err != nil {
			a.log.Warn("not every topic quiesced before the broker is stopped", "quiesced", n, "err", err)
		}
		cancel()
	}
	if err := a.stopChild(); err != nil {
		return err
	}
	if a.guard != nil {
		a.guard.Disarm()
	}
	return nil
}

// brokerTarget is the broker's process as we watch it; zero: none is known. One that is
// not judged yet counts: it may serve.
func (a *agent) brokerTarget() process.Target {
	if a.child != nil {
		if t, runs := a.child.Target(); runs {
			return t
		}
	}
	if a.process != nil && a.recognizer.Foreign() == "" {
		return a.process.Snapshot().Target
	}
	return process.Target{}
}

// serveGate answers only while the loop runs: a broker that starts beside a loop that
// hangs has nobody who fences it but the guard.
func (a *agent) serveGate(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), control.ChildProbe)
	defer cancel()
	if err := a.await(ctx, func() {}); err != nil {
		control.Refuse(w, errors.New("the sidecar's loop hangs: see its log"))
		return
	}
	var answer control.GateAnswer
	answer.MayStart, answer.Reason, answer.Detail = a.mayStart()
	control.Reply(w, answer)
}
