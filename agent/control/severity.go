package control

import (
	"strings"
	"time"

	"holdfast/agent/guard"
)

// Severity says how much a status matters to the person who is woken by it.
type Severity string

// From the least to the most.
const (
	SeverityOK       Severity = "ok"       // clients may come, and nothing is to do
	SeverityInfo     Severity = "info"     // as somebody wants it, or about to be ready
	SeverityWarning  Severity = "warning"  // clients may come, but not for long unless somebody looks; or it waits for a person
	SeverityCritical Severity = "critical" // clients are kept away, and nobody asked for that
)

// Circumstances are what a severity depends on beside the status.
type Circumstances struct {
	EverReady     bool
	WasRegistered bool // the broker, in this sidecar's life or before
	Leaves        bool // on purpose
	Asked         bool // for the mode, by a person or another program
	MustStop      bool // somebody else must end the broker or its double: a restart, an identity conflict
	Risk          bool // something that would protect a ready broker does not work, or waits for a person
}

// SeverityOf judges a status. It agrees with the summary, which says the same in words.
func SeverityOf(s Status, c Circumstances) Severity {
	judged := judge(s, c)
	switch {
	case s.Shadow && judged == SeverityCritical: // nothing was done: clients come as before
		return SeverityWarning
	case s.Pause != nil && judged == SeverityOK:
		return SeverityInfo
	}
	return judged
}

func judge(s Status, c Circumstances) Severity {
	switch {
	case s.Ready.OK && (s.Lease.FailureStreak > 0 || c.Risk || s.Topics.Missing > s.Topics.Elsewhere):
		return SeverityWarning
	case s.Ready.OK:
		return SeverityOK
	case c.Leaves:
		return SeverityInfo
	case c.MustStop, s.StoppedBy != nil:
		return SeverityCritical
	case s.Mode == "" && !c.WasRegistered: // it never was in the cluster, so it cannot have left it
		if s.Lease.LastError != "" {
			return SeverityWarning
		}
		return SeverityInfo
	case s.Mode == "" && s.Lease.LastError == "": // the sidecar was started again, and takes up what is there
		return SeverityInfo
	case s.Mode != "active" && c.Asked && s.Broker.Steering != "failing" && (s.Attachment != "detached" || s.Broker.Up == "down"):
		return SeverityInfo // a broker that is being worked on may also be down
	case s.Mode != "active" && c.Asked:
		return SeverityWarning
	case s.Broker.Up == "down", s.Attachment == "detached", s.Mode == "":
		return SeverityCritical
	case s.Mode != "active", s.Broker.Up != "up", c.EverReady:
		return SeverityWarning
	}
	return SeverityInfo // it loads its topics
}

// StopReasonIll is why the fence has stopped a broker that hung, beside a peer that was well.
const StopReasonIll = "ill"

// StoppedBy finds in the journal who stopped the broker's process that ran last, nil if
// nobody did or if a process came up since. started is when that process began, zero if
// it is not known: the guard's shot may be noted after the next one came up.
func StoppedBy(events []Event, started time.Time) *StopStatus {
	for i := len(events) - 1; i >= 0; i-- {
		e := events[i]
		at := e.When()
		switch {
		case e.Shadow:
		case e.Kind == "broker" && e.To == "up", e.Kind == "process" && e.To == "started":
			return nil
		case e.Kind == "fence" && at.Before(started):
			return nil
		case e.Kind == "fence" && e.To == guard.Fired:
			why, _, _ := strings.Cut(e.Detail, ": ")
			return &StopStatus{By: "guard", At: at, Why: why}
		case e.Kind == "fence" && e.To == "stopped":
			why := "its lease was about to end, and it was not shown to serve nothing"
			if e.Reason == StopReasonIll {
				why = "it did not answer, while another broker was well"
			}
			return &StopStatus{By: "fence", At: at, Why: why}
		}
	}
	return nil
}
