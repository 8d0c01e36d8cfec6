package cluster_test

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

const wait = 20 * time.Second

// endpoint is a member of an etcd in memory, behind a socket.
type endpoint struct {
	url      string
	hangs    atomic.Bool // reads are not answered
	live     atomic.Int32
	accepted atomic.Int32
	change   func(answer any) // nil: answers stay as they are
}

func (e *endpoint) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if _, ok := req.(*pb.RangeRequest); ok && e.hangs.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	answer, err := handle(ctx, req)
	if e.change != nil && err == nil {
		e.change(answer)
	}
	return answer, err
}

// counted counts the connections of a listener.
type counted struct {
	net.Listener
	e *endpoint
}

type countedConn struct {
	net.Conn
	end func()
}

func (l counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.e.accepted.Add(1)
	l.e.live.Add(1)
	return countedConn{c, sync.OnceFunc(func() { l.e.live.Add(-1) })}, nil
}

func (c countedConn) Close() error { c.end(); return c.Conn.Close() }

// members serves one store at several endpoints.
func members(t *testing.T, n int) (store *memory.Server, all []*endpoint, urls []string) {
	t.Helper()
	store = memory.New(memory.Config{})
	for range n {
		e := &endpoint{}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		e.url = "http://" + listener.Addr().String()
		server := grpc.NewServer(grpc.UnaryInterceptor(e.unary))
		store.Register(server)
		go server.Serve(counted{listener, e})
		t.Cleanup(server.Stop)
		all, urls = append(all, e), append(urls, e.url)
	}
	return store, all, urls
}

// split returns the endpoint of that URL, and the others.
func split(all []*endpoint, url string) (it *endpoint, others []*endpoint) {
	for _, e := range all {
		if e.url == url {
			it = e
		} else {
			others = append(others, e)
		}
	}
	return it, others
}

type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *lines) log() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	t.Cleanup(cancel)
	return ctx
}

func openLine(t *testing.T, urls []string) (*cluster.Line, *cluster.Client, *lines) {
	t.Helper()
	said := &lines{}
	l, err := cluster.OpenLine(cluster.Config{Endpoints: urls}, said.log())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c, err := l.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l, c, said
}

// eventually waits for a state that others bring about.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(wait); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never %s", what)
		}
	}
}

func grantOf(t *testing.T, c *cluster.Client) int64 {
	t.Helper()
	id, _, err := c.Grant(bounded(t), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestAnEndpointThatRenewsAndDoesNotReadIsLeft(t *testing.T) {
	_, all, urls := members(t, 3)
	l, c, said := openLine(t, urls)
	id := grantOf(t, c)
	renewal, err := l.KeepAlive(bounded(t), id, false)
	if err != nil || renewal.Term == 0 {
		t.Fatal(renewal, err)
	}
	stuck, _ := split(all, l.Endpoint())
	stuck.hangs.Store(true)
	began := time.Now()
	if reg, term, err := c.Registered(bounded(t), "b1"); err != nil || reg != nil || term != renewal.Term {
		t.Fatalf("read %v in term %d, %v", reg, term, err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("another endpoint answered after %v", took)
	}
	if l.Endpoint() == stuck.url {
		t.Error("the line stays with an endpoint that does not answer reads")
	}
	if log := said.String(); !strings.Contains(log, "confirms renewals and does not answer reads") || !strings.Contains(log, stuck.url) {
		t.Errorf("logged: %s", log)
	}
	for _, e := range l.Endpoints() {
		if e.Up == (e.URL == stuck.url) {
			t.Errorf("%+v, and %s is stuck", e, stuck.url)
		}
	}
	eventually(t, "one connection only", func() bool { return stuck.live.Load() == 0 })
}

func TestAFreshRenewalAfterOneThatWasAnsweredGoesElsewhere(t *testing.T) {
	_, _, urls := members(t, 2)
	l, c, _ := openLine(t, urls)
	id := grantOf(t, c)
	for range 3 {
		before := ""
		if _, err := l.KeepAlive(bounded(t), id, false); err == nil {
			before = l.Endpoint()
		}
		if _, err := l.KeepAlive(bounded(t), id, true); err != nil || before == "" || l.Endpoint() == before {
			t.Fatalf("over %s after %s, %v", l.Endpoint(), before, err)
		}
	}
	for _, e := range l.Endpoints() {
		if !e.Up {
			t.Errorf("%+v: one that is behind for a moment has not failed", e)
		}
	}
}

// The main client and the line have one connection each, whatever is asked and watched.
func TestASidecarHasTwoConnections(t *testing.T) {
	_, all, urls := members(t, 3)
	l, c, _ := openLine(t, urls)
	main, err := cluster.Open(cluster.Config{Endpoints: urls}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer main.Close()
	id := grantOf(t, c)
	for range 20 {
		if _, err := l.KeepAlive(bounded(t), id, false); err != nil {
			t.Fatal(err)
		}
		if _, err := main.Snapshot(bounded(t), "b1"); err != nil {
			t.Fatal(err)
		}
	}
	accepted := int32(0)
	for _, e := range all {
		accepted += e.accepted.Load()
	}
	if accepted != 2 {
		t.Errorf("%d connections were made, want 2", accepted)
	}
}

func TestAWatchDoesNotKeepAConnectionThatIsNotUsedAnyMore(t *testing.T) {
	_, all, urls := members(t, 2)
	main, err := cluster.Open(cluster.Config{Endpoints: urls}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer main.Close()
	lists := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = main.Follow(ctx, cluster.Target{Key: main.Keys().Era()}, func(cluster.Update) { lists <- struct{}{} }, func(error) {})
	}()
	defer func() { cancel(); <-ended }()
	<-lists
	var first *endpoint
	for _, e := range all {
		if e.live.Load() > 0 {
			first = e
		}
	}
	first.hangs.Store(true)
	eventually(t, "left by the watch", func() bool {
		if _, _, err := main.Registered(bounded(t), "b1"); err != nil {
			t.Fatal(err)
		}
		return first.live.Load() == 0
	})
	<-lists // and begun anew
	_, others := split(all, first.url)
	eventually(t, "on one connection", func() bool { return others[0].live.Load() == 1 })
}

func TestRemainingTimeIsNeverMoreThanWasGranted(t *testing.T) {
	for _, c := range []struct {
		name         string
		ttl, granted int64
		want         time.Duration
	}{
		{"sound", 50, 60, 50 * time.Second},
		{"a lease that has no end yet", 9223372036, 60, time.Minute},
		{"granted is not said", 9223372036, 0, math.MaxInt32 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, all, urls := members(t, 1)
			_, client, _ := openLine(t, urls)
			id := grantOf(t, client)
			all[0].change = func(answer any) {
				if a, ok := answer.(*pb.LeaseTimeToLiveResponse); ok {
					a.TTL, a.GrantedTTL = c.ttl, c.granted
				}
			}
			if got, found, err := client.TimeToLive(bounded(t), id); err != nil || !found || got != c.want {
				t.Errorf("%v, %v, %v; want %v", got, found, err, c.want)
			}
		})
	}
}
