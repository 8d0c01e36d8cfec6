package recovery

import "time"

// LockState is what etcd last said of a topic's ownership lock.
type LockState uint8

// Lock states.
const (
	LockUnknown LockState = iota // not asked under the present orders
	LockFree                     // nobody holds it
	LockOurs                     // ours, under our present registration
	LockStale                    // this incarnation's, under an older lease or registration
	LockForeign                  // another's
)

// LockFacts is what is known about one topic's lock.
type LockFacts struct {
	Lock     LockState
	Attached bool
	Wanted   bool // it is assigned here, and the mode lets it be served
	Serving  bool // clients may be using it here: it is served, or may be for all that is known
}

// LockStep is what to do about a lock.
type LockStep uint8

// Lock steps.
const (
	LockLeave   LockStep = iota // nothing, and nothing to wait for
	LockLook                    // read it
	LockTake                    // create it if nobody holds it; the answer tells who does
	LockRebind                  // write it anew under our registration, if it is still as seen
	LockKeep                    // the topic may be loaded and served
	LockWait                    // take it as soon as it is free
	LockUnload                  // have the topic unloaded here, and look again when it is
	LockRelease                 // delete it, if it is still as seen
)

// DecideLock is what to do about a lock. Its rules (DESIGN, "What happens after an outage"
// and "Reconciliation"):
//
//   - nothing is done while detached;
//   - free is taken, ours under an old lease is bound to the new one, another's is waited
//     for; and a topic that another owns is not served here;
//   - as long as clients may use a topic here its lock is held, wanted or not: it is
//     released after the topic was unloaded, never before.
func DecideLock(f LockFacts) LockStep {
	if !f.Attached {
		return LockLeave // safety rule 9
	}
	switch f.Lock {
	case LockFree:
		if f.Wanted {
			return LockTake
		}
		return LockLeave
	case LockOurs:
		switch {
		case f.Wanted:
			return LockKeep
		case f.Serving:
			return LockUnload
		}
		return LockRelease
	case LockStale:
		if f.Wanted || f.Serving {
			return LockRebind
		}
		return LockRelease
	case LockForeign:
		switch {
		case f.Serving:
			return LockUnload
		case f.Wanted:
			return LockWait
		}
		return LockLeave
	}
	if f.Wanted {
		return LockTake // one question less than to look first
	}
	return LockLook
}

// Claim is what the ownership of a topic means for loading it.
type Claim uint8

// Claims.
const (
	ClaimOff       Claim = iota // no lock is asked for
	ClaimPending                // the lock is not known to be ours: not loaded; what is served stays
	ClaimOurs                   // the lock is ours: loaded
	ClaimContested              // another's, and tried again and again: unloaded at once
	ClaimElsewhere              // another's, for longer than we retry: unloaded, and not waited for
	ClaimYielded                // on its way to another broker: unloaded at once
)

// Loads reports whether the topic may be loaded.
func (c Claim) Loads() bool { return c == ClaimOff || c == ClaimOurs }

// Unloads reports whether the topic is to be unloaded at once.
func (c Claim) Unloads() bool { return c == ClaimContested || c == ClaimElsewhere || c == ClaimYielded }

// Foreign reports whether another broker has the topic.
func (c Claim) Foreign() bool { return c == ClaimContested || c == ClaimElsewhere }

// ClaimOf is what the reconciler must know of a lock. One that is not wanted any more is
// no ground for loading, whoever holds it.
func ClaimOf(s LockState, wanted, exhausted bool) Claim {
	switch {
	case s == LockForeign && exhausted:
		return ClaimElsewhere
	case s == LockForeign:
		return ClaimContested
	case s == LockOurs && wanted:
		return ClaimOurs
	}
	return ClaimPending
}

// RetryWindow is how a lock that another holds is asked for.
type RetryWindow struct {
	Every  time.Duration // within the window
	Window time.Duration // from when it was first found to be another's; 0: none
	Slow   time.Duration // after it
}

// After is when to ask again, and whether the window is over.
func (w RetryWindow) After(since, now time.Time) (next time.Time, over bool) {
	end := since.Add(w.Window)
	if !now.Before(end) {
		return now.Add(w.Slow), true
	}
	if next = now.Add(w.Every); next.After(end) {
		next = end
	}
	return next, false
}
