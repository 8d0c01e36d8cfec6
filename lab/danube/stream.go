package danube

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"holdfast/lab/compare"
	"holdfast/lab/danube/clientpb"
	"holdfast/lab/harness"
)

const (
	publishEvery = 50 * time.Millisecond  // if the broker takes them so fast
	retryEvery   = 200 * time.Millisecond // of a client that is not served
	lookEvery    = 200 * time.Millisecond // of a consumer, whether it is deaf
	// A consumer that hears nothing for so long, while so many messages are acknowledged, does
	// what a user would: it subscribes again.
	deafAfter    = 10 * time.Second
	deafMessages = 20

	subscription = "lab"
)

// stream is one topic with a producer and a subscription.
type stream struct {
	topic  string
	conns  *connections
	ledger *compare.Ledger
	tries  atomic.Int64 // each begins with another broker
	held   atomic.Bool  // the consumer stays away
	heard  atomic.Bool  // it has been subscribed once
}

// send publishes numbers until ctx ends. One that is not acknowledged is sent again until it is.
func (s *stream) send(ctx context.Context) {
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()
	var p *producer
	for n := 0; ctx.Err() == nil; {
		var err error
		if p == nil {
			p, err = s.produce(ctx)
		}
		if err == nil {
			err = p.send(ctx, n)
		}
		if ctx.Err() != nil {
			return // what is on its way at the end is not counted, whatever becomes of it
		}
		if err != nil {
			p = nil
			_ = harness.Wait(ctx, retryEvery)
			continue
		}
		s.ledger.Acknowledged(n)
		n++
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// producer is one that a broker knows.
type producer struct {
	topic  string
	id     uint64
	client clientpb.ProducerServiceClient
}

func (s *stream) produce(ctx context.Context) (*producer, error) {
	conn, err := s.conns.owner(ctx, s.topic, int(s.tries.Add(1)))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	p := &producer{topic: s.topic, client: clientpb.NewProducerServiceClient(conn)}
	made, err := p.client.CreateProducer(ctx, &clientpb.ProducerRequest{
		ProducerName: "lab", TopicName: s.topic, DispatchStrategy: clientpb.DispatchStrategy_Reliable,
	})
	if err != nil {
		return nil, err
	}
	p.id = made.ProducerId
	return p, nil
}

func (p *producer) send(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	_, err := p.client.SendMessage(ctx, &clientpb.StreamMessage{
		RequestId: uint64(n) + 1, MsgId: &clientpb.MsgID{ProducerId: p.id, TopicName: p.topic},
		Payload: strconv.AppendInt(nil, int64(n), 10), PublishTime: uint64(time.Now().UnixMilli()), ProducerName: "lab",
	})
	return err
}

// receive reads until ctx ends.
func (s *stream) receive(ctx context.Context) {
	deaf := false // the subscription before this one was
	for ctx.Err() == nil {
		if !s.held.Load() {
			deaf = s.read(ctx, deaf)
		}
		_ = harness.Wait(ctx, retryEvery)
	}
}

// read subscribes and reads until that ends, by an error or because nothing comes in any more. It
// says whether it was the latter. If the one before was, and this one hears, that one hung.
func (s *stream) read(ctx context.Context, wasDeaf bool) (deaf bool) {
	conn, err := s.conns.owner(ctx, s.topic, int(s.tries.Add(1)))
	if err != nil {
		return wasDeaf
	}
	client := clientpb.NewConsumerServiceClient(conn)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := s.subscribe(ctx, client)
	if err != nil {
		return wasDeaf
	}
	s.heard.Store(true)
	subscribed := time.Now()
	var silent atomic.Bool
	watched := make(chan struct{})
	defer func() { cancel(); <-watched }()
	go func() {
		defer close(watched)
		for harness.Wait(ctx, lookEvery) == nil {
			if s.held.Load() {
				cancel()
			}
			if since, n := s.ledger.Unheard(); min(since, time.Since(subscribed)) > deafAfter && n > deafMessages {
				silent.Store(true)
				cancel()
			}
		}
	}()
	for {
		m, err := in.Recv()
		if err != nil {
			return silent.Load() || wasDeaf
		}
		if n, err := strconv.Atoi(string(m.Payload)); err == nil {
			if wasDeaf {
				s.ledger.Hang()
				wasDeaf = false
			}
			s.ledger.Received(n)
		}
		s.ack(ctx, client, m)
	}
}

func (s *stream) subscribe(ctx context.Context, client clientpb.ConsumerServiceClient) (clientpb.ConsumerService_ReceiveMessagesClient, error) {
	bounded, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	made, err := client.Subscribe(bounded, &clientpb.ConsumerRequest{TopicName: s.topic, ConsumerName: "lab", Subscription: subscription,
		SubscriptionType: clientpb.ConsumerRequest_Exclusive})
	if err != nil {
		return nil, err
	}
	return client.ReceiveMessages(ctx, &clientpb.ReceiveRequest{ConsumerId: made.ConsumerId})
}

// ack may fail: the message is delivered again then.
func (s *stream) ack(ctx context.Context, client clientpb.ConsumerServiceClient, m *clientpb.StreamMessage) {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	_, _ = client.Ack(ctx, &clientpb.AckRequest{RequestId: m.RequestId, MsgId: m.MsgId, SubscriptionName: subscription})
}
