package pulsar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// errBusy is that a lock is another session's.
var errBusy = errors.New("resource is already locked")

// session is the broker's one lease. What it locks are keys below it.
type session struct {
	etcd    *clientv3.Client
	timeout time.Duration
	log     *slog.Logger
	lease   clientv3.LeaseID
}

// open opens the session.
func (s *session) open(ctx context.Context) error {
	granted, err := s.etcd.Grant(ctx, int64(s.timeout/time.Second))
	if err != nil {
		return fmt.Errorf("open session: %w", err)
	}
	s.lease = granted.ID
	return nil
}

// run renews the lease until ctx ends, whatever becomes of it: of one that has gone too.
func (s *session) run(ctx context.Context) {
	tick := time.NewTicker(s.timeout / 6)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		asked, cancel := context.WithTimeout(ctx, s.timeout/3)
		if _, err := s.etcd.KeepAliveOnce(asked, s.lease); err != nil && ctx.Err() == nil {
			s.log.Warn("session not renewed", "err", err)
		}
		cancel()
	}
}

// acquire makes a key with that value, or says that it is busy. One of this session is its own already.
func (s *session) acquire(ctx context.Context, key string, value []byte) error {
	answer, err := s.etcd.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, string(value), clientv3.WithLease(s.lease))).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return fmt.Errorf("lock %s: %w", key, err)
	}
	if answer.Succeeded {
		return nil
	}
	if kvs := answer.Responses[0].GetResponseRange().Kvs; len(kvs) == 0 || clientv3.LeaseID(kvs[0].Lease) != s.lease {
		return fmt.Errorf("%s: %w", key, errBusy)
	}
	return nil
}

// release deletes a key of this session.
func (s *session) release(ctx context.Context, key string) error {
	_, err := s.etcd.Delete(ctx, key)
	return err
}
