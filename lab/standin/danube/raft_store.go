package danube

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// raftStore is the metadata as a broker with Raft has it. A watch that broke goes on
// where it was: what was missed is replayed.
type raftStore struct {
	conn     *grpc.ClientConn
	watching sync.WaitGroup
}

func openMetadata(addr string) (*raftStore, error) {
	if addr == "" {
		return nil, errNoMetadata
	}
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.CallContentSubtype(codecName)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("join the metadata at %s: %w", addr, err)
	}
	return &raftStore{conn: conn}, nil
}

func (s *raftStore) close() error {
	err := s.conn.Close()
	s.watching.Wait()
	return err
}

func (s *raftStore) call(ctx context.Context, name string, q keyRequest) (a keyAnswer, err error) {
	if err = s.conn.Invoke(ctx, "/"+metadataService+"/"+name, &q, &a); err != nil {
		return a, fmt.Errorf("%s %s: %w", name, q.Key, err)
	}
	return a, nil
}

func (s *raftStore) get(ctx context.Context, key string) ([]byte, bool, error) {
	a, err := s.call(ctx, "Get", keyRequest{Key: key})
	return a.Value, a.Found, err
}

func (s *raftStore) list(ctx context.Context, prefix string) (map[string][]byte, int64, error) {
	a, err := s.call(ctx, "List", keyRequest{Key: prefix})
	if a.Keys == nil {
		a.Keys = map[string][]byte{}
	}
	return a.Keys, a.Revision, err
}

func (s *raftStore) put(ctx context.Context, key string, value []byte) error {
	_, err := s.call(ctx, "Put", keyRequest{Key: key, Value: value})
	return err
}

func (s *raftStore) delete(ctx context.Context, key string) error {
	_, err := s.call(ctx, "Delete", keyRequest{Key: key})
	return err
}

func (s *raftStore) putTTL(ctx context.Context, key string, value []byte, ttl time.Duration) (int64, error) {
	a, err := s.call(ctx, "Put", keyRequest{Key: key, Value: value, TTL: ttl})
	return a.Lease, err
}

func (s *raftStore) createTTL(ctx context.Context, key string, value []byte, ttl time.Duration) (bool, int64, error) {
	a, err := s.call(ctx, "Create", keyRequest{Key: key, Value: value, TTL: ttl})
	return a.Found, a.Lease, err
}

func (s *raftStore) keepAlive(ctx context.Context, lease int64) error {
	_, err := s.call(ctx, "KeepAlive", keyRequest{Lease: lease})
	return err
}

func (s *raftStore) watch(ctx context.Context, prefix string, after int64) (<-chan event, error) {
	stream, first, err := s.openWatch(ctx, prefix, after)
	if err != nil {
		return nil, err
	}
	events := make(chan event)
	s.watching.Go(func() {
		defer close(events)
		for {
			for next := first; ; {
				for _, c := range next.Changes {
					select {
					case events <- event{c.Key, c.Value, c.Deleted}:
					case <-ctx.Done():
						return
					}
				}
				after = next.Revision
				next = changes{}
				if stream.RecvMsg(&next) != nil {
					break
				}
			}
			for {
				if !pause(ctx, 50*time.Millisecond) {
					return
				}
				if stream, first, err = s.openWatch(ctx, prefix, after); err == nil {
					break
				}
			}
		}
	})
	return events, nil
}

func (s *raftStore) openWatch(ctx context.Context, prefix string, after int64) (grpc.ClientStream, changes, error) {
	var first changes
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "Watch", ServerStreams: true}, "/"+metadataService+"/Watch")
	if err == nil {
		err = stream.SendMsg(&keyRequest{Key: prefix, After: after})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err == nil {
		err = stream.RecvMsg(&first)
	}
	if err != nil {
		return nil, first, fmt.Errorf("watch %s: %w", prefix, err)
	}
	return stream, first, nil
}
