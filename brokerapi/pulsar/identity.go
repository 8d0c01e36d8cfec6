package pulsar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
)

// Identify implements brokerapi.Broker. Name is the host:port that the broker advertises.
//
// Pulsar has no id that changes with each start. Instance is when its process started, as
// its metrics tell; where they do not, it is the connection that is held to the broker
// since then: every break of it, and every restart of Holdfast, then looks like a restart
// of the broker.
func (b *Broker) Identify(ctx context.Context) (brokerapi.Identity, error) {
	b.watch()
	if err := b.isMeant(ctx); err != nil {
		return brokerapi.Identity{}, err
	}
	version, err := b.version(ctx)
	if err != nil {
		return brokerapi.Identity{}, err
	}
	instance, started, err := b.instance(ctx)
	if err != nil {
		return brokerapi.Identity{}, err
	}
	if err := b.inCluster(ctx); err != nil {
		return brokerapi.Identity{}, err
	}
	return brokerapi.Identity{Name: b.self, Instance: instance, StartedAt: started, Version: version}, nil
}

// isMeant is nil when the broker has proved by its list who it is. One that cannot list what it
// owns (5xx) says nothing of that: what it proved counts for as long as the connection that was
// held then.
func (b *Broker) isMeant(ctx context.Context) error {
	held := b.held.present()
	_, err := b.list(ctx)
	same := held != 0 && held == b.held.present()
	b.mu.Lock()
	defer b.mu.Unlock()
	var refusal *rest.AnswerError
	switch {
	case err == nil && same:
		b.proven = held
	case err != nil && same && held == b.proven && errors.As(err, &refusal) && refusal.Answer.Status >= http.StatusInternalServerError:
		return nil
	}
	return err
}

// inCluster is nil unless the broker says that it knows other clusters than the one that was
// set: whatever cluster it is asked about, it answers about itself (4.0.7, 2026-11-23). It is
// asked until it has told, and has half of the time: it reads its metadata store for that.
func (b *Broker) inCluster(ctx context.Context) error {
	b.mu.Lock()
	known := b.clustered
	b.mu.Unlock()
	if known {
		return nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	var names []string
	a, err := b.rest.Do(ctx, rest.Request{Path: "/admin/v2/clusters"})
	if err != nil || a.Status != http.StatusOK || a.JSON(&names) != nil || len(names) == 0 {
		return nil // it does not tell, or not now
	}
	if !slices.Contains(names, b.cfg.Cluster) {
		return fmt.Errorf("--pulsar-cluster %s: the broker at %s knows %q (%w): set it to the clusterName of its broker.conf",
			b.cfg.Cluster, b.rest.URL(), few(names), brokerapi.ErrIdentity)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clustered = true
	return nil
}

func (b *Broker) version(ctx context.Context) (string, error) {
	a, err := b.rest.Do(ctx, rest.Request{Path: "/admin/v2/brokers/version", Accept: anything})
	if err != nil {
		return "", err
	}
	if err := a.Want(http.StatusOK); err != nil {
		return "", b.stranger(a, err)
	}
	version, err := parseVersion(a.Body)
	if err != nil {
		return "", fmt.Errorf("%w (%w)", a.Errorf("%v", err), brokerapi.ErrIdentity)
	}
	return version, nil
}

// instance asks for the start of the process once for each connection that was held.
func (b *Broker) instance(ctx context.Context) (string, time.Time, error) {
	for {
		number, err := b.held.connected(ctx)
		if err != nil {
			return "", time.Time{}, err
		}
		b.mu.Lock()
		at, known := b.started[number]
		b.mu.Unlock()
		if !known {
			if at, err = b.startedAt(ctx); err != nil {
				return "", time.Time{}, err
			}
			if now, err := b.held.connected(ctx); err != nil {
				return "", time.Time{}, err
			} else if now != number {
				continue // whose start it was is not known
			}
			b.mu.Lock()
			clear(b.started)
			b.started[number] = at
			b.mu.Unlock()
		}
		return b.named(number, at), at, nil
	}
}

func (b *Broker) named(connection int, started time.Time) (instance string) {
	if started.IsZero() {
		return fmt.Sprintf("seen-%s-%d", b.random, connection)
	}
	return fmt.Sprintf("started-%d", started.UnixMilli())
}

// startedAt is when the process started, as the metrics have it; zero: they do not tell, or
// not to us.
func (b *Broker) startedAt(ctx context.Context) (time.Time, error) {
	families, err := b.rest.Metrics(ctx, "/metrics/")
	if refused := (*rest.AnswerError)(nil); errors.As(err, &refused) {
		return time.Time{}, nil
	}
	return rest.Started(families), err
}

// list asks for the bundles that the broker owns. By the answer it proves who it is: about
// another broker it would redirect.
func (b *Broker) list(ctx context.Context) (owned, error) {
	path, err := rest.Path("/admin/v2/brokers", b.cfg.Cluster, b.self, "ownedNamespaces")
	if err != nil {
		return owned{}, err
	}
	a, err := b.rest.Do(ctx, rest.Request{Path: path})
	if err != nil {
		return owned{}, err
	}
	switch a.Status {
	case http.StatusOK:
	case http.StatusTemporaryRedirect:
		return owned{}, fmt.Errorf("--broker-admin %s: the broker there does not call itself %s (%w)%s: set --pulsar-advertised to the host:port that it advertises",
			b.rest.URL(), b.self, brokerapi.ErrIdentity, b.known(ctx))
	case http.StatusNotFound:
		var refusal struct{ Reason string }
		if a.JSON(&refusal) != nil || refusal.Reason == "" {
			return owned{}, b.stranger(a, a.Want(http.StatusOK))
		}
		// So says another broker, or this one under another name, of one that is not registered.
		return owned{}, fmt.Errorf("--broker-admin %s: no broker is registered as %s%s: wait until it is, or set --pulsar-advertised to the host:port that the broker there advertises",
			b.rest.URL(), b.self, b.known(ctx))
	default:
		return owned{}, b.stranger(a, a.Want(http.StatusOK))
	}
	var list map[string]json.RawMessage
	if err := a.JSON(&list); err != nil {
		return owned{}, b.stranger(a, err)
	}
	return parseOwnedList(list), nil
}

// known names the brokers that the cluster knows, as far as it can be asked.
func (b *Broker) known(ctx context.Context) string {
	path, err := rest.Path("/admin/v2/brokers", b.cfg.Cluster)
	if err != nil {
		return ""
	}
	a, err := b.rest.Do(ctx, rest.Request{Path: path})
	if err != nil || a.Status != http.StatusOK {
		return ""
	}
	var names []string
	if a.JSON(&names) != nil || len(names) == 0 {
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
func (b *Broker) stranger(a *rest.Answer, err error) error {
	if a.Status == http.StatusOK || a.Status == http.StatusNotFound || a.Status == http.StatusMethodNotAllowed {
		return fmt.Errorf("%w (%w)", err, brokerapi.ErrIdentity)
	}
	return err
}
