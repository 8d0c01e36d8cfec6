package danube

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi"
	"holdfast/brokerapi/danube/danubepb"
)

// fake answers as a test wants it. A stand-in that behaves like the broker is in the
// lab's conformance tests.
type fake struct {
	danubepb.UnimplementedBrokerAdminServer
	danubepb.UnimplementedTopicAdminServer
	danubepb.UnimplementedClusterAdminServer
	danubepb.UnimplementedDiscoveryServer

	address string // host:port of both gRPC services
	options []grpc.ServerOption
	server  *grpc.Server
	wg      sync.WaitGroup

	mu       sync.Mutex
	self     string
	brokers  []*danubepb.BrokerInfo
	believed []string
	places   map[string]place
	status   *danubepb.ClusterStatusResponse // nil: unimplemented
	metrics  string                          // empty: 404
	asked    map[string]int                  // calls, by method
	answers  map[string]func(context.Context) (any, error)
	sent     []any // requests that change something
}

// fakeID is the broker's number unless a test says otherwise.
const fakeID = "12345"

// newFake serves until the test ends.
func newFake(t *testing.T, options ...grpc.ServerOption) *fake {
	t.Helper()
	f := &fake{self: fakeID, options: options, places: map[string]place{}, asked: map[string]int{},
		answers: map[string]func(context.Context) (any, error){}, metrics: "up{broker=\"" + fakeID + "\"} 1\n"}
	f.start(t)
	f.brokers = []*danubepb.BrokerInfo{f.info(fakeID)}
	t.Cleanup(f.stop)
	return f
}

func (f *fake) info(id string) *danubepb.BrokerInfo {
	return &danubepb.BrokerInfo{BrokerId: id, BrokerAddr: "http://" + f.address, AdminAddr: "http://" + f.address, BrokerStatus: "active"}
}

// start listens, on the same address as before.
func (f *fake) start(t *testing.T) {
	t.Helper()
	address := f.address
	if address == "" {
		address = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	f.address = l.Addr().String()
	server := grpc.NewServer(append(f.options, grpc.UnaryInterceptor(f.intercept))...)
	f.server = server
	danubepb.RegisterBrokerAdminServer(server, f)
	danubepb.RegisterTopicAdminServer(server, f)
	danubepb.RegisterClusterAdminServer(server, f)
	danubepb.RegisterDiscoveryServer(server, f)
	server.RegisterService(&healthService, f)
	f.wg.Go(func() { _ = server.Serve(l) })
}

func (f *fake) stop() {
	f.server.Stop()
	f.wg.Wait()
}

// healthService is what Danube has beside what is declared in danubepb.
var healthService = grpc.ServiceDesc{ServiceName: "danube.HealthCheck", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
	MethodName: "HealthCheck",
	Handler: func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		q := new(danubepb.Empty)
		if err := decode(q); err != nil {
			return nil, err
		}
		return intercept(ctx, q, &grpc.UnaryServerInfo{FullMethod: "/danube.HealthCheck/HealthCheck"},
			func(context.Context, any) (any, error) { return new(danubepb.Empty), nil })
	},
}}}

// restart returns when the driver has noticed.
func (f *fake) restart(t *testing.T, l *link) {
	t.Helper()
	f.stop()
	for l.conn.GetState() == connectivity.Ready {
		if !l.conn.WaitForStateChange(soon(t), connectivity.Ready) {
			t.Fatal("the loss was not noticed")
		}
	}
	// Instances are told apart by the millisecond, in which no real process ends and starts.
	time.Sleep(2 * time.Millisecond)
	f.start(t)
	back(t, l)
}

// back returns when the driver is connected again.
func back(t *testing.T, l *link) {
	t.Helper()
	for state := l.conn.GetState(); state != connectivity.Ready; state = l.conn.GetState() {
		l.conn.Connect()
		if !l.conn.WaitForStateChange(soon(t), state) {
			t.Fatal("not connected again")
		}
	}
}

// intercept lets a test answer a method itself.
func (f *fake) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	f.mu.Lock()
	f.asked[method]++
	answer := f.answers[method]
	f.mu.Unlock()
	if answer != nil {
		return answer(ctx)
	}
	return handler(ctx, req)
}

// set changes the fake under its lock.
func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// fails makes a method answer with an error.
func (f *fake) fails(method string, code codes.Code, text string) {
	f.set(func() {
		f.answers[method] = func(context.Context) (any, error) { return nil, status.Error(code, text) }
	})
}

func (f *fake) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[method]
}

func (f *fake) note(req any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, req)
}

func (f *fake) ListBrokers(context.Context, *danubepb.Empty) (*danubepb.BrokerListResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &danubepb.BrokerListResponse{Brokers: slices.Clone(f.brokers)}, nil
}

func (f *fake) ListBrokerTopics(_ context.Context, r *danubepb.BrokerRequest) (*danubepb.TopicInfoListResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := &danubepb.TopicInfoListResponse{}
	if r.BrokerId != f.self {
		return list, nil
	}
	for _, topic := range f.believed {
		list.Topics = append(list.Topics, &danubepb.TopicInfo{Name: topic, BrokerId: f.self})
	}
	return list, nil
}

func (f *fake) ClusterStatus(context.Context, *danubepb.Empty) (*danubepb.ClusterStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.status == nil {
		return nil, status.Error(codes.Unimplemented, "unknown service danube_admin.ClusterAdmin")
	}
	return f.status, nil
}

func (f *fake) TopicLookup(_ context.Context, r *danubepb.TopicLookupRequest) (*danubepb.TopicLookupResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	answer := &danubepb.TopicLookupResponse{RequestId: r.RequestId, BrokerUrl: "http://" + f.address}
	switch f.places[r.Topic] {
	case here:
		answer.ResponseType = danubepb.TopicLookupResponse_Connect
	case elsewhere:
		answer.BrokerUrl = "http://10.9.9.9:6650"
	default:
		return nil, notFound
	}
	return answer, nil
}

func (f *fake) UnloadBroker(_ context.Context, r *danubepb.UnloadBrokerRequest) (*danubepb.UnloadBrokerResponse, error) {
	f.note(r)
	f.set(func() { f.brokers[0] = f.info(f.self); f.brokers[0].BrokerStatus = "drained" })
	return &danubepb.UnloadBrokerResponse{Started: true, Total: 2, Succeeded: 2}, nil
}

func (f *fake) ActivateBroker(_ context.Context, r *danubepb.ActivateBrokerRequest) (*danubepb.ActivateBrokerResponse, error) {
	f.note(r)
	f.set(func() { f.brokers[0] = f.info(f.self) })
	return &danubepb.ActivateBrokerResponse{Success: true}, nil
}

func (f *fake) UnloadTopic(_ context.Context, r *danubepb.TopicRequest) (*danubepb.TopicResponse, error) {
	f.note(r)
	f.set(func() { delete(f.places, r.Name) })
	return &danubepb.TopicResponse{Success: true}, nil
}

// config points a driver at the fake.
func (f *fake) config(t *testing.T) Config {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.metrics == "" || r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, f.metrics)
	}))
	t.Cleanup(web.Close)
	return Config{AdminURL: "http://" + f.address, LookupURL: "http://" + f.address, MetricsURL: web.URL}
}

// etcd is a driver for a broker with etcd, whose patience fits a test.
func (f *fake) etcd(t *testing.T, s Store) *etcdBroker {
	t.Helper()
	cfg := f.config(t)
	cfg.Store = s
	b := opened(t, cfg).(*etcdBroker)
	b.settle = 100 * time.Millisecond
	return b
}

// raft is a driver for a broker with Raft, a member of its cluster.
func (f *fake) raft(t *testing.T, change func(*Config)) *raftBroker {
	t.Helper()
	f.set(func() {
		f.status = &danubepb.ClusterStatusResponse{LeaderId: 1, SelfNodeId: 12345, Voters: []uint64{1, 12345}}
	})
	cfg := f.config(t)
	cfg.Raft = true
	if change != nil {
		change(&cfg)
	}
	return opened(t, cfg).(*raftBroker)
}

func opened(t *testing.T, cfg Config) brokerapi.Broker {
	t.Helper()
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// memory is a Store, and does to the fake what a broker does when it sees a change.
type memory struct {
	f         *fake
	overlooks bool // the broker does nothing
	revisions map[string]int64
	at        time.Time // of the last of puts
	mu        sync.Mutex
	assigned  []string
	puts      []string
	err       error
}

func (m *memory) Assignments(context.Context, string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.assigned), m.err
}

func (m *memory) Assigned(_ context.Context, id, topic string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil || id != m.f.self || !slices.Contains(m.assigned, topic) {
		return 0, m.err
	}
	return 1 + m.revisions[topic], nil
}

func (m *memory) Reassign(_ context.Context, id, topic string, revision int64) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil || id != m.f.self || !slices.Contains(m.assigned, topic) || revision != 1+m.revisions[topic] {
		return false, m.err
	}
	m.put(topic)
	m.puts, m.at = append(m.puts, topic), time.Now()
	return true, nil
}

// put is an event that the broker sees. m.mu is held.
func (m *memory) put(topic string) {
	if m.revisions == nil {
		m.revisions = map[string]int64{}
	}
	m.revisions[topic]++
	if !m.overlooks {
		m.f.set(func() { m.f.places[topic] = here })
	}
}

func (m *memory) written() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.puts)
}

var notFound = status.Error(codes.NotFound, "unable to find the topic")
