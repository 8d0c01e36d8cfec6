//go:build pulsar

package pulsar

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"holdfast/lab/harness"
)

// bootBound is how long a broker may take until it serves.
const bootBound = 3 * time.Minute

// publishEvery is the pause between two messages of a topic, if the broker takes them so fast.
const publishEvery = 20 * time.Millisecond

// stream is one topic with a producer and a subscription.
type stream struct {
	topic    string
	producer pulsar.Producer
	consumer pulsar.Consumer
	ledger   *Ledger
}

// Traffic publishes to topics and reads them, until it is stopped.
type Traffic struct {
	client  pulsar.Client
	brokers []*harness.ApacheBroker
	streams []*stream
	end     context.CancelFunc // of the producers
	close   context.CancelFunc // of the consumers
	sending sync.WaitGroup
	reading sync.WaitGroup
}

// StartTraffic returns when each topic has stored and given back a message. Close it, also
// after an error.
func StartTraffic(ctx context.Context, topics []string, brokers ...*harness.ApacheBroker) (*Traffic, error) {
	c, err := Connect(brokers...)
	if err != nil {
		return nil, err
	}
	sending, end := context.WithCancel(context.Background())
	reading, closeAll := context.WithCancel(context.Background())
	all := &Traffic{client: c, brokers: brokers, end: end, close: closeAll}
	for _, topic := range topics {
		s := &stream{topic: topic, ledger: NewLedger(topic)}
		if err := s.attach(ctx, c); err != nil {
			return all, err
		}
		all.streams = append(all.streams, s)
		all.sending.Go(func() { s.send(sending) })
		all.reading.Go(func() { s.receive(reading) })
	}
	for _, s := range all.streams {
		if err := harness.Await(ctx, harness.Patience, "messages of "+s.topic, func(context.Context) (bool, string) {
			now := s.ledger.Tally()
			return now.Received > 0, now.String()
		}); err != nil {
			return all, err
		}
	}
	return all, nil
}

// attach makes consumer and producer, each again where a busy machine is too slow for the client.
func (s *stream) attach(ctx context.Context, c pulsar.Client) error {
	name, _ := harness.PulsarTopic(s.topic)
	return harness.Await(ctx, bootBound, "clients of "+s.topic, func(context.Context) (_ bool, saw string) {
		var err error
		if s.consumer == nil {
			s.consumer, err = subscribe(c, name)
		}
		if err == nil {
			// A message that is not taken stays in hand until it is: none is given up.
			s.producer, err = c.CreateProducer(pulsar.ProducerOptions{Topic: name, DisableBatching: true, SendTimeout: -1})
		}
		return err == nil, fmt.Sprint(err)
	})
}

func subscribe(c pulsar.Client, name string) (pulsar.Consumer, error) {
	return c.Subscribe(pulsar.ConsumerOptions{Topic: name, SubscriptionName: "lab", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest})
}

func (s *stream) send(ctx context.Context) {
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		// What is on its way at the end is not counted, whatever becomes of it.
		_, err := s.producer.Send(ctx, &pulsar.ProducerMessage{Payload: strconv.AppendInt(nil, int64(n), 10)})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			s.ledger.Acknowledged(n)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *stream) receive(ctx context.Context) {
	for {
		m, err := s.consumer.Receive(ctx)
		if err != nil {
			return
		}
		if n, err := strconv.Atoi(string(m.Payload())); err == nil {
			s.ledger.Received(n)
		}
		_ = s.consumer.Ack(m) // one that fails is delivered again
	}
}

// Tallies is what became of the messages so far.
func (f *Traffic) Tallies() (all []Tally) {
	for _, s := range f.streams {
		all = append(all, s.ledger.Tally())
	}
	return all
}

// ForgetGaps has gaps count from now on.
func (f *Traffic) ForgetGaps() {
	for _, s := range f.streams {
		s.ledger.Forget()
	}
}

// AwaitFlow waits until each of the topics, or of all if none is named, has stored a message from
// now on.
func (f *Traffic) AwaitFlow(ctx context.Context, bound time.Duration, topics ...string) error {
	before := f.Tallies()
	return harness.Await(ctx, bound, "topics to be served", func(context.Context) (bool, string) {
		for i, now := range f.Tallies() {
			named := len(topics) == 0 || slices.Contains(topics, now.Topic)
			if named && now.Acknowledged < before[i].Acknowledged+2 {
				return false, now.String()
			}
		}
		return true, ""
	})
}

// Stop ends the publishing, waits for what is to be received, and tells what became of it.
func (f *Traffic) Stop(ctx context.Context) (all []Tally) {
	f.end()
	f.sending.Wait()
	for _, s := range f.streams {
		s.ledger.End()
	}
	f.awaitAll(ctx)
	f.Close()
	f.readAgain(ctx)
	return f.Tallies()
}

// awaitAll waits, with a bound for all topics together, until nothing is to be received any more.
func (f *Traffic) awaitAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, harness.Patience)
	defer cancel()
	for _, s := range f.streams {
		_ = harness.Await(ctx, harness.Patience, "all to be received", func(context.Context) (bool, string) {
			now := s.ledger.Tally()
			return now.Lost == 0, now.String()
		})
	}
}

// readAgain subscribes anew to each topic of which messages are missing: a message is lost only if
// nobody can read it.
func (f *Traffic) readAgain(ctx context.Context) {
	missing := slices.DeleteFunc(slices.Clone(f.streams), func(s *stream) bool { return s.ledger.Tally().Lost == 0 })
	if len(missing) == 0 {
		return
	}
	c, err := Connect(f.brokers...)
	if err != nil {
		return // what is missing is lost then
	}
	defer c.Close()
	reading, stop := context.WithCancel(ctx)
	defer f.reading.Wait()
	defer stop()
	for _, s := range missing {
		name, _ := harness.PulsarTopic(s.topic)
		before := s.ledger.Tally().Lost
		if s.consumer, err = subscribe(c, name); err != nil {
			continue
		}
		f.reading.Go(func() { s.receive(reading) })
		defer func() {
			if s.ledger.Tally().Lost < before {
				s.ledger.Hang()
			}
		}()
	}
	f.awaitAll(ctx)
}

// Close ends all at once.
func (f *Traffic) Close() {
	f.end()
	f.close()
	f.sending.Wait()
	f.reading.Wait()
	f.client.Close()
}
