package memory

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Member is one member of the cluster that a server is: what a client finds behind one
// endpoint. All members show the same store until one of them is told otherwise.
type Member struct {
	s *Server

	mu       sync.Mutex
	deposed  *past
	isolated bool
	changed  chan struct{}   // closed, and replaced, with each change
	life     context.Context // of calls and streams: ends when the member is isolated
	lose     context.CancelCauseFunc
}

// past is what a deposed leader still believes.
type past struct {
	head *pb.ResponseHeader
	ttls map[int64]time.Duration // of the leases that it knows
}

// Member makes one more member.
func (s *Server) Member() *Member {
	m := &Member{s: s, changed: make(chan struct{})}
	m.life, m.lose = context.WithCancelCause(context.Background())
	return m
}

// Conn makes a connection to this member, see Server.Conn.
func (m *Member) Conn(via Path) *Conn {
	c := m.s.Conn(via)
	c.member = m
	return c
}

// Depose makes the member a leader that hangs in a disk write and does not know that the
// others have elected another, which refreshes every lease as ChangeLeader does. Until
// Rejoin it confirms renewals of the leases that it knew, under its own term, and nobody
// else hears of them. Everything else is not answered, and its watches are silent.
func (m *Member) Depose(extend time.Duration) {
	m.s.enter()
	p := &past{head: m.s.head(&pb.ResponseHeader{}), ttls: map[int64]time.Duration{}}
	for id, l := range m.s.lessor.leases {
		p.ttls[id] = l.ttl
	}
	m.s.mu.Unlock()
	m.change(func() { m.deposed = p })
	m.s.ChangeLeader(extend)
}

// Isolate leaves the member without a quorum until Rejoin: whatever is asked of it, or was,
// fails with ErrNoLeader.
func (m *Member) Isolate() {
	m.change(func() {
		m.isolated = true
		m.lose(ErrNoLeader)
		m.life, m.lose = context.WithCancelCause(context.Background())
	})
}

// Rejoin has the member answer as the others do.
func (m *Member) Rejoin() { m.change(func() { m.deposed, m.isolated = nil, false }) }

func (m *Member) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.changed)
	m.changed = make(chan struct{})
}

// connection ends when what goes on with this member does. A nil member's does not.
func (m *Member) connection() context.Context {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.life
}

// pass returns when the member answers as the others do.
func (m *Member) pass(ctx context.Context) error {
	for m != nil {
		m.mu.Lock()
		silent, isolated, changed := m.deposed != nil, m.isolated, m.changed
		m.mu.Unlock()
		switch {
		case isolated:
			return ErrNoLeader
		case !silent:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// renew is Server.renew as this member answers it.
func (m *Member) renew(ctx context.Context, s *Server, id int64) (*pb.LeaseKeepAliveResponse, error) {
	if m != nil {
		m.mu.Lock()
		p, isolated := m.deposed, m.isolated
		m.mu.Unlock()
		switch {
		case isolated:
			return nil, ErrNoLeader
		case p != nil:
			head := &pb.ResponseHeader{ClusterId: p.head.ClusterId, MemberId: p.head.MemberId, Revision: p.head.Revision, RaftTerm: p.head.RaftTerm}
			return &pb.LeaseKeepAliveResponse{Header: head, ID: id, TTL: seconds(p.ttls[id])}, nil
		}
	}
	return s.renew(ctx, id)
}
