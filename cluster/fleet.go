package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// FleetBroker is one broker as the whole cluster's view shows it.
type FleetBroker struct {
	BrokerID string // of registration, state and assignments
	// Name is that of the member record, where the broker is registered under another id
	// at each start; else empty.
	Name            string
	Registration    *Registration     // nil: not registered
	Value           RegistrationValue // zero: not registered, or of another shape
	State           *State            // nil: absent, or malformed
	StateMalformed  string            // see Snapshot
	Member          *Member           // nil: absent, or malformed
	MemberMalformed string
	// Assignments are the broker's topics: those assigned to it, or those that it serves by
	// locks of its own.
	Assignments int
}

// Fleet lists, ordered by id, every broker that is registered or has a state, a member
// record or an assignment, all at one revision. Its cost grows with the number of
// assignments in the cluster: it is for people who ask, not for loops.
func (c *Client) Fleet(ctx context.Context) ([]FleetBroker, error) {
	fleet, err := c.fleet(ctx)
	if err != nil {
		return nil, fmt.Errorf("read fleet: %w", err)
	}
	return fleet, nil
}

func (c *Client) fleet(ctx context.Context) ([]FleetBroker, error) {
	brokers := map[string]*FleetBroker{}
	at := func(id string) *FleetBroker {
		if brokers[id] == nil {
			brokers[id] = &FleetBroker{BrokerID: id}
		}
		return brokers[id]
	}
	var withState []string
	revision, err := c.scan(ctx, Target{Key: c.keys.Brokers(), Prefix: true, KeysOnly: true}, 0, func(kv KV) {
		if id, ok := c.keys.ParseState(kv.Key); ok {
			withState = append(withState, id)
			at(id)
		} else if id, _, ok := c.keys.ParseAssignment(kv.Key); ok {
			at(id).Assignments++
		}
	})
	if err != nil {
		return nil, err
	}
	_, err = c.scan(ctx, Target{Key: c.keys.Registrations(), Prefix: true}, revision, func(kv KV) {
		if id, ok := c.keys.ParseRegistration(kv.Key); ok {
			r := registrationOf(id, kv.raw())
			b := at(id)
			b.Registration = &r
			b.Value, _ = r.Parse() // an adopted one may have any shape
		}
	})
	if err != nil {
		return nil, err
	}
	_, err = c.scan(ctx, Target{Key: c.keys.Members(), Prefix: true}, revision, func(kv KV) {
		if id, ok := c.keys.ParseMember(kv.Key); ok {
			member, malformed := memberOf(kv.raw())
			b := at(id)
			if member != nil && member.RegisteredAs != "" {
				delete(brokers, id) // nothing else is known under that name
				b = at(member.RegisteredAs)
				b.Name = id
			}
			b.Member, b.MemberMalformed = member, malformed
		}
	})
	if err != nil {
		return nil, err
	}
	keys := make([]string, len(withState))
	for i, id := range withState {
		keys[i] = c.keys.State(id)
	}
	states, _, err := c.gets(ctx, keys, clientv3.WithRev(revision))
	if err != nil {
		return nil, err
	}
	for i, kv := range states {
		if b := at(withState[i]); kv != nil {
			b.State, b.StateMalformed = stateOf(kv)
		}
	}
	fleet := make([]FleetBroker, 0, len(brokers))
	for _, id := range slices.Sorted(maps.Keys(brokers)) {
		fleet = append(fleet, *brokers[id])
	}
	return fleet, nil
}
