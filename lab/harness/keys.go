package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Keys is the layout in etcd as CONTRACT has it, behind a prefix.
type Keys struct{ Prefix string }

// Registration is the key that says that the broker is alive.
func (k Keys) Registration(id string) string { return k.Prefix + "/cluster/register/" + id }

// RegisteredName is the name in the key of a registration; false: it is another key.
func (k Keys) RegisteredName(key string) (string, bool) {
	return strings.CutPrefix(key, k.Registration(""))
}

// State is the key with the broker's mode.
func (k Keys) State(id string) string { return k.Prefix + "/cluster/brokers/" + id + "/state" }

// Member is the record of the broker's last registration.
func (k Keys) Member(id string) string { return k.Prefix + "/cluster/members/" + id }

// Era counts the registrations that found nobody registered.
func (k Keys) Era() string { return k.Prefix + "/cluster/era" }

// Assignment says that the topic /ns/name belongs to the broker.
func (k Keys) Assignment(id, topic string) string {
	return k.Prefix + "/cluster/brokers/" + id + topic
}

// Move is the journal of a topic's move.
func (k Keys) Move(topic string) string { return k.Prefix + "/cluster/moves" + topic }

// BrokerState is the value of a state key, and when it was last written.
type BrokerState struct {
	Mode        string `json:"mode"`
	Reason      string `json:"reason"`
	By          string `json:"by"`
	ModRevision int64  `json:"-"` // 0: there is no state key
}

// RegistrationKey is a registration as etcd has it. Zero revisions: there is none.
type RegistrationKey struct {
	Value                       string
	CreateRevision, ModRevision int64
	Lease                       clientv3.LeaseID
}

var runField = regexp.MustCompile(`"run":"[^"]*"`)

// OfAnyRun is the registration without what each process of a sidecar writes anew when it
// takes the registration up.
func (r RegistrationKey) OfAnyRun() RegistrationKey {
	r.Value, r.ModRevision = runField.ReplaceAllString(r.Value, `"run":""`), 0
	return r
}

// Assign writes assignment keys, at most 100 in a transaction.
func (k Keys) Assign(ctx context.Context, c *clientv3.Client, id string, topics ...string) error {
	for len(topics) > 0 {
		n := min(100, len(topics))
		ops := make([]clientv3.Op, 0, n)
		for _, topic := range topics[:n] {
			ops = append(ops, clientv3.OpPut(k.Assignment(id, topic), "null"))
		}
		if _, err := c.Txn(ctx).Then(ops...).Commit(); err != nil {
			return fmt.Errorf("assign topics to %s: %w", id, err)
		}
		topics = topics[n:]
	}
	return nil
}

// ReadState reads the broker's mode.
func (k Keys) ReadState(ctx context.Context, c *clientv3.Client, id string) (BrokerState, error) {
	res, err := c.Get(ctx, k.State(id))
	if err != nil {
		return BrokerState{}, fmt.Errorf("read state of %s: %w", id, err)
	}
	if len(res.Kvs) == 0 {
		return BrokerState{}, nil
	}
	s := BrokerState{ModRevision: res.Kvs[0].ModRevision}
	if err := json.Unmarshal(res.Kvs[0].Value, &s); err != nil {
		return s, fmt.Errorf("read state of %s: %w in %s", id, err, res.Kvs[0].Value)
	}
	return s, nil
}

// ReadRegistration reads the broker's registration.
func (k Keys) ReadRegistration(ctx context.Context, c *clientv3.Client, id string) (RegistrationKey, error) {
	return ReadRegistrationAt(ctx, c, k.Registration(id))
}

// ReadRegistrationAt reads the registration at a key, which may be another layout's.
func ReadRegistrationAt(ctx context.Context, c *clientv3.Client, key string) (RegistrationKey, error) {
	res, err := c.Get(ctx, key)
	if err != nil {
		return RegistrationKey{}, fmt.Errorf("read registration %s: %w", key, err)
	}
	if len(res.Kvs) == 0 {
		return RegistrationKey{}, nil
	}
	kv := res.Kvs[0]
	return RegistrationKey{
		Value: string(kv.Value), CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
		Lease: clientv3.LeaseID(kv.Lease),
	}, nil
}

// Subject is the NATS subject of a topic that has no record of its own: ns.name.
func Subject(topic string) string {
	return strings.ReplaceAll(strings.TrimPrefix(topic, "/"), "/", ".")
}
