package moves

import (
	"encoding/json"
	"fmt"
	"time"
)

// State is how far a drain has come that moves topics.
type State string

// The states; the last three are ends.
const (
	Waiting   State = "waiting" // for another broker's drain
	Moving    State = "moving"
	Drained   State = "drained"    // nothing is left, and the broker is drained
	Left      State = "left"       // topics are left, or their cleanup: those go on being served
	CalledOff State = "called off" // by 'holdfast activate'
)

// Over reports whether nothing is to be done any more.
func (s State) Over() bool { return s != Waiting && s != Moving }

// Drain is the record of one: the value of /cluster/drains/{broker_id}.
type Drain struct {
	Format   int       `json:"format"`
	By       string    `json:"by"` // who asked, or why
	At       time.Time `json:"at"`
	Deadline time.Time `json:"deadline"`     // after it no move begins, and what is not handed over is called off
	To       string    `json:"to,omitempty"` // who takes all topics; empty: the active broker with the fewest
	State    State     `json:"state"`
	Waits    string    `json:"waits,omitempty"` // for whom
	Topics   int       `json:"topics"`          // when it began
	Moved    int       `json:"moved"`
	Bytes    uint64    `json:"moved_bytes"`
	Left     []Unmoved `json:"left,omitempty"`
	Error    string    `json:"error,omitempty"` // of the last try
}

// Unmoved is a topic that stays, and why.
type Unmoved struct {
	Topic string `json:"topic"`
	Why   string `json:"why"`
}

// ParseDrain reads a drain's record.
func ParseDrain(value []byte) (d Drain, err error) {
	if err = json.Unmarshal(value, &d); err == nil && d.Format > format {
		err = fmt.Errorf("format %d: %w", d.Format, ErrNewer)
	}
	if err == nil && d.State == "" {
		err = fmt.Errorf("no state")
	}
	return d, err
}

// Value is the record as it is written.
func (d Drain) Value() []byte {
	d.Format = format
	value, _ := json.Marshal(d)
	return value
}

// Line says in one sentence how far it is.
func (d Drain) Line() string {
	line := fmt.Sprintf("%s: %d of %d topics moved", d.State, d.Moved, d.Topics)
	switch {
	case d.State == Waiting:
		line = "waiting for " + d.Waits
	case len(d.Left) > 0:
		line += fmt.Sprintf(", %d left: %s: %s", len(d.Left), d.Left[0].Topic, d.Left[0].Why)
	}
	if d.Error != "" {
		line += "; " + d.Error
	}
	return line
}
