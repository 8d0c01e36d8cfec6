package brokertest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast/brokerapi"
)

func steered(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	st, ok := b.(brokerapi.ModeSetter)
	if !ok {
		t.Skip("no mode of its own")
	}
	topics := []string{"/default/orders", "/default/others"}
	for _, topic := range topics {
		load(t, s, b, topic, nil)
		publish(t, s, topic)
	}
	for range 2 { // the second changes nothing
		if err := st.SetMode(soon(t), brokerapi.Drained, "conformance"); err != nil {
			t.Fatalf("steer to drained: %v", err)
		}
		held, err := b.Topics(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		if len(held.Serving) > 0 {
			t.Fatalf("drained, and it serves %q", held.Serving)
		}
		if h.Traits.Places {
			continue // its cluster may serve them elsewhere
		}
		if err := s.Publish(topics[0], []byte("too late")); err == nil {
			t.Fatal("a drained broker took a message")
		}
	}
	for range 2 {
		if err := st.SetMode(soon(t), brokerapi.Active, "conformance"); err != nil {
			t.Fatalf("steer to active: %v", err)
		}
	}
	for _, topic := range topics {
		assign(t, s, topic)
		if placed(s) {
			load(t, s, b, topic, nil)
		} else if err := b.Serve(soon(t), topic, nil); err != nil && !(h.Traits.Places && errors.Is(err, brokerapi.ErrElsewhere)) {
			t.Fatalf("load %q when active again: %v", topic, err)
		}
		publish(t, s, topic)
		wantCount(t, s, topic, 2)
	}
	if err := st.SetMode(soon(t), brokerapi.Mode("asleep"), "conformance"); err == nil {
		t.Error("steered to a mode that there is not")
	}
}

// peers is for brokers whose cluster tells who else is active.
func peers(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	if identify(t, b).Others == nil {
		t.Skip("the broker does not tell of others")
	}
	n := neighbour(t, s)
	n.GiveAway(t, "/default/theirs")
	become(t, "told of another that is active", func(ctx context.Context) error {
		said, err := b.Probe(ctx)
		if err == nil && (said.Others == nil || *said.Others == 0) {
			err = errors.New("there is none")
		}
		return err
	})
	s.Kill(t)
	if said, err := b.Probe(soon(t)); err == nil || said.Others != nil {
		t.Errorf("a broker that is killed tells of others: %+v, %v", said, err)
	}
}

// sends is for brokers whose own cluster moves topics.
func sends(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	sender, is := b.(brokerapi.Sender)
	if !is {
		t.Skip("this broker's cluster moves no topics")
	}
	n := neighbour(t, s)
	n.GiveAway(t, "/default/theirs")
	load(t, s, b, "/default/sent", nil)
	publish(t, s, "/default/sent")
	to, names := brokerapi.Peer{}, false
	if r, is := s.(Receiver); is {
		to, names = r.Receiver(), true
	}
	if _, err := sender.Send(soon(t), unit(s, "/default/sent"), brokerapi.Peer{ID: "nobody:1"}); !errors.Is(err, brokerapi.ErrRefused) {
		t.Errorf("sent to a broker that is not there: %v", err)
	}
	wantTopics(t, s, b, []string{"/default/sent"}, nil)
	for range 2 { // the second time it is there
		if seen, err := sender.Send(soon(t), unit(s, "/default/sent"), to); err != nil || seen == "" || names && !strings.Contains(seen, to.ID) {
			t.Fatalf("send to %q: saw %q, %v", to.ID, seen, err)
		}
		wantTopics(t, s, b, nil, nil)
	}
	publish(t, s, "/default/sent") // clients find it
	wantCount(t, s, "/default/sent", 2)
}

func elsewhere(t *testing.T, h Harness) {
	if h.Alone {
		t.Skip("brokers of this kind have no cluster of their own")
	}
	s := h.Launch(t)
	b := open(t, s)
	n := neighbour(t, s)
	n.GiveAway(t, "/default/theirs")
	for i := 0; i < 2 && !placed(s); i++ {
		if err := b.Serve(soon(t), "/default/theirs", nil); !errors.Is(err, brokerapi.ErrElsewhere) {
			t.Fatalf("load of another broker's topic: got %v, want %v", err, brokerapi.ErrElsewhere)
		}
	}
	wantTopics(t, s, b, nil, nil)
	load(t, s, b, "/default/ours", nil)
	wantTopics(t, s, b, []string{"/default/ours"}, nil)
}

func seesItsTopics(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	load(t, s, b, "/default/orders", nil)
	load(t, s, b, "/default/others", nil)
	wantTopics(t, s, b, []string{"/default/orders", "/default/others"}, nil)
	if detail := staleView(t, b); detail != "" {
		t.Errorf("a broker that sees everything is called blind: %s", detail)
	}
}

func isBlind(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	blind, ok := s.(Blinder)
	if !ok {
		t.Skip("no watches of this broker's die")
	}
	load(t, s, b, "/default/orders", nil)
	blind.Blind(t)
	blind.Reassign(t, "/default/new")
	end := time.Now().Add(3 * usual) // a difference must last
	for ; !strings.Contains(staleView(t, b), "/default/new"); time.Sleep(100 * time.Millisecond) {
		if _, err := b.Topics(soon(t)); err != nil || time.Now().After(end) {
			t.Fatalf("a broker whose watches have died is not called blind: %q, %v", staleView(t, b), err)
		}
	}
	publish(t, s, "/default/orders") // it serves on
}

// staleView is the broker's note of that kind.
func staleView(t *testing.T, b brokerapi.Broker) string {
	t.Helper()
	for _, n := range identify(t, b).Notes {
		if n.Kind == brokerapi.StaleView {
			return n.Text
		}
	}
	return ""
}
