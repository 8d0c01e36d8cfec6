package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The modes of a broker (CONTRACT, "Keys in etcd").
const (
	ModeActive   = "active"
	ModeDraining = "draining"
	ModeDrained  = "drained"
)

// Registration is a registration key as read: whoever wrote it, its bytes are kept.
type Registration struct {
	BrokerID       string
	Value          []byte
	LeaseID        int64 // 0: bound to no lease, so it would never run out
	CreateRevision int64 // the epoch
	ModRevision    int64
}

// RegistrationValue is the value of a registration that Holdfast writes itself. Other
// writers know fewer fields or more.
type RegistrationValue struct {
	BrokerURL   string          `json:"broker_url,omitempty"`
	ConnectURL  string          `json:"connect_url,omitempty"`
	AdminAddr   string          `json:"admin_addr,omitempty"`
	Incarnation string          `json:"incarnation,omitempty"`
	Run         string          `json:"run,omitempty"` // of one sidecar process
	Holdfast    json.RawMessage `json:"holdfast,omitempty"`
}

// driver is that of the sidecar which wrote the value; empty: it did not say.
func (v RegistrationValue) driver() string {
	var about struct{ Driver string }
	_ = json.Unmarshal(v.Holdfast, &about) // another writer's may have any shape
	return about.Driver
}

// Parse reads the registration's value. A value of another shape is an error; fields
// that are not known are not.
func (r Registration) Parse() (RegistrationValue, error) {
	var v RegistrationValue
	if err := json.Unmarshal(r.Value, &v); err != nil {
		return RegistrationValue{}, fmt.Errorf("read registration of %s: %w", r.BrokerID, err)
	}
	return v, nil
}

// State is a broker's operational mode as kept in etcd.
type State struct {
	Mode        string    `json:"mode"`
	Reason      string    `json:"reason"`
	By          string    `json:"by"`
	At          time.Time `json:"at"` // zero: not said, or not a time
	ModRevision int64     `json:"-"`
}

// ParseState reads a state value. The mode must be one that is known; every other
// field is optional, and what is not known is borne.
func ParseState(value []byte) (s State, err error) {
	var fields struct {
		Mode           string
		Reason, By, At json.RawMessage
	}
	if err = json.Unmarshal(value, &fields); err != nil {
		return s, fmt.Errorf("read state: %w", err)
	}
	if !slices.Contains([]string{ModeActive, ModeDraining, ModeDrained}, fields.Mode) {
		return s, fmt.Errorf("read state: unknown mode %q", fields.Mode)
	}
	// Another writer may use other types here; the mode counts all the same.
	_ = json.Unmarshal(fields.Reason, &s.Reason)
	_ = json.Unmarshal(fields.By, &s.By)
	if json.Unmarshal(fields.At, &s.At) != nil {
		s.At = time.Time{}
	}
	s.Mode = fields.Mode
	return s, nil
}

// Member is what a broker's last registration (or rebinding) knew. It is kept under the
// broker's stable name; that is the id of its registration, but for brokers that register
// themselves under another id at each start.
type Member struct {
	Era int64 `json:"era"`
	// Revision is the store's revision that the registration was decided on; the
	// registration itself came with ModRevision.
	Revision    int64     `json:"revision"`
	Incarnation string    `json:"incarnation"`
	At          time.Time `json:"at"`
	// Data is the identity of the broker's own data; empty: not known, or not its own.
	Data string `json:"data,omitempty"`
	// Instance is the broker's process that the registration was taken up for; empty: not known.
	Instance string `json:"instance,omitempty"`
	// RegisteredAs is the id of the registration where that is not Name.
	RegisteredAs string `json:"registered_as,omitempty"`
	// Left says that the broker was stopped on purpose since; nil: it was not.
	Left *Left `json:"left,omitempty"`
	// Since is the create revision at which its unbroken life began, where that is older than the
	// registration: planned and fast restarts carry it over. 0: it began with the registration.
	Since int64 `json:"since,omitempty"`
	// Away is the revision at which it had left on purpose, or crashed and was noted, before this
	// registration; 0: it had not.
	Away int64 `json:"away,omitempty"`
	// Planned is what older versions write of that: the create revision of the registration that was
	// given up. It is only kept.
	Planned int64 `json:"planned,omitempty"`
	// Cut says that the broker had no confirmed renewal for longer than it may serve, whether its
	// registration outlived that or not; nil: it always had.
	Cut *Cut `json:"cut,omitempty"`
	// Suspect says that its drain is a suspicion, and what is asked; nil: it is not.
	Suspect *Suspect `json:"suspect,omitempty"`
	// Health is how the broker was when that changed last; empty: nobody says.
	Health Health `json:"health,omitempty"`
	// Bound is the mod revision of the registration that this record was written with, where its
	// health was written since; 0: the record's own, or the registration was not written with it.
	Bound int64 `json:"bound,omitempty"`
	// Name is in the key. Empty, in what is to be written: the registration's id.
	Name        string `json:"-"`
	ModRevision int64  `json:"-"`
}

// WrittenWith reports whether nobody wrote the registration since the record was written with it.
func (m *Member) WrittenWith(reg Registration) bool {
	return m.ModRevision == reg.ModRevision || m.Bound != 0 && m.Bound == reg.ModRevision
}

// LifeSince is the create revision at which the unbroken life of a broker began that was registered
// at epoch, or left then.
func (m *Member) LifeSince(epoch int64) int64 {
	if m == nil {
		return epoch
	}
	if m.Left != nil && m.Left.Malformed == "" {
		epoch = m.Left.Epoch
	}
	return cmp.Or(m.Since, m.Planned, epoch)
}

// LeftBefore is a revision at which it had left before the registration of that epoch; 0: it had not.
func (m *Member) LeftBefore(epoch int64) int64 {
	if m.Away == 0 && m.Planned != 0 {
		return epoch - 1
	}
	return m.Away
}

// Suspect is the note, in the member record, of a broker that was drained because others stood
// registered when it was not: whether one of them lived on since its last confirmed renewal is
// asked.
type Suspect struct {
	Revision int64     `json:"revision"` // of the store at that renewal; 0: it cannot be read, and is as none
	At       time.Time `json:"at,omitzero"`
	Row      string    `json:"row"` // that drained it
}

// UnmarshalJSON has no error: a note that cannot be read must not hide the rest of the record.
func (s *Suspect) UnmarshalJSON(value []byte) error {
	type plain Suspect
	var v plain
	if !readable(value, &v) || v.Revision <= 0 || v.Row == "" {
		v = plain{}
	}
	*s = Suspect(v)
	return nil
}

// Health is what a sidecar says of its broker in its member record; empty: nothing.
type Health string

// What it says.
const (
	HealthWell Health = "well"
	HealthIll  Health = "ill"
	HealthAway Health = "away" // it answers, and is drained or leaves: nobody else may rely on it
)

// UnmarshalJSON takes what is not known here for nothing. It has no error: it must not hide the
// rest of the member record.
func (h *Health) UnmarshalJSON(value []byte) error {
	var word string
	*h = ""
	if json.Unmarshal(value, &word) == nil && slices.Contains([]Health{HealthWell, HealthIll, HealthAway}, Health(word)) {
		*h = Health(word)
	}
	return nil
}

// Left is the note in the member record of a broker that its registration is given up: after a
// planned stop, when the broker was active and serves nothing any more, or, with Crash, after its
// process ended under the eyes of its sidecar. The next registration removes it.
type Left struct {
	At       time.Time `json:"at"`
	Epoch    int64     `json:"epoch"`          // create revision of the registration that was given up
	Instance string    `json:"instance"`       // broker process that left
	Data     string    `json:"data,omitempty"` // see Member
	Revision int64     `json:"revision"`       // of the store, as the note was decided on
	// Stop: that process is to be stopped now. Else it may run on: only its sidecar ends.
	Stop bool `json:"stop,omitempty"`
	// Crash: nobody planned it. The process was seen to have ended, and its registration is given
	// up before its lease ends. At is the last renewal of that lease if it was stopped.
	Crash bool `json:"crash,omitempty"`
	// Malformed says what stands there instead, and at which key, if it cannot be read; it is
	// never taken for no note.
	Malformed string `json:"-"`
}

// UnmarshalJSON bears fields that are not known. It has no error: a note that cannot be read
// must not hide the rest of the member record.
func (l *Left) UnmarshalJSON(value []byte) error {
	type plain Left
	var v plain
	if !readable(value, &v) || v.At.IsZero() || v.Epoch <= 0 {
		v = plain{Malformed: excerpt(value)}
	}
	*l = Left(v)
	return nil
}

// Cut is the note, in the member record, of a broker that was cut off from etcd, or away, for longer
// than it may serve. It stays until it is cut off again; a planned return keeps it.
type Cut struct {
	From  time.Time `json:"from"` // last confirmed renewal, by the clock of whoever was cut off
	Until time.Time `json:"until"`
	// Revision is the store's when the broker was back. It tells what else was before and after
	// that, which the times of two hosts do not.
	Revision int64 `json:"revision"`
	// Malformed is as with Left. Such a note is not written again.
	Malformed string `json:"-"`
}

// UnmarshalJSON is as that of Left.
func (c *Cut) UnmarshalJSON(value []byte) error {
	type plain Cut
	var v plain
	if !readable(value, &v) || v.Revision <= 0 {
		v = plain{Malformed: excerpt(value)}
	}
	*c = Cut(v)
	return nil
}

// kept is the note as it is written again with the record that it stands in.
func (c *Cut) kept() *Cut {
	if c == nil || c.Malformed != "" {
		return nil
	}
	return &Cut{From: c.From.UTC(), Until: c.Until.UTC(), Revision: c.Revision}
}

// newestFormat is that of an era, a member record and the notes in it which is understood here.
// None is written: a value without one is of the first.
const newestFormat = 1

// readable reads a value of a format that is understood here. Fields that are not known are borne.
func readable(value []byte, into any) bool {
	var v struct{ Format int }
	return json.Unmarshal(value, &v) == nil && v.Format <= newestFormat && json.Unmarshal(value, into) == nil
}

func registrationOf(id string, kv *KV) *Registration {
	if kv == nil {
		return nil
	}
	return &Registration{BrokerID: id, Value: kv.Value, LeaseID: kv.Lease, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision}
}

// stateOf returns the state or, if it cannot be read, what stands there instead; neither where
// there is none.
func stateOf(kv *KV) (state *State, malformed string) {
	if kv == nil {
		return nil, ""
	}
	s, err := ParseState(kv.Value)
	if err != nil {
		return nil, excerpt(kv.Value)
	}
	s.ModRevision = kv.ModRevision
	return &s, ""
}

// memberOf is as stateOf.
func memberOf(kv *KV) (member *Member, malformed string) {
	if kv == nil {
		return nil, ""
	}
	m := Member{ModRevision: kv.ModRevision}
	n, ok := eraIn(kv.Value)
	if !ok || json.Unmarshal(kv.Value, &m) != nil || m.RegisteredAs != "" && checkBroker(m.RegisteredAs) != nil {
		return nil, excerpt(kv.Value)
	}
	m.Era = n
	if m.Suspect != nil && m.Suspect.Revision == 0 {
		m.Suspect = nil
	}
	if m.Left != nil {
		m.Left.Malformed = at(m.Left.Malformed, kv.Key)
	}
	if m.Cut != nil {
		m.Cut.Malformed = at(m.Cut.Malformed, kv.Key)
	}
	return &m, ""
}

// excerpt is a value as far as a message has room for it; never empty.
func excerpt(value []byte) string {
	const most = 200
	if len(value) == 0 {
		return "(empty)"
	}
	return strings.ToValidUTF8(string(value[:min(len(value), most)]), "?")
}

// at names what stands at a key; empty: nothing.
func at(malformed, key string) string {
	if malformed == "" {
		return ""
	}
	return fmt.Sprintf("%q at key %s", malformed, key)
}
