package reference

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"holdfast/brokerapi"
	"holdfast/recovery/moves"
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

// extent is where a topic stands.
type extent struct {
	moves.Extent      // Floors: what each subscription gets next
	Active       int  `json:"active,omitempty"`
	Served       bool `json:"served,omitempty"`
}

type acceptRequest struct {
	Topic  string          `json:"topic"`
	Record json.RawMessage `json:"record"`
	Like   *moves.Extent   `json:"like"`
	From   *brokerapi.Peer `json:"from"`
}

type sealRequest struct {
	Topic string `json:"topic"`
	Move  string `json:"move"`
	Force bool   `json:"force"`
}

// fetchRequest is of copy, and of compare, which has no move.
type fetchRequest struct {
	Topic  string         `json:"topic"`
	Move   string         `json:"move,omitempty"`
	From   brokerapi.Peer `json:"from"`
	Sealed *moves.Extent  `json:"sealed"`
	UpTo   *uint64        `json:"up_to,omitempty"` // bytes that may be fetched until it is asked again; nil: all
}

type removeRequest struct {
	Topic string `json:"topic"`
	Move  string `json:"move"`
}

type resumeRequest struct {
	Topic  string          `json:"topic"`
	Move   string          `json:"move"`
	Record json.RawMessage `json:"record"`
	Sealed *moves.Extent   `json:"sealed"`
}

// progress says that a call is to be made again.
type progress struct {
	Bytes uint64 `json:"bytes"`
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
	errExists    = refuse(http.StatusConflict, "exists", "a topic of that name is here, and it is no copy")
	errHalf      = refuse(http.StatusConflict, "half_copy", "what is here is half of a copy: move it again, or remove it")
	errNotSealed = refuse(http.StatusConflict, "not_sealed", "the topic is not sealed")
	errDrained   = refuse(http.StatusConflict, "drained", "the broker is drained and takes no topic")
)

// noFit is about data that is not what was sealed.
func noFit(why error) error {
	if why == nil {
		return nil
	}
	return refuse(http.StatusConflict, "does_not_fit", why.Error())
}

// otherMove is about a topic that another move than the one in the request has in hand.
func otherMove(t *topic) error {
	return refuse(http.StatusConflict, "other_move", fmt.Sprintf("move %s has it: %s", t.Move, t.Stage))
}
