package pulsar

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"holdfast/brokerapi/rest"
)

// The list of a bundle's non-persistent topics tells who owns the bundle and owns nothing for
// it, unlike a lookup. It rests on the same cache as lookups do.
//
// Seen on 4.0.7 with etcd 3.4.23 and three brokers (2026-11-23): 200 with a list where it is
// owned, 307 to its owner elsewhere, with authoritative=true from the leader and false from others, 204 where
// nobody owns it, in 3 to 30 ms; 412 for a range that is no bundle, 404 for no namespace.
//
// After a restart of etcd, which took 0.3 s, no broker learned of a change any more; after resets
// of one broker's connections for 2 s that one did not. Bundles that were unloaded then, with a
// destination, had no lock and no owner, and for the two minutes that were looked at such brokers sent lookups
// to the former owner, also when its process was dead, and that one to the leader. A broker that was restarted saw
// them free. By its source Pulsar reads an owner that it has cached again after 5 to 10 minutes.

// systemTenant is of Pulsar's own namespaces. With the Extensible load manager they are owned in other ways than
// the rest, and the lock of one of them is the only one that there is: it says nothing of the brokers' views.
const systemTenant = "pulsar"

// ownerBound bounds one question.
const ownerBound = 2 * time.Second

// Owners implements brokerapi.OwnerTeller. When the broker leaves a question unanswered, or half of
// the time of ctx is over, the rest is not asked.
func (b *Broker) Owners(ctx context.Context, topics []string) (map[string]string, error) {
	here, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	owners := make(map[string]string, len(topics))
	var ids []string // of the brokers, where they are needed
	if strings.HasPrefix(b.rest.URL(), "https:") {
		if ids, err = b.brokers(ctx); err != nil {
			return nil, err
		}
	}
	until := time.Now().Add(time.Hour)
	if deadline, ok := ctx.Deadline(); ok {
		until = time.Now().Add(time.Until(deadline) / 2)
	}
	for _, topic := range topics {
		if len(owners) > 0 && time.Now().After(until) {
			return owners, nil
		}
		p, err := parseTopic(topic)
		switch {
		case err != nil:
			return nil, err
		case !p.bundle():
			return nil, fmt.Errorf("it is asked who owns %s, which is no bundle", topic)
		case p.tenant == systemTenant, contains(here.leaving, p):
			continue
		case contains(here.serving, p):
			owners[topic] = b.self
			continue
		}
		owner, told, err := b.ownerOf(ctx, p, ids)
		if err != nil {
			if len(owners) == 0 {
				return nil, err
			}
			return owners, nil // what it told counts
		}
		if told {
			owners[topic] = owner
		}
	}
	return owners, nil
}

// ownerOf is the id of who owns the bundle, which this broker did not when it was asked for
// its list; empty: nobody does.
func (b *Broker) ownerOf(ctx context.Context, p place, ids []string) (owner string, told bool, err error) {
	path, err := rest.Path("/admin/v2/non-persistent", p.tenant, p.ns, p.name)
	if err != nil {
		return "", false, err
	}
	ctx, cancel := context.WithTimeout(ctx, ownerBound)
	defer cancel()
	a, err := b.rest.Do(ctx, rest.Request{Path: path})
	if err != nil {
		return "", false, err
	}
	switch a.Status {
	case http.StatusOK:
		return b.self, true, nil
	case http.StatusNoContent:
		return "", true, nil
	case http.StatusTemporaryRedirect:
		to, err := url.Parse(a.Location())
		if err != nil || to.Host == "" {
			return "", false, nil
		}
		owner, told = idAt(to, ids)
		return owner, told, nil
	}
	return "", false, nil
}

// idAt is the id of the broker at that address. It has another port there if the broker also
// speaks TLS: then the host must tell.
func idAt(to *url.URL, ids []string) (id string, ok bool) {
	if to.Scheme != "https" || slices.Contains(ids, to.Host) {
		return to.Host, true
	}
	for _, other := range ids {
		if hostOf(other) != hostOf(to.Host) {
			continue
		}
		if id != "" {
			return "", false
		}
		id = other
	}
	return id, id != ""
}
