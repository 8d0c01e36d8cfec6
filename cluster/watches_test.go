package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// streams counts the watch streams over a connection, and what is cancelled on them.
type streams struct {
	grpc.ClientConnInterface
	opened, open atomic.Int32
	creates      atomic.Int32
	cancels      atomic.Int32
	refuse       atomic.Bool // the next watch that is asked for
	deaf         bool        // the next stream is never answered
}

func (s *streams) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	inner, err := s.ClientConnInterface.NewStream(ctx, d, method, opts...)
	if err != nil || method != pb.Watch_Watch_FullMethodName {
		return inner, err
	}
	s.opened.Add(1)
	s.open.Add(1)
	context.AfterFunc(ctx, func() { s.open.Add(-1) })
	c := &countedStream{inner, s, s.deaf}
	s.deaf = false
	return c, nil
}

func (s *streams) expect(t *testing.T, opened, open int32) {
	t.Helper()
	if s.opened.Load() != opened || s.open.Load() != open {
		t.Errorf("%d streams opened, %d open; want %d and %d", s.opened.Load(), s.open.Load(), opened, open)
	}
}

type countedStream struct {
	grpc.ClientStream
	of   *streams
	deaf bool
}

func (c *countedStream) RecvMsg(m any) error {
	if c.deaf {
		<-c.Context().Done()
		return c.Context().Err()
	}
	err := c.ClientStream.RecvMsg(m)
	if a := m.(*pb.WatchResponse); a.Created && c.of.refuse.CompareAndSwap(true, false) {
		a.WatchId, a.Canceled, a.CancelReason = -1, true, "etcdserver: permission denied"
	}
	return err
}

func (c *countedStream) SendMsg(m any) error {
	switch m.(*pb.WatchRequest).RequestUnion.(type) {
	case *pb.WatchRequest_CreateRequest:
		c.of.creates.Add(1)
	case *pb.WatchRequest_CancelRequest:
		c.of.cancels.Add(1)
	}
	return c.ClientStream.SendMsg(m)
}

// followed is one Follow and what it was told.
type followed struct {
	mu    sync.Mutex
	told  []string // "full a b", "put a", "delete a", "error …"
	leave func()
}

// following follows what begins with prefix, and takes its time with each delivery.
func following(t *testing.T, c *cluster.Client, prefix string, slow ...time.Duration) *followed {
	ctx, cancel := context.WithCancel(t.Context())
	f := &followed{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Follow(ctx, cluster.Target{Key: prefix, Prefix: true}, func(u cluster.Update) {
			for _, d := range slow {
				time.Sleep(d)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			what := "put"
			if u.Full {
				what = "full"
			}
			if u.Full || len(u.Puts) > 0 {
				f.told = append(f.told, fmt.Sprint(what, u.PutKeys()))
			}
			if len(u.Deletes) > 0 {
				f.told = append(f.told, fmt.Sprint("delete", u.Deletes))
			}
		}, func(err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.told = append(f.told, "error "+err.Error())
		})
	}()
	f.leave = func() { cancel(); <-done }
	t.Cleanup(f.leave)
	return f
}

func (f *followed) expect(t *testing.T, want ...string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.told, want) {
		t.Errorf("told %q, want %q", f.told, want)
	}
	f.told = nil
}

// inMemory runs a claim over an etcd in memory.
func inMemory(t *testing.T, claim func(t *testing.T, s *memory.Server, c *cluster.Client, n *streams, put func(key string))) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Config{})
		n := &streams{ClientConnInterface: s.Conn(nil)}
		c := cluster.Over(cluster.Config{}, n, nil)
		t.Cleanup(func() { c.Close() })
		kv := pb.NewKVClient(s.Conn(nil))
		claim(t, s, c, n, func(key string) {
			t.Helper()
			if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte(key)}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		})
	})
}

func TestAllWatchesShareOneStreamAndEachIsToldItsOwn(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memory.Server, c *cluster.Client, n *streams, put func(string)) {
		put("/a/1")
		a, b := following(t, c, "/a/"), following(t, c, "/b/")
		synctest.Wait()
		put("/a/2")
		put("/b/2")
		a.expect(t, "full[/a/1]", "put[/a/2]")
		b.expect(t, "full[]", "put[/b/2]")
		n.expect(t, 1, 1)
		a.leave()
		put("/a/3")
		put("/b/3")
		a.expect(t)
		b.expect(t, "put[/b/3]")
		n.expect(t, 1, 1)
		if n.cancels.Load() != 1 {
			t.Errorf("%d watches cancelled, want 1", n.cancels.Load())
		}
		b.leave()
		synctest.Wait()
		n.expect(t, 1, 0)
	})
}

func TestWhoIsSlowKeepsNobodyWaiting(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memory.Server, c *cluster.Client, n *streams, put func(string)) {
		slow := following(t, c, "/", 3*time.Second)
		quick := following(t, c, "/")
		synctest.Wait()
		time.Sleep(6 * time.Second) // the slow one has its list
		put("/1")
		put("/2")
		slow.expect(t, "full[]")
		quick.expect(t, "full[]", "put[/1]", "put[/2]")
		time.Sleep(9 * time.Second)
		slow.expect(t, "put[/1]", "put[/2]")
	})
}

func TestAStreamThatFailsRestartsAllWatchesOnOneOther(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memory.Server, c *cluster.Client, n *streams, put func(string)) {
		a, b := following(t, c, "/a/"), following(t, c, "/b/")
		synctest.Wait()
		s.EndWatches(memory.ErrNoLeader)
		time.Sleep(time.Second)
		put("/a/1")
		put("/b/1")
		a.expect(t, "full[]", "error follow /a/: watch: etcdserver: no leader", "full[]", "put[/a/1]")
		b.expect(t, "full[]", "error follow /b/: watch: etcdserver: no leader", "full[]", "put[/b/1]")
		n.expect(t, 2, 1)
	})
}

// What could not be listed, at first or again, is not gone.
func TestAListThatFailsTellsNothing(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memory.Server, c *cluster.Client, _ *streams, put func(string)) {
		put("/a/1")
		s.SetFault(func(string) error { return memory.ErrNoLeader })
		a := following(t, c, "/a/")
		time.Sleep(10 * time.Second)
		a.expect(t, "error follow /a/: list: etcdserver: no leader")
		s.SetFault(nil)
		time.Sleep(10 * time.Second)
		a.expect(t, "full[/a/1]")
		s.SetFault(func(string) error { return memory.ErrNoLeader })
		time.Sleep(time.Minute)
		a.expect(t, "error follow /a/: list: etcdserver: no leader")
	})
}

// Each list is followed by a watch that begins, and so by a failure that is a new one.
func TestWatchesThatEndAsSoonAsTheyBeganAreNotListedAgainAndAgain(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memory.Server, c *cluster.Client, n *streams, put func(string)) {
		a := following(t, c, "/a/")
		for range 3000 {
			time.Sleep(10 * time.Millisecond)
			s.EndWatches(memory.ErrNoLeader)
		}
		if most := int32(30); n.opened.Load() > most {
			t.Errorf("%d streams in 30 s, want at most %d", n.opened.Load(), most)
		}
		time.Sleep(10 * time.Second)
		a.mu.Lock()
		a.told = nil
		a.mu.Unlock()
		s.EndWatches(memory.ErrNoLeader)
		time.Sleep(150 * time.Millisecond)
		a.expect(t, "error follow /a/: watch: etcdserver: no leader", "full[]")
	})
}

// Whatever a watch died of: what it kept back is told by the next list.
func TestAWatchThatTellsNothingCostsOneInterval(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memory.Server, c *cluster.Client, n *streams, put func(string)) {
		n.deaf = true
		a, b := following(t, c, "/a/"), following(t, c, "/b/")
		synctest.Wait()
		put("/a/1")
		put("/b/1")
		time.Sleep(30*time.Second + 100*time.Millisecond) // the first pause
		unopened := ": watch: etcd answers lists and opens no watch: what changes is seen with the next list"
		a.expect(t, "full[]", "error follow /a/"+unopened, "full[/a/1]")
		b.expect(t, "full[]", "error follow /b/"+unopened, "full[/b/1]")
	})
}

func TestAWatchThatIsRefusedEndsNoOther(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memory.Server, c *cluster.Client, n *streams, put func(string)) {
		a := following(t, c, "/a/")
		synctest.Wait()
		n.refuse.Store(true)
		b := following(t, c, "/b/")
		time.Sleep(time.Second)
		put("/a/1")
		put("/b/1")
		a.expect(t, "full[]", "put[/a/1]")
		b.expect(t, "full[]", "error follow /b/: watch: etcdserver: permission denied to read /b/: etcdctl role grant-permission ROLE --prefix=true read /b/", "full[]", "put[/b/1]")
	})
}

func TestACompactionEndsOnlyTheWatchThatItIsFor(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memory.Server, c *cluster.Client, n *streams, put func(string)) {
		a := following(t, c, "/a/")
		synctest.Wait()
		b := following(t, c, "/b/", time.Second) // between its list and its watch
		synctest.Wait()
		put("/a/1")
		put("/a/2")
		if _, err := s.Compact(t.Context(), &pb.CompactionRequest{Revision: 3}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		put("/b/1")
		time.Sleep(2 * time.Second)
		a.expect(t, "full[]", "put[/a/1]", "put[/a/2]")
		b.expect(t, "full[]", "error follow /b/: watch: etcdserver: mvcc: required revision has been compacted", "full[]", "put[/b/1]")
		n.expect(t, 1, 1)
	})
}
