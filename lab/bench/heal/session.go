package heal

import (
	"context"
	"errors"
	"net"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"holdfast/lab/harness"
)

// The backoff that such loops usually have.
const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// keepSession holds key by the etcd client's own session, as programs do that use
// the library as its examples show: a session, a put under its lease, and all over
// again when the session is done. It returns when ctx ends.
func keepSession(ctx context.Context, link harness.Link, key string, ttl time.Duration) error {
	c, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{link.Endpoint()},
		DialTimeout: 5 * time.Second,
		Logger:      zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return link.Place().DialContext(ctx, "tcp", address)
		})},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	pause := firstPause
	for ctx.Err() == nil {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(int(ttl.Seconds())), concurrency.WithContext(ctx))
		if err == nil {
			_, err = c.Put(ctx, key, "session", clientv3.WithLease(s.Lease()))
			if err != nil {
				s.Orphan()
			}
		}
		if err != nil {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, lastPause)
			continue
		}
		pause = firstPause
		select {
		case <-s.Done():
		case <-ctx.Done():
			s.Orphan()
		}
	}
	if err := ctx.Err(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
