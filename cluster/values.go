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
	// RegisteredAs is the id of the registration where that is not Name.
	RegisteredAs string `json:"registered_as,omitempty"`
	// Name is in the key. Empty, in what is to be written: the registration's id.
	Name        string `json:"-"`
	ModRevision int64  `json:"-"`
}

// Era counts the times that somebody registered when nobody was registered. Both
// fields are zero when the key is absent.
type Era struct {
	N           int64
	ModRevision int64
}

type eraValue struct {
	Era *int64 `json:"era"`
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
	var present map[string]json.RawMessage
	if json.Unmarshal(kv.Value, &present) != nil || present["era"] == nil || json.Unmarshal(kv.Value, &m) != nil {
		return nil, excerpt(kv.Value)
	}
	if m.RegisteredAs != "" && checkBroker(m.RegisteredAs) != nil {
		return nil, excerpt(kv.Value)
	}
	m.ModRevision = kv.ModRevision
	return &m, ""
}

// eraOf fails on a value that cannot be read: no decision may rest on a guess.
func eraOf(kv *mvccpb.KeyValue) (Era, error) {
	var v eraValue
	if err := json.Unmarshal(kv.Value, &v); err != nil {
		return Era{}, fmt.Errorf("read era %q at key %s: %w", excerpt(kv.Value), kv.Key, err)
	}
	if v.Era == nil || *v.Era < 0 {
		return Era{}, fmt.Errorf("read era %q at key %s: want {\"era\":N}", excerpt(kv.Value), kv.Key)
	}
	return Era{N: *v.Era, ModRevision: kv.ModRevision}, nil
}

// excerpt is a value as far as a message has room for it; never empty.
func excerpt(value []byte) string {
	const most = 200
	if len(value) == 0 {
		return "(empty)"
	}
	return strings.ToValidUTF8(string(value[:min(len(value), most)]), "?")
}
