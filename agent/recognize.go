package agent

import (
	"time"

	"holdfast/probes"
)

// recognition says whether a process that a pid file or a name led to is the broker
// that answers at the admin address.
type recognition int

const (
	unrecognized recognition = iota // it cannot be told: it is believed, with a warning
	isBroker
	isForeign // it is never signaled, and its end proves nothing
)

func (r recognition) String() string { return [...]string{"unknown", "broker", "foreign"}[r] }

// startTolerance is by how much a process's start, as the kernel counts it, and the
// start that the broker states may differ: a script that becomes the broker, a clock
// that is being slewed.
const startTolerance = 10 * time.Second

// recognitionFacts are what is known of such a process.
type recognitionFacts struct {
	Started time.Time // the process, by the kernel
	Stated  time.Time // the broker that answers, by itself; zero: it does not say
	Holding probes.Holding
	Holder  time.Time // with HoldingAnother: when that one started
	Twins   bool      // and both are called the same
}

// recognize judges. Who holds the socket of the admin address counts most: a wall clock
// that was set falsifies the start times. Another holder alone contradicts nothing, since
// a proxy may stand before the broker; one whose start fits better does.
func recognize(f recognitionFacts) recognition {
	if f.Holding == probes.HoldingYes {
		return isBroker
	}
	if f.Holding == probes.HoldingAnother && f.Twins {
		return isForeign // the broker next to this one; no proxy is called like the broker
	}
	if f.Started.IsZero() || f.Stated.IsZero() {
		return unrecognized
	}
	apart := f.Started.Sub(f.Stated).Abs()
	switch {
	case apart > startTolerance:
		return isForeign
	case f.Holding == probes.HoldingAnother && f.Holder.Sub(f.Stated).Abs() < apart:
		return isForeign
	case f.Holding == probes.HoldingUnknown:
		return isBroker
	}
	return unrecognized
}
