package brokertest

import (
	"errors"
	"slices"
	"testing"

	"holdfast/brokerapi"
)

// What a Server can do beyond what all do, for brokers that are otherwise than most.

// Assigner is a Server of brokers that load only what was assigned to them in their own
// metadata. The suite calls it before every Load, from the test's own goroutine.
type Assigner interface {
	// Assign makes the topic this broker's. What is so already is not changed.
	Assign(t *testing.T, topic string)
}

// Placer is a Server of brokers whose own cluster places a topic when a client comes for it:
// nothing is loaded.
type Placer interface {
	// Place has the topic be served, by this broker where it is the only one.
	Place(t *testing.T, topic string)
}

// placed reports whether topics are served as clients come.
func placed(s Server) bool {
	_, is := s.(Placer)
	return is
}

// Unit is a Server of brokers that own their topics in larger units.
type Unit interface {
	// Unit is the name under which Topics lists the topic.
	Unit(topic string) string
}

// Blinder is a Server of brokers that note a stale view.
type Blinder interface {
	// Blind lets the broker's watches of its metadata die for the rest of its life. It
	// serves on.
	Blind(t *testing.T)
	// Reassign changes the metadata as Assign does, whether the broker learns of it or not.
	Reassign(t *testing.T, topic string)
}

// Neighbour is a Server of brokers that have a cluster of their own.
type Neighbour interface {
	// GiveAway makes another broker of the same cluster serve the topic.
	GiveAway(t *testing.T, topic string)
}

// Receiver is a Neighbour whose cluster sends a topic to the broker that is named.
type Receiver interface {
	// Receiver is the other broker that GiveAway has given topics to.
	Receiver() brokerapi.Peer
}

// Litterer is a Server whose clients can make it serve what is no topic.
type Litterer interface {
	// Litter has the broker serve something that no /namespace/topic is called.
	Litter(t *testing.T)
}

// withdraws reports whether the broker gives a topic up while it runs.
func withdraws(t *testing.T, b brokerapi.Broker) bool {
	t.Helper()
	return !errors.Is(b.Withdraw(soon(t), "/default/nowhere"), errors.ErrUnsupported)
}

func neighbour(t *testing.T, s Server) Neighbour {
	t.Helper()
	n, ok := s.(Neighbour)
	if !ok {
		t.Fatalf("%T is no Neighbour, and Harness.Alone does not say that there are none", s)
	}
	return n
}

// assign makes topics this server's, where that is needed.
func assign(t *testing.T, s Server, topics ...string) {
	t.Helper()
	if a, ok := s.(Assigner); ok {
		for _, topic := range topics {
			a.Assign(t, topic)
		}
	}
}

// unit is what is unloaded when the topic is.
func unit(s Server, topic string) string { return listed(s, []string{topic})[0] }

// listed is what Topics must show when the broker holds these topics.
func listed(s Server, topics []string) []string {
	units := slices.Clone(topics)
	if u, ok := s.(Unit); ok {
		for i, topic := range topics {
			units[i] = u.Unit(topic)
		}
	}
	slices.Sort(units)
	return slices.Compact(units)
}
