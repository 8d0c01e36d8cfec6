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
func (c *Client) Remains(ctx context.Context, id string) (r Remains, err error) {
	defer during(&err, "broker %s", id)
	if err := checkBroker(id); err != nil {
		return r, err
	}
	if r, err = c.whose(ctx, id); err != nil {
		return r, err
	}
	found, head, err := c.gets(ctx, []string{c.keys.Registration(r.BrokerID), c.keys.Registration(r.Name), c.keys.State(r.BrokerID)})
	if err != nil {
		return r, err
	}
	if reg := cmp.Or(found[0], found[1]); reg != nil && reg.Lease == 0 {
		return r, fmt.Errorf("%w by %s, under no lease, so that does not end by itself", ErrRegistered, reg.Key)
	} else if reg != nil {
		return r, fmt.Errorf("%w by %s, under lease %x", ErrRegistered, reg.Key, reg.Lease)
	}
	r.revision, r.stateRevision = head.Revision, found[2].revision()
	r.State, r.StateMalformed = stateOf(found[2])
	return r, c.remaining(ctx, &r)
}

// whose finds the member record of that name, or else of the broker that was registered
// under that id.
func (c *Client) whose(ctx context.Context, id string) (Remains, error) {
	r := Remains{BrokerID: id, Name: id}
	garbled := error(nil)
	_, err := c.scan(ctx, Target{Key: c.keys.Members(), Prefix: true}, 0, func(kv KV) {
		name, ok := c.keys.ParseMember(kv.Key)
		m, malformed := memberOf(&kv)
		switch {
		case !ok:
		case name == id && m == nil:
			garbled = fmt.Errorf("%w: %s holds %q", ErrUnreadable, kv.Key, malformed)
		case m != nil && (name == id || m.RegisteredAs == id && r.Member == nil):
			r.Name, r.Member, r.memberRevision, r.BrokerID = name, m, kv.ModRevision, cmp.Or(m.RegisteredAs, id)
		}
	})
	return r, cmp.Or(err, garbled)
}

// remaining lists the broker's topics, at the revision that r was read at, and their locks.
func (c *Client) remaining(ctx context.Context, r *Remains) error {
	also := map[string]string{}
	var topics []string
	_, err := c.scan(ctx, Target{Key: c.keys.Brokers(), Prefix: true, KeysOnly: true}, r.revision, func(kv KV) {
		id, topic, ok := c.keys.ParseAssignment(kv.Key)
		if ok && id == r.BrokerID {
			topics = append(topics, topic)
			r.Topics = append(r.Topics, RemainingTopic{Topic: topic, revision: kv.ModRevision})
		} else if ok {
			also[topic] = id
		}
	})
	if err != nil {
		return err
	}
	owners, err := c.Owners(ctx, topics)
	for i, topic := range topics {
		o := owners[topic]
		if !o.Free() && (o.BrokerID == r.BrokerID || o.Malformed != "") {
			return fmt.Errorf("%w: that of topic %s, under lease %x", ErrHolds, topic, o.LeaseID)
		}
		r.Topics[i].Also, r.Topics[i].lock = also[topic], o.ModRevision
	}
	return err
}

// Forget removes what was read, and returns the topics that are unassigned now, also beside
// an error. ErrChanged says that something is not as it was read, and that the member record
// is still there: read again. A topic that is not as seen any more is left alone.
func (c *Client) Forget(ctx context.Context, r Remains) (unassigned []string, err error) {
	defer during(&err, "forget broker %s", r.Name)
	guards := []clientv3.Cmp{
		created(c.keys.Registration(r.BrokerID), 0),
		created(c.keys.Registration(r.Name), 0),
		written(c.keys.Member(r.Name), r.memberRevision),
	}
	acts := make([]topicAct, len(r.Topics))
	for i, t := range r.Topics {
		assignment := c.keys.Assignment(r.BrokerID, t.Topic)
		ops := []clientv3.Op{clientv3.OpDelete(assignment)}
		if t.Also == "" { // else it waits for nobody
			ops = append(ops, putJSON(c.keys.Unassigned(t.Topic), releasedValue{"forget", brokerNumber(r.BrokerID)}))
		}
		acts[i] = actOn(t.Topic, []clientv3.Cmp{written(assignment, t.revision), written(c.keys.Owner(t.Topic), t.lock)}, ops)
	}
	removed := 0
	err = c.eachTopic(ctx, guards, acts, func(i int, answer *etcdserverpb.TxnResponse) {
		if !answer.GetSucceeded() {
			return
		}
		if removed++; r.Topics[i].Also == "" {
			unassigned = append(unassigned, r.Topics[i].Topic)
		}
	})
	if err == nil && removed < len(r.Topics) {
		err = ErrChanged
	}
	if err != nil {
		return unassigned, fmt.Errorf("unassign its topics: %w", err)
	}
	// Neither its mode nor an assignment is younger than what was read.
	guards = append(guards,
		clientv3.Compare(clientv3.ModRevision(c.keys.Assignments(r.BrokerID)).WithPrefix(), "<", r.revision+1))
	_, _, err = c.write(ctx, guards, clientv3.OpDelete(c.keys.State(r.BrokerID)), clientv3.OpDelete(c.keys.Load(r.BrokerID)),
		clientv3.OpDelete(c.keys.Member(r.Name)))
	return unassigned, err
}

// releasedValue is the marker of a topic that waits for a broker: who had it, and why not any more.
type releasedValue struct {
	Reason     string `json:"reason"`
	FromBroker any    `json:"from_broker"`
}

// brokerNumber is the id as a number if it is one, as brokers that number themselves read it.
func brokerNumber(id string) any {
	if n, err := strconv.ParseUint(id, 10, 64); err == nil && strconv.FormatUint(n, 10) == id {
		return json.Number(id)
	}
	return id
}
