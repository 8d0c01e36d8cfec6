package cluster

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
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
	BrokerURL    string          `json:"broker_url,omitempty"`
	ConnectURL   string          `json:"connect_url,omitempty"`
	AdminAddr    string          `json:"admin_addr,omitempty"`
	PromExporter string          `json:"prom_exporter,omitempty"`
	Incarnation  string          `json:"incarnation,omitempty"`
	Run          string          `json:"run,omitempty"` // of one sidecar process
	Holdfast     json.RawMessage `json:"holdfast,omitempty"`
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
	Reason      string    `json:"reason,omitempty"`
	By          string    `json:"by,omitempty"`
	At          time.Time `json:"at,omitzero"` // zero: not said, or not a time
	ModRevision int64     `json:"-"`
}

// ParseState reads a state value. The mode must be one that is known; every other
// field is optional, and what is not known is borne.
func ParseState(value []byte) (State, error) {
	var fields struct {
		Mode   string          `json:"mode"`
		Reason json.RawMessage `json:"reason"`
		By     json.RawMessage `json:"by"`
		At     json.RawMessage `json:"at"`
	}
	if err := json.Unmarshal(value, &fields); err != nil {
		return State{}, fmt.Errorf("read state: %w", err)
	}
	switch fields.Mode {
	case ModeActive, ModeDraining, ModeDrained:
	default:
		return State{}, fmt.Errorf("read state: unknown mode %q", fields.Mode)
	}
	s := State{Mode: fields.Mode}
	// Another writer may use other types here; the mode counts all the same.
	_ = json.Unmarshal(fields.Reason, &s.Reason)
	_ = json.Unmarshal(fields.By, &s.By)
	if json.Unmarshal(fields.At, &s.At) != nil {
		s.At = time.Time{}
	}
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
	// Planned is the create revision of the registration that was given up on purpose before
	// this one; 0: none was.
	Planned int64 `json:"planned,omitempty"`
	// Cut says that the broker was cut off from etcd since it registered; nil: it was not.
	Cut *Cut `json:"cut,omitempty"`
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

// Era counts the times that somebody registered when nobody was registered, and says until when
// somebody had been before.
type Era struct {
	N           int64 // at least what the broker remembers; where the key does not say, what any does
	ModRevision int64 // 0: the key is absent
	Alive       Alive // the fleet before this era
	// Unread says what stands there that cannot be read, and at which key; empty: nothing.
	// Then Alive is not known, and N may not be from the key.
	Unread string
}

// Alive says until when a fleet was alive: the last confirmed renewal of one of its brokers.
type Alive struct {
	Until    time.Time // by that broker's clock; zero: not known
	Revision int64     // of the store then; 0: not known
}

type eraValue struct {
	Era           int64     `json:"era"`
	AliveUntil    time.Time `json:"alive_until,omitzero"`
	AliveRevision int64     `json:"alive_revision,omitempty"`
}

func registrationOf(id string, kv *mvccpb.KeyValue) Registration {
	return Registration{
		BrokerID:       id,
		Value:          kv.Value,
		LeaseID:        kv.Lease,
		CreateRevision: kv.CreateRevision,
		ModRevision:    kv.ModRevision,
	}
}

// stateOf returns the state or, if it cannot be read, what stands there instead.
func stateOf(kv *mvccpb.KeyValue) (state *State, malformed string) {
	s, err := ParseState(kv.Value)
	if err != nil {
		return nil, excerpt(kv.Value)
	}
	s.ModRevision = kv.ModRevision
	return &s, ""
}

func memberOf(kv *mvccpb.KeyValue) (member *Member, malformed string) {
	var m Member
	n, ok := eraIn(kv.Value)
	if !ok || json.Unmarshal(kv.Value, &m) != nil {
		return nil, excerpt(kv.Value)
	}
	m.Era = n
	if m.RegisteredAs != "" && checkBroker(m.RegisteredAs) != nil {
		return nil, excerpt(kv.Value)
	}
	if m.Left != nil && m.Left.Malformed != "" {
		m.Left.Malformed = fmt.Sprintf("%q at key %s", m.Left.Malformed, kv.Key)
	}
	if m.Cut != nil && m.Cut.Malformed != "" {
		m.Cut.Malformed = fmt.Sprintf("%q at key %s", m.Cut.Malformed, kv.Key)
	}
	m.ModRevision = kv.ModRevision
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
