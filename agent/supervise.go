package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/check"
	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/process"
	"holdfast/brokerapi"
	"holdfast/probes"
	"holdfast/recovery"
)

// childRecord is the file by which a child is found again, by the next sidecar and
// by the guard.
func childRecord(c config.Config) string { return filepath.Join(c.StateDir, "child.json") }

// openStopper is the one way to stop the broker with these settings; nil: none.
func openStopper(c config.Config, log *slog.Logger) (Stopper, error) {
	stopper, err := brokerStopper(c, log)
	if stopper == nil || err != nil {
		return nil, err // and no typed nil
	}
	return stopper, nil
}

// brokerStopper finds and stops the broker's process; nil: there is no way to. A child is
// found by its record, so that the guard and a check, which have no hand on it, see the same.
func brokerStopper(c config.Config, log *slog.Logger) (*process.Stopper, error) {
	if !c.CanStop() {
		return nil, nil
	}
	s := process.Settings{PIDFile: c.BrokerPIDFile, Name: c.BrokerProcess, Command: c.StopCommand, Log: log}
	if len(c.Command) > 0 {
		s.Record = childRecord(c)
	}
	stopper, err := process.NewStopper(s)
	if err != nil {
		return nil, err
	}
	stopper.Use(brokerFinder(c))
	return stopper, stopper.Check()
}

// checkProcess looks whether the broker's process can be started and stopped.
func checkProcess(c config.Config, log *slog.Logger) check.Finding {
	f := check.Finding{What: "process"}
	if len(c.Command) > 0 {
		if err := process.CheckProgram(c.Command[0]); err != nil {
			f.Err = control.UsageError(err)
			return f
		}
	}
	stopper, err := brokerStopper(c, log)
	if err != nil {
		f.Err = control.UsageError(err)
		return f
	}
	f.Text = "stopped by " + stopper.Describe()
	if c.BrokerPIDFile != "" || c.BrokerProcess != "" {
		_, f.Err = brokerFinder(c).Find()
		if errors.Is(f.Err, probes.ErrNeverBroker) {
			f.Err = control.Refused(f.Err.Error())
		}
	}
	if hit, ok := stopper.Target(); ok {
		f.Text += fmt.Sprintf("; now %s", hit)
		if err := unix.Kill(hit.Pid, 0); f.Err == nil && errors.Is(err, unix.EPERM) && c.StopCommand == "" {
			f.Err = fmt.Errorf("%s of the broker: may not be signaled: %w: run holdfast as the user of the broker or with CAP_KILL, or set --stop-command", hit, err)
		}
	}
	return f
}

// recognizeFinding compares the process that would be stopped with the broker that answers.
func recognizeFinding(ctx context.Context, c config.Config, f check.Finding, who brokerapi.Report) check.Finding {
	if len(c.Command) > 0 {
		if _, runs, err := process.FindChild(childRecord(c)); !runs && err == nil {
			f.Warn, f.Text = true, f.Text+"; "+strangerAnswers(ctx, c)
		}
		return f
	}
	if c.BrokerPIDFile == "" && c.BrokerProcess == "" {
		return f
	}
	seen, err := brokerFinder(c).Find()
	if err != nil {
		return f // it ended just now
	}
	switch verdict, why := judgeProcess(ctx, c, seen, who); verdict {
	case isForeign:
		f.Err = control.Refused(why)
	case unrecognized:
		f.Warn = true
		f.Text += "; cannot tell whether it is the broker: " + why
	}
	return f
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
		Command: a.cfg.Command, Policy: process.Policy(a.cfg.BrokerRestart), Record: childRecord(a.cfg),
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
	if _, runs, err := process.FindChild(childRecord(a.cfg)); runs || err != nil {
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
	return control.UsageError(errors.New(strangerAnswers(ctx, a.cfg)))
}

func strangerAnswers(ctx context.Context, c config.Config) string {
	who := "whose process is not seen from here"
	if seen, v := probes.ListensAt(ctx, 0, adminAddrs(ctx, c)); seen == probes.HoldingAnother {
		who = fmt.Sprintf("process %d, %s", v.Pid, v.Name)
	}
	return fmt.Sprintf("a broker that is not our child already answers at %s (%s): stop it, or leave out '-- CMD' and give --broker-pid-file",
		withoutPassword(c.BrokerAdmin), who)
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
	if !a.cfg.Detach || a.shadow != nil || v.Validity.HeldAt(a.clock()) && !a.inDoubt() || !v.Validity.Known() && v.Losses == 0 && !registered {
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
	return a.pastFencePoint() || a.cfg.Detach && a.view.Load().attachment == recovery.Detached && a.view.Load().everReady
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
		if a.recognizer.foreign() == "" {
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
	if a.process != nil && a.recognizer.foreign() == "" {
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
