package recovery

import "time"

// Attachment says how far the broker is part of its cluster.
type Attachment int

// Attachments. The zero value is Detached: a broker is not attached until etcd
// says so.
const (
	Detached Attachment = iota
	Attached
	Degraded // renewals fail; the lease still holds
)

// Attachments lists all of them.
var Attachments = []Attachment{Detached, Attached, Degraded}

func (a Attachment) String() string {
	return [...]string{"detached", "attached", "degraded"}[a]
}

// Why says why the attachment changed.
type Why string

// Reasons of attachment changes.
const (
	WhySame        Why = ""
	WhyRegistered  Why = "registered"     // first registration of this process
	WhyRecovered   Why = "recovered"      // renewals are confirmed again
	WhyRecoverOver Why = "recover_window" // healthy throughout the recover window
	WhyFailing     Why = "renewals_failing"
	WhyFencePoint  Why = "fence_point"
	WhyLeaseLost   Why = "lease_lost"
	WhyConflict    Why = "identity_conflict"
	WhyLeft        Why = "left"        // its registration was given up on purpose
	WhyBrokerDown  Why = "broker_down" // not renewed, because the broker is down
	WhyMustGo      Why = "must_go"     // the broker's process must be stopped for a reason of its own
)

// DetachReasons are those with which a broker detaches.
var DetachReasons = []Why{WhyFencePoint, WhyLeaseLost, WhyConflict, WhyLeft, WhyBrokerDown, WhyMustGo}

// AttachFacts is what the attachment follows from. Instants are on the boot clock.
type AttachFacts struct {
	Now        time.Duration
	Held       bool // a lease is held, and the registration stands under it
	FencePoint time.Duration
	Failing    bool // the last renewals were not confirmed
	Paused     bool // not renewing, because the broker is down
	Contested  bool // another incarnation is registered
	Enabled    bool // --detach
	// EverAttached, HealthySince and Verified govern the way back: after a detachment
	// renewals must have been confirmed since HealthySince for the whole window, and
	// a store call after the detachment must have shown the registration to be ours.
	EverAttached  bool
	HealthySince  time.Duration
	RecoverWindow time.Duration
	Verified      bool
	// HeldBack: a hold blocks Attach, or its process is being stopped, which cannot be taken back.
	HeldBack bool
	// Left: the registration is given up on purpose.
	Left bool
	// MustGo: the process that answers must be stopped for a reason of its own.
	MustGo bool
}

// NextAttachment is the attachment that follows. Detachment comes before anything
// else.
func NextAttachment(a Attachment, f AttachFacts) (Attachment, Why) {
	if a != Detached && f.Contested {
		return Detached, WhyConflict // whatever --detach says: the registration is another's
	}
	if a != Detached && f.MustGo {
		return Detached, WhyMustGo
	}
	if a != Detached && f.Enabled {
		switch {
		case !f.Held && f.Left:
			return Detached, WhyLeft
		case !f.Held && f.Paused:
			return Detached, WhyBrokerDown
		case !f.Held:
			return Detached, WhyLeaseLost
		case f.Now >= f.FencePoint && f.Paused:
			return Detached, WhyBrokerDown
		case f.Now >= f.FencePoint:
			return Detached, WhyFencePoint
		}
	}
	healthy := f.Held && !f.Failing && !f.Paused && !f.Contested && f.Now < f.FencePoint
	switch {
	case a == Attached && f.Paused:
		return Degraded, WhyBrokerDown
	case a == Attached && !healthy:
		return Degraded, WhyFailing
	case a == Degraded && healthy:
		return Attached, WhyRecovered
	case a == Detached && (f.HeldBack || f.Left || f.MustGo):
	case a == Detached && healthy && !f.EverAttached:
		return Attached, WhyRegistered
	case a == Detached && healthy && f.Verified && f.Now-f.HealthySince >= f.RecoverWindow:
		return Attached, WhyRecoverOver
	}
	return a, WhySame
}
