package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Claimant is who takes ownership locks. Brokers are told apart by id and incarnation,
// never by an address: two that advertise the same one do not take each other's locks.
type Claimant struct {
	BrokerID    string
	Incarnation string
	Epoch       int64 // create revision of our registration
	LeaseID     int64 // the lease that the registration stands under, and the locks too
}

func (w Claimant) check() error {
	if w.Incarnation == "" || w.Epoch == 0 || w.LeaseID == 0 {
		return errors.New("ownership locks need an incarnation, a registration and a lease")
	}
	return checkBroker(w.BrokerID)
}

// lock is the value of a lock of the claimant's.
func (w Claimant) lock() string {
	value, _ := json.Marshal(Owner{BrokerID: w.BrokerID, Incarnation: w.Incarnation, Epoch: w.Epoch})
	return string(value)
}

// claim guards a transaction by the claimant's registration.
func (c *Client) claim(who Claimant) []clientv3.Cmp {
	key := c.keys.Registration(who.BrokerID)
	return []clientv3.Cmp{created(key, who.Epoch), under(key, who.LeaseID)}
}

// Owner is an ownership lock as read. The zero value but for the topic: nobody holds it.
type Owner struct {
	Topic       string `json:"-"`
	BrokerID    string `json:"broker_id"`
	Incarnation string `json:"incarnation"`
	Epoch       int64  `json:"epoch"`
	LeaseID     int64  `json:"-"`
	ModRevision int64  `json:"-"` // 0: nobody holds it
	// Malformed is not empty when the lock is there and cannot be read; it holds the
	// value, at most 200 bytes of it. Such a lock is somebody else's.
	Malformed string `json:"-"`
}

// Free reports whether nobody holds the lock.
func (o Owner) Free() bool { return o.ModRevision == 0 }

// Of reports whether the lock is this incarnation's, under whatever lease and epoch.
func (o Owner) Of(w Claimant) bool {
	return !o.Free() && o.Malformed == "" && o.BrokerID == w.BrokerID && o.Incarnation == w.Incarnation
}

// Current reports whether the lock is this incarnation's under its present registration:
// it lives as long as the registration does.
func (o Owner) Current(w Claimant) bool {
	return o.Of(w) && o.Epoch == w.Epoch && o.LeaseID == w.LeaseID
}

// LockAct is what to do with one lock.
type LockAct int

// Acts.
const (
	// Take creates the lock if nobody holds it. It replaces nothing.
	Take LockAct = iota
	// Rebind writes the lock anew, under the present lease and epoch, if it is still
	// as seen. There is no moment without the key, and one that is gone stays gone.
	Rebind
	// Release deletes the lock if it is still as seen.
	Release
)

func (a LockAct) String() string { return [...]string{"take", "rebind", "release"}[a] }

// LockRequest is one act on one topic's lock.
type LockRequest struct {
	Act   LockAct
	Topic string
	Seen  Owner // what Rebind and Release rest on; it must be the claimant's
}

// Lock decides on the locks, a hundred in a transaction, each topic by itself: one that is
// another's is told and keeps no other from being done. The answer is the lock after each
// request, whoever holds it. Every transaction is guarded by
// the claimant's registration: if it is not of that epoch and under that lease any more,
// the answer is ErrChanged and nothing of the transaction was done. ErrLeaseNotFound says
// that the lease is gone. With an error, it is those of the transactions before
// it, in order; of the rest some may have been done, if the answer was lost. No topic may
// be named twice.
func (c *Client) Lock(ctx context.Context, who Claimant, requests []LockRequest) (after []Owner, err error) {
	defer during(&err, "lock %d topics for broker %s", len(requests), who.BrokerID)
	if err := who.check(); err != nil {
		return nil, err
	}
	acts := make([]topicAct, len(requests))
	for i, r := range requests {
		key := c.keys.Owner(r.Topic)
		asSeen, act := written(key, r.Seen.ModRevision), putUnder(key, who.lock(), who.LeaseID)
		switch {
		case r.Act == Take:
			asSeen = created(key, 0)
		case r.Seen.Topic != r.Topic || !r.Seen.Of(who): // so its mod revision is above 0, which an absent key has
			return nil, fmt.Errorf("%s: %s lock: it is not broker %s's: refused", r.Topic, r.Act, who.BrokerID)
		case r.Act == Release:
			act = clientv3.OpDelete(key)
		}
		look := clientv3.OpGet(key)
		acts[i] = actOn(r.Topic, []clientv3.Cmp{asSeen}, []clientv3.Op{act, look}, look)
	}
	err = c.eachTopic(ctx, c.claim(who), acts, func(i int, answer *etcdserverpb.TxnResponse) {
		said := answer.GetResponses()
		after = append(after, ownerOf(requests[i].Topic, first(kvsOf(said[len(said)-1]))))
	})
	return after, err
}

func ownerOf(topic string, kv *KV) Owner {
	var o Owner
	if kv == nil {
		return Owner{Topic: topic}
	}
	if err := json.Unmarshal(kv.Value, &o); err != nil || o.BrokerID == "" {
		o = Owner{Malformed: excerpt(kv.Value)}
	}
	o.Topic, o.LeaseID, o.ModRevision = topic, kv.Lease, kv.ModRevision
	return o
}

// Owners reads the locks of topics, by topic; one that nobody holds is in the map, and
// Free. Not all are read at one revision.
func (c *Client) Owners(ctx context.Context, topics []string) (owners map[string]Owner, err error) {
	defer during(&err, "read owners of %d topics", len(topics))
	found, _, err := c.gets(ctx, keysOf(c.keys.Owner, topics))
	owners = make(map[string]Owner, len(found))
	for i, kv := range found {
		owners[topics[i]] = ownerOf(topics[i], kv)
	}
	return owners, err
}

// OwnedTopics lists, in order, the topics whose locks stand under the lease. It asks the
// lease, so its cost follows the lease's own topics and not the cluster's. A lease that is
// gone has none.
func (c *Client) OwnedTopics(ctx context.Context, leaseID int64) (topics []string, err error) {
	defer during(&err, "read keys of lease")
	answer, err := c.timeToLive(ctx, leaseID, true)
	for _, key := range answer.GetKeys() {
		if topic, ok := c.keys.ParseOwner(string(key)); ok {
			topics = append(topics, topic)
		}
	}
	slices.Sort(topics)
	return topics, err
}

// FollowFree tells of each of the topics, of which there is one at least, whose lock is free or
// becomes free, as often as it does, until ctx ends. It reads the locks first, so none that goes in
// between is missed, and again as Follow does; deletions alone are watched, of what lies between the
// first and the last of the locks. free is called from the caller's goroutine, onError as in Follow.
// It returns the context's error, or ErrClosed.
func (c *Client) FollowFree(ctx context.Context, topics []string, free func(topics []string), onError func(error)) error {
	keys, topicOf := keysOf(c.keys.Owner, topics), map[string]string{}
	for i, key := range keys {
		topicOf[key] = topics[i]
	}
	tell := func(gone []string) {
		var ours []string
		for _, key := range gone {
			if topic := topicOf[key]; topic != "" {
				ours = append(ours, topic)
			}
		}
		if len(ours) > 0 {
			free(ours)
		}
	}
	return again(ctx, fmt.Sprintf("follow owners of %d topics", len(topics)), onError, func(begun *time.Time) error {
		found, head, err := c.gets(ctx, keys, clientv3.WithKeysOnly())
		if err != nil {
			return err
		}
		var gone []string
		for i, kv := range found {
			if kv == nil {
				gone = append(gone, keys[i])
			}
		}
		tell(gone)
		return c.watch(ctx, begun, listEvery, slices.Min(keys), head.Revision+1, func(u Update) { tell(u.Deletes) },
			clientv3.WithRange(slices.Max(keys)+"\x00"), clientv3.WithFilterPut())
	})
}

// TakeTopic asks for a topic to be assigned to the claimant, who takes its ownership
// lock in the same transaction. The topic must have a record and be nobody's, or be that
// of a broker that is not registered any more.
type TakeTopic struct {
	Topic string
	// From is the broker whose assignment is replaced, and FromRevision its mod
	// revision; empty: nobody's.
	From         string
	FromRevision int64
}

// GiveTopic asks for the claimant's assignment to go to a broker that is registered. The
// claimant must have released the topic's lock.
type GiveTopic struct {
	Topic    string
	Revision int64  // mod revision of the claimant's assignment
	To       string // empty: to nobody, because Has has the topic already
	Has      string // with To empty: the broker whose assignment stays
}

// Take assigns topics to the claimant and returns those that it got; the others were not
// as seen any more. See Lock for the guard and the errors.
func (c *Client) Take(ctx context.Context, who Claimant, topics []TakeTopic) ([]string, error) {
	acts := make([]topicAct, len(topics))
	for i, t := range topics {
		mine, lock := c.keys.Assignment(who.BrokerID, t.Topic), c.keys.Owner(t.Topic)
		guards := []clientv3.Cmp{created(lock, 0), created(mine, 0)}
		ops := []clientv3.Op{clientv3.OpPut(mine, "null"), putUnder(lock, who.lock(), who.LeaseID), clientv3.OpDelete(c.keys.Unassigned(t.Topic))}
		if t.From == "" { // known by its record alone, which may be gone by now
			guards = append(guards, there(c.keys.TopicRecord(t.Topic)))
		} else {
			if err := who.other(t.From); err != nil {
				return nil, err
			}
			theirs := c.keys.Assignment(t.From, t.Topic)
			guards = append(guards, there(theirs), written(theirs, t.FromRevision), created(c.keys.Registration(t.From), 0))
			ops = append(ops, clientv3.OpDelete(theirs))
		}
		acts[i] = actOn(t.Topic, guards, ops)
	}
	return c.place(ctx, who, "take", acts)
}

// Give hands assignments of the claimant over and returns the topics that went; the
// others were not as seen any more. See Lock for the guard and the errors. A topic is at
// no moment without an assignment.
func (c *Client) Give(ctx context.Context, who Claimant, topics []GiveTopic) ([]string, error) {
	acts := make([]topicAct, len(topics))
	for i, g := range topics {
		if err := who.other(cmp.Or(g.To, g.Has)); err != nil {
			return nil, err
		}
		mine := c.keys.Assignment(who.BrokerID, g.Topic)
		guards, ops := []clientv3.Cmp{there(mine), written(mine, g.Revision)}, []clientv3.Op{clientv3.OpDelete(mine)}
		if g.To == "" {
			guards = append(guards, there(c.keys.Assignment(g.Has, g.Topic)))
		} else {
			guards = append(guards, created(c.keys.Owner(g.Topic), 0), there(c.keys.Registration(g.To)))
			ops = append(ops, clientv3.OpPut(c.keys.Assignment(g.To, g.Topic), "null"))
		}
		acts[i] = actOn(g.Topic, guards, ops)
	}
	return c.place(ctx, who, "give", acts)
}

// other refuses who cannot have a topic before or after the claimant.
func (w Claimant) other(id string) error {
	if checkBroker(id) != nil || id == w.BrokerID {
		return fmt.Errorf("from or to broker %q: refused", id)
	}
	return nil
}

// place carries out what is done about each topic in the claimant's name. What is not as seen any
// more leaves its topic alone, and no other.
func (c *Client) place(ctx context.Context, who Claimant, verb string, acts []topicAct) (done []string, err error) {
	defer during(&err, "%s %d topics for broker %s", verb, len(acts), who.BrokerID)
	if err := who.check(); err != nil {
		return nil, err
	}
	err = c.eachTopic(ctx, c.claim(who), acts, func(i int, answer *etcdserverpb.TxnResponse) {
		if answer.GetSucceeded() {
			done = append(done, acts[i].topic)
		}
	})
	return done, err
}
