package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// Grant makes a lease. etcd counts in whole seconds (ttl is rounded up) and raises small
// ones: granted is what holds.
func (c *Client) Grant(ctx context.Context, ttl time.Duration) (id int64, granted time.Duration, err error) {
	seconds := int64((ttl + time.Second - 1) / time.Second)
	answer, err := c.leases.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{TTL: seconds})
	if err != nil {
		return 0, 0, wrap(ctx, "grant lease", err)
	}
	if answer.Error != "" {
		return 0, 0, fmt.Errorf("grant lease: %s", answer.Error)
	}
	return answer.ID, time.Duration(answer.TTL) * time.Second, nil
}

// KeepAlive renews the lease once. revision is the store's when the renewal was taken up.
// An answer with no time left is ErrLeaseNotFound.
func (c *Client) KeepAlive(ctx context.Context, id int64) (granted time.Duration, revision int64, err error) {
	granted, revision, err = c.keepAlive(ctx, id)
	if refusesToken(err) { // which the stream has forgotten by now
		granted, revision, err = c.keepAlive(ctx, id)
	}
	if err != nil {
		return 0, 0, wrap(ctx, "renew lease", err)
	}
	return granted, revision, nil
}

// keepAlive is one stream for one question. The etcd client's KeepAliveOnce repeats
// itself without a pause while it fails, and hides why.
func (c *Client) keepAlive(ctx context.Context, id int64) (time.Duration, int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return 0, 0, err
	}
	// A failed send says only EOF; the reason comes with Recv.
	if stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: id}) == nil {
		_ = stream.CloseSend()
	}
	answer, err := stream.Recv()
	if err != nil {
		return 0, 0, err
	}
	if answer.TTL <= 0 {
		return 0, 0, ErrLeaseNotFound
	}
	return time.Duration(answer.TTL) * time.Second, answer.GetHeader().GetRevision(), nil
}

// Revoke ends the lease and deletes the keys bound to it. A lease that is gone already
// is a success.
func (c *Client) Revoke(ctx context.Context, id int64) error {
	_, err := c.leases.LeaseRevoke(ctx, &etcdserverpb.LeaseRevokeRequest{ID: id})
	if err = wrap(ctx, "revoke lease", err); err != nil && !errors.Is(err, ErrLeaseNotFound) {
		return err
	}
	return nil
}

// TimeToLive asks how long the lease still has, to the second, without renewing it.
// found is false when etcd does not know it.
func (c *Client) TimeToLive(ctx context.Context, id int64) (remaining time.Duration, found bool, err error) {
	answer, err := c.leases.LeaseTimeToLive(ctx, &etcdserverpb.LeaseTimeToLiveRequest{ID: id})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, wrap(ctx, "read lease", err)
	}
	if answer.TTL < 0 {
		return 0, false, nil
	}
	return time.Duration(answer.TTL) * time.Second, true, nil
}
