package harness

import (
	"encoding/json"
	"time"
)

// Status is the status JSON of a sidecar, as CONTRACT has it.
type Status struct {
	BrokerID    string `json:"broker_id"`
	Driver      string `json:"driver"`
	Incarnation string `json:"incarnation"`
	Epoch       int64  `json:"epoch"`
	Attachment  string `json:"attachment"`
	Mode        string `json:"mode"`
	Reason      string `json:"reason"`
	Boot        struct {
		Kind     string   `json:"kind"`
		Reason   string   `json:"reason"`
		Evidence []string `json:"evidence"`
	} `json:"boot"`
	Lease struct {
		ID               string  `json:"id"`
		TTLSeconds       float64 `json:"ttl_seconds"`
		RemainingSeconds float64 `json:"remaining_seconds"`
		FenceInSeconds   float64 `json:"fence_in_seconds"`
		FailureStreak    int     `json:"failure_streak"`
		FailingSeconds   float64 `json:"failing_seconds"`
		LastError        string  `json:"last_error"`
	} `json:"lease"`
	Registration struct {
		Present        bool  `json:"present"`
		Adopted        bool  `json:"adopted"`
		CreateRevision int64 `json:"create_revision"`
	} `json:"registration"`
	Broker struct {
		Up        string `json:"up"`
		Version   string `json:"version"`
		LastError string `json:"last_error"`
		Held      string `json:"held"`
		Steering  string `json:"steering"`
	} `json:"broker"`
	Topics struct {
		Assigned    int `json:"assigned"`
		Served      int `json:"served"`
		Missing     int `json:"missing"`
		Orphan      int `json:"orphan"`
		Quarantined int `json:"quarantined"`
		Loading     int `json:"loading"`
		Unreadable  int `json:"unreadable"`
	} `json:"topics"`
	Ready struct {
		OK     bool     `json:"ok"`
		Causes []string `json:"causes"`
	} `json:"ready"`
	Pause *struct {
		Owner            string    `json:"owner"`
		Reason           string    `json:"reason"`
		Until            time.Time `json:"until"`
		RemainingSeconds float64   `json:"remaining_seconds"`
	} `json:"pause"` // nil: recovery is not paused
	Guard struct {
		State string `json:"state"`
		Pid   int    `json:"pid"`
	} `json:"guard"`
	State struct {
		Saved bool   `json:"saved"`
		Error string `json:"error"`
	} `json:"state"`
	Summary  string    `json:"summary"`
	Severity string    `json:"severity"`
	At       time.Time `json:"at"`
}

// Deadline is the end of the lease, by the sidecar's clock.
func (s Status) Deadline() time.Time {
	return s.At.Add(time.Duration(s.Lease.RemainingSeconds * float64(time.Second)))
}

// String is the status as JSON, for messages.
func (s Status) String() string {
	b, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Event is one transition of a sidecar's journal.
type Event struct {
	ID     int64     `json:"id"`
	At     time.Time `json:"at"`
	Kind   string    `json:"kind"`
	From   string    `json:"from"`
	To     string    `json:"to"`
	Reason string    `json:"reason"`
	Epoch  int64     `json:"epoch"`
	Detail string    `json:"detail"`
}

// Topic is one line of a sidecar's topics.
type Topic struct {
	Topic string `json:"topic"`
	State string `json:"state"`
	Error string `json:"error"`
}
