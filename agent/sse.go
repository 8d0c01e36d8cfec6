package agent

import (
	"encoding/json"

	"holdfast/agent/page"
)

// watched is what the status page shows of the sidecar. It tells nothing that
// /api/status and the log do not.
type watched struct{ a *agent }

// told is a journal entry with what `holdfast explain` says of it: whoever looks at a
// page that has lost its sidecar cannot ask any more.
type told struct {
	Event
	Why   string `json:"why"`
	Avoid string `json:"avoid"`
	Next  string `json:"next,omitempty"`
}

// Status implements page.Source.
func (w watched) Status() (data []byte, same string) {
	s := w.a.status()
	data, _ = json.Marshal(s) // strings and numbers: it cannot fail
	s.At = s.Since
	s.Lease.RemainingSeconds, s.Lease.FenceInSeconds, s.Lease.FailingSeconds = 0, 0, 0
	if s.Pause != nil {
		pause := *s.Pause
		pause.RemainingSeconds = 0
		s.Pause = &pause
	}
	lasting, _ := json.Marshal(s)
	return data, string(lasting)
}

// Journal implements page.Source.
func (w watched) Journal(after int64, most int) ([]page.Entry, <-chan struct{}) {
	events, more := w.a.journal.since(after)
	events = events[:min(most, len(events))]
	list := make([]page.Entry, 0, len(events))
	for _, e := range events {
		x := explain(e, *w.a.settings())
		data, _ := json.Marshal(told{e, x.Why, x.Avoid, x.Next})
		list = append(list, page.Entry{ID: e.ID, Data: data})
	}
	return list, more
}

// Newest implements page.Source.
func (w watched) Newest() int64 { return w.a.journal.newest() }
