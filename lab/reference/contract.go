package reference

import (
	"encoding/json"
	"net/http"
	"time"
)

type identity struct {
	Name      string    `json:"name"`
	Instance  string    `json:"instance"` // another one in each life
	StartedAt time.Time `json:"started_at"`
	Version   string    `json:"version"`
	DataDir   string    `json:"data_dir"`
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

// The states of a topic.
const (
	serving  = "serving"
	quiesced = "quiesced"
	absent   = "absent"
)

type state struct {
	State string `json:"state"`
}

type mode struct {
	Mode   string `json:"mode"`
	Reason string `json:"reason,omitempty"`
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
	errNotHere   = refuse(http.StatusNotFound, "not_found", "no such topic is here")
	errForeign   = refuse(http.StatusConflict, "foreign", "the topic was not made by Holdfast")
	errElsewhere = refuse(http.StatusConflict, "elsewhere", "another broker of this cluster serves the topic")
	errDrained   = refuse(http.StatusConflict, "drained", "the broker is drained and takes no topic")
)
