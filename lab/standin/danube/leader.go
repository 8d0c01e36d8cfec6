package danube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// electForever looks who leads, and stands if nobody does.
func (b *Broker) electForever(ctx context.Context) {
	for {
		if err := b.elect(ctx); err != nil && ctx.Err() == nil {
			b.log.Warn("no election", "err", err) // it believes on what it believed
		}
		if !pause(ctx, b.cfg.Times.LeaderCheck) {
			return
		}
	}
}

func (b *Broker) elect(ctx context.Context) error {
	value, found, err := b.store.get(ctx, leaderKey)
	if err != nil {
		return err
	}
	if found {
		b.leads.Store(string(value) == b.id)
		return nil
	}
	created, lease, err := b.store.createTTL(ctx, leaderKey, []byte(b.id), b.cfg.Times.LeaderTTL)
	if err != nil {
		return err
	}
	b.leads.Store(created)
	if created {
		b.log.Info("leads")
		go b.renewForever(ctx, "leader", lease, b.cfg.Times.LeaderTTL/2)
	}
	return nil
}

// leader is the load manager, which every broker has and only the leader's acts. It
// knows the brokers by the load reports that were written since it started.
type leader struct {
	b                              *Broker
	loads, unassigned, registering <-chan event
	usage                          map[string][]string // topics by broker
}

// loadReport is what a broker says of its load, as far as anybody here looks at it.
type loadReport struct {
	Topics []string `json:"topics"`
}

func (b *Broker) newLeader(ctx context.Context) (l *leader, err error) {
	l = &leader{b: b, usage: map[string][]string{}}
	for prefix, w := range map[string]*<-chan event{loadPrefix: &l.loads, unassignedPrefix: &l.unassigned, registerPrefix: &l.registering} {
		if *w, err = b.store.watch(ctx, prefix, 0); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *leader) run(ctx context.Context) {
	for l.loads != nil || l.unassigned != nil || l.registering != nil {
		select {
		case e, ok := <-l.loads:
			var r loadReport
			if !ok {
				l.loads = nil
			} else if !e.deleted && json.Unmarshal(e.value, &r) == nil { // also of a broker that is not registered any more
				l.usage[strings.TrimPrefix(e.key, loadPrefix)] = r.Topics
			}
		case e, ok := <-l.unassigned:
			if !ok {
				l.unassigned = nil
			} else if !e.deleted && l.b.leads.Load() {
				l.assign(ctx, strings.TrimPrefix(e.key, strings.TrimSuffix(unassignedPrefix, "/")), e.value)
			}
		case e, ok := <-l.registering:
			if !ok {
				l.registering = nil
			} else if e.deleted && l.b.leads.Load() {
				l.gone(ctx, strings.TrimPrefix(e.key, registerPrefix))
			}
		}
	}
}

// assign gives an unassigned topic to the active broker with the fewest, not the one that
// it is to leave.
func (l *leader) assign(ctx context.Context, topic string, value []byte) {
	if !validTopic(topic) || !pause(ctx, l.b.cfg.Times.Assign) {
		return
	}
	m := marker(value)
	if l.b.cfg.Raft && m.Reason == reasonUnload && !m.Ready {
		return // later releases wait for the broker that has it
	}
	leaves := ""
	if m.Reason == reasonUnload && m.FromBroker != nil {
		leaves = fmt.Sprint(*m.FromBroker)
	}
	to := l.fewest(ctx, leaves)
	if to == "" && leaves != "" {
		l.b.log.Error("no other active broker", "topic", topic)
		return
	}
	to = cmp.Or(to, l.b.id)
	if err := l.b.store.put(ctx, assignmentKey(to, topic), []byte("null")); err != nil {
		l.b.log.Error("not assigned", "err", err)
	}
	if err := l.b.store.delete(ctx, unassignedKey(topic)); err != nil {
		l.b.log.Error("still unassigned", "err", err)
	}
	for id, topics := range l.usage {
		l.usage[id] = slices.DeleteFunc(topics, func(t string) bool { return t == topic })
	}
	if topics, ok := l.usage[to]; ok {
		l.usage[to] = append(topics, topic)
	}
}

func (l *leader) fewest(ctx context.Context, but string) string {
	var ids []string
	for id := range l.usage {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(l.usage[a]), len(l.usage[b])), cmp.Compare(a, b))
	})
	for _, id := range ids {
		if id != but && l.b.modeOf(ctx, id) == modeActive {
			return id
		}
	}
	return ""
}

// gone takes everything away from a broker whose registration was deleted: state and
// assignments, one key after the other.
func (l *leader) gone(ctx context.Context, id string) {
	delete(l.usage, id)
	l.b.log.Info("broker is no longer alive", "gone", id)
	keys, _, err := l.b.store.list(ctx, assignmentsPrefix(id))
	if err != nil {
		l.b.log.Error("what it had stays assigned", "gone", id, "err", err)
		return
	}
	for key := range keys {
		if err := l.b.store.delete(ctx, key); err != nil {
			l.b.log.Error("not deleted", "err", err)
		}
		if _, topic, ok := splitAssignment(key); ok {
			if err := l.b.store.put(ctx, unassignedKey(topic), []byte("null")); err != nil {
				l.b.log.Error("lost", "topic", topic, "err", err)
			}
		}
	}
}
