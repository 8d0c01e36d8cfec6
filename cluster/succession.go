package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// movesPerTxn is how many assignments one transaction moves, each in a transaction nested
// in it that has two operations of its own. etcd counts them against what is left of its
// 128; a transaction has up to five more.
const movesPerTxn = 100

// Succession hands what a broker's earlier process had over to the one that runs now and
// has registered itself under an id of its own.
type Succession struct {
	// Seen guards it: the registrations and the states of both, and the member record, are
	// still as seen. The registration of the process that runs must be there.
	Seen    Snapshot
	LeaseID int64 // that the successor's registration is put under, its bytes unchanged
	// State is the successor's from now on; nil leaves it alone.
	State *StateWrite
	// Retire deletes the former process's registration too. Its assignments are handed
	// over before with Move; without, they are for whoever sees that registration go. What
	// is left of a process that is not registered may be moved only if nobody saw it go.
	Retire, Move bool
	Member       Member
}

// Succeeded is the outcome of Succeed.
type Succeeded struct {
	Registration Registration // the successor's
	Moved        int          // assignments
}

// errNoSuccessor is a succession without a registration to go on with.
var errNoSuccessor = errors.New("the successor is not registered")

// Succeed binds the registration of the process that runs to the lease, with its state,
// the member record and the assignments of the former process, and deletes that one's
// registration and state. All of it is one transaction, if the assignments number a
// hundred at most. Else they are moved a hundred at a time, each time with the successor's
// registration and state; each is at every revision at exactly one of the two. The member
// record is written, and the former's registration goes, with the last of them: nobody may take
// what is still there for a dead broker's, and what an error leaves undone is done when Succeed
// is called again. The former's lease must live until then: keep, which may be nil, is called
// before each transaction but the first to see to that.
//
// An assignment that the successor has already is not put again: it may have loaded the
// topic, and would load it a second time. ErrChanged says that something was not as seen,
// ErrLeaseNotFound that the lease is gone.
func (c *Client) Succeed(ctx context.Context, s Succession, keep func(context.Context) error) (Succeeded, error) {
	done, err := c.succeed(ctx, s, keep)
	if err != nil {
		return done, fmt.Errorf("let broker %s succeed %s: %w", s.Seen.BrokerID, s.Seen.Former.BrokerID, err)
	}
	return done, nil
}

func (c *Client) succeed(ctx context.Context, s Succession, keep func(context.Context) error) (done Succeeded, err error) {
	seen := s.Seen
	if err := checkBroker(seen.BrokerID); err != nil {
		return done, err
	}
	switch {
	case seen.Registration == nil:
		return done, errNoSuccessor
	case s.LeaseID == 0:
		return done, errNoLease
	case s.Retire && seen.Former.Registration == nil, s.Move && !s.Retire && seen.Former.Registration != nil, s.Move && seen.Former.BrokerID == "":
		return done, errors.New("what the former process has is not ours to hand over")
	}
	var assigned []KV
	if s.Move {
		if assigned, err = c.assignments(ctx, seen.Former.BrokerID); err != nil {
			return done, err
		}
	}
	for {
		batch := assigned[:min(len(assigned), movesPerTxn)]
		assigned = assigned[len(batch):]
		ops, err := c.takeOver(s, len(assigned) == 0)
		if err != nil {
			return done, err
		}
		for _, kv := range batch {
			ops = append(ops, c.move(kv, seen.BrokerID))
		}
		answer, err := c.write(ctx, c.asSeen(seen), ops)
		if err != nil {
			return done, err
		}
		for _, response := range answer.Responses {
			if txn := response.GetResponseTxn(); txn != nil && txn.Succeeded {
				done.Moved++
			}
		}
		done.Registration = *seen.Registration
		done.Registration.LeaseID, done.Registration.ModRevision = s.LeaseID, answer.Header.Revision
		if len(assigned) == 0 {
			return done, nil
		}
		bound := done.Registration
		if seen.Registration = &bound; s.State != nil {
			seen.StateRevision = bound.ModRevision
		}
		if keep != nil {
			if err := keep(ctx); err != nil {
				return done, err
			}
		}
	}
}

// RegisteredAt reports whether the broker was registered at that revision of the store. A
// revision that was compacted is an error.
func (c *Client) RegisteredAt(ctx context.Context, brokerID string, revision int64) (bool, error) {
	if err := checkBroker(brokerID); err != nil {
		return false, err
	}
	answer, err := c.read(ctx, clientv3.OpGet(c.keys.Registration(brokerID), clientv3.WithRev(revision), clientv3.WithCountOnly()))
	if err != nil {
		return false, fmt.Errorf("read registration of broker %s at revision %d: %w", brokerID, revision, err)
	}
	return answer.Responses[0].GetResponseRange().GetCount() > 0, nil
}

// asSeen guards registrations and states of both processes, and the record of the broker.
func (c *Client) asSeen(seen Snapshot) []clientv3.Cmp {
	guards := []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(c.keys.Registration(seen.BrokerID)), "=", seen.Registration.ModRevision),
		clientv3.Compare(clientv3.ModRevision(c.keys.State(seen.BrokerID)), "=", seen.StateRevision),
		clientv3.Compare(clientv3.ModRevision(c.keys.Member(cmp.Or(seen.Name, seen.BrokerID))), "=", seen.MemberRevision),
	}
	if former := seen.Former; former.BrokerID != "" {
		revision := int64(0) // absent
		if former.Registration != nil {
			revision = former.Registration.ModRevision
		}
		guards = append(guards,
			clientv3.Compare(clientv3.ModRevision(c.keys.Registration(former.BrokerID)), "=", revision),
			clientv3.Compare(clientv3.ModRevision(c.keys.State(former.BrokerID)), "=", former.StateRevision))
	}
	return guards
}

// takeOver is what becomes the successor's, and with the last transaction goes of the former
// process, unless it is another one's by now.
func (c *Client) takeOver(s Succession, last bool) ([]clientv3.Op, error) {
	ops := []clientv3.Op{clientv3.OpPut(c.keys.Registration(s.Seen.BrokerID), "",
		clientv3.WithLease(clientv3.LeaseID(s.LeaseID)), clientv3.WithIgnoreValue())}
	if s.State != nil {
		state, err := c.putState(s.Seen.BrokerID, *s.State)
		if err != nil {
			return nil, err
		}
		ops = append(ops, state)
	}
	if !last {
		return ops, nil
	}
	member, err := c.putMember(s.Seen.BrokerID, s.Member)
	former := s.Seen.Former
	if s.Retire {
		ops = append(ops, clientv3.OpDelete(c.keys.Registration(former.BrokerID)))
	}
	if s.Retire || former.BrokerID != "" && former.Registration == nil {
		ops = append(ops, clientv3.OpDelete(c.keys.State(former.BrokerID)))
	}
	return append(ops, member), err
}

// move hands one assignment over if it is still as seen.
func (c *Client) move(kv KV, successor string) clientv3.Op {
	_, topic, _ := c.keys.ParseAssignment(kv.Key)
	to := c.keys.Assignment(successor, topic)
	put := clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(to), "=", 0)},
		[]clientv3.Op{clientv3.OpPut(to, string(kv.Value))}, nil)
	return clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(kv.Key), "=", kv.ModRevision)},
		[]clientv3.Op{put, clientv3.OpDelete(kv.Key)}, nil)
}

// assignments are those of one broker, as they stand.
func (c *Client) assignments(ctx context.Context, brokerID string) ([]KV, error) {
	var found []KV
	_, err := c.scan(ctx, Target{Key: c.keys.Assignments(brokerID), Prefix: true}, 0, func(kv KV) {
		if _, _, ok := c.keys.ParseAssignment(kv.Key); ok {
			found = append(found, kv)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read assignments of broker %s: %w", brokerID, err)
	}
	return slices.Clip(found), nil
}
