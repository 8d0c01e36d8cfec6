package danube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
	differ map[string]time.Time // a process' topics of which etcd or the broker alone knows, since when
	stale  string
}

var _ brokerapi.Broker = (*etcdBroker)(nil)

// Withdraw implements brokerapi.Broker: an unload destroys some topics.
func (b *etcdBroker) Withdraw(context.Context, string) error {
	return fmt.Errorf("this broker gives no topic up while it runs (%w): stop its process to have it served elsewhere", errors.ErrUnsupported)
}

// Probe implements brokerapi.Broker: Instance is the number that the broker registers itself
// under. The client port answers without a lock and without etcd; lists of brokers and lookups wait
// for both. Whether the broker sees what changes in etcd is as of the last list of topics.
func (b *etcdBroker) Probe(ctx context.Context) (who brokerapi.Report, err error) {
	var nothing danubepb.Empty // the message says that no client is known, and is not looked at
	if err = b.lookup.conn.Invoke(ctx, "/danube.HealthCheck/HealthCheck", &nothing, &danubepb.Empty{}); err == nil {
		who, err = b.self(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stale != "" {
		who.Notes = []brokerapi.Note{{Kind: brokerapi.StaleView, Text: b.stale}}
	}
	return who, err
}

func (b *etcdBroker) self(ctx context.Context) (brokerapi.Report, error) {
	return b.once(b.lookup, func(time.Time) (brokerapi.Report, error) { return b.identify(ctx) })
}

// identify finds out who answers. Nothing but the label "broker" of its metrics tells it.
func (b *etcdBroker) identify(ctx context.Context) (who brokerapi.Report, err error) {
	ids, _, err := b.scrape(ctx)
	switch {
	case err != nil:
		return who, fmt.Errorf("the broker's metrics alone tell which broker this is: %w", err)
	case len(ids) != 1:
		return who, fmt.Errorf("--danube-metrics %s: the label \"broker\" has %d values, and not one: set it to the metrics port of this one broker (%s)", b.metrics.URL(), len(ids), metricsPort)
	case !number(ids[0]):
		return who, brokerapi.Errorf(brokerapi.ErrIdentity, "--danube-metrics %s: the label \"broker\" is %.50q, which is no Danube broker's number: set it to the broker's metrics port (%s)", b.metrics.URL(), ids[0], metricsPort)
	}
	_, err = b.cluster.ClusterStatus(ctx, &danubepb.Empty{})
	if err == nil {
		err = brokerapi.Errorf(brokerapi.ErrIdentity, "--broker-admin %s: a Danube broker with Raft answers there (0.8 or later), which registers in no etcd: set --registration to own or none", b.admin.url)
	}
	if status.Code(err) == codes.Unimplemented { // so it is of a broker of no kind at all
		_, _, err = b.listTopics(ctx, ids[0])
	}
	return brokerapi.Report{Instance: ids[0], Version: etcdVersion}, err
}

// Topics implements brokerapi.Broker: of the topics that are assigned to the broker, in
// etcd or as it believes, those that it has loaded. None is ever withdrawn.
func (b *etcdBroker) Topics(ctx context.Context) (held brokerapi.Held, err error) {
	var assigned, believed []string
	who, err := b.self(ctx)
	if err == nil {
		assigned, err = b.store.Assignments(ctx, who.Instance)
	}
	if err == nil {
		believed, held.Unreadable, err = b.listTopics(ctx, who.Instance)
	}
	if err == nil {
		b.compare(who.Instance, assigned, believed, time.Now())
		held.Serving, err = b.served(ctx, union(assigned, believed))
	}
	if err != nil {
		return brokerapi.Held{}, fmt.Errorf("list topics: %w", err)
	}
	return held, nil
}

// compare notes what etcd and the broker say differently of its topics. Each topic has its
// own time: a cluster that moves topics all the while differs somewhere at every moment,
// and nobody is blind.
func (b *etcdBroker) compare(id string, assigned, believed []string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.Sort(assigned)
	slices.Sort(believed)
	differ, lasting := map[string]time.Time{}, []string{}
	for _, topic := range union(assigned, believed) {
		_, is := slices.BinarySearch(assigned, topic)
		if _, seen := slices.BinarySearch(believed, topic); seen == is {
			continue
		}
		differ[id+topic] = cmp.Or(b.differ[id+topic], now)
		if now.Sub(differ[id+topic]) > viewPatience {
			lasting = append(lasting, topic)
		}
	}
	b.differ, b.stale = differ, ""
	if len(lasting) > 0 {
		b.stale = fmt.Sprintf("what the broker believes differs from etcd in %d of its topics, first %s: its watches have died: restart the broker", len(lasting), lasting[0])
	}
}

// Serve implements brokerapi.Broker. The topic must be assigned to the broker. If the
// broker had the time to load it and has not, the assignment is put again, once in a
// call. What is assigned is not elsewhere, whatever the lookup says: the broker finds
// owners by a part of the topic's name. record is not used: the broker reads it itself.
//
// Whoever puts the assignment, and whenever the broker does not answer promptly, as one that is
// stopped and goes on, it has its time to load from then on.
func (b *etcdBroker) Serve(ctx context.Context, topic string, _ []byte) error {
	who, err := b.self(ctx)
	if err != nil {
		return fmt.Errorf("load %s: %w", topic, err)
	}
	var revision int64            // of the assignment; 0: none, or to be read
	var since, answered time.Time // it is known; the broker said last that it has not loaded
	again := false
	err = b.await(ctx, topic, func(at place) (bool, error) {
		late := time.Since(answered) > prompt
		answered = time.Now()
		switch {
		case at == here || again:
			return at == here, nil
		case revision == 0 || late:
			if revision, err = b.store.Assigned(ctx, who.Instance, topic); err != nil {
				return false, err
			}
			since = time.Now() // not before it was read
			answered = since
			switch {
			case revision == 0 && at == elsewhere:
				return false, brokerapi.ErrElsewhere
			case revision == 0:
				return false, fmt.Errorf("it is not assigned to broker %s", who.Instance)
			}
			return false, nil
		case time.Since(since) < b.settle:
			return false, nil
		}
		again, err = b.store.Reassign(ctx, who.Instance, topic, revision)
		if again {
			b.log.Info("assignment put again: the broker had overlooked it", "topic", topic, "broker", who.Instance)
		}
		revision = 0 // if it was not put, somebody else did
		return false, err
	})
	return ended(ctx, "load", topic, "the broker has not loaded it: see the broker's log", err)
}
