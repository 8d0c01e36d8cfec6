package danube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
)

// Message is one message of a topic.
type Message struct {
	Offset uint64 `json:"offset"`
	Data   []byte `json:"data"`
}

// Count is what a broker has of a topic.
type Count struct {
	Here uint64 `json:"here"` // messages on its disk
	Next uint64 `json:"next"` // offset of the next message
}

// Status is what the lab may know of a broker, which nobody else can ask.
type Status struct {
	ID          string   `json:"id"`
	Loaded      []string `json:"loaded"`
	Loads       int      `json:"loads"` // how often a topic was loaded
	Leads       bool     `json:"leads"`
	WatchesDied bool     `json:"watches_died"`
	RenewalDied bool     `json:"renewal_died"` // of the registration
	// Counts are the topics by broker as its load manager knows them. A broker that is
	// not in it is given nothing by this one.
	Counts    map[string]int `json:"counts"`
	Disasters []Disaster     `json:"disasters"` // of this life
}

type (
	produceRequest struct {
		Topic string `json:"topic"`
		Data  []byte `json:"data"`
	}
	produceAnswer struct {
		Offset uint64 `json:"offset"`
	}
	consumeRequest struct {
		Topic        string `json:"topic"`
		Subscription string `json:"subscription"`
		Max          int    `json:"max"`
	}
	consumeAnswer struct {
		Messages []Message `json:"messages"`
	}
	topicRequest  struct{ Topic string }
	statusRequest struct{}
)

const (
	labService = "holdfast.lab.Danube"
	codecName  = "holdfast-lab"
)

// codec is JSON that refuses what it does not know.
type codec struct{}

func (codec) Name() string                  { return codecName }
func (codec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }
func (codec) Unmarshal(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

func init() { encoding.RegisterCodec(codec{}) }

var clientService = grpc.ServiceDesc{
	ServiceName: labService,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		method("Produce", (*Broker).produce),
		method("Consume", (*Broker).consume),
		method("Count", (*Broker).countOf),
		method("Status", (*Broker).status),
	},
}

// method is a handler of a service of S.
func method[S, Q, A any](name string, handle func(S, context.Context, *Q) (*A, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		q := new(Q)
		if err := decode(q); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "%s: %v", name, err)
		}
		return handle(srv.(S), ctx, q)
	}}
}

func (b *Broker) serving(name string) (*topic, error) {
	if t := b.topics.get(name); t != nil {
		return t, nil
	}
	return nil, status.Errorf(codes.FailedPrecondition, "topic %s: %v", name, errNotServed)
}

func clientError(name string, err error) error {
	if errors.Is(err, errNotServed) {
		return status.Errorf(codes.FailedPrecondition, "topic %s: %v", name, err)
	}
	return status.Errorf(codes.Internal, "topic %s: %v", name, err)
}

func (b *Broker) produce(_ context.Context, q *produceRequest) (*produceAnswer, error) {
	t, err := b.serving(q.Topic)
	if err != nil {
		return nil, err
	}
	offset, err := t.produce(q.Data)
	if err != nil {
		return nil, clientError(q.Topic, err)
	}
	return &produceAnswer{offset}, nil
}

// consume writes the cursor before it answers. If that fails the cursor is in memory
// only, and the messages come again after a restart.
func (b *Broker) consume(ctx context.Context, q *consumeRequest) (*consumeAnswer, error) {
	t, err := b.serving(q.Topic)
	if err != nil {
		return nil, err
	}
	if q.Subscription == "" || q.Max < 1 {
		return nil, status.Error(codes.InvalidArgument, "a subscription and a number of messages are required")
	}
	messages, cursor, err := t.consume(q.Subscription, q.Max)
	if err != nil {
		return nil, clientError(q.Topic, err)
	}
	if err := b.store.put(ctx, cursorKey(q.Topic, q.Subscription), encode(cursor)); err != nil {
		b.log.Warn("cursor not written", "err", err)
	}
	return &consumeAnswer{messages}, nil
}

func (b *Broker) countOf(_ context.Context, q *topicRequest) (*Count, error) {
	t, err := b.serving(q.Topic)
	if err != nil {
		return nil, err
	}
	n, next := t.count()
	return &Count{n, next}, nil
}

func (b *Broker) status(context.Context, *statusRequest) (*Status, error) {
	s := b.Status()
	return &s, nil
}

// Status is what the lab may know.
func (b *Broker) Status() Status {
	s := Status{ID: b.id, Loaded: b.Loaded(), Leads: b.leads.Load(), WatchesDied: b.deadRead.Load(), RenewalDied: b.deadRenewal.Load(), Disasters: b.Disasters()}
	if counts := b.counts.Load(); counts != nil {
		s.Counts = *counts
	}
	select {
	case <-b.joined:
		s.Loads = b.topics.loadCount()
	default:
	}
	return s
}

// Client produces and consumes, and asks what only the lab may. Close the connection.
type Client struct{ conn *grpc.ClientConn }

// NewClient speaks over a connection to a broker's client port.
func NewClient(conn *grpc.ClientConn) Client { return Client{conn} }

func (c Client) call(ctx context.Context, name string, q, a any) error {
	if err := c.conn.Invoke(ctx, "/"+labService+"/"+name, q, a, grpc.CallContentSubtype(codecName)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Produce returns the message's offset when it is on the broker's disk.
func (c Client) Produce(ctx context.Context, topic string, data []byte) (uint64, error) {
	var a produceAnswer
	err := c.call(ctx, "Produce", &produceRequest{topic, data}, &a)
	return a.Offset, err
}

// Consume returns at most limit messages from the subscription's cursor on.
func (c Client) Consume(ctx context.Context, topic, subscription string, limit int) ([]Message, error) {
	var a consumeAnswer
	err := c.call(ctx, "Consume", &consumeRequest{topic, subscription, limit}, &a)
	return a.Messages, err
}

// Count counts what the broker has of a topic that it serves.
func (c Client) Count(ctx context.Context, topic string) (Count, error) {
	var a Count
	err := c.call(ctx, "Count", &topicRequest{topic}, &a)
	return a, err
}

// Status asks for what the lab may know.
func (c Client) Status(ctx context.Context) (Status, error) {
	var a Status
	err := c.call(ctx, "Status", &statusRequest{}, &a)
	return a, err
}
