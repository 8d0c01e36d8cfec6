package danube

import (
	"bytes"
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
			b.log.Warn("no election", "err", err)
		}
		if !pause(ctx, b.cfg.Times.LeaderCheck) {
			return
		}
	}
}

func (b *Broker) elect(ctx context.Context) error {
	value, found, err := b.store.get(ctx, leaderKey)
	if err != nil {
		return err // it believes on what it believed
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
		b.all.Go(func() { b.renewForever(ctx, "leader", lease, b.cfg.Times.LeaderTTL/2) })
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

func (b *Broker) newLeader(ctx context.Context) (l *leader, err error) {
	l = &leader{b: b, usage: map[string][]string{}}
	if l.loads, err = b.store.watch(ctx, loadPrefix, 0); err != nil {
		return nil, err
	}
	if l.unassigned, err = b.store.watch(ctx, unassignedPrefix, 0); err != nil {
		return nil, err
	}
	if l.registering, err = b.store.watch(ctx, registerPrefix, 0); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *leader) run(ctx context.Context) {
	loads, unassigned, registering := l.loads, l.unassigned, l.registering
	for loads != nil || unassigned != nil || registering != nil {
		select {
		case e, ok := <-loads:
			if !ok {
				loads = nil
			} else if !e.deleted {
				l.report(e)
			}
		case e, ok := <-unassigned:
			if !ok {
				unassigned = nil
			} else if !e.deleted && l.b.leads.Load() {
				l.assign(ctx, strings.TrimPrefix(e.key, strings.TrimSuffix(unassignedPrefix, "/")), e.value)
			}
		case e, ok := <-registering:
			if !ok {
				registering = nil
			} else if e.deleted && l.b.leads.Load() {
				l.gone(ctx, strings.TrimPrefix(e.key, registerPrefix))
			}
		}
	}
}

// report takes a load report in, also that of a broker that is not registered any more.
func (l *leader) report(e event) {
	id := strings.TrimPrefix(e.key, loadPrefix)
	r, err := readReport(e.value)
	if err != nil {
		l.b.disasters.record(Malformed, "", fmt.Sprintf("the load report of broker %s cannot be read: %v", id, err))
		return
	}
	var topics []string
	for _, t := range r.Topics {
		topics = append(topics, t.Name)
	}
	l.usage[id] = topics
	l.publish()
}

// publish shows what is known, for tests.
func (l *leader) publish() {
	counts := map[string]int{}
	for id, topics := range l.usage {
		counts[id] = len(topics)
	}
	l.b.counts.Store(&counts)
}

// assign gives an unassigned topic to the active broker with the fewest, not the one that
// it is to leave.
func (l *leader) assign(ctx context.Context, topic string, value []byte) {
	if !validTopic(topic) || !pause(ctx, l.b.cfg.Times.Assign) {
		return
	}
	m := marker(value)
	if l.b.raft && m.Reason == reasonUnload && !m.Ready {
		return // later releases wait for the broker that has it
	}
	leaves := ""
	if (m.Reason == reasonUnload || m.Reason == reasonRebalance) && m.FromBroker != nil {
		leaves = fmt.Sprint(*m.FromBroker)
	}
	to := ""
	if m.Reason == reasonRebalance && m.ToBroker != nil {
		if hint := fmt.Sprint(*m.ToBroker); l.b.modeOf(ctx, hint) == modeActive {
			to = hint
		}
	}
	if to == "" {
		to = l.fewest(ctx, leaves)
	}
	if to == "" && leaves != "" {
		l.b.log.Error("no other active broker", "topic", topic)
		return
	}
	if to == "" {
		to = l.b.id
	}
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
	l.publish()
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
	l.publish()
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

// loadReport is what a broker says of its load. The fields without a default are needed.
type loadReport struct {
	Resources  []resourceUsage `json:"resources_usage"`
	Topics     []topicLoad     `json:"topics"`
	Throughput float64         `json:"total_throughput_mbps"`
	Rate       uint64          `json:"total_message_rate"`
	Lag        uint64          `json:"total_lag_messages"`
	Timestamp  *uint64         `json:"timestamp"`
	BrokerID   *uint64         `json:"broker_id"`
}

type resourceUsage struct {
	Resource string  `json:"resource"`
	Usage    float64 `json:"usage"`
}

type topicLoad struct {
	Name          string  `json:"topic_name"`
	MessageRate   uint64  `json:"message_rate"`
	ByteRate      uint64  `json:"byte_rate"`
	ByteRateMbps  float64 `json:"byte_rate_mbps"`
	Producers     uint64  `json:"producer_count"`
	Consumers     uint64  `json:"consumer_count"`
	Subscriptions uint64  `json:"subscription_count"`
	Backlog       uint64  `json:"backlog_messages"`
}

// topicLoadFields have no default in the broker.
var topicLoadFields = []string{"topic_name", "message_rate", "byte_rate", "byte_rate_mbps", "producer_count", "consumer_count", "subscription_count", "backlog_messages"}

func readReport(value []byte) (r loadReport, err error) {
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, err
	}
	var raw struct {
		Topics []map[string]json.RawMessage `json:"topics"`
	}
	if err := json.Unmarshal(value, &raw); err != nil {
		return r, err
	}
	for _, t := range raw.Topics {
		for _, field := range topicLoadFields {
			if _, ok := t[field]; !ok {
				return r, fmt.Errorf("a topic without %s", field)
			}
		}
	}
	if r.Resources == nil || r.Timestamp == nil || r.BrokerID == nil {
		return r, fmt.Errorf("without resources_usage, timestamp or broker_id: %s", value)
	}
	return r, nil
}
