package recovery

// Steering says how far a broker that has a mode of its own has taken ours.
type Steering string

// How far.
const (
	SteerNone    Steering = ""        // it has no mode of its own: nothing is handed over
	SteerWaiting Steering = "waiting" // there is nothing to tell it now, or it may not be told
	SteerPending Steering = "pending" // it is being told
	SteerFailing Steering = "failing" // it was told and did not become so; it is told again
	SteerDone    Steering = "done"
)

// Obeys reports whether the broker is what our mode says, as far as that is its own affair.
func (s Steering) Obeys() bool { return s == SteerNone || s == SteerDone }

// SteerFacts is what the handing over of the mode follows from.
type SteerFacts struct {
	Mode    ModeRecord
	Decided bool // the mode is about the process of the broker that answers, and that one is not down
	// Attached: while it is not, the fence ladder has the broker to itself.
	Attached bool
	Paused   bool // a person has paused recovery
	Assigns  bool // the broker's own cluster decides which topics it serves
	Idle     bool // it was listed, and serves nothing
}

// Why nothing is told to the broker.
const (
	HaltUndecided Halt = "the decision about this process of the broker is to come"
	HaltServing   Halt = "it is draining and serves topics yet"
)

// DecideSteer says what the broker is to be told to be: Active, Drained, or nothing and why.
//
//   - nothing before the startup decision about this very process, and nothing while
//     detached (safety rule 9), be it active or drained;
//   - a person's word is handed over in a pause too;
//   - draining is the way to drained. A broker whose cluster assigns the topics is told
//     drained at once, since that is how it drains. Any other is told when nothing is
//     served any more: it would give up at once what a person wants to run out.
func DecideSteer(f SteerFacts) (to Mode, hold Halt) {
	switch {
	case !f.Decided || !f.Mode.Mode.Known():
		return "", HaltUndecided
	case !f.Attached:
		return "", HaltDetached
	case f.Paused && f.Mode.By == ByHoldfast:
		return "", HaltPaused
	case f.Mode.Mode == Draining && !f.Assigns && !f.Idle:
		return "", HaltServing
	case f.Mode.Mode == Active:
		return Active, HaltNone
	}
	return Drained, HaltNone
}
