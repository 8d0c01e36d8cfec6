package brokertest

import (
	"slices"
	"testing"

	"holdfast/brokerapi"
)

// moving is a broker that can move topics, and one of them with three messages, two of
// which the subscription has taken.
type moving struct {
	server Server
	broker brokerapi.Broker
	brokerapi.Quiescer
	brokerapi.Mover
	consumer Consumer
}

const (
	moved        = "/default/moved"
	subscription = "reader"
)

func launchMoving(t *testing.T, h Harness) *moving {
	t.Helper()
	s := h.Launch(t)
	b := open(t, s)
	m := &moving{server: s, broker: b}
	m.Mover = able[brokerapi.Mover](t, b.Capabilities().Move, "move", b)
	m.Quiescer = hook[brokerapi.Quiescer](t, "move", b)
	m.consumer = hook[Consumer](t, "move", s)
	return m
}

func (m *moving) fill(t *testing.T, topic string, messages ...string) {
	t.Helper()
	load(t, m.server, m.broker, topic, nil)
	for _, text := range messages {
		if err := m.server.Publish(topic, []byte(text)); err != nil {
			t.Fatalf("publish to %q: %v", topic, err)
		}
	}
}

// seal takes the topic to its end here, each step twice.
func (m *moving) seal(t *testing.T, topic string) brokerapi.Sealed {
	t.Helper()
	for range 2 {
		if err := m.Quiesce(soon(t), topic); err != nil {
			t.Fatalf("quiesce: %v", err)
		}
	}
	for range 2 {
		if err := m.Commit(soon(t), topic); err != nil {
			t.Fatalf("commit: %v", err)
		}
	}
	first, err := m.Seal(soon(t), topic)
	if err != nil {
		t.Fatalf("seal: %v", err)
	}
	again, err := m.Seal(soon(t), topic)
	if err != nil || again != first {
		t.Fatalf("sealed at %+v, and again at %+v, %v", first, again, err)
	}
	m.refuses(t, topic)
	return first
}

func (m *moving) refuses(t *testing.T, topic string) {
	t.Helper()
	if err := m.server.Publish(topic, []byte("too late")); err == nil {
		t.Fatal("a sealed topic took a message")
	}
}

func (m *moving) wantNext(t *testing.T, topic string, want ...string) {
	t.Helper()
	got, err := m.consumer.Consume(topic, subscription, len(want))
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("the subscription got %q, %v, want %q", got, err, want)
	}
}

func moves(t *testing.T, h Harness) {
	m := launchMoving(t, h)
	m.fill(t, moved, "one", "two", "three")
	m.wantNext(t, moved, "one", "two")
	m.fill(t, "/default/stays", "other")
	end := m.seal(t, moved)
	if end.Empty {
		t.Errorf("sealed with three messages as %+v", end)
	}
	for range 2 {
		if err := m.Resume(soon(t), moved, end); err != nil {
			t.Fatalf("resume: %v", err)
		}
	}
	wantCount(t, m.server, moved, 3)
	if err := m.server.Publish(moved, []byte("four")); err != nil {
		t.Fatalf("publish after resume: %v", err)
	}
	m.wantNext(t, moved, "three", "four")
	wantCount(t, m.server, "/default/stays", 1)
	publish(t, m.server, "/default/stays")
	wantTopics(t, m.server, m.broker, []string{moved, "/default/stays"}, nil)
}

func sealsEmpty(t *testing.T, h Harness) {
	m := launchMoving(t, h)
	m.fill(t, moved)
	m.fill(t, "/default/single", "one")
	none, one := m.seal(t, moved), m.seal(t, "/default/single")
	if !none.Empty || none.LastOffset != 0 {
		t.Errorf("without a message sealed at %+v", none)
	}
	if one.Empty {
		t.Errorf("with one message sealed at %+v", one)
	}
	for topic, end := range map[string]brokerapi.Sealed{moved: none, "/default/single": one} {
		if err := m.Resume(soon(t), topic, end); err != nil {
			t.Fatalf("resume %s from %+v: %v", topic, end, err)
		}
		publish(t, m.server, topic)
	}
	wantCount(t, m.server, moved, 1)
	wantCount(t, m.server, "/default/single", 2)
}

func sealLasts(t *testing.T, h Harness) {
	m := launchMoving(t, h)
	m.fill(t, moved, "one", "two", "three")
	m.wantNext(t, moved, "one", "two")
	end := m.seal(t, moved)
	m.server.Kill(t)
	m.server.Start(t)
	become(t, "healthy after the restart", m.broker.Health)
	m.refuses(t, moved)
	if again, err := m.Seal(soon(t), moved); err != nil || again != end {
		t.Fatalf("sealed at %+v, and after a restart at %+v, %v", end, again, err)
	}
	if err := m.Resume(soon(t), moved, end); err != nil {
		t.Fatalf("resume: %v", err)
	}
	m.wantNext(t, moved, "three")
}

func deletesSealed(t *testing.T, h Harness) {
	m := launchMoving(t, h)
	m.fill(t, moved, "one")
	if err := m.Delete(soon(t), moved); err == nil {
		t.Fatal("a topic that is served was deleted")
	}
	if err := m.Quiesce(soon(t), moved); err != nil {
		t.Fatal(err)
	}
	if err := m.Delete(soon(t), moved); err == nil {
		t.Fatal("a topic that is not sealed was deleted")
	}
	wantCount(t, m.server, moved, 1)
	m.seal(t, moved)
	for range 2 {
		if err := m.Delete(soon(t), moved); err != nil {
			t.Fatalf("delete: %v", err)
		}
	}
	wantTopics(t, m.server, m.broker, nil, nil)
	if n, err := m.server.Count(moved); err == nil && n != 0 {
		t.Errorf("%d messages after delete", n)
	}
}

func resumeRefuses(t *testing.T, h Harness) {
	m := launchMoving(t, h)
	m.fill(t, moved, "one", "two")
	end := m.seal(t, moved)
	for name, from := range map[string]brokerapi.Sealed{
		"messages that are not here": {LastOffset: end.LastOffset + 1},
		"no message at all":          {Empty: true},
	} {
		if err := m.Resume(soon(t), moved, from); err == nil {
			t.Fatalf("resumed from %+v (%s), sealed at %+v", from, name, end)
		}
		m.refuses(t, moved)
	}
	if err := m.Resume(soon(t), moved, end); err != nil {
		t.Fatalf("resume: %v", err)
	}
	wantCount(t, m.server, moved, 2)
}
