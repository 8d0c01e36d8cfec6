package agent

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/process"
	"holdfast/recovery"
)

// paused reports whether a pause is in force: recovery waits, and whatever keeps the broker from
// serving what is not its own goes on. It may be asked from anywhere.
func (a *agent) paused() bool { return a.pauseLeft() > 0 }

// pauseLeft is how long the pause still lasts; 0: there is none.
func (a *agent) pauseLeft() time.Duration {
	p := a.pausing.Load()
	if p == nil {
		return 0
	}
	return max(0, p.Left(time.Now(), a.bootID, time.Duration(a.clock())))
}

// pauseEnds is when the pause in force ends; zero: there is none.
func (a *agent) pauseEnds() time.Time {
	if p := a.pausing.Load(); p != nil && a.paused() {
		return p.Until
	}
	return time.Time{}
}

// pauseStatus is the pause in force, nil if there is none.
func (a *agent) pauseStatus() *control.PauseStatus {
	p, left := a.pausing.Load(), a.pauseLeft()
	if p == nil || left == 0 {
		return nil
	}
	return &control.PauseStatus{Owner: p.Owner, Reason: p.Reason, Until: p.Until, RemainingSeconds: seconds(left)}
}

// restorePause takes up the pause of the sidecar before this one. One that is over
// is ended by the loop, with the words that belong to it.
func (a *agent) restorePause() {
	a.bootID, _ = process.BootID() // empty where the host does not tell
	if a.memory.Pause == nil {
		return
	}
	p := a.memory.Pause.Rebase(time.Now(), a.bootID, time.Duration(a.clock()))
	a.pausing.Store(&p)
	if p != *a.memory.Pause {
		a.remember(func(m *memory) { m.Pause = &p })
	}
	if left := a.pauseLeft(); left > 0 {
		a.log.Warn("recovery is paused", "owner", p.Owner, "reason", p.Reason, "for", left.Round(time.Second))
	}
}

// beginPause replaces the pause that may be in force. It is called in the loop.
func (a *agent) beginPause(p recovery.Pause) {
	a.pausing.Store(&p)
	a.remember(func(m *memory) { m.Pause = &p })
	a.log.Warn("recovery is paused: the lease, the fencing and an operator's commands go on", "owner", p.Owner, "reason", p.Reason,
		"until", p.Until.Format(time.RFC3339))
	a.event(control.Event{Kind: "operator", To: "paused", Reason: "operator", Epoch: a.grant.Epoch,
		Detail: fmt.Sprintf("by %s until %s: %s", p.Owner, p.Until.Format(time.RFC3339), p.Reason)})
}

// endPause lets everything that waited go on at once. It is called in the loop.
func (a *agent) endPause(reason string) {
	p := a.pausing.Swap(nil)
	if p == nil {
		return
	}
	a.remember(func(m *memory) { m.Pause = nil })
	a.log.Info("recovery goes on", "reason", reason, "owner", p.Owner)
	a.event(control.Event{Kind: "operator", From: "paused", To: "resumed", Reason: reason, Epoch: a.grant.Epoch,
		Detail: fmt.Sprintf("the pause by %s (%s)", p.Owner, p.Reason)})
	a.keeper.Reestablish() // the decision that waited, if there is one
}

// watchPause ends a pause whose time is over.
func (a *agent) watchPause() {
	if a.pausing.Load() != nil && !a.paused() {
		a.endPause("expired")
	}
}

// pause begins a pause, in place of the one before if there is one.
func (a *agent) pause(ctx context.Context, req control.PauseRequest) (control.PauseAnswer, error) {
	if err := req.Validate(); err != nil {
		return control.PauseAnswer{}, control.UsageError(err)
	}
	return a.changePause(ctx, func() {
		a.beginPause(recovery.NewPause(req.Owner, req.Reason, req.Lasts(), time.Now(), a.bootID, time.Duration(a.clock())))
	})
}

func (a *agent) serveResume(w http.ResponseWriter, r *http.Request) {
	answer, err := a.changePause(r.Context(), func() { a.endPause("operator") })
	control.Respond(w, answer, err)
}

// changePause has the loop make a change, and returns when the loop has acted on it.
func (a *agent) changePause(ctx context.Context, change func()) (answer control.PauseAnswer, err error) {
	ctx, cancel := context.WithTimeout(ctx, setModeTimeout)
	defer cancel()
	err = a.await(ctx, func() {
		answer.Before = a.pauseStatus()
		change()
		answer.BrokerID, answer.Pause = a.brokerID, a.pauseStatus()
	})
	if err != nil {
		return answer, fmt.Errorf("pause not changed: %w: see 'holdfast status'", err)
	}
	// A person's word is kept before it is confirmed.
	if err := a.saveNow(); err != nil {
		return answer, fmt.Errorf("done, but --state-dir %s: %w: a restart of this sidecar would not know of it: free space or make it writable, then repeat", a.cfg.StateDir, err)
	}
	return answer, nil
}

// pauseSentence is what a pause adds to the state in one sentence; empty: nothing.
func (a *agent) pauseSentence() string {
	p := a.pauseStatus()
	if p == nil {
		return ""
	}
	left := time.Duration(p.RemainingSeconds * float64(time.Second)).Round(time.Second)
	return fmt.Sprintf(" Recovery is paused by %s for %s more (%s); to end it: holdfast resume.", p.Owner, config.FormatDuration(left), p.Reason)
}
