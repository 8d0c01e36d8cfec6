package reference

import (
	"net/http"
)

// What clients of the broker do. It stands in for a protocol of messages and is no part of
// Holdfast's contract.

// errNotServed is retriable: a client asks again, here or elsewhere.
var errNotServed = refuse(http.StatusServiceUnavailable, "not_served", "the topic is not served here now")

type publishRequest struct {
	Topic string `json:"topic"`
	Data  string `json:"data"`
}

func (r publishRequest) check() error { return checkName(r.Topic) }

// foreignRequest is about a topic that may be named in any way.
type foreignRequest topicRequest

func (r foreignRequest) check() error { return checkName(r.Topic) }

func checkName(name string) error {
	if name == "" {
		return bad("topic is missing")
	}
	return nil
}

type stored struct {
	Messages int `json:"messages"`
}

func (b *Broker) clientRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /client/publish", change(b, b.publish))
	mux.HandleFunc("POST /client/count", change(b, b.count))
	mux.HandleFunc("POST /client/make", change(b, b.makeForeign))
	mux.HandleFunc("POST /client/litter", change(b, b.litter))
	mux.HandleFunc("POST /client/give-away", change(b, b.giveAway))
}

// publish answers when the message is stored.
func (b *Broker) publish(r publishRequest) (stored, error) {
	t := b.topics[r.Topic]
	if t == nil || !b.serves(t) {
		return stored{}, errNotServed
	}
	err := b.add(t, r.Data)
	return stored{t.messages}, err
}

func (b *Broker) count(r foreignRequest) (stored, error) {
	t := b.topics[r.Topic]
	if t == nil {
		return stored{}, errNotHere
	}
	return stored{t.messages}, nil
}

// makeForeign makes a topic as people do who know nothing of Holdfast.
func (b *Broker) makeForeign(r foreignRequest) (state, error) {
	if b.topics[r.Topic] != nil {
		return state{}, bad("it is here")
	}
	return b.keep(&topic{Name: r.Topic, Foreign: true, Loaded: true})
}

// litter makes a topic that this broker lists, as it should not.
func (b *Broker) litter(r foreignRequest) (state, error) {
	return b.keep(&topic{Name: r.Topic, Foreign: true, Litter: true, Loaded: true})
}

// giveAway stands for a cluster of the broker's own, in which another one serves the topic.
func (b *Broker) giveAway(r foreignRequest) (state, error) {
	return b.keep(&topic{Name: r.Topic, Theirs: true})
}
