package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// locksPerTxn is how many locks one transaction decides on, each in a transaction nested
// in it: etcd counts the operations of each level against what the levels above have left
// of its 128.
const locksPerTxn = 100

// Claimant is who takes ownership locks. Brokers are told apart by id and incarnation,
// never by an address: two that advertise the same one do not take each other's locks.
type Claimant struct {
	BrokerID    string
	Incarnation string
	Epoch       int64 // create revision of our registration
	LeaseID     int64 // the lease that the registration stands under, and the locks too
}

func (w Claimant) check() error {
	if err := checkBroker(w.BrokerID); err != nil {
		return err
	}
	switch {
	case w.Incarnation == "":
		return errors.New("ownership locks need an incarnation")
	case w.Epoch == 0:
		return errors.New("ownership locks need a registration")
	case w.LeaseID == 0:
		return errors.New("ownership locks need a lease")
	}
	return nil
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

// LockResult is the outcome of the request with the same index.
type LockResult struct {
	Done  bool  // the act was carried out
	Owner Owner // the lock after it, whoever holds it
}

// Lock decides on the locks, a hundred in a transaction, each topic by itself: one that is
// another's is told and keeps no other from being done. Every transaction is guarded by
// the claimant's registration: if it is not of that epoch and under that lease any more,
// the answer is ErrChanged and nothing of the transaction was done. ErrLeaseNotFound says
// that the lease is gone. With an error, the results are those of the transactions before
// it, in order; of the rest some may have been done, if the answer was lost. No topic may
// be named twice.
func (c *Client) Lock(ctx context.Context, who Claimant, requests []LockRequest) ([]LockResult, error) {
	if err := who.check(); err != nil {
		return nil, fmt.Errorf("lock topics: %w", err)
	}
	value, err := json.Marshal(Owner{BrokerID: who.BrokerID, Incarnation: who.Incarnation, Epoch: who.Epoch})
	if err != nil {
		return nil, fmt.Errorf("encode ownership of broker %s: %w", who.BrokerID, err)
	}
	results := make([]LockResult, 0, len(requests))
	err = c.eachIn(ctx, c.claim(who), locksPerTxn, len(requests), func(i int) (clientv3.Op, error) {
		op, err := c.lockOp(who, requests[i], string(value))
		if err != nil {
			err = fmt.Errorf("%s lock of %s: %w", requests[i].Act, requests[i].Topic, err)
		}
		return op, err
	}, func(i int, revision int64, answer *etcdserverpb.TxnResponse) {
		results = append(results, c.lockResult(who, requests[i], revision, answer))
	})
	if err != nil {
		return results, fmt.Errorf("lock %d topics for broker %s: %w", len(requests), who.BrokerID, err)
	}
	return results, nil
}

// eachIn decides on n things, each in a transaction of its own nested in one of up to perTxn,
// which the guards are for. With an error, done was called for those before it.
func (c *Client) eachIn(ctx context.Context, guards []clientv3.Cmp, perTxn, n int, op func(i int) (clientv3.Op, error),
	done func(i int, revision int64, answer *etcdserverpb.TxnResponse)) (err error) {
	for first := 0; first < n; first += perTxn {
		ops := make([]clientv3.Op, min(perTxn, n-first))
		for i := range ops {
			if ops[i], err = op(first + i); err != nil {
				return err
			}
		}
		answer, err := c.write(ctx, guards, ops)
		if err != nil {
			return err
		}
		if len(answer.Responses) != len(ops) {
			return fmt.Errorf("etcd answered %d of %d", len(answer.Responses), len(ops))
		}
		for i, response := range answer.Responses {
			done(first+i, answer.Header.Revision, response.GetResponseTxn())
		}
	}
	return nil
}

// claim guards a transaction by the claimant's registration.
func (c *Client) claim(who Claimant) []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(c.keys.Registration(who.BrokerID)), "=", who.Epoch),
		clientv3.Compare(clientv3.LeaseValue(c.keys.Registration(who.BrokerID)), "=", who.LeaseID),
	}
}

// lockOp is the transaction of one topic: its act if the guard holds, else a look.
func (c *Client) lockOp(who Claimant, r LockRequest, value string) (clientv3.Op, error) {
	if err := checkTopic(r.Topic); err != nil {
		return clientv3.Op{}, err
	}
	key := c.keys.Owner(r.Topic)
	look := []clientv3.Op{clientv3.OpGet(key)}
	put := clientv3.OpPut(key, value, clientv3.WithLease(clientv3.LeaseID(who.LeaseID)))
	if r.Act == Take {
		return clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)}, []clientv3.Op{put}, look), nil
	}
	if r.Seen.Topic != r.Topic || !r.Seen.Of(who) {
		return clientv3.Op{}, fmt.Errorf("it is not broker %s's: refused", who.BrokerID)
	}
	// Of makes sure that the mod revision is above 0, which an absent key has.
	asSeen := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", r.Seen.ModRevision)}
	if r.Act == Release {
		return clientv3.OpTxn(asSeen, []clientv3.Op{clientv3.OpDelete(key)}, look), nil
	}
	return clientv3.OpTxn(asSeen, []clientv3.Op{put}, look), nil
}

func (c *Client) lockResult(who Claimant, r LockRequest, revision int64, answer *etcdserverpb.TxnResponse) LockResult {
	result := LockResult{Done: answer.GetSucceeded(), Owner: Owner{Topic: r.Topic}}
	switch {
	case !result.Done:
		for _, kv := range answer.GetResponses()[0].GetResponseRange().GetKvs() {
			result.Owner = c.ownerOf(r.Topic, kv)
		}
	case r.Act != Release:
		result.Owner = Owner{Topic: r.Topic, BrokerID: who.BrokerID, Incarnation: who.Incarnation,
			Epoch: who.Epoch, LeaseID: who.LeaseID, ModRevision: revision}
	}
	return result
}

func (c *Client) ownerOf(topic string, kv *mvccpb.KeyValue) Owner {
	var o Owner
	if err := json.Unmarshal(kv.Value, &o); err != nil || o.BrokerID == "" {
		o = Owner{Malformed: excerpt(kv.Value)}
	}
	o.Topic, o.LeaseID, o.ModRevision = topic, kv.Lease, kv.ModRevision
	return o
}

// Owners reads the locks of topics, by topic; one that nobody holds is in the map, and
// Free. Not all are read at one revision.
func (c *Client) Owners(ctx context.Context, topics []string) (map[string]Owner, error) {
	owners, _, err := c.owners(ctx, topics)
	return owners, err
}

// owners also returns the oldest revision that it read at.
func (c *Client) owners(ctx context.Context, topics []string) (owners map[string]Owner, oldest int64, err error) {
	keys := make([]string, len(topics))
	for i, topic := range topics {
		if err := checkTopic(topic); err != nil {
			return nil, 0, fmt.Errorf("read owners: %w", err)
		}
		keys[i] = c.keys.Owner(topic)
	}
	found, head, err := c.gets(ctx, keys)
	if err != nil {
		return nil, 0, fmt.Errorf("read owners of %d topics: %w", len(topics), err)
	}
	owners = make(map[string]Owner, len(topics))
	for i, topic := range topics {
		if owners[topic] = (Owner{Topic: topic}); found[i] != nil {
			owners[topic] = c.ownerOf(topic, found[i])
		}
	}
	return owners, head.GetRevision(), nil
}

// OwnedTopics lists, in order, the topics whose locks stand under the lease. It asks the
// lease, so its cost follows the lease's own topics and not the cluster's. A lease that is
// gone has none.
func (c *Client) OwnedTopics(ctx context.Context, leaseID int64) ([]string, error) {
	answer, err := c.timeToLive(ctx, &etcdserverpb.LeaseTimeToLiveRequest{ID: leaseID, Keys: true})
	if err = wrap(ctx, "read keys of lease", err); errors.Is(err, ErrLeaseNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var topics []string
	for _, key := range answer.Keys {
		if topic, ok := c.keys.ParseOwner(string(key)); ok {
			topics = append(topics, topic)
		}
	}
	slices.Sort(topics)
	return topics, nil
}
