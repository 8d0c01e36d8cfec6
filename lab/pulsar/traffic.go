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

// Tally is what became of the messages of one topic.
type Tally struct {
	Topic                string
	Acknowledged         int
	Received, Duplicated int
	Lost                 int           // acknowledged, and never received
	Gap                  time.Duration // the longest between two acknowledgements
}

func (t Tally) String() string {
	return fmt.Sprintf("%s: %d acknowledged, %d received, %d lost, %d duplicated, longest gap %v",
		t.Topic, t.Acknowledged, t.Received, t.Lost, t.Duplicated, t.Gap.Round(time.Millisecond))
}

// stream is one topic with a producer and a subscription.
type stream struct {
	topic    string
	producer pulsar.Producer
	consumer pulsar.Consumer

	mu    sync.Mutex
	acked []int
	got   map[int]int // how often each message was received
	gap   time.Duration
	last  time.Time
}

// Traffic publishes to topics and reads them, until it is stopped.
type Traffic struct {
	client  pulsar.Client
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
	all := &Traffic{client: c, end: end, close: closeAll}
	for _, topic := range topics {
		s := &stream{topic: topic, got: map[int]int{}}
		if err := s.attach(ctx, c); err != nil {
			return all, err
		}
		all.streams = append(all.streams, s)
		all.sending.Go(func() { s.send(sending) })
		all.reading.Go(func() { s.receive(reading) })
	}
	for _, s := range all.streams {
		if err := harness.Await(ctx, harness.Patience, "messages of "+s.topic, func(context.Context) (bool, string) {
			now := s.tally()
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
			s.consumer, err = c.Subscribe(pulsar.ConsumerOptions{Topic: name, SubscriptionName: "lab", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest})
		}
		if err == nil {
			// A message that is not taken stays in hand until it is: none is given up.
			s.producer, err = c.CreateProducer(pulsar.ProducerOptions{Topic: name, DisableBatching: true, SendTimeout: -1})
		}
		return err == nil, fmt.Sprint(err)
	})
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
			s.acknowledged(n)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *stream) acknowledged(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !s.last.IsZero() {
		s.gap = max(s.gap, now.Sub(s.last))
	}
	s.last = now
	s.acked = append(s.acked, n)
}

func (s *stream) receive(ctx context.Context) {
	for {
		m, err := s.consumer.Receive(ctx)
		if err != nil {
			return
		}
		if n, err := strconv.Atoi(string(m.Payload())); err == nil {
			s.mu.Lock()
			s.got[n]++
			s.mu.Unlock()
		}
		_ = s.consumer.Ack(m) // one that fails is delivered again
	}
}

func (s *stream) tally() Tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := Tally{Topic: s.topic, Acknowledged: len(s.acked), Gap: s.gap}
	if !s.last.IsZero() {
		t.Gap = max(t.Gap, time.Since(s.last)) // one that lasts
	}
	for _, n := range s.got {
		t.Received++
		t.Duplicated += n - 1
	}
	for _, n := range s.acked {
		if s.got[n] == 0 {
			t.Lost++
		}
	}
	return t
}

// Tallies is what became of the messages so far.
func (f *Traffic) Tallies() (all []Tally) {
	for _, s := range f.streams {
		all = append(all, s.tally())
	}
	return all
}

// ForgetGaps has gaps count from now on.
func (f *Traffic) ForgetGaps() {
	for _, s := range f.streams {
		s.mu.Lock()
		s.gap, s.last = 0, time.Now()
		s.mu.Unlock()
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
		s.mu.Lock()
		s.last = time.Time{}
		s.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(ctx, harness.Patience)
	defer cancel()
	for _, s := range f.streams {
		_ = harness.Await(ctx, harness.Patience, "all to be received", func(context.Context) (bool, string) {
			now := s.tally()
			return now.Lost == 0, now.String()
		})
	}
	all = f.Tallies()
	f.Close()
	return all
}

// Close ends all at once.
func (f *Traffic) Close() {
	f.end()
	f.close()
	f.sending.Wait()
	f.reading.Wait()
	f.client.Close()
}
