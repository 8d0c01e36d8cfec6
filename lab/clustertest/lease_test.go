package clustertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy"
	"google.golang.org/grpc"

	"holdfast/cluster"
	"holdfast/lab/harness"
)

func TestLeaseLivesAndEnds(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		id, granted, err := c.Grant(bounded(t), 60*time.Second+time.Millisecond)
		if err != nil || granted != 61*time.Second {
			t.Fatalf("granted %v, %v; want the TTL rounded up to 61s", granted, err)
		}
		if got, err := c.KeepAlive(bounded(t), id); err != nil || got.Granted != granted || got.Revision == 0 || got.Term == 0 {
			t.Errorf("renewed as %+v, %v", got, err)
		}
		if left, err := c.LeaseLeft(bounded(t), id); err != nil || !left.Found || left.Left < 30*time.Second || left.Granted != granted {
			t.Errorf("left %+v, %v", left, err)
		}
		for _, when := range []string{"first", "second"} {
			if err := c.Revoke(bounded(t), id); err != nil {
				t.Errorf("%s revoke: %v", when, err)
			}
		}
		if _, err := c.KeepAlive(bounded(t), id); !errors.Is(err, cluster.ErrLeaseNotFound) || cluster.Classify(err) != cluster.ClassLeaseNotFound {
			t.Errorf("renewing a revoked lease: %v, want ErrLeaseNotFound", err)
		}
		if left, err := c.LeaseLeft(bounded(t), id); err != nil || left.Found || left.Left != 0 {
			t.Errorf("a revoked lease: %+v, %v", left, err)
		}
	})
}

// etcd's grpc-proxy gives a stream up when it is half-closed, with the answer still to come.
func TestEveryRenewalIsConfirmedThroughEtcdsOwnProxy(t *testing.T) {
	url, streams := grpcProxy(t)
	cfg := cluster.Config{Endpoints: []string{url}, Prefix: prefix(t)}
	c, l := open(t, cfg), openLine(t, cfg)
	id := lease(t, c, time.Minute)
	for i := range 5 { // the proxy looks each 500 ms at what it has to renew
		renewal, err := l.KeepAlive(bounded(t), id, false)
		_, term, unread := c.Registered(bounded(t), "b1")
		if err != nil || unread != nil || renewal.Granted != time.Minute || renewal.Term == 0 || renewal.Term != term {
			t.Errorf("renewal %d: %+v, %v; read in term %d, %v", i, renewal, err, term, unread)
		}
	}
	if err := harness.Await(t.Context(), wait, "the streams to end", func(context.Context) (bool, string) {
		n := streams.Load()
		return n == 0, fmt.Sprintf("%d are open", n)
	}); err != nil {
		t.Error(err)
	}
}

// grpcProxy serves the shared etcd through etcd's own proxy, and counts the streams that are open
// there.
func grpcProxy(t *testing.T) (url string, streams *atomic.Int32) {
	t.Helper()
	raw, err := dialRaw(clientv3.Config{Endpoints: []string{shared.url}})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	streams = &atomic.Int32{}
	services := grpc.NewServer(grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		streams.Add(1)
		defer streams.Add(-1)
		return handle(srv, s)
	}))
	kv, _ := grpcproxy.NewKvProxy(raw)
	leases, ended := grpcproxy.NewLeaseProxy(raw.Ctx(), raw)
	pb.RegisterKVServer(services, kv)
	pb.RegisterLeaseServer(services, leases)
	go services.Serve(listener)
	t.Cleanup(func() {
		services.Stop()
		raw.Close()
		<-ended
	})
	return "http://" + listener.Addr().String(), streams
}

// A member without its quorum answers connections and even pings; it must count as failed.
func TestMemberWithoutQuorumIsNoLeader(t *testing.T) {
	dir := t.TempDir()
	var members []*embed.Config
	var initial string
	for _, name := range []string{"m1", "m2"} {
		cfg, err := etcdConfig(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, cfg)
		if initial != "" {
			initial += ","
		}
		initial += cfg.InitialCluster
	}
	var servers []*embed.Etcd
	var stops []func()
	for _, cfg := range members {
		cfg.InitialCluster = initial
		server, err := embed.StartEtcd(cfg)
		if err != nil {
			t.Fatal(err)
		}
		stop := sync.OnceFunc(server.Close) // a second Close panics
		t.Cleanup(stop)
		servers, stops = append(servers, server), append(stops, stop)
	}
	for _, server := range servers {
		select {
		case <-server.Server.ReadyNotify():
		case <-time.After(wait):
			t.Fatal("two members did not form a cluster")
		}
	}
	cfg := cluster.Config{Endpoints: []string{members[0].AdvertiseClientUrls[0].String()}}
	c, l := open(t, cfg), openLine(t, cfg)
	id := lease(t, c, time.Minute)
	// A watch of a member that is cut off must end too, not stay silent.
	watchFailed := make(chan error, 100)
	ctx, stop := context.WithCancel(t.Context())
	followed := make(chan struct{})
	listed := make(chan struct{}, 100)
	go func() {
		defer close(followed)
		_ = c.Follow(ctx, cluster.Target{Key: "/x"}, func(cluster.Update) { listed <- struct{}{} }, func(err error) { watchFailed <- err })
	}()
	defer func() { stop(); <-followed }()
	<-listed
	stops[1]()
	ask := map[string]func(context.Context) error{
		"snapshot":   func(ctx context.Context) error { _, err := c.Snapshot(ctx, "b1"); return err },
		"write":      func(ctx context.Context) error { _, err := note(ctx, c, "b1"); return err },
		"grant":      func(ctx context.Context) error { _, _, err := c.Grant(ctx, time.Minute); return err },
		"keep-alive": func(ctx context.Context) error { _, err := c.KeepAlive(ctx, id); return err },
		"line":       func(ctx context.Context) error { _, err := l.KeepAlive(ctx, id, false); return err },
	}
	for name, request := range ask {
		// The member needs an election timeout to notice; until then it may time out.
		deadline := bounded(t)
		for {
			ctx, cancel := context.WithTimeout(deadline, time.Second)
			err := request(ctx)
			cancel()
			if cluster.Classify(err) == cluster.ClassNoLeader {
				break
			}
			if deadline.Err() != nil {
				t.Fatalf("%s: %v of class %q, want no_leader", name, err, cluster.Classify(err))
			}
		}
	}
	select {
	case err := <-watchFailed:
		t.Logf("watch: %v (%s)", err, cluster.Classify(err))
	case <-time.After(wait):
		t.Error("the watch stayed silent on a member without a leader")
	}
}
