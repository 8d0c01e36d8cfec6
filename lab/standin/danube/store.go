package danube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// event is a change of one key, from a watch.
type event struct {
	key     string
	value   []byte
	deleted bool
}

// store is where the metadata is. It speaks etcd's protocol without etcd's client, which would repair
// what must stay broken: in a broker of release 0.7, a watch whose stream broke has ended.
//
// No call waits for a connection: without one it is an error at once, as it is in life.
type store struct {
	kv      etcdserverpb.KVClient
	leases  etcdserverpb.LeaseClient
	watches etcdserverpb.WatchClient
	resumes bool // watches are taken up again where they were, as with Raft
}

func openStore(endpoint string, resumes bool) (*store, error) {
	_, addr, ok := strings.Cut(endpoint, "://")
	if !ok {
		addr = endpoint
	}
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", endpoint, err)
	}
	return &store{kv: etcdserverpb.NewKVClient(conn), leases: etcdserverpb.NewLeaseClient(conn), watches: etcdserverpb.NewWatchClient(conn), resumes: resumes}, nil
}

func (s *store) get(ctx context.Context, key string) ([]byte, bool, error) {
	r, err := s.kv.Range(ctx, &etcdserverpb.RangeRequest{Key: []byte(key)})
	if err != nil {
		return nil, false, fmt.Errorf("get %s: %w", key, err)
	}
	if len(r.Kvs) == 0 {
		return nil, false, nil
	}
	return r.Kvs[0].Value, true, nil
}

// list returns the keys below the prefix and their values, and the revision.
func (s *store) list(ctx context.Context, prefix string) (map[string][]byte, int64, error) {
	r, err := s.kv.Range(ctx, &etcdserverpb.RangeRequest{Key: []byte(prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix))})
	if err != nil {
		return nil, 0, fmt.Errorf("list %s: %w", prefix, err)
	}
	found := make(map[string][]byte, len(r.Kvs))
	for _, kv := range r.Kvs {
		found[string(kv.Key)] = kv.Value
	}
	return found, r.Header.Revision, nil
}

func (s *store) put(ctx context.Context, key string, value []byte) error {
	if _, err := s.kv.Put(ctx, &etcdserverpb.PutRequest{Key: []byte(key), Value: value}); err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	return nil
}

func (s *store) delete(ctx context.Context, key string) error {
	if _, err := s.kv.DeleteRange(ctx, &etcdserverpb.DeleteRangeRequest{Key: []byte(key)}); err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return nil
}

func (s *store) grant(ctx context.Context, ttl time.Duration) (int64, error) {
	seconds := int64((ttl + time.Second - 1) / time.Second)
	r, err := s.leases.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{TTL: seconds})
	if err != nil {
		return 0, fmt.Errorf("grant a lease of %d s: %w", seconds, err)
	}
	return r.ID, nil
}

// putTTL puts the key under a new lease.
func (s *store) putTTL(ctx context.Context, key string, value []byte, ttl time.Duration) (int64, error) {
	lease, err := s.grant(ctx, ttl)
	if err != nil {
		return 0, err
	}
	if _, err := s.kv.Put(ctx, &etcdserverpb.PutRequest{Key: []byte(key), Value: value, Lease: lease}); err != nil {
		return 0, fmt.Errorf("put %s: %w", key, err)
	}
	return lease, nil
}

// createTTL is putTTL if there is no such key.
func (s *store) createTTL(ctx context.Context, key string, value []byte, ttl time.Duration) (bool, int64, error) {
	lease, err := s.grant(ctx, ttl)
	if err != nil {
		return false, 0, err
	}
	r, err := s.kv.Txn(ctx, &etcdserverpb.TxnRequest{
		Compare: []*etcdserverpb.Compare{{
			Key: []byte(key), Target: etcdserverpb.Compare_CREATE, Result: etcdserverpb.Compare_EQUAL,
			TargetUnion: &etcdserverpb.Compare_CreateRevision{CreateRevision: 0},
		}},
		Success: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestPut{
			RequestPut: &etcdserverpb.PutRequest{Key: []byte(key), Value: value, Lease: lease},
		}}},
	})
	if err != nil {
		return false, 0, fmt.Errorf("create %s: %w", key, err)
	}
	return r.Succeeded, lease, nil
}

// keepAlive renews a lease. One that has gone is no error.
func (s *store) keepAlive(ctx context.Context, lease int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return fmt.Errorf("keep lease %x alive: %w", lease, err)
	}
	if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: lease}); err != nil {
		return fmt.Errorf("keep lease %x alive: %w", lease, err)
	}
	// The answer is not looked at: TTL 0 would say that the lease has gone.
	if _, err := stream.Recv(); err != nil {
		return fmt.Errorf("keep lease %x alive: %w", lease, err)
	}
	return nil
}

// watch returns what happens below the prefix, after the revision, or from now on if
// that is 0. The channel is closed when the watch has died or ctx has ended.
func (s *store) watch(ctx context.Context, prefix string, after int64) (<-chan event, error) {
	stream, err := s.openWatch(ctx, prefix, &after)
	if err != nil {
		return nil, err
	}
	events := make(chan event)
	go func() {
		defer close(events)
		for {
			s.follow(ctx, stream, events, &after)
			for {
				if !s.resumes || !pause(ctx, 100*time.Millisecond) {
					return
				}
				if stream, err = s.openWatch(ctx, prefix, &after); err == nil {
					break
				}
			}
		}
	}()
	return events, nil
}

// openWatch returns when etcd has confirmed the watch. after becomes the revision from
// which on nothing is missed.
func (s *store) openWatch(ctx context.Context, prefix string, after *int64) (etcdserverpb.Watch_WatchClient, error) {
	stream, err := s.watches.Watch(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", prefix, err)
	}
	create := &etcdserverpb.WatchCreateRequest{Key: []byte(prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix))}
	if *after > 0 {
		create.StartRevision = *after + 1
	}
	if err := stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
		return nil, fmt.Errorf("watch %s: %w", prefix, err)
	}
	r, err := stream.Recv()
	if err == nil && !r.Created {
		err = errors.New("the first answer does not confirm it")
	}
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", prefix, err)
	}
	if *after == 0 {
		*after = r.Header.Revision
	}
	return stream, nil
}

// follow passes events on until the stream breaks.
func (s *store) follow(ctx context.Context, stream etcdserverpb.Watch_WatchClient, to chan<- event, after *int64) {
	for {
		r, err := stream.Recv()
		if err != nil || r.Canceled {
			return
		}
		for _, e := range r.Events {
			select {
			case to <- event{key: string(e.Kv.Key), value: e.Kv.Value, deleted: e.Type == mvccpb.Event_DELETE}:
				*after = e.Kv.ModRevision
			case <-ctx.Done():
				return
			}
		}
	}
}
