package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/registration"
	"holdfast/probes"
	"holdfast/recovery"
)

// session is how the attempts to keep or to regain the registration fare. It is
// owned by the loop.
type session struct {
	streak  int                     // failures that were judged
	used    int                     // of the session retries
	verdict recovery.FailureVerdict // on the last failure; zero: nothing fails
	told    recovery.Reason         // of the verdict that was told of last
}

// judgeSession judges the failures since the last run of the loop. It returns a
// *sessionEnd when the retries are used up: the registrar cannot, since it decides only
// on what etcd says, and etcd is silent.
func (a *agent) judgeSession(instance string) error {
	v := a.keeper.View()
	fresh := v.FailureStreak - a.session.streak
	if fresh < 0 {
		fresh = v.FailureStreak // a streak ended and another began
	}
	a.session.streak = v.FailureStreak
	lost := a.lostForCertain(v, instance)
	if !lost {
		a.session.used = 0
	}
	if v.FailureStreak == 0 || v.Phase == lease.Contested {
		a.session.verdict, a.session.told = recovery.FailureVerdict{}, ""
		return nil
	}
	for range fresh {
		verdict := recovery.JudgeFailure(recovery.FailureFacts{
			Failure: recovery.Failure(v.LastClass), Policy: recovery.Policy(a.cfg.SessionExpiredPolicy),
			Limit: a.cfg.SessionRetries, Used: a.session.used, Lost: lost, Mode: a.mode.Mode,
			BrokerDown: v.Phase == lease.Paused || v.Phase == lease.Idle, Paused: a.paused(),
		})
		told := a.session.told
		a.noteVerdict(verdict, lost, v.LastError)
		switch verdict.Sequel {
		case recovery.CountAttempt:
			a.session.used++
		case recovery.GiveUp:
			if a.shadow != nil {
				if told != verdict.Reason {
					a.shadow.would(registration.ActStop, verdict.Detail)
				}
				continue
			}
			a.session.used++
			return &registration.SessionEnd{Reason: verdict.Reason, Detail: verdict.Detail}
		}
	}
	return nil
}

// lostForCertain reports whether there was a registration of the broker process that
// answers, or that answered last, and its lease is known or bound to be over. Before
// that nothing but a renewal fails.
func (a *agent) lostForCertain(v lease.View, instance string) bool {
	switch {
	case a.memory.Epoch == 0 || a.memory.Released || instance != "" && instance != a.memory.Instance:
		return false
	case v.Validity.Known() && v.Validity.ExpiredAt(a.clock()):
		return true
	case a.everAttached:
		return a.grant.LeaseID == 0 // somebody saw it go
	case v.Validity.Known():
		return false
	}
	// The registration of the sidecar before this one.
	return a.clock().Sub(a.begun) >= a.cfg.LeaseTTL
}

// noteVerdict tells of a verdict when it is another, once the lease does not bear
// the failure any more or a person must act.
func (a *agent) noteVerdict(next recovery.FailureVerdict, lost bool, lastErr string) {
	if next.Reason == recovery.Reason(recovery.FailureAuth) {
		next.Detail = control.ExplainAuth(a.cfg, errors.New(lastErr)).Error()
	}
	a.session.verdict = next
	if next.Reason == a.session.told || !lost && next.Sequel != recovery.AwaitPerson {
		return
	}
	a.session.told = next.Reason
	if next.Reason != recovery.Reason(recovery.FailureAuth) { // which the keeper has said
		a.log.Warn("session", "sequel", next.Sequel.String(), "reason", string(next.Reason), "detail", next.Detail, "err", lastErr)
	}
	a.event(control.Event{Kind: "registration", To: "failing", Reason: string(next.Reason), Epoch: a.memory.Epoch, Detail: next.Detail})
}

// retriesUsed reports whether the registrar may not register any more.
func (a *agent) retriesUsed() bool {
	return a.cfg.SessionRetries > 0 && a.session.used >= a.cfg.SessionRetries
}

// endSession carries the policy out after every part has ended: nothing is served,
// then the broker's process is gone, then the sidecar fails with one line that says
// why and what to do. Nothing is written to etcd: what it holds is not ours any more,
// or cannot be reached.
func (a *agent) endSession(end *registration.SessionEnd) error {
	if end.Reason == recovery.ReasonSessionExpired {
		a.noteLoss(a.lossCause()) // the registrar saw it before the loop did
	}
	a.log.Error("the session policy stops the broker", "reason", string(end.Reason), "detail", end.Detail)
	a.event(control.Event{Kind: "agent", To: "shutdown", Reason: string(end.Reason), Epoch: a.memory.Epoch, Detail: end.Detail})
	how, err := a.stopBroker()
	if err != nil {
		problem := strings.ReplaceAll(err.Error(), "\n", "; ")
		a.event(control.Event{Kind: "agent", To: "stopped", Reason: "broker_not_stopped", Epoch: a.memory.Epoch, Detail: problem})
		next := "stop it by hand, it may serve what others own"
		if stands := a.guardLeft(); stands != "" {
			next += "; " + stands
		}
		return a.sessionError(end, "the broker could not be stopped: "+problem+": "+next)
	}
	if a.guard != nil {
		a.guard.Disarm()
	}
	a.event(control.Event{Kind: "agent", To: "stopped", Reason: "broker_stopped", Epoch: a.memory.Epoch, Detail: how})
	next := "find out what cut it off, then start the broker and this sidecar again"
	if end.Reason == recovery.ReasonRetriesUsedUp {
		next = "bring etcd back, then start the broker and this sidecar again"
	}
	return a.sessionError(end, "the broker was stopped ("+how+"): "+next)
}

// sessionError is the last line of a sidecar that its session policy ended. It names
// the setting that asked for it.
func (a *agent) sessionError(end *registration.SessionEnd, then string) error {
	setting := "--session-expired-policy " + a.cfg.SessionExpiredPolicy
	if end.Reason == recovery.ReasonRetriesUsedUp {
		setting += fmt.Sprintf(", --session-retries %d", a.cfg.SessionRetries)
	}
	return &control.ExitError{Code: control.ExitFailed, Err: fmt.Errorf("%w (%s): %s", end, setting, then)}
}

// stopBroker fences, then stops. A fence that fails does not keep the stop from
// being tried: it is the next step. How says what ended the process.
func (a *agent) stopBroker() (how string, err error) {
	ctx, cancel := context.WithTimeout(a.life0, stopTimeout)
	defer cancel()
	if a.fences("quiesce") && a.health.Snapshot().At(time.Now()) != probes.Down {
		fctx, done := context.WithTimeout(ctx, stopTimeout/4)
		n, fenceErr := a.reconciler.Fence(fctx)
		done()
		if fenceErr != nil {
			a.log.Error("fence step failed, the broker is stopped all the same", "step", "quiesce", "quiesced", n, "err", fenceErr)
		}
	}
	if a.stopper == nil {
		return "", errors.New("there is no way to stop it")
	}
	a.recognizeNow(ctx)
	return a.stopper.Stop(ctx)
}
