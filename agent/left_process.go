package agent

import (
	"context"
	"fmt"
	"time"

	"holdfast/agent/lease"
	"holdfast/probes"
	"holdfast/recovery"
)

// This file carries 'holdfast leave' over a restart of the sidecar: whoever asked for it is
// about to stop that process of the broker, and knows nothing of sidecars that end meanwhile.

// leftProcess is a process of the broker that has left and is to be stopped.
type leftProcess struct {
	Instance string    `json:"instance"`
	At       time.Time `json:"at"`
}

// rest is for how long its end is still waited for; not positive: it is not. A clock that was
// set meanwhile makes that no longer than --leave-timeout.
func (l leftProcess) rest(c Config) time.Duration {
	return c.LeaveTimeout - max(0, time.Since(l.At))
}

// waits says what becomes of it while its end is waited for.
func (l leftProcess) waits(c Config) string {
	return fmt.Sprintf("this process of the broker has left on purpose: it is registered again if it still runs in %s; "+
		"at once when it is another process, or by 'holdfast activate'", l.rest(c).Round(time.Second))
}

func (a *agent) rememberLeft(instance string) {
	left := &leftProcess{Instance: instance, At: time.Now()}
	a.remember(func(m *memory) { m.Left = left })
}

// recallLeft has the process that left under the sidecar before this one stay away for the
// rest of its time.
func (a *agent) recallLeft() {
	left := a.memory.Left
	if left == nil {
		return
	}
	a.leftFound = true
	rest := left.rest(a.cfg)
	if rest <= 0 {
		a.remember(func(m *memory) { m.Left = nil })
		return
	}
	a.leaving = leaving{phase: hasLeft, instance: left.Instance, until: a.clock().Add(rest)}
	a.log.Info("the broker has left on purpose: its process is registered again only if it stays", "for", rest.Round(time.Second))
}

// recallNoted is recallLeft for a sidecar that was killed after it had noted the departure in etcd
// and before it could remember that. The lease, if it still lives, runs out by itself.
func (a *agent) recallNoted(left leftProcess) {
	if a.leftFound || a.leaving.phase != notLeaving || a.mode.Mode != "" {
		return
	}
	a.remember(func(m *memory) { m.Left = &left })
	a.recallLeft()
}

// goesAway reports whether the process that is fenced has left and is to be stopped by
// somebody else, who has a while for it. It closes its admin API before it ends, and may take
// leave of its clients for minutes.
func (a *agent) goesAway() bool {
	l := &a.leaving
	return l.noted() && a.fencing.instance == l.instance && a.clock() < l.until
}

// carryProof has the ladder begin at what was proven before the registration was given up:
// whoever stops the broker now may be faster than another proof. A ladder without that step
// stops the broker itself.
func (a *agent) carryProof() {
	l := &a.leaving
	if who, _ := a.identity.get(); a.detachedBy == recovery.WhyLeft && l.provenAt != 0 && a.fences(recovery.StepQuiesce) && who.Instance == l.instance {
		a.fencing.instance, a.fencing.ladder = l.instance, recovery.ProvenIdle(time.Duration(l.provenAt))
	}
}

// endsUnseen reports whether a process that has left does not say any more what it serves,
// so that the looks at it do not move the guard's moment.
func (a *agent) endsUnseen() bool {
	return a.goesAway() && a.clock().Sub(lease.Instant(a.fencing.ladder.ProvenAt())) > (recovery.ProofLooks-1)*a.lookEvery()
}

// hasLeftBehind reports whether the process that answers is one that has left: nothing may
// be served by it.
func (a *agent) hasLeftBehind() bool {
	if a.leaving.phase != hasLeft {
		return false
	}
	who, _ := a.identity.get()
	return who.Instance == a.leaving.instance
}

// awaitDecided waits a moment for the mode of a broker that was just taken back by a sidecar
// that has decided none yet.
func (a *agent) awaitDecided(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, activateWait)
	defer cancel()
	for s := a.view.Load(); ctx.Err() == nil && s.brokerID != "" && s.mode.Mode == ""; s = a.view.Load() {
		probes.Sleep(ctx, 20*time.Millisecond)
	}
}
