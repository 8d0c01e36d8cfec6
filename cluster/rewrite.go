package cluster

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Rewrite is Rebind with new bytes: the advertised addresses changed. The create
// revision stays. It returns ErrChanged when the registration is not as seen any more.
func (c *Client) Rewrite(ctx context.Context, seen Registration, value []byte, leaseID int64, m Member) (Registration, error) {
	if err := checkBroker(seen.BrokerID); err != nil {
		return Registration{}, err
	}
	if leaseID == 0 {
		return Registration{}, fmt.Errorf("rewrite registration of broker %s: %w", seen.BrokerID, errNoLease)
	}
	m.At = m.At.UTC()
	member, err := putJSON(c.keys.Member(seen.BrokerID), m)
	if err != nil {
		return Registration{}, err
	}
	key := c.keys.Registration(seen.BrokerID)
	answer, err := c.write(ctx,
		[]clientv3.Cmp{
			clientv3.Compare(clientv3.CreateRevision(key), ">", 0),
			clientv3.Compare(clientv3.ModRevision(key), "=", seen.ModRevision),
		},
		[]clientv3.Op{
			clientv3.OpPut(key, string(value), clientv3.WithLease(clientv3.LeaseID(leaseID))),
			member,
		})
	if err != nil {
		return Registration{}, fmt.Errorf("rewrite registration of broker %s: %w", seen.BrokerID, err)
	}
	written := seen
	written.Value, written.LeaseID, written.ModRevision = value, leaseID, answer.Header.Revision
	return written, nil
}
