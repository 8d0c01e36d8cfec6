package agent

import (
	"holdfast/agent/lease"
	"holdfast/recovery"
)

// handover is what was begun for a process, and perhaps done: until the Registrar tells of
// it, it may have what it was to be given.
type handover struct {
	instance string
	validity lease.Validity // of the lease that it was put under: while it holds, the broker may serve
	fenced   bool           // anew, since that lease may have run out. The loop's
}

// beginHandover is called before anything is written, and undo where nothing was: what an attempt
// before this one may have written stays, under a lease that each attempt renews.
func (a *agent) beginHandover(instance string, under lease.Grant) (undo func()) {
	first := a.handed.Load() == nil
	begun := &handover{instance: instance, validity: lease.Validity{SentAt: under.SentAt, TTL: under.TTL, Margin: a.cfg.LeaseDetachMargin}}
	a.handed.Store(begun)
	a.needAssignments("", 0)
	return func() {
		if first {
			a.handed.CompareAndSwap(begun, nil)
		}
	}
}

// handedTo is what that process may have been given; nil: nothing. held: under a lease that is
// known to hold.
func (a *agent) handedTo(instance string) (h *handover, held bool) {
	if h = a.handed.Load(); h == nil || h.instance != instance {
		return nil, false
	}
	return h, h.validity.HeldAt(a.clock())
}

// validity is until when the process that answers may serve, for all that is known. Where the
// answer to a handover was lost, it may be under the lease of that alone, which nobody renews
// before the Registrar has found it.
func (a *agent) validity() lease.Validity {
	v := a.keeper.View().Validity
	who, _ := a.identity.get()
	if h, _ := a.handedTo(who.Instance); h != nil && h.validity.Deadline() < v.Deadline() {
		return h.validity
	}
	return v
}

// fenceAnew ends a proof that the process serves nothing which is older than what it may
// have been given since.
func (a *agent) fenceAnew() {
	f := &a.fencing
	waited := f.waited
	f.waited = a.waitsToBeAttached()
	if !f.reached.Proven() || f.underway != recovery.StepNone {
		return
	}
	h, held := a.handedTo(f.instance)
	switch {
	case waited && !f.waited && f.reached == recovery.FenceQuiesced: // it might serve what it was given
		a.endFencing()
	case h != nil && !held && !h.fenced:
		h.fenced = true
		a.endFencing()
	}
}
