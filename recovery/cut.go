package recovery

import "fmt"

// Companion is what became of a broker that was registered when our registration was last
// confirmed.
type Companion struct {
	ID   string
	Left bool // it was stopped on purpose since, also if it is back
	Lost bool // its registration has gone since, or is a newer one
	// BackAt is the store's revision at which it was back after it had been cut off from etcd
	// for the last time; 0: it was not, since it registered.
	BackAt int64
	// Unread says what cannot be read of its record, and where that stands; empty: all can.
	Unread string
}

// SharedLoss is how many of the brokers that were registered beside ours fared as it did.
type SharedLoss struct {
	Looked, Lost int
	names        []string // of those that did
	unread       string   // of one that could not be told
	// Unknown says why nobody could be looked at; empty: somebody could.
	Unknown string
}

// CompareLoss compares the loss of our registration with what became of the others. confirmed
// is the store's revision at our last confirmed renewal: whoever was back after it was cut off
// while we were. That is told by the store's order of things and by nobody's clock. Who was
// stopped on purpose does not count, nor does one whose record cannot be read.
func CompareLoss(beside []Companion, confirmed int64) (s SharedLoss) {
	for _, c := range beside {
		switch {
		case c.Unread != "":
			s.unread = c.Unread
		case c.Left:
		case c.Lost || c.BackAt != 0 && c.BackAt >= confirmed:
			s.Lost++
			s.names = append(s.names, c.ID)
			fallthrough
		default:
			s.Looked++
		}
	}
	return s
}

// Reaches reports whether so many fared alike that nobody was singled out. A share of 0 asks
// for nobody.
func (s SharedLoss) Reaches(share float64) bool {
	return share > 0 && s.Looked > 0 && float64(s.Lost) >= share*float64(s.Looked)
}

func (s SharedLoss) String() string {
	switch {
	case s.Unknown != "":
		return "what became of the others is not known: " + s.Unknown
	case s.Looked == 0 && s.unread != "":
		return "what became of the others is not known: " + s.unread
	case s.Looked == 0:
		return ""
	}
	said := fmt.Sprintf("of %d that were registered beside it %d lost their registrations, or were cut off from etcd, at the same time", s.Looked, s.Lost)
	if len(s.names) > 0 {
		said += " (" + some(s.names) + ")"
	}
	if s.unread != "" {
		said += "; not counted: " + s.unread
	}
	return said
}

// fewer says why a loss that was not shared enough is our own.
func (s SharedLoss) fewer(share float64) string {
	said := s.String()
	if said != "" && s.Looked > 0 {
		said += fmt.Sprintf(", fewer than --fleet-loss-share %g", share)
	}
	if said == "" || share == 0 {
		return ""
	}
	return "; " + said
}
