package danube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"holdfast/brokerapi"
	"holdfast/brokerapi/danube/danubepb"
)

// etcdVersion stands for a version: nothing that the broker says tells it.
const etcdVersion = "0.7 (etcd)"

// etcdBroker is a broker that keeps its metadata in etcd.
type etcdBroker struct {
	*node
	store  Store
	settle time.Duration // see the constant
	turn   chan struct{} // held by the one Unload that writes

	mu      sync.Mutex
	who     brokerapi.Identity
	whose   int                  // generation of the connection that who was found on; 0: none
	checked int                  // generation of the connection whose broker is known to be one with etcd
	leaving map[string]time.Time // topics that were released and may be served still, since when
}

var (
	_ brokerapi.Broker   = (*etcdBroker)(nil)
	_ brokerapi.Unloader = (*etcdBroker)(nil)
	_ brokerapi.Viewer   = (*etcdBroker)(nil)
)

func newEtcd(n *node, store Store) *etcdBroker {
	return &etcdBroker{node: n, store: store, settle: settle, turn: make(chan struct{}, 1), leaving: map[string]time.Time{}}
}

// Capabilities implements brokerapi.Broker.
func (b *etcdBroker) Capabilities() brokerapi.Capabilities {
	return brokerapi.Capabilities{
		Unload: true, MustStop: true, View: true,
		Registers: true, NamedByInstance: true,
	}
}

// Identify implements brokerapi.Broker: Instance is the number that the broker registers
// itself under. See evidence.judge for how it is found. etcd is asked only when the
// broker's metrics and its own list of brokers do not settle it.
func (b *etcdBroker) Identify(ctx context.Context) (brokerapi.Identity, error) {
	if err := b.isEtcd(ctx); err != nil {
		return brokerapi.Identity{}, err
	}
	var list []*danubepb.BrokerInfo
	generation, _, err := b.adminLink.during(func() (err error) {
		list, err = b.listBrokers(ctx)
		return err
	})
	if err != nil {
		return brokerapi.Identity{}, err
	}
	known, _ := b.known(generation)
	e := evidence{
		Admin: b.at.admin.String(), Lookup: b.at.lookup.String(), Metrics: b.at.metrics.String(),
		Verified: known.Instance, Believed: candidates(list), Apart: apart(b.at.metrics.String(), b.at.admin.String()),
	}
	seen, err := b.scrape(ctx)
	switch {
	case err != nil:
		e.Silence = err
	case len(seen.Brokers) > 1:
		return brokerapi.Identity{}, fmt.Errorf("--danube-metrics %s: speaks of brokers %s and %s: set it to the metrics of this one broker",
			b.at.metrics, shown(seen.Brokers[0]), shown(seen.Brokers[1]))
	case len(seen.Brokers) == 0:
		e.Silence = fmt.Errorf("--danube-metrics %s: no metric has the label \"broker\": is it this broker's metrics port (%s)?", b.at.metrics, metricsPort)
	case !number(seen.Brokers[0]):
		return brokerapi.Identity{}, identityErrorf("--danube-metrics %s: the label \"broker\" is %q, which is no Danube broker's number: set it to the broker's metrics port (%s)",
			b.at.metrics, shown(seen.Brokers[0]), metricsPort)
	default:
		e.Told = seen.Brokers[0]
	}
	id, err := b.decide(ctx, e)
	if err != nil {
		return brokerapi.Identity{}, err
	}
	if err := b.ownLookup(e.Believed, id); err != nil {
		return brokerapi.Identity{}, err
	}
	if c, ok := find(e.Believed, id); ok && c.Lookup != "" {
		b.advertised.Store(c.Lookup)
	}
	if id == known.Instance {
		return known, nil
	}
	who := brokerapi.Identity{Instance: id, StartedAt: seen.StartedAt, Version: etcdVersion}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.who.Instance != id { // what was to leave was another process's
		clear(b.leaving)
	}
	b.who, b.whose = who, generation
	return who, nil
}

// decide judges the evidence, with the registrations if they are needed.
func (b *etcdBroker) decide(ctx context.Context, e evidence) (string, error) {
	id, ask, err := e.judge()
	if ask {
		registrations, readErr := b.store.Registrations(ctx)
		if readErr != nil {
			return "", fmt.Errorf("%w: %w", errUnsettled, errors.Join(readErr, e.Silence))
		}
		e.Asked = true
		for _, r := range registrations {
			if c, ok := parseRegistration(r); ok {
				e.Registered = append(e.Registered, c)
			}
		}
		id, _, err = e.judge()
	}
	return id, err
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

// known is who was found at the end of the connection.
func (b *etcdBroker) known(generation int) (brokerapi.Identity, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.whose != generation || b.whose == 0 {
		return brokerapi.Identity{}, false
	}
	return b.who, true
}

// self is the id that the broker is registered under.
func (b *etcdBroker) self(ctx context.Context) (string, error) {
	generation, _ := b.adminLink.connection()
	if who, ok := b.known(generation); ok {
		return who.Instance, nil
	}
	who, err := b.Identify(ctx)
	return who.Instance, err
}

// isEtcd refuses a broker that keeps its metadata by Raft. It asks once a connection.
func (b *etcdBroker) isEtcd(ctx context.Context) error {
	generation, _ := b.adminLink.connection()
	b.mu.Lock()
	checked := b.checked
	b.mu.Unlock()
	if checked == generation && checked != 0 {
		return nil
	}
	_, err := b.clusterStatus(ctx)
	if err == nil {
		return identityErrorf("--broker-admin %s: a Danube broker with Raft answers there (0.8 or later), which registers in no etcd: set --registration to own or none", b.at.admin)
	}
	if code(err) != codes.Unimplemented {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if now, _ := b.adminLink.connection(); generation == now {
		b.checked = generation
	}
	return nil
}

// Health implements brokerapi.Broker: the admin API lists brokers, and the client port
// looks up a topic. It costs these two requests. Once a connection the two are shown to be
// of one broker; what leaves that open is no sickness.
func (b *etcdBroker) Health(ctx context.Context) error {
	if _, err := b.listBrokers(ctx); err != nil {
		return err
	}
	if err := b.isEtcd(ctx); err != nil {
		return err
	}
	if err := b.clientPortAnswers(ctx); err != nil {
		return err
	}
	generation, _ := b.adminLink.connection()
	if _, ok := b.known(generation); !ok {
		return notOne(ctx, b.Identify)
	}
	return nil
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
	loaded, err := b.served(ctx, union(assigned, believed))
	if err != nil {
		return brokerapi.Held{}, fmt.Errorf("list topics: %w", err)
	}
	return brokerapi.Held{Serving: loaded, Unreadable: unreadable}, nil
}

// Believed implements brokerapi.Viewer.
func (b *etcdBroker) Believed(ctx context.Context) ([]string, error) {
	id, err := b.self(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the topics that the broker believes to have: %w", err)
	}
	topics, _, err := b.listTopics(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("list the topics that the broker believes to have: %w", err)
	}
	return union(topics, nil), nil
}
