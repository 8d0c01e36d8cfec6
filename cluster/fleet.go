package cluster

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

// FleetBroker is one broker as the whole cluster's view shows it. The field names in JSON are
// stable.
type FleetBroker struct {
	BrokerID string `json:"broker_id"` // of registration, state and assignments
	// Name is that of the member record, where the broker is registered under another id
	// at each start; else empty.
	Name       string `json:"name,omitempty"`
	Registered bool   `json:"registered"`
	Epoch      int64  `json:"epoch"` // create revision of the registration; 0: not registered
	Mode       string `json:"mode"`  // empty: absent, or malformed
	Reason     string `json:"reason"`
	By         string `json:"by"`
	// Topics are those assigned to it, or those that it serves by locks of its own.
	Topics int `json:"topics"`
	// Shared are topics that are assigned to another broker, too: both may serve them.
	Shared          []string   `json:"shared_topics,omitempty"`
	Since           *time.Time `json:"since"`       // when it registered last; nil: not known
	BrokerURL       string     `json:"broker_url"`  // advertised
	ConnectURL      string     `json:"connect_url"` // advertised
	Driver          string     `json:"driver"`      // of its sidecar; empty: not known
	StateMalformed  string     `json:"malformed_mode"`
	MemberMalformed string     `json:"malformed_member,omitempty"`
	// Left is when it left on purpose, and has not registered since; nil: it did not.
	Left *time.Time `json:"left,omitempty"`
}

// Fleet lists, ordered by id, every broker that is registered or has a state, a member
// record or an assignment, all at one revision. Its cost grows with the number of
// assignments in the cluster: it is for people who ask, not for loops.
func (c *Client) Fleet(ctx context.Context) (fleet []FleetBroker, err error) {
	defer during(&err, "read fleet")
	of := map[string]*FleetBroker{}
	at := func(id string) *FleetBroker {
		if of[id] == nil {
			of[id] = &FleetBroker{BrokerID: id}
		}
		return of[id]
	}
	whose := map[string][]string{} // by topic
	revision, err := c.scan(ctx, Target{Key: c.keys.Brokers(), Prefix: true}, 0, func(kv KV) {
		if id, ok := c.keys.ParseState(kv.Key); ok {
			b := at(id)
			state, malformed := stateOf(&kv)
			if b.StateMalformed = malformed; state != nil {
				b.Mode, b.Reason, b.By = state.Mode, state.Reason, state.By
			}
		} else if id, topic, ok := c.keys.ParseAssignment(kv.Key); ok {
			at(id).Topics++
			whose[topic] = append(whose[topic], id)
		}
	})
	if err != nil {
		return nil, err
	}
	_, err = c.scan(ctx, Target{Key: c.keys.Registrations(), Prefix: true}, revision, func(kv KV) {
		if id, ok := c.keys.ParseRegistration(kv.Key); ok {
			b := at(id)
			value, _ := registrationOf(id, &kv).Parse() // an adopted one may have any shape
			b.Registered, b.Epoch, b.BrokerURL, b.ConnectURL = true, kv.CreateRevision, value.BrokerURL, value.ConnectURL
			b.Driver = value.driver()
		}
	})
	if err != nil {
		return nil, err
	}
	_, err = c.scan(ctx, Target{Key: c.keys.Members(), Prefix: true}, revision, func(kv KV) {
		name, ok := c.keys.ParseMember(kv.Key)
		member, malformed := memberOf(&kv)
		switch {
		case !ok:
		case member == nil:
			at(name).MemberMalformed = malformed
		default:
			b := at(cmp.Or(member.RegisteredAs, name))
			if b.BrokerID != name {
				b.Name = name
			}
			if !member.At.IsZero() {
				b.Since = &member.At
			}
			if m := member; m.Left != nil && !m.Left.Crash && m.Left.Malformed == "" {
				b.Left = &member.Left.At
			}
		}
	})
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(whose, func(_ string, ids []string) bool { return len(ids) < 2 })
	for _, topic := range slices.Sorted(maps.Keys(whose)) {
		for _, id := range whose[topic] {
			at(id).Shared = append(at(id).Shared, topic)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(of)) {
		fleet = append(fleet, *of[id])
	}
	return fleet, err
}
