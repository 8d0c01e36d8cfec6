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
// With Raft, that a new Instance means a new process if the metrics do not tell when it
// started: then a connection that broke and came back counts as one.
package danube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"holdfast/brokerapi"
	"holdfast/brokerapi/danube/danubepb"
	"holdfast/brokerapi/rest"
)

const (
	defaultTimeout = 10 * time.Second // one answer, when Config.Timeout is zero
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
	AdminURL   string // http(s)://host:port of the admin API
	LookupURL  string // http(s)://host:port of the client port; empty: port 6650 of AdminURL's host
	MetricsURL string // http(s)://host:port of the metrics; empty: port 9040 of AdminURL's host
	Raft       bool   // 0.8 and later; false: with etcd, which needs Store
	DataDir    string // with Raft: whose node_id must be the broker's; empty: not compared

	TokenFile string // bearer token; empty: none
	CACert    string // file, PEM, for https; empty: the system's
	Cert, Key string // files, PEM: a client certificate; both or none

	Store   Store
	Timeout time.Duration // longest wait for one answer, within the caller's context; 0: 10 s
	Logger  *slog.Logger  // nil: silent
}

// node is what both kinds of broker have in common. It is safe for concurrent use.
type node struct {
	at      addresses
	timeout time.Duration
	log     *slog.Logger
	metrics *rest.Client

	life context.Context // ends with Close
	end  context.CancelCauseFunc

	advertised atomic.Value // string: the broker's client address, as it tells others

	adminLink, lookupLink *link
	brokers               danubepb.BrokerAdminClient
	topics                danubepb.TopicAdminClient
	cluster               danubepb.ClusterAdminClient
	discovery             danubepb.DiscoveryClient
}

// New checks the settings and starts to connect; it does not wait for the broker. Its
// errors are settings that cannot work, each with the flag it belongs to.
func New(cfg Config) (brokerapi.Broker, error) {
	if !cfg.Raft && cfg.Store == nil {
		return nil, errors.New("a Danube broker with etcd needs the store")
	}
	n, err := newNode(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Raft {
		return newRaft(n, cfg.DataDir), nil
	}
	return newEtcd(n, cfg.Store), nil
}

func newNode(cfg Config) (*node, error) {
	at, err := parseAddresses(cfg)
	if err != nil {
		return nil, err
	}
	show, err := openCredential(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("broker timeout %v: must not be negative", cfg.Timeout)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	n := &node{at: at, timeout: cfg.Timeout, log: cfg.Logger}
	n.life, n.end = context.WithCancelCause(context.Background())
	if n.metrics, err = newScraper(cfg, at, n.timeout); err != nil {
		return nil, err
	}
	if n.adminLink, err = newLink(n.life, "--broker-admin", at.admin, show, n.timeout); err != nil {
		_ = n.metrics.Close()
		return nil, err
	}
	if n.lookupLink, err = newLink(n.life, "--danube-lookup", at.lookup, show, n.timeout); err != nil {
		n.adminLink.close()
		_ = n.metrics.Close()
		return nil, err
	}
	n.brokers = danubepb.NewBrokerAdminClient(n.adminLink.conn)
	n.topics = danubepb.NewTopicAdminClient(n.adminLink.conn)
	n.cluster = danubepb.NewClusterAdminClient(n.adminLink.conn)
	n.discovery = danubepb.NewDiscoveryClient(n.lookupLink.conn)
	return n, nil
}

// Close ends calls in flight and closes the connections.
func (n *node) Close() error {
	if n.life.Err() == nil {
		n.end(errClosed)
	}
	n.adminLink.close()
	n.lookupLink.close()
	return n.metrics.Close()
}

// listBrokers asks for the broker's own list of brokers, which is its cache.
func (n *node) listBrokers(ctx context.Context) ([]*danubepb.BrokerInfo, error) {
	var list *danubepb.BrokerListResponse
	err := n.adminLink.call(ctx, "ListBrokers", func(ctx context.Context) (err error) {
		list, err = n.brokers.ListBrokers(ctx, &danubepb.Empty{})
		return err
	})
	if code(err) == codes.Unimplemented {
		return nil, n.noAdminPort()
	}
	return list.GetBrokers(), err
}

func (n *node) noAdminPort() error {
	return identityErrorf("--broker-admin %s: a gRPC server answers there that is no Danube broker's admin API: set --broker-admin to the broker's admin port (%s)", n.at.admin, adminPort)
}

// listTopics asks which topics the broker believes to be assigned to a broker. unreadable is
// what has not the form of a topic, as brokerapi.Unreadable shows it.
func (n *node) listTopics(ctx context.Context, id string) (topics, unreadable []string, err error) {
	var list *danubepb.TopicInfoListResponse
	err = n.adminLink.call(ctx, "ListBrokerTopics", func(ctx context.Context) (err error) {
		list, err = n.topics.ListBrokerTopics(ctx, &danubepb.BrokerRequest{BrokerId: id})
		return err
	})
	if code(err) == codes.Unimplemented {
		return nil, nil, n.noAdminPort()
	}
	if err != nil {
		return nil, nil, err
	}
	for _, t := range list.GetTopics() {
		if _, _, err := brokerapi.SplitTopic(t.GetName()); err != nil {
			unreadable = append(unreadable, brokerapi.Unreadable(t.GetName()))
			continue
		}
		topics = append(topics, t.GetName())
	}
	slices.Sort(unreadable)
	return topics, unreadable, nil
}

// clusterStatus asks for the state of the Raft cluster; Unimplemented with etcd.
func (n *node) clusterStatus(ctx context.Context) (*danubepb.ClusterStatusResponse, error) {
	var s *danubepb.ClusterStatusResponse
	err := n.adminLink.call(ctx, "ClusterStatus", func(ctx context.Context) (err error) {
		s, err = n.cluster.ClusterStatus(ctx, &danubepb.Empty{})
		return err
	})
	return s, err
}
