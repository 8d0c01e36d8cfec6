package reference

import (
	"encoding/json"
	"net/http"
	"time"
)

type identity struct {
	Name         string    `json:"name"`
	Instance     string    `json:"instance"` // another one in each life
	StartedAt    time.Time `json:"started_at"`
	Version      string    `json:"version"`
	DataDir      string    `json:"data_dir"`
	Capabilities []string  `json:"capabilities"`
}

type health struct {
	Status   string `json:"status"`
	Instance string `json:"instance"`
}

type page struct {
	Topics []listed `json:"topics"`
	Next   string   `json:"next,omitempty"`
}

type listed struct {
	Name  string `json:"name"`
	State string `json:"state"`
}

// topicRequest is about one topic.
type topicRequest struct {
	Topic string `json:"topic"`
}

type loadRequest struct {
	Topic  string          `json:"topic"`
	Record json.RawMessage `json:"record"`
}

type resumeRequest struct {
	Topic string `json:"topic"`
	From  *end   `json:"from"`
}

// The states of a topic.
const (
	serving  = "serving"
	quiesced = "quiesced"
	sealed   = "sealed"
	absent   = "absent"
)

type state struct {
	State string `json:"state"`
}

// end is where a topic was sealed. The offset is text: many readers of JSON round large
// numbers.
type end struct {
	Empty      bool    `json:"empty"`
	LastOffset *string `json:"last_offset,omitempty"`
}

func (e end) equal(o end) bool {
	return e.Empty == o.Empty && (e.LastOffset == nil) == (o.LastOffset == nil) &&
		(e.LastOffset == nil || *e.LastOffset == *o.LastOffset)
}

type mode struct {
	Mode   string `json:"mode"`
	Reason string `json:"reason,omitempty"`
}

type stop struct {
	Instance string `json:"instance"`
}

// refusal is every answer that is not a success: a status, a code for programs, and a
// sentence for people.
type refusal struct {
	status        int
	code, message string
}

func (r *refusal) Error() string { return r.code + ": " + r.message }

func refuse(status int, code, message string) error { return &refusal{status, code, message} }

// What the rules of topics refuse. Each has a code of its own.
var (
	errNotHere     = refuse(http.StatusNotFound, "not_found", "no such topic is here")
	errForeign     = refuse(http.StatusConflict, "foreign", "the topic was not made by Holdfast")
	errElsewhere   = refuse(http.StatusConflict, "elsewhere", "another broker of this cluster serves the topic")
	errDrained     = refuse(http.StatusConflict, "drained", "the broker is drained and takes no topic")
	errSealed      = refuse(http.StatusConflict, "sealed", "the topic is sealed: resume it")
	errNotQuiesced = refuse(http.StatusConflict, "not_quiesced", "the topic is not quiesced")
	errNotSealed   = refuse(http.StatusConflict, "not_sealed", "the topic is not sealed")
	errNoFit       = refuse(http.StatusConflict, "does_not_fit", "the data that is here does not end where the topic was sealed")
	errInstance    = refuse(http.StatusConflict, "instance", "another instance is meant")
)
