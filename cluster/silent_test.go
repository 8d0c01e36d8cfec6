package cluster

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"holdfast/cluster/memory"
)

// quiet is a member of an etcd in memory, reached through pipes. It keeps its connections
// and may answer nothing.
type quiet struct {
	listener *bufconn.Listener
	noReads  atomic.Bool
	ahead    bool        // it sees the end of a request's time before the client does
	noNews   atomic.Bool // watches are not answered and told nothing
	watched  atomic.Int32
	dials    atomic.Int32
}

func (m *quiet) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if m.noReads.Load() {
		if end, bounded := ctx.Deadline(); bounded && m.ahead {
			time.Sleep(time.Until(end) - time.Millisecond)
			return nil, context.DeadlineExceeded
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return handle(ctx, req)
}

func (m *quiet) stream(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	m.watched.Add(1)
	defer m.watched.Add(-1)
	return handle(srv, muted{s, m})
}

type muted struct {
	grpc.ServerStream
	m *quiet
}

func (s muted) SendMsg(answer any) error {
	if s.m.noNews.Load() {
		return nil
	}
	return s.ServerStream.SendMsg(answer)
}

type quietMembers []*quiet

func (all quietMembers) at(addr string) *quiet { return all[addr[0]-'a'] }

// watched is the member at which something is watched.
func (all quietMembers) watched(t *testing.T) *quiet {
	t.Helper()
	synctest.Wait()
	for _, m := range all {
		if m.watched.Load() > 0 {
			return m
		}
	}
	t.Fatal("nothing is watched")
	return nil
}

// amongMembers runs a claim in virtual time, with a main client of n members of one store.
func amongMembers(t *testing.T, n int, claim func(t *testing.T, c *Client, all quietMembers, put func(key string))) {
	synctest.Test(t, func(t *testing.T) {
		store, cfg, all := memory.New(memory.Config{}), Config{}, quietMembers{}
		for i := range n {
			m := &quiet{listener: bufconn.Listen(1 << 16)}
			server := grpc.NewServer(grpc.UnaryInterceptor(m.unary), grpc.StreamInterceptor(m.stream),
				grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second})) // as etcd's
			store.Register(server)
			go server.Serve(m.listener)
			defer server.Stop()
			all, cfg.Endpoints = append(all, m), append(cfg.Endpoints, fmt.Sprintf("http://%c:1", 'a'+i))
		}
		c, err := openMain(cfg, nil, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			m := all.at(addr)
			if m.dials.Add(1) > 1 && n == 1 { // one address has more members behind it
				m.noReads.Store(false)
				m.noNews.Store(false)
			}
			return m.listener.DialContext(ctx)
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		claim(t, c, all, func(key string) {
			t.Helper()
			if _, err := store.Put(t.Context(), &pb.PutRequest{Key: []byte(key)}); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// changesOf follows a key, and has a value for each time that it was there.
func changesOf(t *testing.T, c *Client, key string) <-chan struct{} {
	changes := make(chan struct{}, 10)
	go c.Follow(t.Context(), Target{Key: key}, func(u Update) {
		if len(u.Puts) > 0 {
			changes <- struct{}{}
		}
	}, nil)
	return changes
}

func within(t *testing.T, bound time.Duration, changes <-chan struct{}) {
	t.Helper()
	select {
	case <-changes:
	case <-time.After(bound):
		t.Errorf("a change is not seen within %v", bound)
	}
}

// A deposed leader that hangs in a disk write answers pings, keeps its watches, and has
// nothing to tell. Nobody asks it anything else.
func TestAWatchLeavesAMemberThatAnswersNoRead(t *testing.T) {
	for name, row := range map[string]struct {
		n     int
		ahead bool
	}{"one of three": {3, false}, "one of those behind an address": {1, false}, "one that is ahead of our clock": {1, true}} {
		t.Run(name, func(t *testing.T) {
			amongMembers(t, row.n, func(t *testing.T, c *Client, all quietMembers, put func(string)) {
				changes := changesOf(t, c, "/x")
				stuck := all.watched(t)
				stuck.ahead = row.ahead
				time.Sleep(time.Hour)
				if all.watched(t) != stuck || stuck.dials.Load() != 1 {
					t.Error("a member that is well was left")
				}
				stuck.noReads.Store(true)
				stuck.noNews.Store(true)
				put("/x")
				within(t, 36*time.Second, changes)
				time.Sleep(time.Hour)
				if row.n > 1 && all.watched(t) == stuck {
					t.Error("the watch went back")
				}
			})
		})
	}
}

// What stands before a member answers pings and passes reads on.
func TestAWatchLeavesAWayThatTellsItNothing(t *testing.T) {
	for name, n := range map[string]int{"one of three": 3, "one of those behind an address": 1} {
		t.Run(name, func(t *testing.T) {
			amongMembers(t, n, func(t *testing.T, c *Client, all quietMembers, put func(string)) {
				changes := changesOf(t, c, "/x")
				mute := all.watched(t)
				put("/y") // from here on etcd answers progress requests
				time.Sleep(time.Hour)
				if all.watched(t) != mute || mute.dials.Load() != 1 {
					t.Error("a member that is well was left")
				}
				mute.noNews.Store(true)
				put("/x")
				within(t, signEach*reachEvery+2*pageTimeout+time.Second, changes)
				if n > 1 && all.watched(t) == mute {
					t.Error("the watch stays")
				}
			})
		})
	}
}

// Reads are answered all the while, and so was the watch before.
func TestAWatchThatIsNotTakenUpMovesTheLine(t *testing.T) {
	for name, n := range map[string]int{"one of three": 3, "one of those behind an address": 1} {
		t.Run(name, func(t *testing.T) {
			amongMembers(t, n, func(t *testing.T, c *Client, all quietMembers, put func(string)) {
				first := changesOf(t, c, "/x")
				deaf := all.watched(t)
				deaf.noNews.Store(true)
				put("/x")
				put("/y")
				second := changesOf(t, c, "/y")
				every := time.NewTicker(time.Second)
				defer every.Stop()
				go func() {
					for {
						select {
						case <-t.Context().Done():
							return
						case <-every.C:
							_ = c.Reach(t.Context())
						}
					}
				}()
				<-second // it is listed
				put("/y")
				within(t, 6*time.Second, second)
				within(t, time.Second, first)
				if n > 1 && all.watched(t) == deaf {
					t.Error("the line stays")
				}
			})
		})
	}
}

// A renewal's proof has an attempt's time, which with a short TTL is half a second.
func TestAReadHasTimeForASecondEndpoint(t *testing.T) {
	for _, limit := range []time.Duration{500 * time.Millisecond, time.Second, 10 * time.Second} {
		t.Run(limit.String(), func(t *testing.T) {
			amongMembers(t, 3, func(t *testing.T, c *Client, all quietMembers, _ func(string)) {
				changesOf(t, c, "/x")
				all.watched(t).noReads.Store(true)
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				began := time.Now()
				if _, _, err := c.Registered(ctx, "b1"); err != nil {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				if took := time.Since(began); took > readPatience {
					t.Errorf("answered after %v", took)
				}
			})
		})
	}
}
