// Package pulsar drives an Apache Pulsar broker through its REST admin API.
//
// What a Pulsar broker owns is bundles, ranges of the hashes of a namespace's topics, so that is
// what Topics lists: /public~default/0x00000000_0x40000000 is a bundle of public/default. '~' is
// legal in no name of a tenant or namespace. Pulsar's own cluster decides which broker owns a bundle,
// when a client looks up a topic of it, so nothing is loaded.
//
// Not listed are the namespaces that belong to one broker for its life, for heartbeats and service
// monitoring: pulsar/{host:port}, pulsar/{cluster}/{host:port} and sla-monitor/{cluster}/{host:port}.
// Namespaces of Pulsar's first form, with three parts, are listed as unreadable: they cannot be
// unloaded by the calls that this driver knows.
//
// There is no quiescing, and no drained mode: see SetMode. Send alone asks other brokers than the one here.
//
// Guaranteed: an answer that is malformed, too large, too slow or from another broker is an error
// and never health. What Unload says is not owned here has been looked up in the broker's own list.
package pulsar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/brokerapi/rest"
)

// Config is what New needs. Messages name the settings by their flags.
type Config struct {
	AdminURL   string // --broker-admin: http(s)://host:port
	Cluster    string // --pulsar-cluster: clusterName of broker.conf
	Advertised string // --pulsar-advertised: host:port that the broker calls itself; empty: as in AdminURL
	StatusFile string // --pulsar-status-file: statusFilePath of broker.conf; empty: none
	Store      Store  // nil: what a dead process holds runs out
	Logger     *slog.Logger
	access.Files
}

// Broker is one Pulsar broker. It is safe for concurrent use.
type Broker struct {
	work      *work
	cfg       Config
	self      string // host:port
	host      string
	rest      *rest.Client
	metrics   *rest.Client // its answers may be too long to keep their connection
	trace     *httptrace.ClientTrace
	doubts    atomic.Int64 // grows whenever another process may answer from now on
	clustered atomic.Bool  // it has told that it is of the cluster that was set

	// Paths of the admin API.
	ownedPath, brokersPath, policiesPath string

	began   atomic.Pointer[began]
	proven  atomic.Value // string: process that has proved last who it is
	session atomic.Pointer[session]
	flaw    atomic.Value // string: why the mode may not hold, as it was said last
	probed  atomic.Pointer[probed]
}

var (
	_ brokerapi.Broker     = (*Broker)(nil)
	_ brokerapi.ModeSetter = (*Broker)(nil)
	_ brokerapi.Releaser   = (*Broker)(nil)
	_ brokerapi.Sender     = (*Broker)(nil)
)

// part is Pulsar's rule for tenants, namespaces and clusters, but for those of dots alone.
const part = `\.*[-=:\w][-=:.\w]*`

var legal = regexp.MustCompile(`^` + part + `$`)

// New checks the settings. It connects to nothing.
func New(cfg Config) (*Broker, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if !legal.MatchString(cfg.Cluster) {
		return nil, fmt.Errorf("--pulsar-cluster %q: not a name of a Pulsar cluster: write the clusterName of the broker's broker.conf", cfg.Cluster)
	}
	b := &Broker{cfg: cfg, self: cfg.Advertised}
	for _, client := range []**rest.Client{&b.rest, &b.metrics} {
		var err error
		if *client, err = rest.New(rest.Config{URL: cfg.AdminURL, Files: cfg.Files}); err != nil {
			return nil, err // it names the flag, the value and the remedy
		}
	}
	if u, err := url.Parse(cfg.AdminURL); b.self == "" && err == nil {
		b.self = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme]))
	}
	b.host = hostOf(b.self)
	b.brokersPath = "/admin/v2/brokers/" + cfg.Cluster
	b.ownedPath = b.brokersPath + "/" + url.PathEscape(b.self) + "/ownedNamespaces"
	b.policiesPath = "/admin/v2/clusters/" + cfg.Cluster + "/namespaceIsolationPolicies"
	b.work = newWork(b.works)
	b.trace = &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if !got.Reused {
			b.doubts.Add(1)
		}
	}}
	return b, nil
}

// Traits are those of a Pulsar broker. A bundle's data is in BookKeeper, not here, and
// BookKeeper fences the ledgers of a broker whose bundle another one has opened.
var Traits = brokerapi.Traits{Places: true, AtDeadline: brokerapi.Nothing}

// Close implements brokerapi.Broker.
func (b *Broker) Close() error {
	b.work.close()
	return errors.Join(b.rest.Close(), b.metrics.Close())
}

// ask makes a call. A process that was started anew is reached over a new connection only.
func (b *Broker) ask(ctx context.Context, r rest.Request) (*rest.Answer, error) {
	return b.rest.Do(httptrace.WithClientTrace(ctx, b.trace), r)
}

// read has v hold what is answered.
func (b *Broker) read(ctx context.Context, path string, v any) error {
	a, err := b.ask(ctx, rest.Request{Path: path})
	if err != nil {
		return err
	}
	if err := a.Want(http.StatusOK); err != nil {
		return err
	}
	return a.JSON(v)
}

// plain is an answer in words. 4.0.7 calls those application/json, and answers 406 to who asks
// for text/plain (2026-11-23).
func (b *Broker) plain(ctx context.Context, path, want string, fits func(string) bool) (string, error) {
	a, err := b.ask(ctx, rest.Request{Path: path, Accept: "*/*"})
	if err != nil {
		return "", err
	}
	if err := a.Want(http.StatusOK); err != nil {
		return "", stranger(a, err)
	}
	text := strings.Trim(string(a.Body), "\" \r\n\t")
	if !fits(text) {
		return "", stranger(a, a.Errorf("want %s", want))
	}
	return text, nil
}

// refusal is the status of an answer that was not what was wanted; 0: there was none.
func refusal(err error) int {
	if refused := (*rest.AnswerError)(nil); errors.As(err, &refused) {
		return refused.Answer.Status
	}
	return 0
}
