package control

import (
	"strings"
	"time"

	"holdfast/agent/guard"
)

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
