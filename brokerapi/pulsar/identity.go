package pulsar

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/exposition"
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
	if _, err := b.list(ctx); err != nil {
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
	return brokerapi.Identity{Name: b.self, Instance: instance, StartedAt: started, Version: version}, nil
}

func (b *Broker) version(ctx context.Context) (string, error) {
	a, err := b.rest.Do(ctx, rest.Request{Path: "/admin/v2/brokers/version", Accept: "text/plain, application/json"})
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
		if at.IsZero() {
			return fmt.Sprintf("seen-%s-%d", b.random, number), at, nil
		}
		return fmt.Sprintf("started-%d", at.UnixMilli()), at, nil
	}
}

// maxMetrics is how many lines are looked at, far more than come before the one.
const maxMetrics = 5_000_000

// startedAt reads the metrics until it finds when the process started; zero: they do not
// tell, or not to us.
func (b *Broker) startedAt(ctx context.Context) (time.Time, error) {
	h, err := b.rest.Hold(ctx, rest.Request{Path: "/metrics/", Accept: "text/plain"})
	var refused *rest.AnswerError
	if errors.As(err, &refused) {
		return time.Time{}, nil
	} else if err != nil {
		return time.Time{}, err
	}
	defer h.Close()
	for range maxMetrics {
		line, err := h.Line()
		if errors.Is(err, rest.ErrEnded) {
			return time.Time{}, nil
		} else if err != nil {
			return time.Time{}, err
		}
		if at, ok := exposition.ParseStart(string(line)); ok {
			return at, nil
		}
	}
	return time.Time{}, nil
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
	case http.StatusNotFound, http.StatusPreconditionFailed:
		return owned{}, fmt.Errorf("%w: set --pulsar-cluster (%s) to the clusterName of its broker.conf (%w)", a.Want(http.StatusOK), b.cfg.Cluster, brokerapi.ErrIdentity)
	default:
		return owned{}, b.stranger(a, a.Want(http.StatusOK))
	}
	var list map[string]ownership
	if err := a.JSON(&list); err != nil {
		return owned{}, b.stranger(a, err)
	}
	o, err := parseOwnedList(list)
	if err != nil {
		return owned{}, a.Errorf("%v", err)
	}
	return o, nil
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
	more := ""
	if len(names) > 5 {
		names, more = names[:5], ", …"
	}
	return fmt.Sprintf(", and its cluster has the brokers %q%s", strings.Join(names, ", "), more)
}

// stranger marks the answer of something that is no Pulsar broker: what says neither JSON
// nor a reason to wait.
func (b *Broker) stranger(a *rest.Answer, err error) error {
	if a.Status == http.StatusOK || a.Status == http.StatusNotFound || a.Status == http.StatusMethodNotAllowed {
		return fmt.Errorf("%w (%w)", err, brokerapi.ErrIdentity)
	}
	return err
}
