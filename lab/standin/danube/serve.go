package danube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"holdfast/brokerapi/danube/danubepb"
)

// serveClients opens the clients' port. Whoever produces and consumes in a scenario has
// the lab's own service on it.
func (b *Broker) serveClients() error {
	s, err := b.newServer()
	if err != nil {
		return err
	}
	danubepb.RegisterDiscoveryServer(s, discovery{b: b})
	s.RegisterService(&clientService, b)
	s.RegisterService(&healthService, b)
	return b.serveGRPC(b.client, s)
}

// healthService answers that no client is known, without a look at anything.
var healthService = grpc.ServiceDesc{ServiceName: "danube.HealthCheck", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
	method("HealthCheck", func(*Broker, context.Context, *danubepb.Empty) (*danubepb.Empty, error) {
		return &danubepb.Empty{}, nil
	}),
}}

// serveAdmin opens the admin port, after everything else but with Raft.
func (b *Broker) serveAdmin() error {
	s, err := b.newServer(b.afterJoin)
	if err != nil {
		return err
	}
	danubepb.RegisterBrokerAdminServer(s, brokerAdmin{b: b})
	danubepb.RegisterTopicAdminServer(s, topicAdmin{b: b})
	if b.raft {
		danubepb.RegisterClusterAdminServer(s, clusterAdmin{b: b})
	}
	return b.serveGRPC(b.admin, s)
}

func (b *Broker) serveGRPC(p *port, s *grpc.Server) error {
	return p.open(&b.all, func(l net.Listener) {
		if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			b.log.Error("port ended", "addr", p.addr, "err", err)
		}
	}, s.Stop)
}

// afterJoin answers nothing before the broker has its metadata.
func (b *Broker) afterJoin(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	select {
	case <-b.joined:
		return handle(ctx, req)
	default:
		return nil, status.Error(codes.Unavailable, "the cluster is not joined yet")
	}
}

// strict refuses a request with a field that the protocol does not have: a real broker
// overlooks it, and does not do what was meant.
func strict(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if m, ok := req.(proto.Message); ok {
		if name, unknown := unknownField(m.ProtoReflect()); unknown {
			return nil, status.Errorf(codes.InvalidArgument, "%s: unknown field in %s", info.FullMethod, name)
		}
	}
	return handle(ctx, req)
}

func unknownField(m protoreflect.Message) (in protoreflect.FullName, found bool) {
	if len(m.GetUnknown()) > 0 {
		return m.Descriptor().FullName(), true
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Message() == nil || f.IsMap() {
			return true
		}
		if !f.IsList() {
			in, found = unknownField(v.Message())
			return !found
		}
		for i := range v.List().Len() {
			if in, found = unknownField(v.List().Get(i).Message()); found {
				return false
			}
		}
		return true
	})
	return in, found
}

// serveMetrics opens the port for Prometheus, first of all.
func (b *Broker) serveMetrics() {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		leads := 0
		if b.leads.Load() {
			leads = 1
		}
		fmt.Fprintf(w, "# TYPE danube_broker_topics_owned gauge\ndanube_broker_topics_owned{broker=%q} %d\n", b.id, len(b.Loaded()))
		fmt.Fprintf(w, "# TYPE danube_leader_election_state gauge\ndanube_leader_election_state{broker=%q} %d\n", b.id, leads)
		fmt.Fprintf(w, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds{broker=%q} %.3f\n", b.id, float64(b.started.UnixMilli())/1000)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	err := b.metrics.open(&b.all, func(l net.Listener) {
		if err := server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			b.log.Error("port ended", "addr", b.metrics.addr, "err", err)
		}
	}, func() { server.Close() })
	if err != nil {
		b.log.Error("no metrics", "err", err)
	}
}
