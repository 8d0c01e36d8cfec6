package pulsar

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
)

// identify finds out who answers. Name is the host:port that the broker advertises. Pulsar
// has no id that changes with each start: Instance is when its process started, as its metrics
// tell. Where they do not, it is empty.
//
// A broker proves by its list who it is. One that cannot list what it owns (5xx) says nothing of
// that: what the process proved before counts.
func (b *Broker) identify(ctx context.Context) (who brokerapi.Report, err error) {
	doubt := b.doubts.Load()
	_, unlisted := b.list(ctx)
	if unlisted != nil && refusal(unlisted) < http.StatusInternalServerError {
		return who, unlisted
	}
	version, err := b.plain(ctx, "/admin/v2/brokers/version", "a version", func(text string) bool {
		return text != "" && len(text) <= maxVersion && brokerapi.NameFlaw(text) == ""
	})
	if err != nil {
		return who, err
	}
	started, err := b.start(ctx)
	if err != nil {
		return who, err
	}
	process := cmp.Or(instance(started), fmt.Sprint("connected-", doubt))
	if unlisted == nil {
		b.proven.Store(process)
	} else if b.proven.Load() != process {
		return who, unlisted
	}
	if err := b.inCluster(ctx); err != nil {
		return who, err
	}
	return brokerapi.Report{Name: b.self, Instance: instance(started), StartedAt: started, Version: version}, nil
}

// maxVersion is how long a version may be, in bytes.
const maxVersion = 64

// instance is the name of the process; empty: it is not known when it started.
func instance(started time.Time) string {
	if started.IsZero() {
		return ""
	}
	return fmt.Sprintf("started-%d", started.UnixMilli())
}

// began is when the process started that answered at that doubt.
type began struct {
	at    time.Time
	doubt int64
}

// start is when the process started, as its metrics have it; zero: they do not tell, or not to
// us. They are long, and asked for only when another process may answer.
func (b *Broker) start(ctx context.Context) (time.Time, error) {
	doubt := b.doubts.Load()
	if last := b.began.Load(); last != nil && last.doubt == doubt {
		return last.at, nil
	}
	families, err := b.metrics.Metrics(ctx, "/metrics/")
	if err != nil && refusal(err) == 0 {
		return time.Time{}, err
	}
	s := began{rest.Started(families), doubt}
	b.began.Store(&s)
	return s.at, nil
}

// inCluster is nil unless the broker says that it knows other clusters than the one that was
// set: whatever cluster it is asked about, it answers about itself (4.0.7, 2026-11-23). It is
// asked until it has told, and has half of the time: it reads its metadata store for that.
func (b *Broker) inCluster(ctx context.Context) error {
	if b.clustered.Load() {
		return nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	var names []string
	if err := b.read(ctx, "/admin/v2/clusters", &names); err != nil || len(names) == 0 {
		return nil // it does not tell, or not now
	}
	if !slices.Contains(names, b.cfg.Cluster) {
		return fmt.Errorf("--pulsar-cluster %s: the broker at %s knows %q (%w): set it to the clusterName of its broker.conf",
			b.cfg.Cluster, b.rest.URL(), few(names), brokerapi.ErrIdentity)
	}
	b.clustered.Store(true)
	return nil
}

// list asks for the bundles that the broker owns. By the answer it proves who it is: about
// another broker it would redirect.
func (b *Broker) list(ctx context.Context) (o owned, err error) {
	a, err := b.ask(ctx, rest.Request{Path: b.ownedPath})
	if err != nil {
		return o, err
	}
	var list map[string]json.RawMessage
	var refused struct{ Reason string }
	switch {
	case a.Status == http.StatusTemporaryRedirect:
		return o, fmt.Errorf("--broker-admin %s: the broker there does not call itself %s (%w)%s: set --pulsar-advertised to the host:port that it advertises",
			b.rest.URL(), b.self, brokerapi.ErrIdentity, b.known(ctx))
	case a.Status == http.StatusNotFound && a.JSON(&refused) == nil && refused.Reason != "":
		// So says another broker, or this one under another name, of one that is not registered.
		return o, fmt.Errorf("--broker-admin %s: no broker is registered as %s%s: wait until it is, or set --pulsar-advertised to the host:port that the broker there advertises",
			b.rest.URL(), b.self, b.known(ctx))
	}
	if err = a.Want(http.StatusOK); err == nil {
		err = a.JSON(&list)
	}
	if err != nil {
		return o, stranger(a, err)
	}
	return parseOwned(list), nil
}

// known names the brokers that the cluster knows, as far as it can be asked.
func (b *Broker) known(ctx context.Context) string {
	var names []string
	if b.read(ctx, b.brokersPath, &names) != nil || len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(", and its cluster has the brokers %q", few(names))
}

// few is the first names of a list.
func few(names []string) string {
	if len(names) > 5 {
		names = append(slices.Clone(names[:5]), "…")
	}
	return strings.Join(names, ", ")
}

// stranger marks the answer of something that is no Pulsar broker: what says neither JSON
// nor a reason to wait.
func stranger(a *rest.Answer, err error) error {
	if a.Status == http.StatusOK || a.Status == http.StatusNotFound || a.Status == http.StatusMethodNotAllowed {
		return fmt.Errorf("%w (%w)", err, brokerapi.ErrIdentity)
	}
	return err
}
