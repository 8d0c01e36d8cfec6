package danube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi/danube/danubepb"
)

// Message is one message of a topic.
type Message struct {
	Offset uint64 `json:"offset"`
	Data   []byte `json:"data"`
}

// Status is what the lab may know of a broker, which nobody else can ask.
type Status struct {
	ID          string
	Loaded      []string
	Loads       int // how often a topic was loaded
	WatchesDied bool
}

// request is what the lab asks for, and answer what it gets: of each only what the call is about.
type (
	request struct {
		Topic, Subscription string
		Data                []byte
		Max                 int
	}
	answer struct {
		Offset   uint64 // of the message that was stored, or of the next one
		Messages []Message
		Status   Status
	}
)

const (
	labService = "holdfast.lab.Danube"
	codecName  = "holdfast-lab"
)

// codec is JSON.
type codec struct{}

func (codec) Name() string                    { return codecName }
func (codec) Marshal(v any) ([]byte, error)   { return json.Marshal(v) }
func (codec) Unmarshal(b []byte, v any) error { return json.Unmarshal(b, v) }

func init() { encoding.RegisterCodec(codec{}) }

// serveClients opens the clients' port. Whoever produces and consumes in a scenario has
// the lab's own service on it.
func (b *Broker) serveClients() error {
	s := grpc.NewServer()
	danubepb.RegisterDiscoveryServer(s, discovery{b: b})
	s.RegisterService(&grpc.ServiceDesc{ServiceName: labService, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
		method("Produce", b.produce), method("Consume", b.consume), method("Count", b.count),
		method("Status", func(context.Context, *request) (*answer, error) {
			return &answer{Status: Status{ID: b.id, Loaded: b.topics.names(), Loads: b.topics.loadCount(), WatchesDied: b.deadRead.Load()}}, nil
		}),
	}}, b)
	// That of health answers that no client is known, without a look at anything.
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "danube.HealthCheck", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
		method("HealthCheck", func(_ context.Context, q *danubepb.Empty) (*danubepb.Empty, error) { return q, nil }),
	}}, b)
	return serve(b.cfg.ClientAddr, s.Serve)
}

func method[Q, A any](name string, handle func(context.Context, *Q) (*A, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		q := new(Q)
		if err := decode(q); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "%s: %v", name, err)
		}
		return handle(ctx, q)
	}}
}

func (b *Broker) produce(_ context.Context, q *request) (*answer, error) {
	offset, err := b.topics.get(q.Topic).produce(q.Data)
	return &answer{Offset: offset}, clientError(q.Topic, err)
}

// consume writes the cursor before it answers. If that fails the cursor is in memory
// only, and the messages come again after a restart.
func (b *Broker) consume(ctx context.Context, q *request) (*answer, error) {
	messages, cursor, err := b.topics.get(q.Topic).consume(q.Subscription, q.Max)
	if err != nil {
		return nil, clientError(q.Topic, err)
	}
	if err := b.store.put(ctx, cursorKey(q.Topic, q.Subscription), encode(cursor)); err != nil {
		b.log.Warn("cursor not written", "err", err)
	}
	return &answer{Messages: messages}, nil
}

func (b *Broker) count(_ context.Context, q *request) (*answer, error) {
	next, err := b.topics.get(q.Topic).next()
	return &answer{Offset: next}, clientError(q.Topic, err)
}

func clientError(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNotServed):
		return status.Errorf(codes.FailedPrecondition, "topic %s: %v", name, err)
	default:
		return status.Errorf(codes.Internal, "topic %s: %v", name, err)
	}
}

// Client produces and consumes, and asks what only the lab may. Close the connection.
type Client struct{ conn *grpc.ClientConn }

// NewClient speaks over a connection to a broker's client port.
func NewClient(conn *grpc.ClientConn) Client { return Client{conn} }

func (c Client) call(ctx context.Context, name string, q request) (a answer, err error) {
	if err := c.conn.Invoke(ctx, "/"+labService+"/"+name, &q, &a, grpc.CallContentSubtype(codecName)); err != nil {
		return a, fmt.Errorf("%s: %w", name, err)
	}
	return a, nil
}

// Produce returns the message's offset when the broker has it in its file.
func (c Client) Produce(ctx context.Context, topic string, data []byte) (uint64, error) {
	a, err := c.call(ctx, "Produce", request{Topic: topic, Data: data})
	return a.Offset, err
}

// Consume returns at most limit messages from the subscription's cursor on.
func (c Client) Consume(ctx context.Context, topic, subscription string, limit int) ([]Message, error) {
	a, err := c.call(ctx, "Consume", request{Topic: topic, Subscription: subscription, Max: limit})
	return a.Messages, err
}

// Count is how many messages a topic has had that the broker serves.
func (c Client) Count(ctx context.Context, topic string) (uint64, error) {
	a, err := c.call(ctx, "Count", request{Topic: topic})
	return a.Offset, err
}

// Status asks for what the lab may know.
func (c Client) Status(ctx context.Context) (Status, error) {
	a, err := c.call(ctx, "Status", request{})
	return a.Status, err
}
