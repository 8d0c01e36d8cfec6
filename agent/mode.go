package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// setMode takes up a mode that stands in etcd at that revision.
func (a *agent) setMode(m recovery.ModeRecord, revision int64, detail string) {
	a.modeRev = max(a.modeRev, revision)
	a.reassert = false
	if m == a.mode {
		return
	}
	from := a.mode
	a.mode = m
	a.log.Info(a.shadow.saying("mode"), "from", string(from.Mode), "to", string(m.Mode), "reason", string(m.Reason), "by", m.By, "epoch", a.grant.Epoch)
	a.event(Event{Kind: "mode", From: string(from.Mode), To: string(m.Mode), Reason: string(m.Reason), Epoch: a.grant.Epoch, Detail: detail})
	if m.Mode == recovery.Drained && m.By == recovery.ByHoldfast {
		a.log.Warn("the broker is drained and waits for a person: find out why, then 'holdfast activate'", "reason", string(m.Reason))
	}
	a.remember(func(k *memory) { k.Mode, k.Reason, k.By = string(m.Mode), string(m.Reason), m.By })
}

// stateSeen takes up what the watch saw of the state key. guard is the mod revision
// to write against, 0 if the key is absent.
func (a *agent) stateSeen(seen *recovery.ModeRecord, garbled string, revision, guard int64) {
	if a.mode.Mode == "" { // the startup decision is to come, and may rest on an older view
		a.early = func() { a.stateSeen(seen, garbled, revision, guard) }
		return
	}
	if revision <= a.modeRev {
		return
	}
	switch ruling, m := recovery.JudgeState(a.mode, seen); ruling {
	case recovery.Unchanged:
		a.modeRev, a.reassert = revision, false
	case recovery.Accept:
		detail := "changed in etcd"
		switch m.By {
		case recovery.ByHoldfast:
			detail = "" // our own write, seen by the watch before the registrar told of it
		case recovery.ByOperator:
			detail = "by an operator"
		}
		a.setMode(m, revision, detail)
	case recovery.Reassert:
		what := "deleted"
		switch {
		case garbled != "":
			what = garbled
		case seen != nil:
			what = fmt.Sprintf("%s (%s) by %q", seen.Mode, seen.Reason, seen.By)
		}
		a.modeRev, a.stateGuard, a.reassert = revision, guard, true
		a.log.Warn("state key is not ours to lose: writing it again", "was", what, "mode", string(a.mode.Mode))
		a.event(Event{Kind: "mode", From: what, To: string(a.mode.Mode), Reason: "reasserted", Epoch: a.grant.Epoch})
	}
}

// assertMode writes the mode again if it must be, unless we may have been declared
// dead: then the registrar decides first.
func (a *agent) assertMode() {
	v := a.keeper.View()
	if !a.reassert || a.reasserting || a.undecided() || a.doubted() || a.suspended(recovery.ActReassert) || a.attachment == recovery.Detached || v.Phase != lease.Holding || v.FailureStreak > 0 {
		return
	}
	a.reasserting = true
	m, guard := a.mode, a.stateGuard
	a.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(a.life0, 5*time.Second)
		defer cancel()
		rev, err := a.putState(ctx, *stateWrite(m), guard)
		a.tell(a.life0, func() {
			a.reasserting = false
			switch {
			case a.stateGuard != guard:
				// The key changed again meanwhile; that is to be written against.
			case err == nil:
				a.modeRev, a.reassert = max(a.modeRev, rev), false
			case errors.Is(err, cluster.ErrChanged):
				a.reassert = false // the watch brings what changed
			default:
				a.log.Warn("state key not written, trying again", "err", err)
			}
		})
	})
}
