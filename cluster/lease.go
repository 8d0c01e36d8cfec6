package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Grant makes a lease. etcd counts in whole seconds (ttl is rounded up) and raises small
// ones: granted is what holds.
func (c *Client) Grant(ctx context.Context, ttl time.Duration) (id int64, granted time.Duration, err error) {
	defer during(&err, "grant lease")
	asked := int64((ttl + time.Second - 1) / time.Second)
	answer, err := once(ctx, c.members, func(ctx context.Context, w *way) (*etcdserverpb.LeaseGrantResponse, error) {
		return w.leases.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{TTL: asked})
	})
	if err == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	return answer.GetID(), seconds(answer.GetTTL()), err
}

// Renewal is what etcd answered to a keep-alive.
type Renewal struct {
	Granted  time.Duration
	Revision int64  // of the store when the renewal was taken up
	Term     uint64 // raft term that the member which answered knew before it renewed
}

// KeepAlive renews the lease once. An answer with no time left is ErrLeaseNotFound. Neither
// is proof: a leader that was deposed and does not know it answers, too. See Registered.
func (c *Client) KeepAlive(ctx context.Context, id int64) (_ Renewal, err error) {
	defer during(&err, "renew lease")
	answer, err := ask(ctx, c.members, func(ctx context.Context, w *way) (*etcdserverpb.LeaseKeepAliveResponse, error) {
		return keepAlive(ctx, w.leases, id)
	})
	if err == nil && answer.TTL <= 0 {
		err = ErrLeaseNotFound
	} else if Denied(err) { // newer versions ask for a right to all keys that are under it
		err = fmt.Errorf("%w to write the keys under the lease: etcdctl role grant-permission ROLE readwrite %sID", err, c.keys.Registrations())
	}
	head := answer.GetHeader()
	return Renewal{seconds(answer.GetTTL()), head.GetRevision(), head.GetRaftTerm()}, err
}

// keepAlive is one stream for one question. The etcd client's KeepAliveOnce repeats
// itself without a pause while it fails, and hides why. The stream is half-closed when the
// answer is there: etcd's grpc-proxy does not wait for one after that.
func keepAlive(ctx context.Context, leases etcdserverpb.LeaseClient, id int64) (*etcdserverpb.LeaseKeepAliveResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := leases.LeaseKeepAlive(ctx)
	if err != nil {
		return nil, err
	}
	// A failed send says only EOF; the reason comes with Recv.
	_ = stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: id})
	answer, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	// Ended in order, it is no failed call in etcd's metrics. No longer than that is worth.
	defer time.AfterFunc(100*time.Millisecond, cancel).Stop()
	if stream.CloseSend() == nil {
		_, _ = stream.Recv()
	}
	return answer, nil
}

// Revoke ends the lease and deletes the keys bound to it. A lease that is gone already
// is a success.
func (c *Client) Revoke(ctx context.Context, id int64) (err error) {
	defer during(&err, "revoke lease")
	_, err = once(ctx, c.members, func(ctx context.Context, w *way) (*etcdserverpb.LeaseRevokeResponse, error) {
		return w.leases.LeaseRevoke(ctx, &etcdserverpb.LeaseRevokeRequest{ID: id})
	})
	if errors.Is(err, ErrLeaseNotFound) {
		return nil
	}
	return err
}

// seconds is a TTL of etcd as a duration. Some versions answer with the remaining life of a
// lease that has no end yet (9223372036 s): more than a duration can bear is cut off.
func seconds(ttl int64) time.Duration {
	return time.Duration(min(ttl, math.MaxInt32)) * time.Second
}

// LeaseOf is the lease that any key is under, without the prefix of ours; 0: the key is not there,
// or under none. The value is read, too: etcd 3.7 tells no lease of who asks for keys only.
func (c *Client) LeaseOf(ctx context.Context, key string) (lease int64, err error) {
	defer during(&err, "read the lease of %s", key)
	kv, _, err := c.get(ctx, key)
	if kv != nil {
		lease = kv.Lease
	}
	return lease, err
}

// LeaseLeft is what etcd says of how long a lease still lasts.
type LeaseLeft struct {
	Found bool
	// Left is rounded down to the second. Just after an election it may be more than was
	// granted.
	Left    time.Duration
	Granted time.Duration // by etcd
	// Unknown: the leader has not counted yet when it ends.
	Unknown bool
	Term    uint64 // raft term that the member which answered knew
}

// longestTTL is the most that etcd grants, in seconds.
const longestTTL = 9_000_000_000

// LeaseLeft asks how long a lease still lasts, of anybody's, without renewing it. Where
// etcd authenticates, some versions ask for the right to read each key that is bound to the
// lease.
func (c *Client) LeaseLeft(ctx context.Context, id int64) (left LeaseLeft, err error) {
	defer during(&err, "read lease")
	answer, err := c.timeToLive(ctx, id, false)
	if err != nil || answer == nil {
		return left, err
	}
	left = LeaseLeft{Found: answer.TTL >= 0, Unknown: answer.TTL > longestTTL, Term: answer.GetHeader().GetRaftTerm()}
	if left.Found && !left.Unknown {
		left.Left, left.Granted = seconds(answer.TTL), seconds(answer.GrantedTTL)
	}
	return left, nil
}

// timeToLive asks about a lease; nil: it is gone.
func (c *Client) timeToLive(ctx context.Context, id int64, keys bool) (*etcdserverpb.LeaseTimeToLiveResponse, error) {
	answer, err := ask(ctx, c.members, func(ctx context.Context, w *way) (*etcdserverpb.LeaseTimeToLiveResponse, error) {
		return w.leases.LeaseTimeToLive(ctx, &etcdserverpb.LeaseTimeToLiveRequest{ID: id, Keys: keys})
	})
	if errors.Is(err, ErrLeaseNotFound) {
		return nil, nil
	}
	return answer, err
}
