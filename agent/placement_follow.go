package agent

import (
	"context"
	"maps"
	"strings"
	"time"

	"holdfast/agent/control"
	"holdfast/cluster"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// This file feeds the placer with the whole cluster. There may be a hundred thousand topics,
// so lists are taken up page by page and no list is ever held.

// followBrokers feeds the reconciler and the placer with all brokers' states and
// assignments. Our own assignments are taken up first: a topic that was just given away
// is not wanted here any more when the placer learns of it.
func (a *agent) followBrokers(ctx context.Context, id string) error {
	seen := brokersSeen{id: id, keys: a.main.Keys(), placer: a.placer,
		assigned: a.assignments(ctx, id)}
	return a.main.Follow(ctx, cluster.Target{Key: seen.keys.Brokers(), Prefix: true, InParts: true},
		a.inOrder(ctx, seen.take), a.followError(ctx, "all brokers"))
}

// brokersSeen takes up what is known of all brokers.
type brokersSeen struct {
	id       string // ours
	keys     cluster.Keys
	placer   *topics.Placer
	assigned func(cluster.Update) // hears of our own assignments
	list     struct {             // that is being read; what is few is kept until its end
		underway bool
		modes    map[string]recovery.Mode
		mine     cluster.Update
	}
}

func (b *brokersSeen) take(u cluster.Update) {
	if u.Full || b.list.underway {
		b.listed(u)
		return
	}
	if m := mine(u, b.keys, b.id); len(m.Puts)+len(m.Deletes) > 0 {
		b.assigned(m)
	}
	puts, modes := b.parse(u.Puts)
	var deletes []topics.Assignment
	var stateless []string
	for _, key := range u.Deletes {
		if id, topic, ok := b.keys.ParseAssignment(key); ok {
			deletes = append(deletes, topics.Assignment{Topic: topic, Place: recovery.Place{Broker: id}})
		} else if id, ok := b.keys.ParseState(key); ok {
			stateless = append(stateless, id)
		}
	}
	b.placer.Update(func(r *topics.Roster, now time.Time) {
		r.SetModes(false, modes, stateless, now)
		r.SetPlaces(puts, deletes)
	})
}

// listed takes up a part of the list.
func (b *brokersSeen) listed(u cluster.Update) {
	l := &b.list
	if u.Full {
		l.underway, l.modes, l.mine = true, map[string]recovery.Mode{}, cluster.Update{Full: true}
	}
	puts, modes := b.parse(u.Puts)
	maps.Copy(l.modes, modes)
	l.mine.Puts = append(l.mine.Puts, mine(u, b.keys, b.id).Puts...)
	if l.mine.Revision = u.Revision; !u.More {
		b.assigned(l.mine)
	}
	b.placer.Update(func(r *topics.Roster, now time.Time) {
		if u.Full {
			r.ListPlaces()
		}
		r.AddPlaces(puts)
		if !u.More {
			r.SetModes(true, l.modes, nil, now)
			r.EndPlaces()
		}
	})
	if !u.More {
		l.underway, l.modes, l.mine = false, nil, cluster.Update{}
	}
}

func (b *brokersSeen) parse(puts []cluster.KV) (places []topics.Assignment, modes map[string]recovery.Mode) {
	places, modes = make([]topics.Assignment, 0, len(puts)), map[string]recovery.Mode{}
	for _, kv := range puts {
		if id, topic, ok := b.keys.ParseAssignment(kv.Key); ok {
			places = append(places, topics.Assignment{Topic: topic, Place: recovery.Place{
				Broker: id, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision}})
		} else if id, ok := b.keys.ParseState(kv.Key); ok {
			if s, err := cluster.ParseState(kv.Value); err == nil {
				modes[id] = recovery.Mode(s.Mode)
			} else {
				modes[id] = recovery.Unreadable
			}
		}
	}
	return places, modes
}

// mine is the part of an update that is about one broker.
func mine(u cluster.Update, keys cluster.Keys, id string) cluster.Update {
	part := cluster.Update{Full: u.Full, Revision: u.Revision}
	ours := func(key string) bool {
		owner, _, ok := keys.ParseAssignment(key)
		return ok && owner == id
	}
	for _, kv := range u.Puts {
		if ours(kv.Key) {
			part.Puts = append(part.Puts, kv)
		}
	}
	for _, key := range u.Deletes {
		if ours(key) {
			part.Deletes = append(part.Deletes, key)
		}
	}
	return part
}

// followFleet feeds the placer with who is registered.
func (a *agent) followFleet(ctx context.Context) error {
	keys := a.main.Keys()
	ids := func(list []string) (out []string) {
		for _, key := range list {
			if id, ok := keys.ParseRegistration(key); ok {
				out = append(out, id)
			}
		}
		return out
	}
	return a.main.Follow(ctx, cluster.Target{Key: keys.Registrations(), Prefix: true, KeysOnly: true, Many: true}, func(u cluster.Update) {
		a.placer.Update(func(r *topics.Roster, now time.Time) {
			r.SetRegistered(u.Full, ids(u.PutKeys()), ids(u.Deletes), now)
		})
	}, a.followError(ctx, "registrations"))
}

// ignoredRecord tells of a key that looks like a topic's record and is none. What lies
// below a record is others' business.
func (a *agent) ignoredRecord(key string) {
	form := a.main.Keys().TopicRecords() + "NAMESPACE/TOPIC"
	a.log.Warn("topic record ignored: want "+form, "key", key)
	a.event(control.Event{Kind: "topics", To: "ignored", Reason: "record", Detail: key + " does not name a topic: write " + form})
}

// followTopics feeds the placer with the topics that there are.
func (a *agent) followTopics(ctx context.Context) error {
	keys := a.main.Keys()
	named := func(list []string) (out []string) {
		for _, key := range list {
			if topic, ok := keys.ParseTopicRecord(key); ok {
				out = append(out, topic)
			} else if !strings.Contains(strings.TrimPrefix(key, keys.TopicRecords()), "/") {
				a.ignoredRecord(key)
			}
		}
		return out
	}
	listing := false
	return a.main.Follow(ctx, cluster.Target{Key: keys.TopicRecords(), Prefix: true, KeysOnly: true, InParts: true}, func(u cluster.Update) {
		puts, deletes := named(u.PutKeys()), named(u.Deletes)
		part := listing || u.Full
		listing = part && u.More
		a.placer.Update(func(r *topics.Roster, _ time.Time) {
			if u.Full {
				r.ListTopics()
			}
			if !part {
				r.SetTopics(puts, deletes)
				return
			}
			r.AddTopics(puts)
			if !u.More {
				r.EndTopics()
			}
		})
	}, a.followError(ctx, "topics"))
}
