package cluster

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Succession hands what a broker's earlier process had over to the one that runs now and
// has registered itself under an id of its own.
type Succession struct {
	// Seen guards it: the registrations and the states of both, the member record and the era are
	// still as seen. The registration of the process that runs must be there.
	Seen    Snapshot
	LeaseID int64 // that the successor's registration is put under, its bytes unchanged
	// State is the successor's from now on; nil leaves it alone.
	State *State
	// Retire deletes the former process's registration too. Its assignments are handed
	// over before with Move; without, they are for whoever sees that registration go. What
	// is left of a process that is not registered may be moved only if nobody saw it go.
	Retire, Move bool
	Begins       bool // an era: nobody else is registered
	Member       Member
}

// Succeeded is the outcome of Succeed.
type Succeeded struct {
	Registration Registration // the successor's
	Moved        int          // assignments
}

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
func (c *Client) Succeed(ctx context.Context, s Succession, keep func(context.Context) error) (done Succeeded, err error) {
	seen, former := s.Seen, s.Seen.Former
	defer during(&err, "let broker %s succeed %s", seen.BrokerID, former.BrokerID)
	switch {
	case seen.Registration == nil:
		return done, errors.New("the successor is not registered")
	case s.LeaseID == 0:
		return done, errNoLease
	case s.Retire && former.Registration == nil, s.Move && !s.Retire && former.Registration != nil, s.Move && former.BrokerID == "":
		return done, errors.New("what the former process has is not ours to hand over")
	}
	var moves []clientv3.Op
	if s.Move {
		if moves, err = c.moves(ctx, former.BrokerID, seen.BrokerID); err != nil {
			return done, err
		}
	}
	for {
		batch := moves[:min(len(moves), nestedPerTxn)]
		moves = moves[len(batch):]
		guards := c.asSeen(seen)
		if s.Begins {
			guards = append(guards, written(c.keys.Era(), seen.Era.ModRevision))
		}
		answer, revision, err := c.write(ctx, guards, append(c.takeOver(s, len(moves) == 0), batch...)...)
		if err != nil {
			return done, err
		}
		for _, response := range answer.Responses {
			if response.GetResponseTxn().GetSucceeded() {
				done.Moved++
			}
		}
		done.Registration = *seen.Registration
		done.Registration.LeaseID, done.Registration.ModRevision = s.LeaseID, revision
		if len(moves) == 0 {
			return done, nil
		}
		if seen.Registration = &done.Registration; s.State != nil {
			seen.StateRevision = revision
		}
		if keep != nil {
			if err := keep(ctx); err != nil {
				return done, err
			}
		}
	}
}

// asSeen guards registrations and states of both processes, and the record of the broker.
func (c *Client) asSeen(seen Snapshot) []clientv3.Cmp {
	guards := []clientv3.Cmp{
		written(c.keys.Registration(seen.BrokerID), seen.Registration.ModRevision),
		written(c.keys.State(seen.BrokerID), seen.StateRevision),
		written(c.keys.Member(seen.name()), seen.MemberRevision),
	}
	if former := seen.Former; former.BrokerID != "" {
		revision := int64(0) // absent
		if former.Registration != nil {
			revision = former.Registration.ModRevision
		}
		guards = append(guards, written(c.keys.Registration(former.BrokerID), revision), written(c.keys.State(former.BrokerID), former.StateRevision))
	}
	return guards
}

// takeOver is what becomes the successor's, and with the last transaction goes of the former
// process, unless it is another one's by now.
func (c *Client) takeOver(s Succession, last bool) []clientv3.Op {
	ops := []clientv3.Op{putUnder(c.keys.Registration(s.Seen.BrokerID), "", s.LeaseID, clientv3.WithIgnoreValue())}
	if s.State != nil {
		ops = append(ops, c.putState(s.Seen.BrokerID, *s.State))
	}
	if !last {
		return ops
	}
	former := s.Seen.Former
	if s.Retire {
		ops = append(ops, clientv3.OpDelete(c.keys.Registration(former.BrokerID)))
	}
	if s.Retire || former.BrokerID != "" && former.Registration == nil {
		ops = append(ops, clientv3.OpDelete(c.keys.State(former.BrokerID)))
	}
	return append(ops, c.stand(RegisterRequest{Seen: s.Seen, Member: s.Member, Begins: s.Begins})...)
}

// moves hand each assignment of one broker to another, if it is still as it stands now.
func (c *Client) moves(ctx context.Context, from, to string) (moves []clientv3.Op, err error) {
	defer during(&err, "read assignments of broker %s", from)
	_, err = c.scan(ctx, Target{Key: c.keys.Assignments(from), Prefix: true}, 0, func(kv KV) {
		if _, topic, ok := c.keys.ParseAssignment(kv.Key); ok {
			key := c.keys.Assignment(to, topic)
			put := clientv3.OpTxn([]clientv3.Cmp{created(key, 0)}, []clientv3.Op{clientv3.OpPut(key, string(kv.Value))}, nil)
			moves = append(moves, clientv3.OpTxn([]clientv3.Cmp{written(kv.Key, kv.ModRevision)}, []clientv3.Op{put, clientv3.OpDelete(kv.Key)}, nil))
		}
	})
	return moves, err
}
