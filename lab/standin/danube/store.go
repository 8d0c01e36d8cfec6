package danube

import (
	"context"
	"time"
)

// event is a change of one key. from a watch.
type event struct {
	key     string
	value   []byte
	deleted bool
}

// store is where the metadata is: etcd, or the cluster's own.
//
// No call waits for a connection: without one it is an error at once, as it is in life.
type store interface {
	get(ctx context.Context, key string) (value []byte, found bool, err error)
	// list returns the keys below the prefix and their values, and the revision.
	list(ctx context.Context, prefix string) (map[string][]byte, int64, error)
	put(ctx context.Context, key string, value []byte) error
	delete(ctx context.Context, key string) error
	// putTTL puts the key under a new lease.
	putTTL(ctx context.Context, key string, value []byte, ttl time.Duration) (lease int64, err error)
	// createTTL is putTTL if there is no such key.
	createTTL(ctx context.Context, key string, value []byte, ttl time.Duration) (created bool, lease int64, err error)
	// keepAlive renews a lease. A lease that has gone is no error.
	keepAlive(ctx context.Context, lease int64) error
	// watch returns what happens below the prefix, after the revision, or from now on if
	// that is 0. The channel is closed when the watch has died or ctx has ended.
	watch(ctx context.Context, prefix string, after int64) (<-chan event, error)
	// close waits for the watches, whose contexts must have ended.
	close() error
}

// pause waits for d, and returns false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
