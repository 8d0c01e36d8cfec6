// Package clustertest holds package cluster's tests against a real etcd, and against
// package memory's what both must have in common. One server is shared by the tests that
// only use it, each below a prefix of its own; a test that breaks a server starts one for
// itself.
package clustertest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"holdfast/cluster"
	"holdfast/cluster/memory"
	"holdfast/lab/harness"
	"holdfast/standstill"
)

// wait bounds every wait for an event; reaching it is a failure.
const wait = harness.Patience

// server is one that tests share: a real etcd, or package memory's.
type server struct {
	name string
	url  string
	raw  *clientv3.Client // as "somebody else"
}

var shared, fake *server

// onEach runs a test of what a store means against both: where they differ, package
// memory is wrong.
func onEach(t *testing.T, test func(t *testing.T, s *server)) {
	for _, s := range []*server{shared, fake} {
		t.Run(s.name, func(t *testing.T) { test(t, s) })
	}
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "clustertest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	cfg, err := etcdConfig(dir, "shared")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	etcd, err := start(cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if shared, err = newServer("etcd", cfg.AdvertiseClientUrls[0].String()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	stopMemory, url, err := serveMemory()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if fake, err = newServer("memory", url); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// The embedded server goes on starting behind StartEtcd's back, and reads what the
	// tests' start writes. Once it answers it has read it.
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	_, err = shared.raw.Get(ctx, "/")
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	stop := standstill.Watch()
	code := m.Run()
	stop()
	shared.raw.Close()
	fake.raw.Close()
	stopMemory()
	etcd.Close()
	// The embedded members talk HTTP to each other, and leave a connection behind now
	// and then. Package cluster does not use net/http.
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

// etcdConfig is a single quick member with ports of its own.
func etcdConfig(dir, name string) (*embed.Config, error) {
	cfg := embed.NewConfig()
	cfg.Dir, cfg.Name = filepath.Join(dir, name), name
	cfg.LogLevel, cfg.Logger, cfg.LogOutputs = "error", "zap", []string{filepath.Join(dir, name+".log")}
	cfg.TickMs, cfg.ElectionMs = 20, 200
	cfg.BcryptCost = 4
	cfg.UnsafeNoFsync = true
	var urls []url.URL
	for range 2 {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		urls = append(urls, url.URL{Scheme: "http", Host: port})
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = urls[:1], urls[:1]
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = urls[1:], urls[1:]
	cfg.InitialCluster = cfg.InitialClusterFromName(name)
	return cfg, nil
}

func freePort() (string, error) {
	port, _, err := harness.ReservePort() // until the process ends: etcd may be started there again
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

func start(cfgs ...*embed.Config) (*embed.Etcd, error) {
	var first *embed.Etcd
	for _, cfg := range cfgs {
		server, err := embed.StartEtcd(cfg)
		if err != nil {
			return nil, fmt.Errorf("start etcd %s: %w", cfg.Name, err)
		}
		if first == nil {
			first = server
		}
	}
	select {
	case <-first.Server.ReadyNotify():
		return first, nil
	case err := <-first.Err():
		return nil, fmt.Errorf("etcd %s: %w", cfgs[0].Name, err)
	case <-time.After(wait):
		return nil, fmt.Errorf("etcd %s is not ready after %v", cfgs[0].Name, wait)
	}
}

// ownEtcd starts a server that the test may break. stop may be left to the test's end.
func ownEtcd(t *testing.T, change func(*embed.Config)) (cfg *embed.Config, stop func()) {
	t.Helper()
	cfg, err := etcdConfig(t.TempDir(), "own")
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(cfg)
	}
	server, err := start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(server.Close) // a second Close panics
	t.Cleanup(stop)
	return cfg, stop
}

func dialRaw(cfg clientv3.Config) (*clientv3.Client, error) {
	cfg.Logger = zap.NewNop()
	return clientv3.New(cfg)
}

// rawClient is the etcd client itself, as "somebody else".
func rawClient(t *testing.T, cfg clientv3.Config) *clientv3.Client {
	t.Helper()
	c, err := dialRaw(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

var (
	prefixes sync.Map // *testing.T to its prefix
	corners  atomic.Int64
)

// prefix is this run of the test's own corner of the shared etcd.
func prefix(t *testing.T) string {
	p, ok := prefixes.Load(t)
	if !ok {
		p, _ = prefixes.LoadOrStore(t, fmt.Sprintf("/corner%d", corners.Add(1)))
	}
	return p.(string)
}

func newServer(name, url string) (*server, error) {
	raw, err := dialRaw(clientv3.Config{Endpoints: []string{url}})
	return &server{name: name, url: url, raw: raw}, err
}

// serveMemory puts package memory behind a socket, so that the same client reaches it.
func serveMemory() (stop func(), url string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", fmt.Errorf("listen for the store in memory: %w", err)
	}
	services := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second})) // etcd's
	store := memory.New(memory.Config{MinTTL: time.Second})
	store.Register(services)
	ctx, cancel := context.WithCancel(context.Background())
	var both sync.WaitGroup
	both.Go(func() { _ = services.Serve(listener) })
	both.Go(func() { _ = store.Run(ctx) })
	return func() {
		cancel()
		services.Stop()
		both.Wait()
	}, "http://" + listener.Addr().String(), nil
}

func (s *server) config(t *testing.T) cluster.Config {
	return cluster.Config{Endpoints: []string{s.url}, Prefix: prefix(t)}
}

func open(t *testing.T, cfg cluster.Config) *cluster.Client {
	t.Helper()
	c, err := cluster.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func openLine(t *testing.T, cfg cluster.Config) *cluster.Line {
	t.Helper()
	l, err := cluster.OpenLine(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// inUse is the endpoint that the line uses now.
func inUse(l *cluster.Line) string {
	for _, e := range l.Endpoints() {
		if e.InUse {
			return e.URL
		}
	}
	return ""
}

// bounded is a context for one call that must come back.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	t.Cleanup(cancel)
	return ctx
}

// must fails the test on an error and hands the value through.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func lease(t *testing.T, c *cluster.Client, ttl time.Duration) int64 {
	t.Helper()
	id, _, err := c.Grant(bounded(t), ttl)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// get reads one key as somebody else.
func (s *server) get(t *testing.T, key string) *clientv3.GetResponse {
	t.Helper()
	answer, err := s.raw.Get(bounded(t), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.Kvs) == 0 {
		t.Fatalf("key %s is absent", key)
	}
	return answer
}

func (s *server) put(t *testing.T, key, value string, opts ...clientv3.OpOption) {
	t.Helper()
	if _, err := s.raw.Put(bounded(t), key, value, opts...); err != nil {
		t.Fatal(err)
	}
}

func (s *server) remove(t *testing.T, key string) {
	t.Helper()
	if _, err := s.raw.Delete(bounded(t), key); err != nil {
		t.Fatal(err)
	}
}

// assign assigns topics as somebody else.
func (s *server) assign(t *testing.T, c *cluster.Client, id string, topics []string) {
	t.Helper()
	for batch := range slices.Chunk(topics, 100) {
		var puts []clientv3.Op
		for _, topic := range batch {
			puts = append(puts, clientv3.OpPut(c.Keys().Assignment(id, topic), "null"))
		}
		if _, err := s.raw.Txn(bounded(t)).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// note is a write of the client's that may be repeated, and its value.
func note(ctx context.Context, c *cluster.Client, id string) (value string, err error) {
	seen, err := c.Snapshot(ctx, id)
	if err != nil {
		return "", err
	}
	_, err = c.PutState(ctx, id, cluster.State{Mode: cluster.ModeActive, At: time.Unix(1, 0)}, seen.StateRevision)
	return `{"mode":"active","reason":"","by":"","at":"1970-01-01T00:00:01Z"}`, err
}

func topicNames(n int) []string {
	topics := make([]string, n)
	for i := range topics {
		topics[i] = fmt.Sprintf("/ns/t%04d", i)
	}
	return topics
}

func contains(err error, text string) bool {
	return err != nil && strings.Contains(err.Error(), text)
}
