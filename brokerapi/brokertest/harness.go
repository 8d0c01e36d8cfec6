// Package brokertest is the conformance suite of package brokerapi: Run proves
// what the interfaces promise, against a real broker or against a fake of one.
//
// Proven: identity, health, serving, withdrawing, listing, steering, whether the broker still sees its metadata, each step of a
// move between two brokers, that a topic is sent to another where their cluster does that, and that
// every call ends with its context, also while the broker is frozen or dead. A claim
// is skipped only where Harness, or the optional interfaces of the driver, say that there is
// nothing to claim. Not proven: speed, and what other brokers of its own cluster do.
package brokertest

import (
	"context"
	"testing"
	"time"

	"holdfast/brokerapi"
)

// Harness is what the suite needs to know about one kind of broker.
type Harness struct {
	// Traits are those that the driver tells of these settings.
	Traits brokerapi.Traits
	// Parks: a topic that is withdrawn stays with the broker, and is listed as that.
	Parks bool
	// Launch starts an empty broker for one test and returns when it answers.
	// It ends with the test.
	Launch func(t *testing.T) Server
	// Odd are topics whose names are hard for this kind of broker.
	Odd []OddTopic
	// Many is how many topics to list at once; 0 is 2,000, more than a page of
	// any known broker.
	Many int
	// Alone: brokers of this kind have no cluster of their own, so that no topic is served
	// by another one of it. Without it the Server must be a Neighbour.
	Alone bool
	// NoHalves: of a copy that ended in the midst nothing may be left, so that Serve does not know of it.
	NoHalves bool
	// Retriable is true for errors of Server.Publish after which an ordinary
	// client tries again.
	Retriable func(error) bool
}

// OddTopic is a topic and the record that it needs, nil for none.
type OddTopic struct {
	Name   string // of the test
	Topic  string
	Record []byte
}

// Server is one broker process and an ordinary client of it. A fake may stand
// for the process, if its Freeze leaves calls without an answer.
type Server interface {
	// Open makes a new driver for this server, running or not.
	Open(t *testing.T) brokerapi.Broker
	// Kill ends the process as kill -9 does and returns when it is gone.
	Kill(t *testing.T)
	// Start starts it again on the same addresses and data, and returns when it answers.
	Start(t *testing.T)
	// Freeze and Thaw stop and continue it as SIGSTOP and SIGCONT do. Freeze
	// returns when it has stopped.
	Freeze(t *testing.T)
	Thaw(t *testing.T)
	// Publish sends one message as a client and returns nil when the broker has stored it.
	Publish(topic string, data []byte) error
	// Count is the number of messages that the topic holds, quiesced or not.
	Count(topic string) (int, error)
	// AddForeign makes topics that Holdfast did not name, as close to its names
	// as possible, and returns a check that they are as they were made.
	AddForeign(t *testing.T) (unchanged func() error)
}

// usual bounds a call that should simply work.
const usual = 10 * time.Second

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), usual)
	t.Cleanup(cancel)
	return ctx
}

// become waits until probe returns nil, asking every 20 ms for at most usual.
func become(t *testing.T, what string, probe func(context.Context) error) {
	t.Helper()
	ctx := soon(t)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %s: %v", usual, what, err)
		case <-tick.C:
		}
	}
}

// open is a driver that is closed with the test, connected and healthy.
func open(t *testing.T, s Server) brokerapi.Broker {
	t.Helper()
	b := s.Open(t)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close the driver: %v", err)
		}
	})
	become(t, "healthy", answering(b))
	return b
}

func load(t *testing.T, s Server, b brokerapi.Broker, topic string, record []byte) {
	t.Helper()
	assign(t, s, topic)
	if p, is := s.(Placer); is {
		p.Place(t, topic)
		return
	}
	if err := b.Serve(soon(t), topic, record); err != nil {
		t.Fatalf("load %q: %v", topic, err)
	}
}

func publish(t *testing.T, s Server, topic string) {
	t.Helper()
	if err := s.Publish(topic, []byte("data")); err != nil {
		t.Fatalf("publish to %q: %v", topic, err)
	}
}

func wantCount(t *testing.T, s Server, topic string, want int) {
	t.Helper()
	got, err := s.Count(topic)
	if err != nil {
		t.Fatalf("count the messages of %q: %v", topic, err)
	}
	if got != want {
		t.Fatalf("%q holds %d messages, want %d", topic, got, want)
	}
}
