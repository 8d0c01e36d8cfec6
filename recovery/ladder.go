package recovery

import "time"

// FenceStep is one step of the fence ladder, as --fence names it.
type FenceStep string

// The steps, in their order. StepReady is done in process, by whoever detaches, and
// takes no time.
const (
	StepNone    FenceStep = ""
	StepReady   FenceStep = "ready"
	StepQuiesce FenceStep = "quiesce"
	StepStop    FenceStep = "stop"
)

// FenceSteps lists the steps.
var FenceSteps = []FenceStep{StepReady, StepQuiesce, StepStop}

// Result is how a step went for the broker process that is fenced.
type Result int

// Results.
const (
	NotTried Result = iota
	Failed          // the last attempt was; nothing is proven
	Done            // proven: nothing is served, or the process is gone
)

// Bounds of a step for which no time is left, because the deadline has passed, none is
// known, or the registration was lost before it, and the pause before the ladder is
// climbed again.
const (
	LateQuiesce = 2 * time.Second
	LateStop    = 3 * time.Second
	FenceRetry  = time.Second
)

// ProofLooks is how many looks long a proof counts: after that the broker may serve, since
// hands other than ours may have brought a topic back.
const ProofLooks = 3

// lookRetry is the pause before a broker is looked at again that was not seen.
const lookRetry = FenceRetry / 4

// minSlice is the least time that is worth beginning a step with.
const minSlice = 200 * time.Millisecond

func (f LadderFacts) slice() time.Duration { return min(minSlice, f.Margin/12) }

// Ladder is what was done to one broker process since it may not serve. The zero
// Ladder has done nothing.
type Ladder struct {
	Quiesced, Stopped Result
	climbed           bool          // quiesce has failed in this round: stop is next
	retryAt           time.Duration // no new round before
	askAt             time.Duration // a broker that does not answer is not asked again before
	provenAt          time.Duration // when it was last seen to serve nothing, if Quiesced is Done
}

// LadderFacts is what the next step follows from. Instants are on the boot clock.
type LadderFacts struct {
	Now      time.Duration
	Deadline time.Duration // when the lease may be gone; 0: it may be gone already
	Margin   time.Duration // from the fence point to the deadline
	StopAt   time.Duration // when the last step must have ended: the dead-man guard acts then
	// Look is how often a broker that was quiesced is looked at again, also while it is Registered. Its own cluster, a
	// client that asks it, or an operator may give it topics at any time. 0: never, since it
	// may serve what it is given.
	Look    time.Duration
	Quiesce bool // the ladder has the step quiesce
	Stop    bool // the ladder has the step stop, and there is a way to
	// MustStop: a broker that runs without its registration does harm, quiesced or not.
	MustStop bool
	Down     bool // the broker does not answer; its process may live
	// Registered: etcd has shown, since the detachment, that this very process is
	// registered, and its lease holds. It waits to be attached, and stopping it would only
	// undo that; what can be quiesced still is.
	Registered bool
	// Leaves: its registration was given up on purpose, and its end was asked for. When it does
	// not answer any more it is ending, and what was proven of it counts on.
	Leaves bool
	// Waits: whether the process may be stopped will be known in a moment.
	Waits bool
	// Served: the process that does not answer did so while it was registered. Any other
	// may be one that starts.
	Served bool
	// Gone: the process has ended, and what may run instead has not answered yet.
	Gone bool
	// Lost: its connection broke since it was last up, so it may be starting again.
	// That proves nothing, but it is no time to restart it.
	Lost bool
}

// Fence says what a ladder has reached.
type Fence string

// What a ladder can have reached.
const (
	FenceOpen     Fence = "open"     // a step is to be done
	FencePausing  Fence = "pausing"  // every step failed, and the next round comes after FenceRetry; or it is Registered, or Waits
	FenceAwaiting Fence = "awaiting" // nothing can be done until the broker answers
	FenceQuiesced Fence = "quiesced" // proven: the process runs and serves nothing
	FenceGone     Fence = "gone"     // proven: the process has ended
)

// Proven reports whether nothing is served.
func (f Fence) Proven() bool { return f == FenceQuiesced || f == FenceGone }

// Rung is what to do next.
type Rung struct {
	Fence Fence
	Step  FenceStep     // StepQuiesce or StepStop if Fence is FenceOpen; StepQuiesce may be tried while it is FenceAwaiting, or FenceQuiesced: a look
	Until time.Duration // when the step must have ended
	// Restart says why somebody else must restart the broker; empty: nobody must.
	Restart string
}

// Next is the next step of the ladder. Every step ends before the deadline if there
// is one to come: quiesce a third of the margin after the fence point, stop at StopAt.
//
// A broker that is proven to serve nothing is not stopped: an outage of etcd must
// not cost a restart. It is looked at again and again, and the proof counts for ProofLooks
// looks. One that does not answer cannot be proven to, so it is stopped.
func (l Ladder) Next(f LadderFacts) Rung {
	r := Rung{Restart: l.restart(f)}
	switch {
	case l.Stopped == Done || f.Gone:
		r.Fence = FenceGone
	case l.Quiesced == Done && !f.MustStop && !l.aged(f, ProofLooks):
		r.Fence = FenceQuiesced
		if l.aged(f, 1) && f.Now >= l.askAt {
			r.Step, r.Until = StepQuiesce, f.Now+LateQuiesce
			if !f.Registered && !f.Leaves {
				r.Until = min(r.Until, l.provenAt+ProofLooks*f.Look)
			}
		}
	case f.Now < l.retryAt:
		r.Fence = FencePausing
	case f.Quiesce && l.Quiesced != Done && !l.climbed && !f.Down:
		r.Fence, r.Step, r.Until = FenceOpen, StepQuiesce, f.Now+f.quiesceBound()
	case f.Registered && l.Quiesced == NotTried && !f.Down:
		r.Fence = FencePausing
	case f.Stop && f.Waits:
		r.Fence = FencePausing
	case f.Stop && !l.leftUs(f):
		r.Fence, r.Step, r.Until = FenceOpen, StepStop, f.Now+f.stopBound()
	default:
		r.Fence = FenceAwaiting
		hangs := f.Down && f.Served && !f.Lost || l.aged(f, 1)
		if f.Quiesce && hangs && f.Now >= l.askAt {
			// Its health checks fail; that it can be quiesced is not proven wrong by that.
			r.Step, r.Until = StepQuiesce, f.Now+FenceRetry
		}
	}
	return r
}

// aged reports whether the broker was seen to serve nothing that many looks ago. The proof of
// one that is Registered is renewed, and never too old; so is that of one that Leaves.
func (l Ladder) aged(f LadderFacts, looks time.Duration) bool {
	if (f.Registered || f.Leaves) && looks == ProofLooks {
		return false
	}
	return f.Look > 0 && l.Quiesced == Done && f.Now >= l.provenAt+looks*f.Look
}

// ProvenIdle is the ladder of a process that was seen to serve nothing then, before its
// registration was given up.
func ProvenIdle(at time.Duration) Ladder { return Ladder{Quiesced: Done, provenAt: at} }

// leftUs reports whether the process that was quiesced may have ended and another may be
// starting: that one is fenced when it answers.
func (l Ladder) leftUs(f LadderFacts) bool {
	return f.Down && f.Lost && l.Quiesced == Done && !f.MustStop
}

// ProvenAt is when the process was last seen to serve nothing; 0: it was not.
func (l Ladder) ProvenAt() time.Duration {
	if l.Quiesced != Done {
		return 0
	}
	return l.provenAt
}

// Unseen is the ladder after a look that showed nothing, neither good nor bad.
func (l Ladder) Unseen(f LadderFacts) Ladder {
	l.askAt = f.Now + lookRetry
	return l
}

// Ended is the ladder after a step. When one fails the next is due at once; when the
// last fails a new round begins after FenceRetry.
func (l Ladder) Ended(step FenceStep, ok bool, f LadderFacts) Ladder {
	result := Failed
	if ok {
		result = Done
	}
	last := true
	switch step {
	case StepQuiesce:
		if !ok && f.Down && !f.Stop { // as was to be expected
			l.askAt = f.Now + FenceRetry
			return l
		}
		if !ok && f.Registered && l.Quiesced == Done { // it is no harm that stopping it would end
			return l.Unseen(f)
		}
		l.Quiesced, last, l.provenAt = result, !f.Stop, f.Now
	case StepStop:
		l.Stopped = result
		if l.aged(f, ProofLooks) {
			l.Quiesced = Failed
		}
	}
	l.climbed = !ok && !last
	if !ok && last {
		l.retryAt = f.Now + FenceRetry
	}
	return l
}

// RetryAt is when a new round begins after one that failed, or a broker is asked or
// looked at again.
func (l Ladder) RetryAt(look time.Duration) time.Duration {
	at := max(l.retryAt, l.askAt)
	if l.Quiesced == Done {
		at = max(at, l.provenAt+look)
	}
	return at
}

// restart: a failed quiesce leaves a broker that may serve. One that is only down, or
// starting, must not be restarted: it would never come up.
func (l Ladder) restart(f LadderFacts) string {
	switch {
	case l.Stopped == Done || f.Gone:
		return ""
	case f.MustStop && !f.Down:
		return "it may not run without its registration, and it was not stopped"
	case f.Down && f.Served && !f.Lost && !f.Stop && (l.Quiesced != Done || l.aged(f, ProofLooks)):
		return "it does not answer any more, so it may serve without its registration, and nothing here can stop it"
	case l.Quiesced == Failed && !(f.Down && f.Lost):
		return "it could not be quiesced, so it may serve without its registration, and it was not stopped"
	}
	return ""
}

// hurried reports whether the steps have no time of their own: the deadline has
// passed, or it is not the deadline that the broker may not serve for.
func (f LadderFacts) hurried() bool { return f.Now >= f.Deadline || f.Now < f.Deadline-f.Margin }

func (f LadderFacts) quiesceBound() time.Duration {
	switch left := f.StopAt - f.Now; {
	case f.hurried():
		return LateQuiesce
	case left < 3*f.slice(): // noticed late: half of what is left
		return min(LateQuiesce, max(minSlice, (f.Deadline-f.Now)/2))
	case !f.Stop:
		return left
	default:
		return max(f.Deadline-f.Margin+f.Margin/3-f.Now, left/3)
	}
}

func (f LadderFacts) stopBound() time.Duration {
	switch left := f.StopAt - f.Now; {
	case f.hurried():
		return LateStop
	case left >= f.slice():
		return left
	default:
		return max(minSlice, f.Deadline-f.Now)
	}
}
