package idle

import (
	"context"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Bare keeps one key alive with etcd's own client: a keep-alive and a linearizable read
// of the key at each eighth of the TTL, as a sidecar does, and nothing else.
func Bare(endpoints string) error {
	ctx := context.Background()
	c, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(endpoints, ","), DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	lease, err := c.Grant(ctx, int64(ttl.Seconds()))
	if err != nil {
		return err
	}
	if _, err := c.Put(ctx, "/bare", "", clientv3.WithLease(lease.ID)); err != nil {
		return err
	}
	for range time.Tick(ttl / 8) {
		if _, err := c.KeepAliveOnce(ctx, lease.ID); err != nil {
			return err
		}
		if _, err := c.Get(ctx, "/bare"); err != nil {
			return err
		}
	}
	return nil
}
