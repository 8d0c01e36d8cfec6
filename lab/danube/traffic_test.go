package danube

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/danube/clientpb"
	"holdfast/lab/harness"
)

// broker serves one topic to one consumer. It forgets its producer once, and loses one message.
type broker struct {
	danubepb.UnimplementedDiscoveryServer
	clientpb.UnimplementedProducerServiceServer
	clientpb.UnimplementedConsumerServiceServer

	mu        sync.Mutex
	producers uint64
	taken     int
	log       chan *clientpb.StreamMessage
	acked     chan struct{}
}

func (b *broker) TopicLookup(context.Context, *danubepb.TopicLookupRequest) (*danubepb.TopicLookupResponse, error) {
	return &danubepb.TopicLookupResponse{ResponseType: danubepb.TopicLookupResponse_Connect}, nil
}

func (b *broker) CreateProducer(context.Context, *clientpb.ProducerRequest) (*clientpb.ProducerResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.producers++
	return &clientpb.ProducerResponse{ProducerId: b.producers}, nil
}

func (b *broker) SendMessage(_ context.Context, m *clientpb.StreamMessage) (*clientpb.MessageResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken == 2 && b.producers == 1 || m.MsgId.ProducerId != b.producers {
		return nil, status.Error(codes.NotFound, "The producer with id 1 does not exist")
	}
	if b.taken++; b.taken != 2 {
		b.log <- m
	}
	return &clientpb.MessageResponse{}, nil
}

func (b *broker) Subscribe(context.Context, *clientpb.ConsumerRequest) (*clientpb.ConsumerResponse, error) {
	return &clientpb.ConsumerResponse{ConsumerId: 1}, nil
}

func (b *broker) ReceiveMessages(_ *clientpb.ReceiveRequest, to clientpb.ConsumerService_ReceiveMessagesServer) error {
	for {
		select {
		case m := <-b.log:
			if err := to.Send(m); err != nil {
				return err
			}
			<-b.acked
		case <-to.Context().Done():
			return nil
		}
	}
}

func (b *broker) Ack(context.Context, *clientpb.AckRequest) (*clientpb.AckResponse, error) {
	b.acked <- struct{}{}
	return &clientpb.AckResponse{}, nil
}

func TestTrafficGoesOnAfterAForgottenProducerAndTellsWhatWasLost(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{log: make(chan *clientpb.StreamMessage, 1000), acked: make(chan struct{}, 1000)}
	s := grpc.NewServer()
	danubepb.RegisterDiscoveryServer(s, b)
	clientpb.RegisterProducerServiceServer(s, b)
	clientpb.RegisterConsumerServiceServer(s, b)
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	f, err := StartTraffic(t.Context(), []string{"/default/a"}, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if untaken, ungiven := f.Silent(t.Context(), time.Second); len(untaken)+len(ungiven) > 0 {
		t.Errorf("not taken %q, not given %q", untaken, ungiven)
	}
	f.end()
	f.sending.Wait()
	if err := harness.Await(t.Context(), harness.Patience, "all but one to be received", func(context.Context) (bool, string) {
		got := f.Tallies()[0]
		return got.Lost == 1, got.String()
	}); err != nil {
		t.Error(err)
	}
	if got := f.Tallies()[0]; got.Acknowledged < 2 || got.Lost != 1 || got.Hung || b.producers != 2 {
		t.Errorf("%v, %d producers", got, b.producers)
	}
}
