package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/registration"
	"holdfast/agent/web"
	"holdfast/brokerapi"
	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
	"holdfast/probes"
	"holdfast/recovery"
)

// numbered is a broker that registers itself under a number of its own at each start, in
// virtual time, with the cluster around it: a peer, and a leader that takes the topics of
// whoever is not registered any more. It acts on keys that change while it runs. What
// would be a disaster in life is noted as harm.
type numbered struct {
	t      *testing.T
	dir    string
	born   time.Time
	store  *etcd.Server
	client *cluster.Client
	raw    clientv3.KV
	keys   cluster.Keys
	config config.Config
	all    sync.WaitGroup

	mu       sync.Mutex
	id       string // empty: it does not run
	end      func()
	loaded   map[string]bool
	loads    map[string]int // of each topic, in all lives
	harm     []string
	failed   []string                 // topics that the leader took from the dead
	leadless bool                     // nobody takes them
	cut      bool                     // the sidecar's calls do not reach etcd
	loses    func(method string) bool // the answer to a call of the sidecar; nil: none
	full     atomic.Bool              // etcd takes no write of the sidecar's
	servers  map[string]http.Handler
}

func (n *numbered) set(change func()) { n.mu.Lock(); defer n.mu.Unlock(); change() }

func (n *numbered) Probe(context.Context) (brokerapi.Report, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.id == "" {
		return brokerapi.Report{}, errors.New("connection refused")
	}
	return brokerapi.Report{Instance: n.id, Version: "0.7.3"}, nil
}
func (n *numbered) Topics(ctx context.Context) (brokerapi.Held, error) {
	if _, err := n.Probe(ctx); err != nil {
		return brokerapi.Held{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return brokerapi.Held{Serving: slices.Sorted(maps.Keys(n.loaded))}, nil
}
func (n *numbered) Serve(ctx context.Context, topic string, _ []byte) error {
	who, err := n.Probe(ctx)
	for range 20 { // it may be on its way: an assignment that was put is loaded a little later
		if err != nil || n.has(topic) {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	revision, err := n.client.Assigned(ctx, who.Instance, topic)
	if err != nil || revision == 0 {
		return err
	}
	_, err = n.client.Reassign(ctx, who.Instance, topic, revision)
	return err
}
func (n *numbered) Withdraw(ctx context.Context, topic string) error {
	who, err := n.Probe(ctx)
	if err != nil {
		return err
	}
	key := n.keys.Assignment(who.Instance, topic)
	if _, err := n.client.Assigned(ctx, who.Instance, topic); err != nil { // etcd answers just now
		return err
	}
	_, err = n.raw.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), ">", 0),
		clientv3.Compare(clientv3.CreateRevision(n.keys.Registration(who.Instance)), ">", 0)).Then(clientv3.OpDelete(key),
		clientv3.OpPut(n.keys.Unassigned(topic), `{"reason":"unload"}`)).Commit()
	if err != nil {
		return err
	}
	for n.has(topic) { // its watch tells it
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
func (n *numbered) Close() error { return nil }

func (n *numbered) has(topic string) bool { n.mu.Lock(); defer n.mu.Unlock(); return n.loaded[topic] }

// holds are the topics that it has loaded.
func (n *numbered) holds() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.loaded))
}

// loadsOf is how often each topic was loaded, in all lives.
func (n *numbered) loadsOf() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.loads)
}

// taken are the topics that the leader took from the dead.
func (n *numbered) taken() []string { n.mu.Lock(); defer n.mu.Unlock(); return slices.Clone(n.failed) }

// start begins a life that registers itself so much later than it answers.
func (n *numbered) start(id string, late time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	n.set(func() {
		n.id, n.loaded = id, map[string]bool{}
		n.end = func() { cancel(); <-done }
	})
	n.all.Go(func() {
		defer close(done)
		select {
		case <-time.After(late):
		case <-ctx.Done():
			return
		}
		own, _, err := n.client.Grant(ctx, 32*time.Second)
		if err != nil {
			return
		}
		n.put(n.keys.Registration(id), `{"admin_addr":"http://127.0.0.1:50051"}`, clientv3.WithLease(clientv3.LeaseID(own)))
		n.put(n.keys.State(id), `{"mode":"active","reason":"boot"}`)
		_ = n.client.Follow(ctx, cluster.Target{Key: n.keys.Assignments(id), Prefix: true}, func(u cluster.Update) {
			if !u.Full { // what was there before is overlooked
				n.changed(ctx, id, u)
			}
		}, nil)
	})
}

func (n *numbered) changed(ctx context.Context, id string, u cluster.Update) {
	for _, kv := range u.Puts {
		_, topic, ok := n.keys.ParseAssignment(kv.Key)
		if !ok {
			continue
		}
		n.set(func() {
			if n.id != id {
				return
			}
			if n.loaded[topic] {
				n.harm = append(n.harm, topic+" was loaded twice")
			}
			n.loaded[topic] = true
			n.loads[topic]++
		})
	}
	for _, key := range u.Deletes {
		_, topic, ok := n.keys.ParseAssignment(key)
		if !ok {
			continue
		}
		marker, err := n.raw.Get(ctx, n.keys.Unassigned(topic))
		if err != nil {
			return
		}
		n.set(func() {
			if len(marker.Kvs) == 0 || !strings.Contains(string(marker.Kvs[0].Value), "unload") {
				n.harm = append(n.harm, topic+" was destroyed")
			}
			delete(n.loaded, topic)
		})
	}
}

func (n *numbered) kill() {
	n.mu.Lock()
	end := n.end
	n.id, n.loaded, n.end = "", nil, nil
	n.mu.Unlock()
	if end != nil {
		end()
	}
}

// lead is the leader's part: the topics of the dead are anybody's.
func (n *numbered) lead(ctx context.Context) {
	_ = n.client.Follow(ctx, cluster.Target{Key: n.keys.Registrations(), Prefix: true, KeysOnly: true}, func(u cluster.Update) {
		n.mu.Lock()
		leadless := n.leadless
		n.mu.Unlock()
		if leadless {
			return
		}
		for _, key := range u.Deletes {
			id, _ := n.keys.ParseRegistration(key)
			children, err := n.raw.Get(ctx, n.keys.Assignments(id), clientv3.WithPrefix(), clientv3.WithKeysOnly())
			if err != nil {
				return
			}
			for _, kv := range children.Kvs {
				n.remove(string(kv.Key))
				if _, topic, ok := n.keys.ParseAssignment(string(kv.Key)); ok {
					n.put(n.keys.Unassigned(topic), "null")
					n.set(func() { n.failed = append(n.failed, topic) })
				}
			}
		}
	}, nil)
}

func (n *numbered) put(key, value string, opts ...clientv3.OpOption) {
	if _, err := n.raw.Put(context.Background(), key, value, opts...); err != nil {
		n.t.Error(err)
	}
}

func (n *numbered) remove(key string) {
	if _, err := n.raw.Delete(context.Background(), key); err != nil {
		n.t.Error(err)
	}
}

// get is a key's value with its revisions; nil: it is not there.
func (n *numbered) get(key string) (value string, mod, create, leaseID int64) {
	answer, err := n.raw.Get(context.Background(), key)
	if err != nil {
		n.t.Fatal(err)
	}
	if len(answer.Kvs) == 0 {
		return "", 0, 0, 0
	}
	kv := answer.Kvs[0]
	return string(kv.Value), kv.ModRevision, kv.CreateRevision, kv.Lease
}

func (n *numbered) assigned(id string) []string {
	topics, err := n.client.Assignments(context.Background(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	return topics
}

// sidecar runs one; stop ends it with that cause, and returns its error.
func (n *numbered) sidecar(change func(*config.Config)) (stop func(cause error) error) {
	c := n.config
	if change != nil {
		change(&c)
	}
	quiet := slog.New(slog.DiscardHandler)
	if os.Getenv("HOLDFAST_TEST_LOG") != "" {
		quiet = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	n.all.Go(func() { ended <- Live(ctx, c, n.world(), quiet, "test") })
	return func(cause error) error { cancel(cause); return <-ended }
}

func (n *numbered) world() World {
	return World{
		Clock: func() lease.Instant { return lease.Instant(time.Hour + time.Since(n.born)) },
		Clocks: func() lease.Clocks {
			return lease.Clocks{Boot: lease.Instant(time.Hour + time.Since(n.born)), Mono: time.Since(n.born), Wall: time.Now()}
		},
		Broker: func(config.Config, *cluster.Client, *slog.Logger) (brokerapi.Broker, error) { return n, nil },
		Etcd: func(c cluster.Config, log *slog.Logger) (*cluster.Client, Line, error) {
			return cluster.Over(c, lossy{n.store.Conn(nil), n}, log), numberedLine{cluster.Over(c, lossy{n.store.Conn(nil), n}, log)}, nil
		},
		Listen: func(l web.Listener) (web.Server, error) {
			n.set(func() { n.servers[l.Setting] = l.Handler })
			return idleServer(make(chan struct{})), nil
		},
		Process: func(config.Config, *slog.Logger) *probes.Process { return nil },
	}
}

type idleServer chan struct{}

func (s idleServer) Addr() string { return "nowhere" }
func (s idleServer) Serve() error { <-s; return nil }
func (s idleServer) Close() error { close(s); return nil }

// numberedLine is the renewals' own way.
type numberedLine struct{ client *cluster.Client }

func (l numberedLine) KeepAlive(ctx context.Context, id int64, _ bool) (lease.Renewal, error) {
	renewal, err := l.client.KeepAlive(ctx, id)
	return lease.Renewal(renewal), registration.LeaseError(err)
}
func (l numberedLine) AwaitReconnect(ctx context.Context) error   { <-ctx.Done(); return ctx.Err() }
func (l numberedLine) Revoke(ctx context.Context, id int64) error { return l.client.Revoke(ctx, id) }
func (l numberedLine) Client() *cluster.Client                    { return l.client }
func (l numberedLine) Close() error                               { return l.client.Close() }

func (n *numbered) status() (s control.Status) {
	n.mu.Lock()
	h := n.servers["--control-socket"]
	n.mu.Unlock()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/status", nil))
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		n.t.Fatal(err)
	}
	return s
}

func (n *numbered) order(verb string) {
	n.t.Helper()
	n.mu.Lock()
	h := n.servers["--control-socket"]
	n.mu.Unlock()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/"+verb, strings.NewReader(`{"reason":"disk swap","timeout_seconds":1,"for_seconds":60,"owner":"ann"}`)))
	if w.Code != http.StatusOK {
		n.t.Fatalf("%s: %d %s", verb, w.Code, w.Body)
	}
}

// becomes waits for a status, for a minute at most.
func (n *numbered) becomes(what string, is func(control.Status) bool) control.Status {
	n.t.Helper()
	var s control.Status
	for range 600 {
		if s = n.status(); is(s) {
			return s
		}
		time.Sleep(100 * time.Millisecond)
	}
	n.t.Fatalf("it does not become %s: %+v", what, s)
	return s
}

func (n *numbered) becomesReadyAs(id string) control.Status {
	n.t.Helper()
	return n.becomes("ready as "+id, func(s control.Status) bool { return s.Ready.OK && s.Registration.ID == id })
}

func (n *numbered) becomesIn(mode recovery.Mode, reason recovery.Reason, id string) control.Status {
	n.t.Helper()
	return n.becomes(string(mode)+" as "+id, func(s control.Status) bool {
		return s.Mode == string(mode) && s.Reason == string(reason) && s.Registration.ID == id && s.Lease.ID != ""
	})
}

func (n *numbered) wantNoHarm() {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.harm) > 0 {
		n.t.Errorf("harm: %v", n.harm)
	}
}

// handoverBegins returns what says whether a topic was given to that process.
func (n *numbered) handoverBegins(id string) (begun func() bool) {
	var seen atomic.Bool
	n.store.Observe(func(_ etcd.View, c etcd.Change) {
		for _, e := range c.Events {
			if strings.HasPrefix(e.KV.Key, n.keys.Assignments(id)+"n/") {
				seen.Store(true)
			}
		}
	})
	return seen.Load
}

// withDriver makes a driver known for one test.
func withDriver(t *testing.T, name string, d config.Driver) {
	t.Helper()
	config.Drivers[name] = d
	t.Cleanup(func() { delete(config.Drivers, name) })
}

// inNumbered runs claim in a cluster with a peer, where nothing runs yet but the leader.
func inNumbered(t *testing.T, claim func(n *numbered)) {
	t.Helper()
	dir := t.TempDir()
	numbers := config.Drivers["nats"]
	numbers.Traits = func(config.Config) brokerapi.Traits { return brokerapi.Traits{Registers: true} }
	withDriver(t, "numbers", numbers)
	synctest.Test(t, func(t *testing.T) {
		quiet := slog.New(slog.DiscardHandler)
		n := &numbered{t: t, dir: dir, born: time.Now(), store: etcd.New(etcd.Config{MinTTL: time.Second}),
			loads: map[string]int{}, servers: map[string]http.Handler{}}
		conn := n.store.Conn(nil)
		n.client = cluster.Over(cluster.Config{}, conn, quiet)
		n.raw, n.keys = clientv3.NewKVFromKVClient(pb.NewKVClient(conn), nil), n.client.Keys()
		n.config = natsDefaults()
		n.config.Driver = "numbers"
		n.config.Registration, n.config.BrokerID, n.config.StateDir = "adopt", "b1", filepath.Join(dir, "state")
		ctx, cancel := context.WithCancel(context.Background())
		n.all.Go(func() { _ = n.store.Run(ctx) })
		n.all.Go(n.beside(ctx, "900"))
		n.all.Go(func() { n.lead(ctx) })
		synctest.Wait()
		defer func() {
			n.kill()
			cancel()
			n.all.Wait()
			n.client.Close()
		}()
		claim(n)
	})
}

// beside registers a peer. What is returned renews its lease until ctx ends.
func (n *numbered) beside(ctx context.Context, id string) (renew func()) {
	const ttl = time.Minute
	leaseID, _, err := n.client.Grant(ctx, ttl)
	if err != nil {
		n.t.Fatal(err)
	}
	n.put(n.keys.Registration(id), "{}", clientv3.WithLease(clientv3.LeaseID(leaseID)))
	return func() {
		for ctx.Err() == nil {
			_, _ = n.client.KeepAlive(ctx, leaseID)
			select {
			case <-ctx.Done():
			case <-time.After(ttl / 10):
			}
		}
	}
}

// attached runs claim beside a broker that has served those topics for a while as 11.
func attached(t *testing.T, topics []string, claim func(n *numbered, stop func(error) error)) {
	t.Helper()
	inNumbered(t, func(n *numbered) {
		n.start("11", 0)
		stop := n.sidecar(nil)
		alive := true
		end := func(cause error) error { alive = false; return stop(cause) }
		defer func() {
			if alive {
				_ = stop(ErrKilled)
			}
		}()
		time.Sleep(5 * time.Second)
		for _, topic := range topics {
			n.put(n.keys.Assignment("11", topic), "null")
		}
		n.becomesReadyAs("11")
		time.Sleep(time.Minute) // past the life of the broker's own lease
		if got := n.assigned("11"); len(got) != len(topics) || !n.status().Ready.OK {
			n.t.Fatalf("as 11 it has %d topics and is ready: %v", len(got), n.status().Ready.OK)
		}
		claim(n, end)
	})
}

func someTopics(count int) (topics []string) {
	for i := range count {
		topics = append(topics, fmt.Sprintf("/n/t%03d", i))
	}
	return topics
}
