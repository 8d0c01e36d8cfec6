package danube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Metadata is what brokers with Raft have among themselves: keys, leases, and every
// change since the start, so that a broker that was away is told what it missed. Nobody
// but a broker of this package can speak to it.
//
// Leases run out only while a broker is connected: without one there is nobody to notice,
// and the first that comes back finds all of them past their time.
type Metadata struct {
	Addr   string // host:port
	server *grpc.Server
	stop   chan struct{}
	all    sync.WaitGroup

	mu       sync.Mutex
	keys     map[string]held
	history  []change // history[i] has revision i+1
	changed  chan struct{}
	leases   map[int64]*lease
	granted  int64
	watchers int
}

type held struct {
	value []byte
	lease int64
}

type lease struct {
	ttl     time.Duration
	expires time.Time
}

// change is what happened to a key.
type change struct {
	Revision int64  `json:"revision"`
	Key      string `json:"key"`
	Value    []byte `json:"value,omitempty"`
	Deleted  bool   `json:"deleted,omitempty"`
}

const metadataService = "holdfast.lab.DanubeMetadata"

type (
	keyRequest struct {
		Key   string        `json:"key"`
		Value []byte        `json:"value,omitempty"`
		TTL   time.Duration `json:"ttl,omitempty"`
		Lease int64         `json:"lease,omitempty"`
		After int64         `json:"after,omitempty"`
	}
	keyAnswer struct {
		Found    bool              `json:"found"` // or created
		Value    []byte            `json:"value,omitempty"`
		Keys     map[string][]byte `json:"keys,omitempty"`
		Revision int64             `json:"revision"`
		Lease    int64             `json:"lease,omitempty"`
	}
	changes struct {
		Revision int64    `json:"revision"` // up to here nothing is missing
		Changes  []change `json:"changes,omitempty"`
	}
)

// StartMetadata serves at the address. Close it after its brokers.
func StartMetadata(addr string) (*Metadata, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("start metadata: %w", err)
	}
	m := &Metadata{
		Addr: l.Addr().String(), server: grpc.NewServer(), stop: make(chan struct{}),
		keys: map[string]held{}, leases: map[int64]*lease{}, changed: make(chan struct{}),
	}
	m.server.RegisterService(&grpc.ServiceDesc{
		ServiceName: metadataService,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			method("Get", (*Metadata).get), method("List", (*Metadata).list), method("Put", (*Metadata).put),
			method("Create", (*Metadata).create), method("Delete", (*Metadata).delete), method("KeepAlive", (*Metadata).keepAlive),
		},
		Streams: []grpc.StreamDesc{{StreamName: "Watch", ServerStreams: true, Handler: func(srv any, s grpc.ServerStream) error {
			var q keyRequest
			if err := s.RecvMsg(&q); err != nil {
				return err
			}
			return srv.(*Metadata).watch(&q, s)
		}}},
	}, m)
	m.all.Go(func() { m.server.Serve(l) }) // ends with Stop
	m.all.Go(m.expireForever)
	return m, nil
}

// Close ends it and all that it remembers.
func (m *Metadata) Close() {
	close(m.stop)
	m.server.Stop()
	m.all.Wait()
}

func (m *Metadata) expireForever() {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.expire(time.Now())
		case <-m.stop:
			return
		}
	}
}

func (m *Metadata) expire(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.watchers == 0 {
		return
	}
	for id, l := range m.leases {
		if now.Before(l.expires) {
			continue
		}
		delete(m.leases, id)
		for key, h := range m.keys {
			if h.lease == id {
				m.change(key, nil, true, 0)
			}
		}
	}
}

// change is called with mu held.
func (m *Metadata) change(key string, value []byte, deleted bool, lease int64) {
	if deleted {
		delete(m.keys, key)
	} else {
		m.keys[key] = held{value, lease}
	}
	m.history = append(m.history, change{int64(len(m.history) + 1), key, value, deleted})
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Metadata) get(_ context.Context, q *keyRequest) (*keyAnswer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ok := m.keys[q.Key]
	return &keyAnswer{Found: ok, Value: h.value}, nil
}

func (m *Metadata) list(_ context.Context, q *keyRequest) (*keyAnswer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := &keyAnswer{Keys: map[string][]byte{}, Revision: int64(len(m.history))}
	for key, h := range m.keys {
		if strings.HasPrefix(key, q.Key) {
			a.Keys[key] = h.value
		}
	}
	return a, nil
}

func (m *Metadata) put(_ context.Context, q *keyRequest) (*keyAnswer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.putLocked(q), nil
}

func (m *Metadata) putLocked(q *keyRequest) *keyAnswer {
	var id int64
	if q.TTL > 0 {
		m.granted++
		id = m.granted
		m.leases[id] = &lease{q.TTL, time.Now().Add(q.TTL)}
	}
	m.change(q.Key, q.Value, false, id)
	return &keyAnswer{Found: true, Lease: id}
}

func (m *Metadata) create(_ context.Context, q *keyRequest) (*keyAnswer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.keys[q.Key]; ok {
		return &keyAnswer{}, nil
	}
	return m.putLocked(q), nil
}

func (m *Metadata) delete(_ context.Context, q *keyRequest) (*keyAnswer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.keys[q.Key]
	if ok {
		m.change(q.Key, nil, true, 0)
	}
	return &keyAnswer{Found: ok}, nil
}

func (m *Metadata) keepAlive(_ context.Context, q *keyRequest) (*keyAnswer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, ok := m.leases[q.Lease]
	if ok {
		l.expires = time.Now().Add(l.ttl)
	}
	return &keyAnswer{Found: ok}, nil
}

func (m *Metadata) watch(q *keyRequest, s grpc.ServerStream) error {
	m.mu.Lock()
	m.watchers++
	after := q.After
	if after == 0 {
		after = int64(len(m.history))
	}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.watchers--
		m.mu.Unlock()
	}()
	for first := true; ; first = false {
		m.mu.Lock()
		next := changes{Revision: int64(len(m.history))}
		for _, c := range m.history[min(after, next.Revision):] {
			if strings.HasPrefix(c.Key, q.Key) {
				next.Changes = append(next.Changes, c)
			}
		}
		changed := m.changed
		m.mu.Unlock()
		after = next.Revision
		if first || len(next.Changes) > 0 {
			if err := s.SendMsg(&next); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-s.Context().Done():
			return status.Error(codes.Canceled, "the broker went")
		case <-m.stop:
			return status.Error(codes.Unavailable, "the metadata ended")
		}
	}
}

// Keys is a copy of what is in it, for tests.
func (m *Metadata) Keys() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]string{}
	for key, h := range maps.All(m.keys) {
		all[key] = string(h.value)
	}
	return all
}

// Place creates the topic, if need be, and assigns it to that broker: what the leader does,
// but for the choice. The topic must not be assigned already.
func (m *Metadata) Place(brokerID, topic string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.putLocked(&keyRequest{Key: topicsPrefix + strings.TrimPrefix(topic, "/") + "/delivery", Value: []byte(`"Reliable"`)})
	m.putLocked(&keyRequest{Key: assignmentKey(brokerID, topic), Value: []byte("null")})
}

var errNoMetadata = errors.New("no metadata address")
