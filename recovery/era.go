package recovery

import (
	"fmt"
	"time"
)

// FleetAlive says until when a fleet was alive: the latest confirmed renewal that anybody
// knows of who has registered since.
type FleetAlive struct {
	Until    time.Time // by the clock of whoever was confirmed; zero: not known
	Revision int64     // of the store then; 0: not known
}

// EraFacts are what tells a restart of the whole cluster from a cluster that lived on and
// restarted later.
type EraFacts struct {
	Fleet FleetAlive // before the present era
	Ours  FleetAlive // our own last confirmed renewal, before the present era
	Now   time.Time
	TTL   time.Duration
	// Stood: our registration was still there at Fleet.Revision.
	Stood bool
	// Forgotten: the store does not know any more whether it was.
	Forgotten bool
}

// clockError is by how much the clock of a host may be wrong.
const clockError = 5 * time.Minute

// gap is for how long the fleet was alive after us, by the clocks of two hosts.
func (f EraFacts) gap() time.Duration { return f.Fleet.Until.Sub(f.Ours.Until) }

// suspect reports whether the fleet was alive for more than two TTLs after us, by the clocks of
// two hosts. A time in our future is not known.
func (f EraFacts) suspect() bool {
	return !f.Fleet.Until.IsZero() && !f.Ours.Until.IsZero() && !f.Fleet.Until.After(f.Now) && f.gap() > 2*f.TTL
}

// AsksStore reports whether it depends on Stood: the clocks say that the fleet outlived us, and
// its last sign of life came later in the store than ours.
func (f EraFacts) AsksStore() bool {
	return f.suspect() && f.Fleet.Revision > f.Ours.Revision
}

// Outlived says how the fleet is known to have outlived us before the present era began; empty:
// it is not. A clock that is wrong proves nothing: whoever lived on for two TTLs after us saw
// our registration go, and the store knows whether it did. Where it has forgotten that, the
// clocks alone count, if both may be wrong and say it all the same.
func (f EraFacts) Outlived() string {
	if !f.AsksStore() || f.Stood || f.Forgotten && f.gap() <= 2*f.TTL+2*clockError {
		return ""
	}
	proof := "its registration had gone by then"
	if f.Forgotten {
		proof = "etcd does not remember what was then"
	}
	return fmt.Sprintf("the fleet before it was alive until %s, %s longer than this broker, and %s",
		f.Fleet.Until.UTC().Format(time.RFC3339), f.gap().Round(time.Second), proof)
}

// Raise is what a registration notes of the fleet before its era; ok: it is to be written.
// first: it begins the era. Otherwise it is raised by more than a TTL only, so that a fleet
// that restarts does not meet at one key. Ours is zero for who was registered in this era.
func (f EraFacts) Raise(first bool) (note FleetAlive, ok bool) {
	if f.Ours.Until.IsZero() || f.Ours.Until.After(f.Now) {
		return f.Fleet, false
	}
	known := f.Fleet.Until
	if first && known.After(f.Now) {
		known = time.Time{}
	}
	least := known
	if !first {
		least = known.Add(f.TTL)
	}
	return f.Ours, known.IsZero() || f.Ours.Until.After(least)
}
