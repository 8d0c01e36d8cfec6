package danube

import (
	"context"
	"fmt"
	"sync"
	"time"

	"holdfast/lab/compare"
	"holdfast/lab/harness"
)

// Tally is what became of the messages of one topic.
type Tally = compare.Tally

// Traffic publishes to topics and reads them, until it is stopped.
type Traffic struct {
	conns   *connections
	streams []*stream
	end     context.CancelFunc // of the producers
	close   context.CancelFunc // of the consumers
	sending sync.WaitGroup
	reading sync.WaitGroup
}

// StartTraffic returns when each topic has taken and given back a message. The topics are there;
// the addresses, host:port, are those of all brokers. Close it, also after an error.
func StartTraffic(ctx context.Context, topics []string, addresses ...string) (*Traffic, error) {
	sending, end := context.WithCancel(context.Background())
	reading, closeAll := context.WithCancel(context.Background())
	f := &Traffic{conns: &connections{seeds: addresses}, end: end, close: closeAll}
	for i, topic := range topics {
		s := &stream{topic: topic, conns: f.conns, ledger: compare.NewLedger(topic)}
		s.tries.Store(int64(i))
		f.streams = append(f.streams, s)
		f.reading.Go(func() { s.receive(reading) })
	}
	// A subscription begins with what comes after it.
	for _, s := range f.streams {
		if err := harness.Await(ctx, harness.Patience, "a consumer of "+s.topic, func(context.Context) (bool, string) {
			return s.heard.Load(), "no subscription"
		}); err != nil {
			return f, err
		}
		f.sending.Go(func() { s.send(sending) })
	}
	return f, f.awaitFlow(ctx)
}

// awaitFlow waits until each topic has taken and given back a message from now on.
func (f *Traffic) awaitFlow(ctx context.Context) error {
	before := f.Tallies()
	return harness.Await(ctx, harness.Patience, "topics to be served", func(context.Context) (bool, string) {
		for i, now := range f.Tallies() {
			if now.Acknowledged < before[i].Acknowledged+2 || now.Received == before[i].Received {
				return false, now.String()
			}
		}
		return true, ""
	})
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

// Hold keeps the consumers away, or lets them come back. What they did not hear meanwhile is no gap.
func (f *Traffic) Hold(away bool) {
	for _, s := range f.streams {
		s.held.Store(away)
		s.ledger.ForgetDeaf()
	}
}

// Silent are the topics that took no message, or gave none, for that long from now on.
func (f *Traffic) Silent(ctx context.Context, d time.Duration) (untaken, ungiven []string) {
	before := f.Tallies()
	if harness.Wait(ctx, d) != nil {
		return nil, nil
	}
	for i, now := range f.Tallies() {
		switch {
		case now.Acknowledged == before[i].Acknowledged:
			untaken = append(untaken, now.Topic)
		case now.Received == before[i].Received:
			ungiven = append(ungiven, now.Topic)
		}
	}
	return untaken, ungiven
}

// Stop ends the publishing, waits until nothing is received any more, and tells what became of all.
func (f *Traffic) Stop(ctx context.Context) []Tally {
	f.end()
	f.sending.Wait()
	for _, s := range f.streams {
		s.ledger.End()
	}
	f.awaitRest(ctx)
	f.Close()
	return f.Tallies()
}

// awaitRest waits until all is received, or nothing was for longer than a consumer takes that
// subscribes again.
func (f *Traffic) awaitRest(ctx context.Context) {
	rest := func() (lost, received int) {
		for _, s := range f.streams {
			t := s.ledger.Tally()
			lost, received = lost+t.Lost, received+t.Received+t.Duplicated
		}
		return lost, received
	}
	changed := time.Now()
	_, before := rest()
	_ = harness.Await(ctx, 3*time.Minute, "all to be received", func(context.Context) (bool, string) {
		lost, received := rest()
		if received != before {
			changed, before = time.Now(), received
		}
		return lost == 0 || time.Since(changed) > 2*deafAfter, fmt.Sprint(lost, " are missing")
	})
}

// Close ends all at once.
func (f *Traffic) Close() {
	f.end()
	f.close()
	f.sending.Wait()
	f.reading.Wait()
	f.conns.close()
}
