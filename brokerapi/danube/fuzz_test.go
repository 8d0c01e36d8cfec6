package danube

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"holdfast/brokerapi"
	"holdfast/brokerapi/danube/danubepb"
)

// raw passes messages on as they are.
type raw struct{}

func (raw) Name() string                    { return "proto" }
func (raw) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }

// liar answers each method with bytes, or with Unimplemented where it has none.
type liar struct {
	address, metrics string
	mu               sync.Mutex
	says             map[string][]byte
	exposes          []byte
}

func newLiar(f *testing.F) *liar {
	f.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	s := &liar{address: l.Addr().String()}
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		var request []byte
		if err := stream.RecvMsg(&request); err != nil {
			return err
		}
		method, _ := grpc.MethodFromServerStream(stream)
		s.mu.Lock()
		answer, ok := s.says[path.Base(method)]
		s.mu.Unlock()
		if !ok {
			return status.Error(codes.Unimplemented, "unknown")
		}
		return stream.SendMsg(&answer)
	}))
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, _ = w.Write(s.exposes)
	}))
	s.metrics = web.URL
	f.Cleanup(func() { server.Stop(); serving.Wait(); web.Close() })
	return s
}

func encoded(f *testing.F, m proto.Message) []byte {
	f.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return b
}

// FuzzAnswersNeverMakeHealthy gives whatever bytes to each kind of driver. None of them
// can be healthy: no lookup is answered that was asked for.
func FuzzAnswersNeverMakeHealthy(f *testing.F) {
	s := newLiar(f)
	brokers := encoded(f, &danubepb.BrokerListResponse{Brokers: []*danubepb.BrokerInfo{
		{BrokerId: fakeID, BrokerAddr: "http://" + s.address, AdminAddr: "http://" + s.address, BrokerStatus: "active"}}})
	topics := encoded(f, &danubepb.TopicInfoListResponse{Topics: []*danubepb.TopicInfo{{Name: "/a/b"}, {Name: "/../\x1b"}}})
	member := encoded(f, &danubepb.ClusterStatusResponse{SelfNodeId: 12345, LeaderId: 1, Voters: []uint64{12345}})
	found := encoded(f, &danubepb.TopicLookupResponse{RequestId: 1, ResponseType: danubepb.TopicLookupResponse_Connect})
	f.Add(brokers, topics, member, found, []byte("up{broker=\""+fakeID+"\"} 1\n"), true)
	f.Add(brokers, topics, []byte{}, found, []byte("up{broker=\""+fakeID+"\"} 1\n"), false)
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, []byte{0x0a, 2, 0x0a, 0xff}, []byte{0xff}, []byte{}, []byte{}, true)
	f.Fuzz(func(t *testing.T, brokers, topics, member, found, metrics []byte, raft bool) {
		s.mu.Lock()
		s.says = map[string][]byte{"ListBrokers": brokers, "ListBrokerTopics": topics, "TopicLookup": found,
			"UnloadTopic": member, "UnloadBroker": topics, "ActivateBroker": found}
		if raft {
			s.says["ClusterStatus"] = member
		}
		s.exposes = metrics
		s.mu.Unlock()
		memory := &memory{f: &fake{self: fakeID, places: map[string]place{}}, assigned: []string{"/default/a"}}
		b, err := New(Config{AdminURL: "http://" + s.address, LookupURL: "http://" + s.address, MetricsURL: s.metrics, Raft: raft, Store: memory})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
		defer cancel()
		if health(ctx, b) == nil {
			t.Fatal("healthy")
		}
		if who, err := b.Probe(ctx); err == nil && (who.Instance == "" || who.Version == "") {
			t.Fatalf("identity %+v", who)
		}
		if held, err := b.Topics(ctx); err == nil {
			for _, topic := range append(held.Serving, held.Withdrawn...) {
				if _, _, err := brokerapi.SplitTopic(topic); err != nil {
					t.Fatal(err)
				}
			}
		}
		if ctx.Err() != nil {
			t.Fatal("the calls lasted longer than the answers")
		}
		for _, call := range calls(b) { // some wait for what does not come
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			err := call(short)
			cancel()
			if err != nil && strings.ContainsAny(err.Error(), "\n\r\x1b") {
				t.Fatalf("not one line: %q", err)
			}
		}
		if ctx.Err() != nil {
			t.Fatal("the calls lasted longer than they may")
		}
		if memory.written() > 0 {
			t.Fatalf("put %q", memory.puts)
		}
	})
}
