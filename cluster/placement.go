package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// placementsPerTxn is how many topics one transaction places, each in a transaction
// nested in it. What is not as seen any more leaves its topic alone, and no other.
const placementsPerTxn = 50

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
func (c *Client) Take(ctx context.Context, who Claimant, topics []TakeTopic) (taken []string, err error) {
	value, err := json.Marshal(Owner{BrokerID: who.BrokerID, Incarnation: who.Incarnation, Epoch: who.Epoch})
	if err != nil {
		return nil, fmt.Errorf("encode ownership of broker %s: %w", who.BrokerID, err)
	}
	return place(ctx, c, who, "take", topics, func(t TakeTopic) (string, clientv3.Op, error) {
		mine, lock := c.keys.Assignment(who.BrokerID, t.Topic), c.keys.Owner(t.Topic)
		guards := []clientv3.Cmp{
			clientv3.Compare(clientv3.CreateRevision(lock), "=", 0),
			clientv3.Compare(clientv3.CreateRevision(mine), "=", 0),
		}
		ops := []clientv3.Op{
			clientv3.OpPut(mine, "null"),
			clientv3.OpPut(lock, string(value), clientv3.WithLease(clientv3.LeaseID(who.LeaseID))),
			clientv3.OpDelete(c.keys.Unassigned(t.Topic)),
		}
		if t.From == "" { // known by its record alone, which may be gone by now
			guards = append(guards, clientv3.Compare(clientv3.CreateRevision(c.keys.TopicRecord(t.Topic)), ">", 0))
		} else {
			theirs := c.keys.Assignment(t.From, t.Topic)
			guards = append(guards,
				clientv3.Compare(clientv3.CreateRevision(theirs), ">", 0), // an absent key has mod revision 0
				clientv3.Compare(clientv3.ModRevision(theirs), "=", t.FromRevision),
				clientv3.Compare(clientv3.CreateRevision(c.keys.Registration(t.From)), "=", 0))
			ops = append(ops, clientv3.OpDelete(theirs))
			if err := checkBroker(t.From); err != nil || t.From == who.BrokerID {
				return t.Topic, clientv3.Op{}, fmt.Errorf("from broker %q: refused", t.From)
			}
		}
		return t.Topic, clientv3.OpTxn(guards, ops, nil), nil
	})
}

// Give hands assignments of the claimant over and returns the topics that went; the
// others were not as seen any more. See Lock for the guard and the errors. A topic is at
// no moment without an assignment.
func (c *Client) Give(ctx context.Context, who Claimant, topics []GiveTopic) (given []string, err error) {
	return place(ctx, c, who, "give", topics, func(g GiveTopic) (string, clientv3.Op, error) {
		mine := c.keys.Assignment(who.BrokerID, g.Topic)
		guards := []clientv3.Cmp{
			clientv3.Compare(clientv3.CreateRevision(mine), ">", 0),
			clientv3.Compare(clientv3.ModRevision(mine), "=", g.Revision),
		}
		ops := []clientv3.Op{clientv3.OpDelete(mine)}
		if g.To == "" {
			if err := checkBroker(g.Has); err != nil || g.Has == who.BrokerID {
				return g.Topic, clientv3.Op{}, fmt.Errorf("to nobody, since broker %q has it: refused", g.Has)
			}
			guards = append(guards, clientv3.Compare(clientv3.CreateRevision(c.keys.Assignment(g.Has, g.Topic)), ">", 0))
		} else {
			if err := checkBroker(g.To); err != nil || g.To == who.BrokerID {
				return g.Topic, clientv3.Op{}, fmt.Errorf("to broker %q: refused", g.To)
			}
			guards = append(guards,
				clientv3.Compare(clientv3.CreateRevision(c.keys.Owner(g.Topic)), "=", 0),
				clientv3.Compare(clientv3.CreateRevision(c.keys.Registration(g.To)), ">", 0))
			ops = append(ops, clientv3.OpPut(c.keys.Assignment(g.To, g.Topic), "null"))
		}
		return g.Topic, clientv3.OpTxn(guards, ops, nil), nil
	})
}

// place runs one nested transaction for each topic, guarded by the registration.
func place[T any](ctx context.Context, c *Client, who Claimant, verb string, requests []T, op func(T) (string, clientv3.Op, error)) (done []string, err error) {
	if err := who.check(); err != nil {
		return nil, fmt.Errorf("%s topics: %w", verb, err)
	}
	topics := make([]string, len(requests))
	err = c.eachIn(ctx, c.claim(who), placementsPerTxn, len(requests), func(i int) (o clientv3.Op, err error) {
		if topics[i], o, err = op(requests[i]); err == nil {
			err = checkTopic(topics[i])
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", topics[i], err)
		}
		return o, err
	}, func(i int, _ int64, answer *etcdserverpb.TxnResponse) {
		if answer.GetSucceeded() {
			done = append(done, topics[i])
		}
	})
	if err != nil {
		return done, fmt.Errorf("%s %d topics for broker %s: %w", verb, len(requests), who.BrokerID, err)
	}
	return done, nil
}
