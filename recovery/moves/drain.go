package moves

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
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
	Topics   int       `json:"topics"` // when it began
	Moved    int       `json:"moved"`
	Bytes    uint64    `json:"moved_bytes"`
	// Left is, by topic that stays, why. A record names the first maxLeft, and More is how many others stay.
	Left  map[string]string `json:"left,omitempty"`
	More  int               `json:"left_more,omitempty"`
	Error string            `json:"error,omitempty"` // of the last try
	// Stalled names what is in its way, and the next command; empty: it gets further.
	Stalled string `json:"stalled,omitempty"`
}

// maxLeft is as much as fits into a value of etcd, with long names and reasons.
const maxLeft = 500

// ParseDrain reads a drain's record.
func ParseDrain(value []byte) (d Drain, err error) {
	if err = json.Unmarshal(value, &d); err == nil && d.Format > format {
		err = fmt.Errorf("format %d: %w", d.Format, ErrNewer)
	}
	if err == nil && d.State == "" {
		err = fmt.Errorf("no state")
	}
	if err != nil {
		return Drain{}, err
	}
	return d, nil
}

// Value is the record as it is written.
func (d Drain) Value() []byte {
	d.Format = format
	if names := slices.Sorted(maps.Keys(d.Left)); len(names) > maxLeft {
		d.Left, d.More = maps.Clone(d.Left), len(names)-maxLeft
		for _, name := range names[maxLeft:] {
			delete(d.Left, name)
		}
	}
	value, _ := json.Marshal(d)
	return value
}

// Line says in one sentence how far it is.
func (d Drain) Line() string {
	line := fmt.Sprintf("%s: %d of %s moved", d.State, d.Moved, plural(uint64(d.Topics), "topic"))
	if len(d.Left) > 0 {
		first := slices.Sorted(maps.Keys(d.Left))[0]
		line += fmt.Sprintf(", %d left: %s: %s", len(d.Left)+d.More, first, d.Left[first])
	}
	if why := cmp.Or(d.Stalled, d.Error); why != "" {
		line += "; " + why
	}
	return line
}

// Part is how much of a move is done, of 1, for progress.
func (m Move) Part() float64 {
	part := float64(slices.Index(Phases, m.Phase))
	if m.Sealed != nil && m.Sealed.Bytes > 0 {
		part += min(float64(m.Moved)/float64(m.Sealed.Bytes), 1)
	}
	return part / float64(len(Phases))
}

// Rate is how many bytes a second went over while any of the moves was between its seal and its end;
// 0: none has measured it.
func Rate(all []Move) float64 {
	all = slices.DeleteFunc(slices.Clone(all), func(m Move) bool { return m.Phase != Done || m.Sealed == nil })
	slices.SortFunc(all, func(a, b Move) int { return a.Since[Sealed].Compare(b.Since[Sealed]) })
	bytes, busy, until := 0.0, time.Duration(0), time.Time{}
	for _, m := range all {
		bytes += float64(m.Sealed.Bytes)
		from, to := m.Since[Sealed], m.Since[Done]
		if from.Before(until) {
			from = until
		}
		if to.After(from) {
			busy, until = busy+to.Sub(from), to
		}
	}
	if busy == 0 {
		return 0
	}
	return bytes / busy.Seconds()
}
