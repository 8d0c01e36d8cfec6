package memory

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// longestTTL is etcd's, in seconds.
const longestTTL = 9_000_000_000

type lease struct {
	id       int64
	ttl      time.Duration
	deadline time.Time
	keys     map[string]bool
}

func (l *lease) before(other *lease) int {
	return cmp.Or(l.deadline.Compare(other.deadline), cmp.Compare(l.id, other.id))
}

func (l *lease) view() Lease {
	return Lease{ID: l.id, TTL: l.ttl, Deadline: l.deadline, Keys: slices.Sorted(maps.Keys(l.keys))}
}

// lessor keeps the leases and which keys are bound to them. It does not know the keys'
// values, and locks nothing.
type lessor struct {
	leases map[int64]*lease
	lastID int64
	// first is no later than the earliest deadline; zero: there is no lease.
	first time.Time
	// moved is closed, and replaced, when a lease ended or has a new deadline.
	moved chan struct{}
}

func newLessor() lessor {
	return lessor{leases: map[int64]*lease{}, lastID: 0x1e45e << 32, moved: make(chan struct{})}
}

func (le *lessor) known(id int64) bool { return le.leases[id] != nil }

func (le *lessor) bind(key string, from, to int64) {
	if from == to {
		return
	}
	if l := le.leases[from]; l != nil {
		delete(l.keys, key)
	}
	if l := le.leases[to]; l != nil {
		l.keys[key] = true
	}
}

func (le *lessor) set(l *lease, deadline time.Time) {
	l.deadline = deadline
	if le.first.IsZero() || deadline.Before(le.first) {
		le.first = deadline
		le.wake() // Run sleeps until the one that was first
	}
}

func (le *lessor) wake() {
	close(le.moved)
	le.moved = make(chan struct{})
}

func (le *lessor) refreshAll(now time.Time, extend time.Duration) {
	for _, l := range le.leases {
		l.deadline = now.Add(l.ttl + extend)
	}
	le.findFirst()
	le.wake()
}

func (le *lessor) findFirst() {
	le.first = time.Time{}
	for _, l := range le.leases {
		if le.first.IsZero() || l.deadline.Before(le.first) {
			le.first = l.deadline
		}
	}
}

// overdue returns the leases whose deadline is not after the moment, in their order.
func (le *lessor) overdue(moment time.Time) []*lease {
	if le.first.IsZero() || le.first.After(moment) {
		return nil
	}
	var due []*lease
	for _, l := range le.leases {
		if !l.deadline.After(moment) {
			due = append(due, l)
		}
	}
	slices.SortFunc(due, (*lease).before)
	le.findFirst() // it may have been too early; what is due is gone when this is used again
	return due
}

// expire ends what is overdue, each lease in a revision of its own.
func (s *Server) expire() {
	if s.lessor.first.IsZero() || s.leaderless {
		return
	}
	if due := s.lessor.overdue(s.cfg.Now().Add(-s.cfg.ExpiryDelay)); len(due) > 0 {
		for _, l := range due {
			s.endLease(l, ByExpiry)
		}
	}
}

// endLease deletes the lease and the keys that are bound to it.
func (s *Server) endLease(l *lease, cause Cause) {
	x := s.txn()
	for _, key := range slices.Sorted(maps.Keys(l.keys)) {
		x.remove(&pb.DeleteRangeRequest{Key: []byte(key)})
	}
	delete(s.lessor.leases, l.id)
	s.lessor.findFirst()
	s.lessor.wake()
	s.commit(Change{Cause: cause, Lease: l.id, Deadline: l.deadline})
}

// Expire ends the leases that are overdue now, and says how many there were. Every call
// to the server does the same first.
func (s *Server) Expire() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.lessor.leases)
	s.expire()
	return before - len(s.lessor.leases)
}

// Run ends each lease on time until ctx ends, and returns the context's error. It sleeps
// by the timers of package time, so Config.Now must go as they do.
func (s *Server) Run(ctx context.Context) error {
	for {
		s.enter()
		wait, moved := time.Duration(math.MaxInt64), s.lessor.moved
		if !s.lessor.first.IsZero() && !s.leaderless {
			wait = s.lessor.first.Add(s.cfg.ExpiryDelay).Sub(s.cfg.Now())
		}
		s.mu.Unlock()
		due := time.NewTimer(wait)
		select {
		case <-due.C:
		case <-moved:
			due.Stop()
		case <-ctx.Done():
			due.Stop()
			return ctx.Err()
		}
	}
}

// Revoke ends a lease that is alive, as an operator or a stale leader does. It says
// whether there was one.
func (s *Server) Revoke(id int64) bool {
	s.enter()
	defer s.mu.Unlock()
	l := s.lessor.leases[id]
	if l != nil {
		s.endLease(l, ByRevoke)
	}
	return l != nil
}

// LeaseGrant implements etcd's Lease service.
func (s *Server) LeaseGrant(_ context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if err := s.begin(pb.Lease_LeaseGrant_FullMethodName); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	switch {
	case r.TTL > longestTTL:
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	case s.lessor.known(r.ID):
		return nil, rpctypes.ErrGRPCLeaseExist
	}
	l := &lease{id: r.ID, ttl: max(time.Duration(r.TTL)*time.Second, s.cfg.MinTTL), keys: map[string]bool{}}
	for l.id == 0 || s.lessor.known(l.id) {
		s.lessor.lastID++
		l.id = s.lessor.lastID
	}
	s.lessor.leases[l.id] = l
	s.lessor.set(l, s.cfg.Now().Add(l.ttl))
	return &pb.LeaseGrantResponse{Header: s.head(&pb.ResponseHeader{}), ID: l.id, TTL: seconds(l.ttl)}, nil
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

// LeaseRevoke implements etcd's Lease service.
func (s *Server) LeaseRevoke(_ context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	if err := s.begin(pb.Lease_LeaseRevoke_FullMethodName); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	l := s.lessor.leases[r.ID]
	if l == nil {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	s.endLease(l, ByRevoke)
	return &pb.LeaseRevokeResponse{Header: s.head(&pb.ResponseHeader{})}, nil
}

// LeaseTimeToLive implements etcd's Lease service.
func (s *Server) LeaseTimeToLive(_ context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	if err := s.begin(pb.Lease_LeaseTimeToLive_FullMethodName); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	answer := &pb.LeaseTimeToLiveResponse{Header: s.head(&pb.ResponseHeader{}), ID: r.ID, TTL: -1}
	if l := s.lessor.leases[r.ID]; l != nil {
		answer.TTL, answer.GrantedTTL = seconds(l.deadline.Sub(s.cfg.Now())), seconds(l.ttl)
		if r.Keys {
			for _, key := range slices.Sorted(maps.Keys(l.keys)) {
				answer.Keys = append(answer.Keys, []byte(key))
			}
		}
	}
	return answer, nil
}

// LeaseLeases implements etcd's Lease service.
func (s *Server) LeaseLeases(context.Context, *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	if err := s.begin(pb.Lease_LeaseLeases_FullMethodName); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	answer := &pb.LeaseLeasesResponse{Header: s.head(&pb.ResponseHeader{})}
	for _, l := range slices.SortedFunc(maps.Values(s.lessor.leases), (*lease).before) {
		answer.Leases = append(answer.Leases, &pb.LeaseStatus{ID: l.id})
	}
	return answer, nil
}

// LeaseKeepAlive implements etcd's Lease service.
func (s *Server) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		answer, err := s.renew(stream.Context(), r.ID)
		if err != nil {
			return err
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

// renew gives the lease its whole TTL again. TTL 0 says that there is none. The header is
// of the time when the request came. An overdue lease is waited for: it ends, or a new
// leader refreshes it, or ctx ends.
func (s *Server) renew(ctx context.Context, id int64) (*pb.LeaseKeepAliveResponse, error) {
	if err := s.begin(pb.Lease_LeaseKeepAlive_FullMethodName); err != nil {
		return nil, err
	}
	answer := &pb.LeaseKeepAliveResponse{Header: s.head(&pb.ResponseHeader{}), ID: id}
	for {
		l, now := s.lessor.leases[id], s.cfg.Now()
		switch {
		case s.leaderless:
			s.mu.Unlock()
			return nil, ErrNoLeader
		case l == nil:
			s.mu.Unlock()
			return answer, nil
		case l.deadline.After(now):
			s.lessor.set(l, now.Add(l.ttl))
			answer.TTL = seconds(l.ttl)
			s.mu.Unlock()
			return answer, nil
		}
		moved := s.lessor.moved
		end := time.NewTimer(l.deadline.Add(s.cfg.ExpiryDelay).Sub(now))
		s.mu.Unlock()
		select {
		case <-moved:
		case <-end.C:
		case <-ctx.Done():
			end.Stop()
			return nil, ctx.Err()
		}
		end.Stop()
		s.enter()
	}
}
