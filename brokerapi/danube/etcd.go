package danube

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"holdfast/brokerapi"
	"holdfast/brokerapi/danube/danubepb"
)

// etcdVersion stands for a version: nothing that the broker says tells it.
const etcdVersion = "0.7 (etcd)"

// viewPatience is how long what a broker believes may differ from what is so: longer than a
// watch that lives takes, also while etcd elects a leader.
const viewPatience = 10 * time.Second

// etcdBroker is a broker that keeps its metadata in etcd.
type etcdBroker struct {
	*node
	store  Store
	settle time.Duration // see the constant

	mu     sync.Mutex
	who    brokerapi.Identity
	whose  time.Time            // when the connection was made that who was found on
	differ map[string]time.Time // topics of which etcd or the broker alone knows, since when
	stale  string
}

var (
	_ brokerapi.Broker = (*etcdBroker)(nil)
	_ brokerapi.Viewer = (*etcdBroker)(nil)
)

func newEtcd(n *node, store Store) *etcdBroker {
	return &etcdBroker{node: n, store: store, settle: settle}
}

// Capabilities implements brokerapi.Broker.
func (b *etcdBroker) Capabilities() brokerapi.Capabilities {
	return brokerapi.Capabilities{MustStop: true, View: true, Registers: true, NamedByInstance: true}
}

// Identify implements brokerapi.Broker: Instance is the number that the broker registers
// itself under. Nothing but the label "broker" of its metrics tells it. Metrics that are
// silent change nothing while the connection to the broker stands.
func (b *etcdBroker) Identify(ctx context.Context) (brokerapi.Identity, error) {
	since := b.lookupLink.since()
	known, ok := b.known(since)
	seen, err := b.scrape(ctx)
	switch {
	case err != nil && ok:
		if err := b.Health(ctx); err != nil {
			return brokerapi.Identity{}, err
		}
		return known, nil
	case err != nil:
		return brokerapi.Identity{}, fmt.Errorf("the broker's metrics alone tell which broker this is: %w", err)
	case len(seen.Brokers) > 1:
		return brokerapi.Identity{}, fmt.Errorf("--danube-metrics %s: speaks of brokers %s and %s: set it to the metrics of this one broker",
			b.at.metrics, shown(seen.Brokers[0]), shown(seen.Brokers[1]))
	case len(seen.Brokers) == 0:
		return brokerapi.Identity{}, fmt.Errorf("--danube-metrics %s: no metric has the label \"broker\": is it this broker's metrics port (%s)?", b.at.metrics, metricsPort)
	case !number(seen.Brokers[0]):
		return brokerapi.Identity{}, identityErrorf("--danube-metrics %s: the label \"broker\" is %q, which is no Danube broker's number: set it to the broker's metrics port (%s)",
			b.at.metrics, shown(seen.Brokers[0]), metricsPort)
	case ok && known.Instance == seen.Brokers[0]:
		return known, nil
	}
	if err := b.isEtcd(ctx, seen.Brokers[0]); err != nil {
		return brokerapi.Identity{}, err
	}
	who := brokerapi.Identity{Instance: seen.Brokers[0], StartedAt: seen.StartedAt, Version: etcdVersion}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.who.Instance != who.Instance {
		b.differ, b.stale = nil, ""
	}
	b.who, b.whose = who, since
	return who, nil
}

// number reports whether the id has the form of those that brokers give themselves.
func number(id string) bool {
	if id == "" || len(id) > 20 {
		return false
	}
	for _, c := range id {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// known is who was found on the connection that was made then.
func (b *etcdBroker) known(since time.Time) (brokerapi.Identity, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.who, b.who.Instance != "" && b.whose.Equal(since)
}

// self is the id that the broker is registered under.
func (b *etcdBroker) self(ctx context.Context) (string, error) {
	if who, ok := b.known(b.lookupLink.since()); ok {
		return who.Instance, nil
	}
	who, err := b.Identify(ctx)
	return who.Instance, err
}

// isEtcd refuses a broker that keeps its metadata by Raft.
func (b *etcdBroker) isEtcd(ctx context.Context, id string) error {
	_, err := b.clusterStatus(ctx)
	if err == nil {
		return identityErrorf("--broker-admin %s: a Danube broker with Raft answers there (0.8 or later), which registers in no etcd: set --registration to own or none", b.at.admin)
	}
	if code(err) != codes.Unimplemented {
		return err
	}
	_, _, err = b.listTopics(ctx, id) // which a broker of no kind at all answers the same
	return err
}

// Health implements brokerapi.Broker: the client port answers, which takes no lock and
// no etcd. Lists of brokers and lookups wait for both.
func (b *etcdBroker) Health(ctx context.Context) error {
	var nothing danubepb.Empty // the message says that no client is known, and is not looked at
	err := b.lookupLink.call(ctx, "HealthCheck", func(ctx context.Context) error {
		return b.lookupLink.conn.Invoke(ctx, "/danube.HealthCheck/HealthCheck", &nothing, &danubepb.Empty{})
	})
	if code(err) == codes.Unimplemented {
		return b.noClientPort()
	}
	return err
}

// Topics implements brokerapi.Broker: of the topics that are assigned to the broker, in
// etcd or as it believes, those that it has loaded. None is ever quiesced.
func (b *etcdBroker) Topics(ctx context.Context) (brokerapi.Held, error) {
	id, err := b.self(ctx)
	if err != nil {
		return brokerapi.Held{}, fmt.Errorf("list topics: %w", err)
	}
	assigned, err := b.store.Assignments(ctx, id)
	if err != nil {
		return brokerapi.Held{}, fmt.Errorf("list topics: %w", err)
	}
	believed, unreadable, err := b.listTopics(ctx, id)
	if err != nil {
		return brokerapi.Held{}, fmt.Errorf("list topics: %w", err)
	}
	b.compare(id, assigned, believed, time.Now())
	loaded, err := b.served(ctx, union(assigned, believed))
	if err != nil {
		return brokerapi.Held{}, fmt.Errorf("list topics: %w", err)
	}
	return brokerapi.Held{Serving: loaded, Unreadable: unreadable}, nil
}

// compare notes what etcd and the broker say differently of its topics. Each topic has its
// own time: a cluster that moves topics all the while differs somewhere at every moment,
// and nobody is blind.
func (b *etcdBroker) compare(id string, assigned, believed []string, now time.Time) {
	sides := map[string]int{}
	for _, topic := range union(assigned, nil) {
		sides[topic] = 1
	}
	for _, topic := range union(believed, nil) {
		sides[topic] += 2
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.who.Instance != id {
		return
	}
	differ, lasting, first := map[string]time.Time{}, 0, ""
	for topic, side := range sides {
		if side == 3 {
			continue
		}
		differ[topic] = now
		if since, known := b.differ[topic]; known {
			differ[topic] = since
		}
		if now.Sub(differ[topic]) > viewPatience {
			lasting++
			first = min(cmp.Or(first, topic), topic)
		}
	}
	b.differ, b.stale = differ, ""
	if lasting > 0 {
		b.stale = fmt.Sprintf("what the broker believes differs from etcd in %d of its topics, first %s: its watches have died: restart the broker", lasting, first)
	}
}

// StaleView implements brokerapi.Viewer, as of the last list of topics.
func (b *etcdBroker) StaleView() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stale
}

// Load implements brokerapi.Broker. The topic must be assigned to the broker. If the
// broker had the time to load it and has not, the assignment is put again, once in a
// call. What is assigned is not elsewhere, whatever the lookup says: the broker finds
// owners by a part of the topic's name. record is not used: the broker reads it itself.
func (b *etcdBroker) Load(ctx context.Context, topic string, _ []byte) error {
	if err := checkTopic("load", topic); err != nil {
		return err
	}
	id, err := b.self(ctx)
	if err != nil {
		return fmt.Errorf("load %s: %w", topic, err)
	}
	seen, again := observed{b: b, id: id, topic: topic}, false
	err = b.await(ctx, topic, func(at place) (bool, error) {
		if at == here || again {
			return at == here, nil
		}
		settled, err := seen.settled(ctx)
		switch {
		case err == nil && seen.revision == 0 && at == elsewhere:
			err = brokerapi.ErrElsewhere
		case err == nil && seen.revision == 0:
			err = fmt.Errorf("it is not assigned to broker %s", id)
		}
		if err != nil || !settled {
			return false, err
		}
		again, err = b.store.Reassign(ctx, id, topic, seen.revision)
		if again {
			b.log.Info("assignment put again: the broker had overlooked it", "topic", topic, "broker", id)
		}
		seen.revision = 0 // if it was not put, somebody else did
		return false, err
	})
	switch {
	case err == nil:
		return nil
	case isOver(ctx) && again:
		err = fmt.Errorf("its assignment was put again, and the broker has not loaded it: see the broker's log: %w", err)
	case isOver(ctx):
		err = fmt.Errorf("the broker has not loaded it: %w", err)
	}
	return fmt.Errorf("load %s: %w", topic, err)
}

// observed is an assignment to a broker that says again and again that the topic is not
// loaded. Whoever puts it, and whenever the broker does not answer for a while, as one
// that is stopped and goes on, it has its time to load from then on.
type observed struct {
	b         *etcdBroker
	id, topic string
	revision  int64 // of the assignment; 0: none, or not read yet
	since     time.Time
	answered  time.Time // last
}

// settled is to be called at each answer by which the topic is not loaded. It is true when
// the broker had the time to load it. After an answer with the revision 0 there is no
// assignment.
func (o *observed) settled(ctx context.Context) (bool, error) {
	now := time.Now()
	late := now.Sub(o.answered) > prompt
	o.answered = now
	if o.revision != 0 && !late {
		return now.Sub(o.since) >= o.b.settle, nil
	}
	revision, err := o.b.store.Assigned(ctx, o.id, o.topic)
	if err != nil {
		return false, err
	}
	o.revision, o.since = revision, time.Now() // not before it was read
	o.answered = o.since
	return false, nil
}
