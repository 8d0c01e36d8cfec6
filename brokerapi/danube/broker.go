// Package danube drives a Danube broker: with etcd (0.7) or with metadata of its own, by
// Raft (0.8 and later). Which of the two it is says Config.Raft; a broker of the other
// kind is refused with ErrIdentity.
//
// With etcd the broker registers itself under a number that is another at each start.
// It acts on assignments that it sees come, destroys a topic whose assignment goes at the
// wrong moment, and replaces a topic that it is made to load again. So no topic is ever
// taken from it, one is loaded by what is written in etcd, through Store, and what is
// loaded is asked on the client port: nothing on the admin port tells.
//
// With Raft the cluster assigns its topics itself. The broker is watched, activated,
// drained, and asked to give up a topic.
//
// Guaranteed: New needs no broker; no call outlives its context or the driver; answers
// are bounded in size; a topic that is loaded is never put again, nor one whose assignment
// was put by anybody within the 3 s that the broker may take to load it; nothing is deleted.
//
// Not guaranteed: that a broker which takes more than 3 s to load a topic, and answers all
// the while, does not load it twice. That a call which ended with an error had no effect.
// That another metrics port than the broker's own is found out. With Raft, that a new
// Instance means a new process if the metrics do not tell when it started: then a connection
// that broke and came back counts as one.
package danube

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/brokerapi/danube/danubepb"
	"holdfast/brokerapi/rest"
)

const (
	// The ports that a Danube broker opens unless it is told otherwise.
	adminPort, lookupPort, metricsPort = "50051", "6650", "9040"

	callTimeout    = 10 * time.Second // one answer, within the caller's context
	orderTimeout   = time.Hour        // the work of an order
	metricsTimeout = 2 * time.Second  // one of the metrics
	// settle is how long a broker may take from an assignment to a topic that is looked
	// up: it waits 1.5 s for the topic's metadata alone.
	settle = 3 * time.Second
	// prompt is how soon a broker answers that is at work. One that took longer may have
	// what happened meanwhile still before it.
	prompt = time.Second
)

// Store is what the driver of a broker with etcd needs there. Broker ids are those that
// the broker registers itself under.
type Store interface {
	// Assignments lists the topics that are assigned to the broker.
	Assignments(ctx context.Context, brokerID string) ([]string, error)
	// Assigned is the revision at which the assignment was put last; 0: there is none.
	Assigned(ctx context.Context, brokerID, topic string) (revision int64, err error)
	// Reassign puts the assignment again, as it is. false: it was put since that revision,
	// or there is none, and nothing was written.
	Reassign(ctx context.Context, brokerID, topic string, revision int64) (bool, error)
}

// Config is what New needs.
type Config struct {
	AdminURL     string // http(s)://host[:port] of the admin API
	LookupURL    string // http(s)://host[:port] of the client port
	MetricsURL   string // http(s)://host[:port] of the metrics
	Raft         bool   // 0.8 and later; false: with etcd, which needs Store
	DataDir      string // with Raft: whose node_id must be the broker's; empty: not compared
	Store        Store
	Logger       *slog.Logger // nil: silent
	access.Files              // those for TLS are of no use with http://
}

// node is what both kinds of broker have in common. It is safe for concurrent use.
type node struct {
	log           *slog.Logger
	end           context.CancelCauseFunc
	metrics       *rest.Client
	admin, lookup *link
	found         atomic.Pointer[found]

	brokers   danubepb.BrokerAdminClient
	topics    danubepb.TopicAdminClient
	cluster   danubepb.ClusterAdminClient
	discovery danubepb.DiscoveryClient
}

// Traits are those of a broker with Raft (0.8 and later) and of one with etcd, which goes on
// serving and deletes what others serve once its registration has gone.
func Traits(raft bool) brokerapi.Traits {
	if raft {
		return brokerapi.Traits{Places: true}
	}
	return brokerapi.Traits{AtDeadline: brokerapi.Stop, Registers: true}
}

// New checks the settings and starts to connect; it does not wait for the broker. Its
// errors are settings that cannot work, each with the flag it belongs to.
func New(cfg Config) (brokerapi.Broker, error) {
	if !cfg.Raft && cfg.Store == nil {
		return nil, errors.New("a Danube broker with etcd needs the store")
	}
	n := &node{log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))}
	if err := n.open(cfg); err != nil {
		n.end(err)
		return nil, err
	}
	if cfg.Raft {
		return &raftBroker{node: n, dataDir: cfg.DataDir}, nil
	}
	return &etcdBroker{node: n, store: cfg.Store, settle: settle}, nil
}

func (n *node) open(cfg Config) (err error) {
	all := shared{files: cfg.Files}
	all.life, n.end = context.WithCancelCause(context.Background())
	all.token, err = cfg.Token()
	if err = cmp.Or(cfg.Check(), err); err != nil {
		return err
	}
	if n.admin, err = newLink(all, "--broker-admin", cfg.AdminURL, adminPort); err != nil {
		return err
	}
	if n.lookup, err = newLink(all, "--danube-lookup", cfg.LookupURL, lookupPort); err != nil {
		return err
	}
	u, err := access.ParseServer("--danube-metrics", cfg.MetricsURL, metricsPort, "http", "https")
	if err != nil {
		return err
	}
	cfg.TokenFile = "" // it is not for the metrics
	n.metrics, err = rest.New(rest.Config{Setting: "--danube-metrics", URL: u.String(), Timeout: metricsTimeout, Files: cfg.Files})
	n.brokers, n.topics = danubepb.NewBrokerAdminClient(n.admin.conn), danubepb.NewTopicAdminClient(n.admin.conn)
	n.cluster, n.discovery = danubepb.NewClusterAdminClient(n.admin.conn), danubepb.NewDiscoveryClient(n.lookup.conn)
	return err
}

// Close ends calls in flight and closes the connections.
func (n *node) Close() error {
	n.end(brokerapi.ErrClosed)
	_, _ = n.admin.conn.Close(), n.lookup.conn.Close() // they fail only when they are closed already
	return n.metrics.Close()
}

// found is who answered on the connection that was made then.
type found struct {
	who   brokerapi.Report
	since time.Time
}

// once finds out who answers on the link, once a connection: the same one is the same process.
func (n *node) once(on *link, identify func(since time.Time) (brokerapi.Report, error)) (brokerapi.Report, error) {
	since := on.since()
	if f := n.found.Load(); f != nil && f.since.Equal(since) {
		return f.who, nil
	}
	who, err := identify(since)
	if err == nil {
		n.found.Store(&found{who, since})
	}
	return who, err
}

// listTopics asks which topics the broker believes to be assigned to a broker. unreadable is
// what has not the form of a topic, as brokerapi.Unreadable shows it.
func (n *node) listTopics(ctx context.Context, id string) (topics, unreadable []string, err error) {
	list, err := n.topics.ListBrokerTopics(ctx, &danubepb.BrokerRequest{BrokerId: id})
	for _, t := range list.GetTopics() {
		if _, _, err := brokerapi.SplitTopic(t.GetName()); err != nil {
			unreadable = append(unreadable, brokerapi.Unreadable(t.GetName()))
			continue
		}
		topics = append(topics, t.GetName())
	}
	slices.Sort(unreadable)
	return topics, unreadable, err
}

// number reports whether the id has the form of those that brokers give themselves.
func number(id string) bool {
	_, err := strconv.ParseUint(id, 10, 64)
	return err == nil
}

// scrape reads the label "broker" of the metrics, which all have, and when the process
// started; zero: they do not tell.
func (n *node) scrape(ctx context.Context) (brokers []string, started time.Time, err error) {
	families, err := n.metrics.Metrics(ctx, "/metrics")
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if id := l.GetValue(); l.GetName() == "broker" && !slices.Contains(brokers, id) {
					brokers = append(brokers, id)
				}
			}
		}
	}
	return brokers, rest.Started(families), err
}
