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

type consumeRequest struct {
	Topic        string `json:"topic"`
	Subscription string `json:"subscription"`
	Max          int    `json:"max"`
}

func (r publishRequest) check() error { return checkName(r.Topic) }
func (r consumeRequest) check() error {
	if r.Subscription == "" || r.Max < 0 {
		return bad("want a subscription, and max of at least 0")
	}
	return checkName(r.Topic)
}

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
	mux.HandleFunc("POST /client/consume", change(b, b.consume))
	mux.HandleFunc("POST /client/attach", change(b, b.attach))
	mux.HandleFunc("POST /client/detach", change(b, b.detach))
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

// consume takes the next messages and acknowledges them. The subscription is made at the topic's begin.
func (b *Broker) consume(r consumeRequest) ([]string, error) {
	t := b.topics[r.Topic]
	if t == nil || !t.Loaded || t.sealed() || b.mode.Mode != "active" {
		return nil, errNotServed
	}
	got, err := b.next(t, t.Cursors[r.Subscription], r.Max)
	if err != nil {
		return nil, err
	}
	if t.Cursors == nil {
		t.Cursors = map[string]uint64{}
	}
	t.Cursors[r.Subscription] += uint64(len(got))
	_, err = b.keep(t)
	return got, err
}

// attach says that a consumer of the subscription is at work, until detach or the end of the broker.
func (b *Broker) attach(r consumeRequest) ([]string, error) {
	if b.active[r.Topic] == nil {
		b.active[r.Topic] = map[string]int{}
	}
	b.active[r.Topic][r.Subscription]++
	return b.consume(consumeRequest{r.Topic, r.Subscription, 0})
}

func (b *Broker) detach(r consumeRequest) (state, error) {
	if b.active[r.Topic][r.Subscription]--; b.active[r.Topic][r.Subscription] <= 0 {
		delete(b.active[r.Topic], r.Subscription)
	}
	return state{}, nil
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
