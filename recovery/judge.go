package recovery

// Ruling is what to do about a change of the state key.
type Ruling int

// Rulings.
const (
	// Accept takes the mode that is in etcd as ours.
	Accept Ruling = iota
	// Reassert writes the mode that we hold again.
	Reassert
	// Unchanged: it says what we hold.
	Unchanged
)

// JudgeState rules on the state key as it was seen while we run. seen is nil when
// the key was deleted or its value is not a mode.
//
// A deletion is somebody tidying up after a death that did not happen, and other
// brokers read a missing or garbled state as active: so our mode is written again.
// An `active` that the broker writes for its own boot does not lift a drained that
// was decided before (safety rule 6); any other value is an operator's word.
func JudgeState(have ModeRecord, seen *ModeRecord) (Ruling, ModeRecord) {
	switch {
	case seen == nil || !seen.Mode.Known():
		return Reassert, have
	case *seen == have:
		return Unchanged, have
	case have.Mode != Active && seen.ofBoot():
		return Reassert, have
	default:
		return Accept, *seen
	}
}

// ofBoot reports whether the broker wrote this for its own boot.
func (m ModeRecord) ofBoot() bool {
	return m.Mode == Active && m.Reason == ReasonBoot && m.By != ByHoldfast && m.By != ByOperator
}
