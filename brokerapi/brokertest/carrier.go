package brokertest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"holdfast/brokerapi"
	"holdfast/recovery/moves"
)

// Carrier is a Server of brokers whose driver is a brokerapi.Mover.
type Carrier interface {
	Server
	// Beside starts another empty broker of the same kind, to which topics can go. It is a Carrier, too.
	Beside(t *testing.T) Server
	// Peer is this broker as its registration shows it to the others.
	Peer() brokerapi.Peer
	// Consume takes and acknowledges the next n messages as a durable subscription, which
	// it makes at the topic's begin if there is none, and returns their data.
	Consume(topic, subscription string, n int) ([]string, error)
	// Attach has a consumer of the subscription at work until leave is called.
	Attach(t *testing.T, topic, subscription string) (leave func())
}

// Spoiler is a Carrier that can change a message behind its broker's back.
type Spoiler interface {
	// Spoil changes one byte of a message whose data is old, which has the length of data, on its disk.
	Spoil(t *testing.T, topic, old, data string)
}

// end is a broker of a move.
type end struct {
	Carrier
	broker brokerapi.Broker
	brokerapi.Mover
}

const (
	moved        = "/default/moved"
	subscription = "reader"
	move         = "m1" // the ID of the first move of a test
)

// launchMoving is a source and a target; the test is skipped where nothing moves.
func launchMoving(t *testing.T, h Harness) (from, to *end) {
	t.Helper()
	first := h.Launch(t)
	c, ok := first.(Carrier)
	if !ok {
		t.Skip("this broker moves no topics")
	}
	from = newEnd(t, c)
	return from, newEnd(t, c.Beside(t).(Carrier))
}

func newEnd(t *testing.T, c Carrier) *end {
	t.Helper()
	b := open(t, c)
	m, ok := b.(brokerapi.Mover)
	if !ok {
		t.Fatalf("%T is a Carrier, and its driver %T is no Mover", c, b)
	}
	return &end{c, b, m}
}

// copied is a source with these messages, of which the subscription took the first ones, and a target
// that has a whole copy of it and may serve it.
func copied(t *testing.T, h Harness, taken int, messages ...string) (from, to *end, sealed moves.Extent) {
	t.Helper()
	from, to = launchMoving(t, h)
	from.fill(t, moved, messages...)
	if taken > 0 {
		from.wantNext(t, moved, messages[:taken]...)
	}
	sealed = from.seal(t, h, moved, move)
	to.copy(t, moved, move, from, sealed)
	assign(t, to, moved)
	return from, to, sealed
}

// fill has the topic served with these messages.
func (e *end) fill(t *testing.T, topic string, messages ...string) {
	t.Helper()
	load(t, e, e.broker, topic, nil)
	for _, text := range messages {
		if err := e.Publish(topic, []byte(text)); err != nil {
			t.Fatalf("publish to %q: %v", topic, err)
		}
	}
}

// seal seals twice: the second says the same, and clients try again.
func (e *end) seal(t *testing.T, h Harness, topic, id string) moves.Extent {
	t.Helper()
	first, err := e.Seal(soon(t), topic, id, false)
	if err != nil {
		t.Fatalf("seal: %v", err)
	}
	again, err := e.Seal(soon(t), topic, id, false)
	if err != nil || !same(first, again) {
		t.Fatalf("sealed at %+v, and again at %+v, %v", first, again, err)
	}
	e.refusesClients(t, h, topic)
	return first
}

func same(a, b moves.Extent) bool {
	return a.Empty == b.Empty && a.First == b.First && a.Last == b.Last && a.Count == b.Count && a.Bytes == b.Bytes &&
		a.Config == b.Config && a.Schema == b.Schema && a.Shrinks == b.Shrinks && maps.Equal(a.Floors, b.Floors)
}

func (e *end) refusesClients(t *testing.T, h Harness, topic string) {
	t.Helper()
	if err := e.Publish(topic, []byte("too late")); err == nil || !h.Retriable(err) {
		t.Fatalf("publish to a sealed topic: %v, want what clients retry", err)
	}
}

func (e *end) wantNext(t *testing.T, topic string, want ...string) {
	t.Helper()
	got, err := e.Consume(topic, subscription, len(want))
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("the subscription got %q, %v, want %q", got, err, want)
	}
}

// copy copies twice: the second changes nothing.
func (e *end) copy(t *testing.T, topic, id string, from *end, sealed moves.Extent) {
	t.Helper()
	for range 2 {
		got, err := e.Copy(soon(t), topic, id, from.Peer(), sealed, free)
		if err != nil || !same(got, sealed) {
			t.Fatalf("copied: %+v, %v, sealed was %+v", got, err, sealed)
		}
		if held, err := e.broker.Topics(soon(t)); err != nil || slices.Contains(held.Serving, topic) {
			t.Fatalf("a copy is served before it is resumed: %+v, %v", held, err)
		}
	}
}

// resume resumes twice: the second changes nothing.
func (e *end) resume(t *testing.T, topic, id string, sealed *moves.Extent) {
	t.Helper()
	for range 2 {
		got, err := e.Resume(soon(t), topic, id, nil, sealed)
		if err != nil || sealed != nil && got.Last != sealed.Last {
			t.Fatalf("resumed: %+v, %v, sealed was %+v", got, err, sealed)
		}
	}
}

// free is a meter without a rate.
func free(context.Context, int) error { return nil }

// wantRefused wants an error after which trying again changes nothing.
func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, brokerapi.ErrRefused) {
		t.Fatalf("%s: got %v, want what is refused for good", what, err)
	}
}
