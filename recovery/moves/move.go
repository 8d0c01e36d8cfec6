// Package moves decides how a topic goes from one broker to another with its data.
//
// A move is a record in etcd, its journal; the sidecars of both brokers act on it, and on
// nothing else. Next says whose turn it is and what is to be done, After what the journal says
// then. Each change of the journal is one transaction, guarded by its mod revision, so who was
// overtaken has done nothing; each act may be repeated, so either sidecar may end at any moment.
//
// Guaranteed: the assignment changes hands once, in the transaction that writes Switched, after
// both copies were found to stand where the topic was sealed; before it a move can be called
// off, and the source serves again; after it nothing is undone; data is removed at the source
// only after the target serves and both contents were compared. Not guaranteed: that a topic is
// served while one of the two brokers is away in the midst of its turn.
//
// No context, clock, logger or etcd client: times come from the caller.
package moves

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Phase is how far a move has come.
type Phase string

// The phases, in their order; the last three are ends.
const (
	Pending  Phase = "pending"  // the target looks whether it can take the topic
	Draining Phase = "draining" // the source withdraws producers, pauses consumers and seals
	Sealed   Phase = "sealed"   // the target copies what is local
	Copied   Phase = "copied"   // the source looks whether it still stands there, and hands over
	Switched Phase = "switched" // it is the target's, which resumes it
	Resumed  Phase = "resumed"  // served; the contents are compared
	Verified Phase = "verified" // the source removes what it has left
	Undoing  Phase = "undoing"  // called off: the source serves it again
	Returned Phase = "returned" // the source does; the target removes what it has copied

	Done      Phase = "done"
	Cancelled Phase = "cancelled" // by an operator, before the handover: as if it had not been
	Failed    Phase = "failed"    // Error says why, and Ends where the topic is served
)

// Phases are all of them, as they are shown.
var Phases = []Phase{Pending, Draining, Sealed, Copied, Switched, Resumed, Verified, Undoing, Returned, Done, Cancelled, Failed}

// Over reports whether nothing is to be done any more.
func (p Phase) Over() bool { return p == Done || p == Cancelled || p == Failed }

// HandedOver reports whether the topic is assigned to the target.
func (p Phase) HandedOver() bool {
	return p == Switched || p == Resumed || p == Verified || p == Done
}

// format is of the journal. Another is of a newer version, and left alone.
const format = 1

// Move is the journal of one move: the value of /cluster/moves/{ns}/{topic}.
type Move struct {
	Topic  string    `json:"topic,omitempty"` // in a journal it is the key's
	Format int       `json:"format"`
	ID     string    `json:"id"`
	From   string    `json:"from"`
	To     string    `json:"to"` // empty: whom their own cluster chooses
	Phase  Phase     `json:"phase"`
	By     string    `json:"by"` // who asked, or why
	At     time.Time `json:"at"` // when it began
	// Sent: the brokers' own cluster moves it, and no step of it is seen; see Mover and Sender in
	// package brokerapi.
	Sent  bool `json:"sent,omitempty"`
	Force bool `json:"force,omitempty"` // consumers may be active

	Planned *Extent  `json:"planned,omitempty"` // the source, when it was asked for
	Sealed  *Extent  `json:"sealed,omitempty"`  // the source, when it was sealed
	Copied  *Extent  `json:"copied,omitempty"`  // the target, before the handover
	Served  *Extent  `json:"served,omitempty"`  // the target, when it had resumed
	Same    *Content `json:"same,omitempty"`    // what was compared after it

	// Moved are the bytes that the act under way has moved, and MovedAt when it was heard of last.
	Moved   int64     `json:"moved_bytes,omitempty"`
	MovedAt time.Time `json:"moved_at,omitzero"`
	// Since is when each phase began, on the clock of who wrote it.
	Since map[Phase]time.Time `json:"since,omitempty"`
	// Error is why the last act failed, or the move did; Where is the broker that said so.
	Error string `json:"error,omitempty"`
	Where string `json:"where,omitempty"`
	// CalledOff: an operator did.
	CalledOff bool `json:"called_off,omitempty"`
	// Again: the target could not resume what it has copied, and copies it once more. The source has
	// all of it until it is verified.
	Again bool `json:"again,omitempty"`
	// Taken: others have assigned the topic to somebody else, who serves it.
	Taken bool `json:"taken,omitempty"`
	// Why it was undone; Error is of the acts that undo it until it is over.
	Why string `json:"why,omitempty"`
	// Failing is since when the act of this phase fails, on the clock of who wrote it.
	Failing time.Time `json:"failing,omitzero"`
}

// Extent is what one broker has of a topic. A broker may know less than all of it: what is
// nowhere known is equal to everything.
type Extent struct {
	Empty bool   `json:"empty,omitempty"` // there never was a message; First and Last say nothing
	First uint64 `json:"first"`           // of the messages that are there
	Last  uint64 `json:"last"`            // of all that were ever taken
	Count uint64 `json:"count"`
	Bytes uint64 `json:"bytes"`
	// Floors are, by consumer, up to where everything is acknowledged.
	Floors map[string]uint64 `json:"floors,omitempty"`
	Config string            `json:"config,omitempty"` // a hash of its configuration
	Schema string            `json:"schema,omitempty"` // a hash of its schema
	// Shrinks: messages go by themselves, by age or once acknowledged.
	Shrinks bool `json:"shrinks,omitempty"`
	// Rests is on what the promise of no loss rests, for people.
	Rests string `json:"rests,omitempty"`
	// Active is how many consumers are at work now. It is no part of the journal.
	Active int `json:"-"`
	// Served: clients can use it now. It is no part of the journal; a broker that cannot tell says no.
	Served bool `json:"-"`
}

// Content is what a comparison of both sides' messages has found.
type Content struct {
	Compared uint64 `json:"compared"`       // messages that both have, equal in every byte
	Gone     uint64 `json:"gone,omitempty"` // that one of them had no more, as its limits want it
	Hash     string `json:"hash,omitempty"` // over those compared
	// Differs is the first difference, in words; empty: there is none.
	Differs string `json:"differs,omitempty"`
	// Synced is the directory whose file system the target has then synced; empty: none.
	Synced string `json:"synced,omitempty"`
	// Observed says why nothing was compared and what was seen instead; empty: it was.
	Observed string `json:"observed,omitempty"`
}

// ErrNewer is wrapped by the error about a journal of a version that is not known here.
var ErrNewer = errors.New("of a newer version of holdfast")

// Parse reads a journal. What it refuses is named, shown and left alone.
func Parse(topic string, value []byte) (Move, error) {
	m := Move{}
	err := json.Unmarshal(value, &m)
	m.Topic = topic
	switch {
	case err != nil:
	case m.Format > format:
		err = fmt.Errorf("format %d: %w", m.Format, ErrNewer)
	case m.Format < format:
		err = fmt.Errorf("format %d: want %d", m.Format, format)
	case m.ID == "" || m.From == "" || m.To == "" && !m.Sent || m.From == m.To:
		err = fmt.Errorf("id %q, from %q, to %q: want three names, and two brokers", m.ID, m.From, m.To)
	case !slices.Contains(Phases, m.Phase):
		err = fmt.Errorf("phase %q: unknown", m.Phase)
	case m.Planned == nil && !m.Sent:
		err = errors.New("without what was planned")
	case m.Sealed == nil && !m.Sent && (m.Phase == Sealed || m.Phase == Copied || m.Phase.HandedOver()):
		err = fmt.Errorf("phase %s without what was sealed", m.Phase)
	}
	if err != nil {
		return Move{}, fmt.Errorf("move of %s: cannot be read: %w", topic, err)
	}
	return m, nil
}

// NewID is the ID of a move that begins. As text it is greater than that of the topic's last one,
// which tells a broker the later of two. salt tells topics apart.
func NewID(now time.Time, last string, salt uint32) string {
	at, was := now.UnixMilli(), int64(0)
	if _, err := fmt.Sscanf(last, "m%12x", &was); err == nil {
		at = max(at, was+1)
	}
	return fmt.Sprintf("m%012x%06x", at, salt&0xffffff)
}

// Value is the journal as it is written.
func (m Move) Value() []byte {
	m.Format, m.Topic = format, ""
	value, _ := json.Marshal(m)
	return value
}
