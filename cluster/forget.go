package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A broker that will not come back is forgotten: its assignments become topics that wait for
// a broker, and what Holdfast keeps of it is removed.
//
// Guaranteed: nothing is written while the broker is registered, and nothing that changed
// since it was read; a crash or a lost answer in between leaves what can be forgotten by the
// same call again, since the member record goes last.
//
// Not guaranteed: that the broker is gone. One that runs on without a registration, cut off
// from etcd, may serve until it fences itself; and one that comes back is judged by what it
// remembers, or as one that never was. Nor that its topics' data is anywhere else.

var (
	// ErrRegistered says that the broker is registered.
	ErrRegistered = errors.New("it is registered")
	// ErrHolds says that an ownership lock of the broker stands, so its lease lives, or one
	// that cannot be read and may be the broker's.
	ErrHolds = errors.New("an ownership lock stands")
	// ErrUnreadable says that the member record cannot be read, so under which id the broker
	// is registered is not known.
	ErrUnreadable = errors.New("its member record cannot be read")
)

// Remains is what etcd holds of a broker that is not registered, as read.
type Remains struct {
	BrokerID string  // of its state and its assignments
	Name     string  // of its member record
	Member   *Member // nil: absent
	// State is nil when it is absent or malformed, see Snapshot.
	State          *State
	StateMalformed string
	Topics         []RemainingTopic // that are assigned to it, in order

	stateRevision, memberRevision, revision int64
}

// Any reports whether there is anything to forget.
func (r Remains) Any() bool {
	return r.memberRevision != 0 || r.stateRevision != 0 || len(r.Topics) > 0
}

// RemainingTopic is a topic that is still assigned to a broker which is not registered.
type RemainingTopic struct {
	Topic string
	// Also is another broker that the topic is assigned to as well; empty: none.
	Also string

	revision, lock int64
}

// Remains reads what there is of a broker, by its name or by the id that it was registered
// under. It returns ErrRegistered, ErrHolds and ErrUnreadable. Its cost grows with the number of
// assignments in the cluster: it is for people who ask.
func (c *Client) Remains(ctx context.Context, id string) (Remains, error) {
	if err := checkBroker(id); err != nil {
		return Remains{}, err
	}
	r, err := c.remains(ctx, id)
	if err != nil {
		return Remains{}, fmt.Errorf("broker %s: %w", id, err)
	}
	return r, nil
}

func (c *Client) remains(ctx context.Context, id string) (r Remains, err error) {
	if r, err = c.whose(ctx, id); err != nil {
		return r, err
	}
	answer, err := c.read(ctx,
		clientv3.OpGet(c.keys.Registration(r.BrokerID)), clientv3.OpGet(c.keys.Registration(r.Name)),
		clientv3.OpGet(c.keys.State(r.BrokerID)))
	if err != nil {
		return r, err
	}
	for _, response := range answer.Responses[:2] {
		for _, kv := range response.GetResponseRange().GetKvs() {
			return r, stillRegistered(string(kv.Key), kv.Lease)
		}
	}
	r.revision = answer.Header.Revision
	for _, kv := range answer.Responses[2].GetResponseRange().GetKvs() {
		r.stateRevision = kv.ModRevision
		r.State, r.StateMalformed = stateOf(kv)
	}
	if err := c.remainingTopics(ctx, &r); err != nil {
		return r, err
	}
	return r, c.remainingLocks(ctx, &r)
}

// stillRegistered says when the registration will end, if it will.
func stillRegistered(key string, lease int64) error {
	if lease == 0 {
		return fmt.Errorf("%w by %s, under no lease, so that does not end by itself", ErrRegistered, key)
	}
	return fmt.Errorf("%w by %s, under lease %x", ErrRegistered, key, lease)
}

// whose finds the member record of that name, or else of the broker that was registered
// under that id.
func (c *Client) whose(ctx context.Context, id string) (Remains, error) {
	r := Remains{BrokerID: id, Name: id}
	garbled := error(nil)
	_, err := c.scan(ctx, Target{Key: c.keys.Members(), Prefix: true}, 0, func(kv KV) {
		name, ok := c.keys.ParseMember(kv.Key)
		if !ok {
			return
		}
		m, malformed := memberOf(kv.raw())
		switch {
		case name == id && m == nil:
			garbled = fmt.Errorf("%w: %s holds %q", ErrUnreadable, kv.Key, malformed)
		case m != nil && (name == id || m.RegisteredAs == id && r.Member == nil):
			r.Name, r.Member, r.memberRevision = name, m, kv.ModRevision
			if r.BrokerID = id; m.RegisteredAs != "" {
				r.BrokerID = m.RegisteredAs
			}
		}
	})
	return r, cmp.Or(err, garbled)
}

// remainingTopics lists the broker's topics, at the revision that r was read at.
func (c *Client) remainingTopics(ctx context.Context, r *Remains) error {
	also := map[string]string{}
	_, err := c.scan(ctx, Target{Key: c.keys.Brokers(), Prefix: true, KeysOnly: true}, r.revision, func(kv KV) {
		switch id, topic, ok := c.keys.ParseAssignment(kv.Key); {
		case !ok:
		case id == r.BrokerID:
			r.Topics = append(r.Topics, RemainingTopic{Topic: topic, revision: kv.ModRevision})
		default:
			also[topic] = id
		}
	})
	for i, t := range r.Topics {
		r.Topics[i].Also = also[t.Topic]
	}
	return err
}

func (c *Client) remainingLocks(ctx context.Context, r *Remains) error {
	topics := make([]string, len(r.Topics))
	for i, t := range r.Topics {
		topics[i] = t.Topic
	}
	owners, err := c.Owners(ctx, topics)
	if err != nil {
		return err
	}
	for i, t := range r.Topics {
		o := owners[t.Topic]
		if !o.Free() && (o.BrokerID == r.BrokerID || o.Malformed != "") {
			return fmt.Errorf("%w: that of topic %s, under lease %x", ErrHolds, t.Topic, o.LeaseID)
		}
		r.Topics[i].lock = o.ModRevision
	}
	return nil
}

// Forget removes what was read, and returns the topics that are unassigned now, also beside
// an error. ErrChanged says that something is not as it was read, and that the member record
// is still there: read again. A topic that is not as seen any more is left alone.
func (c *Client) Forget(ctx context.Context, r Remains) (unassigned []string, err error) {
	from, err := brokerNumber(r.BrokerID)
	if err != nil {
		return nil, fmt.Errorf("forget broker %s: %w", r.Name, err)
	}
	guards := []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(c.keys.Registration(r.BrokerID)), "=", 0),
		clientv3.Compare(clientv3.CreateRevision(c.keys.Registration(r.Name)), "=", 0),
		clientv3.Compare(clientv3.ModRevision(c.keys.Member(r.Name)), "=", r.memberRevision),
	}
	marker := releasedValue{Reason: "forget", FromBroker: from}
	removed := 0
	err = c.eachIn(ctx, guards, placementsPerTxn, len(r.Topics), func(i int) (clientv3.Op, error) {
		return c.unassign(r.BrokerID, marker, r.Topics[i])
	}, func(i int, _ int64, answer *etcdserverpb.TxnResponse) {
		if !answer.GetSucceeded() {
			return
		}
		if removed++; r.Topics[i].Also == "" {
			unassigned = append(unassigned, r.Topics[i].Topic)
		}
	})
	if err != nil {
		return unassigned, fmt.Errorf("forget broker %s: unassign its topics: %w", r.Name, err)
	}
	if removed < len(r.Topics) {
		return unassigned, fmt.Errorf("forget broker %s: its assignments %w", r.Name, ErrChanged)
	}
	// Neither its mode nor an assignment is younger than what was read.
	guards = append(guards,
		clientv3.Compare(clientv3.ModRevision(c.keys.Assignments(r.BrokerID)).WithPrefix(), "<", r.revision+1))
	_, err = c.write(ctx, guards, []clientv3.Op{
		clientv3.OpDelete(c.keys.State(r.BrokerID)),
		clientv3.OpDelete(c.keys.Load(r.BrokerID)),
		clientv3.OpDelete(c.keys.Member(r.Name)),
	})
	if err != nil {
		return unassigned, fmt.Errorf("forget broker %s: %w", r.Name, err)
	}
	return unassigned, nil
}

// unassign deletes an assignment that is as seen, with its marker put. A topic that is another
// broker's too waits for nobody.
func (c *Client) unassign(brokerID string, marker releasedValue, t RemainingTopic) (clientv3.Op, error) {
	assignment := c.keys.Assignment(brokerID, t.Topic)
	acts := []clientv3.Op{clientv3.OpDelete(assignment)}
	if t.Also == "" {
		put, err := putJSON(c.keys.Unassigned(t.Topic), marker)
		if err != nil {
			return put, err
		}
		acts = append(acts, put)
	}
	return clientv3.OpTxn([]clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(assignment), "=", t.revision),
		clientv3.Compare(clientv3.ModRevision(c.keys.Owner(t.Topic)), "=", t.lock),
	}, acts, nil), nil
}

// releasedValue is the marker of a topic that waits for a broker: who had it, and why not any more.
type releasedValue struct {
	Reason     string          `json:"reason"`
	FromBroker json.RawMessage `json:"from_broker"`
}

// brokerNumber is the id as a JSON number if it is one, as brokers that number themselves
// read it, else as a string.
func brokerNumber(id string) (json.RawMessage, error) {
	if n, err := strconv.ParseUint(id, 10, 64); err == nil && strconv.FormatUint(n, 10) == id {
		return json.RawMessage(id), nil
	}
	return json.Marshal(id)
}
