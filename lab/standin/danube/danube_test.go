package danube_test

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/harness"
	"holdfast/lab/standin/danube"
)

// bound is for every wait; reaching it is a failure.
const bound = harness.Patience

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	code := m.Run()
	// The embedded members leave a connection among themselves behind now and then.
	if err := harness.AwaitNone(func() error {
		return goleak.Find(
			goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
			goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"),
			goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
			goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		)
	}); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// store is a real etcd and the lab's own client of it.
type store struct {
	t   *testing.T
	url string
	*clientv3.Client
	keys harness.Keys
}

// newEtcd starts an etcd that ends with the test, which runs beside others: the broker's
// keys have no prefix, so none is shared.
func newEtcd(t *testing.T) *store {
	t.Helper()
	t.Parallel()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.Name = filepath.Join(t.TempDir(), "etcd"), "e"
	cfg.LogLevel, cfg.Logger, cfg.LogOutputs = "error", "zap", []string{filepath.Join(t.TempDir(), "etcd.log")}
	cfg.TickMs, cfg.ElectionMs, cfg.UnsafeNoFsync = 20, 200, true
	var urls []url.URL
	for range 2 {
		port, release, err := harness.ReservePort()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { release() })
		urls = append(urls, url.URL{Scheme: "http", Host: "127.0.0.1:" + strconv.Itoa(port)})
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = urls[:1], urls[:1]
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = urls[1:], urls[1:]
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(bound):
		t.Fatal("etcd is not ready")
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{urls[0].String()}, DialTimeout: bound, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &store{t: t, url: urls[0].String(), Client: c}
}

func (s *store) put(key, value string) {
	s.t.Helper()
	if _, err := s.Put(s.t.Context(), key, value); err != nil {
		s.t.Fatal(err)
	}
}

func (s *store) remove(key string) {
	s.t.Helper()
	if _, err := s.Delete(s.t.Context(), key); err != nil {
		s.t.Fatal(err)
	}
}

// value is "" without the key.
func (s *store) value(key string) string {
	s.t.Helper()
	r, err := s.Get(s.t.Context(), key)
	if err != nil {
		s.t.Fatal(err)
	}
	if len(r.Kvs) == 0 {
		return ""
	}
	return string(r.Kvs[0].Value)
}

func (s *store) await(key, value string) {
	s.t.Helper()
	await(s.t, key+" to be "+value, func() (bool, string) { v := s.value(key); return v == value, v })
}

// describe writes what a topic needs to be loaded.
func (s *store) describe(topic string) { s.put("/topics"+topic+"/delivery", `"Reliable"`) }

// serve assigns the topic to the broker and waits until it is loaded.
func (s *store) serve(b *node, topic string) {
	s.t.Helper()
	s.describe(topic)
	s.put(s.keys.Assignment(b.ID(), topic), "null")
	b.awaitLoaded(topic)
}

func await(t *testing.T, what string, look func() (bool, string)) {
	t.Helper()
	if err := harness.Await(context.WithoutCancel(t.Context()), bound, what, func(context.Context) (bool, string) { return look() }); err != nil {
		t.Fatal(err)
	}
}

// quick are the periods of tests: nothing but the TTL is waited for.
func quick(ttl time.Duration) danube.Times {
	times := danube.TimesFor(ttl)
	times.Report, times.LeaderCheck = 50*time.Millisecond, 50*time.Millisecond
	times.Assign = 100 * time.Millisecond
	return times
}

// node is a broker in this process, and a client of it.
type node struct {
	t *testing.T
	*danube.Broker
	danube.Client
	brokers   danubepb.BrokerAdminClient
	topics    danubepb.TopicAdminClient
	cluster   danubepb.ClusterAdminClient
	discovery danubepb.DiscoveryClient
	dir       string
	admin     *grpc.ClientConn
}

// etcdNode starts a broker of release 0.7 that ends with the test. change may be nil.
func etcdNode(t *testing.T, s *store, change func(*danube.Config)) *node {
	t.Helper()
	cfg := danube.Config{Etcd: s.url, DataDir: t.TempDir(), Times: quick(bound), Stderr: io.Discard}
	if change != nil {
		change(&cfg)
	}
	b, err := danube.Etcd(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return attach(t, b, cfg.DataDir)
}

func attach(t *testing.T, b *danube.Broker, dir string) *node {
	t.Helper()
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close broker: %v", err)
		}
	})
	client, admin := dial(t, b.ClientAddr()), dial(t, b.AdminAddr())
	return &node{
		t: t, Broker: b, dir: dir, Client: danube.NewClient(client), admin: admin,
		brokers: danubepb.NewBrokerAdminClient(admin), topics: danubepb.NewTopicAdminClient(admin),
		cluster: danubepb.NewClusterAdminClient(admin), discovery: danubepb.NewDiscoveryClient(client),
	}
}

func dial(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (n *node) awaitLoaded(topics ...string) {
	n.t.Helper()
	await(n.t, fmt.Sprintf("%v to be loaded", topics), func() (bool, string) {
		saw := fmt.Sprint(n.Loaded())
		return saw == fmt.Sprint(topics), saw
	})
}

func (n *node) awaitDisaster(kind danube.Kind, topic string) {
	n.t.Helper()
	await(n.t, string(kind), func() (bool, string) {
		all := n.Disasters()
		return len(all) > 0 && all[0].Kind == kind && all[0].Topic == topic, fmt.Sprint(all)
	})
	stored, err := danube.Disasters(n.dir)
	if err != nil || len(stored) == 0 || stored[0].Kind != kind {
		n.t.Errorf("the data directory remembers %v, %v", stored, err)
	}
}

// noDisaster is checked at the end of a test that must be without one.
func (n *node) noDisaster() {
	n.t.Helper()
	for _, d := range n.Disasters() {
		n.t.Error(d)
	}
}

func (n *node) produce(topic string, count int) {
	n.t.Helper()
	for i := range count {
		if _, err := n.Produce(n.t.Context(), topic, []byte(strconv.Itoa(i))); err != nil {
			n.t.Fatal(err)
		}
	}
}

// Status is the broker's own, without its port.
func (n *node) Status() danube.Status { return n.Broker.Status() }
