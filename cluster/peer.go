package cluster

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Peer is another broker's registration as far as a guard needs it.
type Peer struct {
	Key            string
	CreateRevision int64
}

// someRegistrations are enough of them to have a peer's among them, if there is one: two may
// be this broker's own, of the process that runs now and of the former one.
func (c *Client) someRegistrations(opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(c.keys.Registrations(), append(opts, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(3))...)
}

// getPeer reads a peer's registration. Whatever its limit, a range costs etcd a look at each
// key in it, and a sorted one much more. So the peer of the last snapshot is asked for by
// its key; when it has gone, the answer is empty and registrationsAt finds another.
func (c *Client) getPeer(who Who) clientv3.Op {
	if who.Oldest {
		return c.someRegistrations(clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	}
	if last := c.peer.Load(); last != nil && !c.own(who, last.Key) {
		return clientv3.OpGet(last.Key, clientv3.WithKeysOnly())
	}
	return c.someRegistrations()
}

// registrationsAt are some registrations as they were at a revision.
func (c *Client) registrationsAt(ctx context.Context, revision int64) ([]*mvccpb.KeyValue, error) {
	answer, err := c.read(ctx, c.someRegistrations(clientv3.WithRev(revision)))
	if err != nil {
		return nil, err
	}
	if len(answer.Responses) != 1 {
		return nil, fmt.Errorf("etcd answered %d of 1 gets", len(answer.Responses))
	}
	return answer.Responses[0].GetResponseRange().GetKvs(), nil
}

// peerAmong is the first registration that is not the broker's own; zero: there is none.
func (c *Client) peerAmong(some []*mvccpb.KeyValue, who Who) Peer {
	for _, kv := range some {
		if key := string(kv.Key); !c.own(who, key) {
			p := Peer{Key: key, CreateRevision: kv.CreateRevision}
			c.peer.Store(&p)
			return p
		}
	}
	c.peer.Store(nil)
	return Peer{}
}

// own reports whether the key is the registration of one of the broker's processes.
func (c *Client) own(who Who, key string) bool {
	return key == c.keys.Registration(who.Registered) || who.Former != "" && key == c.keys.Registration(who.Former)
}

// company guards whether somebody was registered. It proves that nobody was and nobody is,
// or that the peer that was seen has been registered ever since; of other peers it proves
// nothing. To compare a prefix, etcd reads all that is below it while it applies a write: so
// that is done only where it was seen to hold nobody, or nobody but this broker.
func (c *Client) company(seen Snapshot) clientv3.Cmp {
	anybody := clientv3.CreateRevision(c.keys.Registrations())
	switch {
	case seen.Peer.CreateRevision != 0:
		return clientv3.Compare(clientv3.CreateRevision(seen.Peer.Key), "=", seen.Peer.CreateRevision)
	case seen.AnyRegistered:
		return clientv3.Compare(anybody.WithPrefix(), ">", 0)
	default:
		return clientv3.Compare(anybody.WithPrefix(), "=", 0)
	}
}
