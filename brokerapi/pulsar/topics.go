package pulsar

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
)

// Topics implements brokerapi.Broker: the bundles that are owned here and served. What is
// on its way out is in neither list.
func (b *Broker) Topics(ctx context.Context) (brokerapi.Held, error) {
	o, err := b.list(ctx)
	if err != nil {
		return brokerapi.Held{}, err
	}
	held := brokerapi.Held{Unreadable: o.unreadable}
	for _, p := range o.serving {
		held.Serving = append(held.Serving, p.topic())
	}
	slices.Sort(held.Serving)
	return held, nil
}

// Load implements brokerapi.Broker. There are no records.
func (b *Broker) Load(ctx context.Context, topic string, _ []byte) error {
	p, err := parseTopic(topic)
	if err != nil {
		return err
	}
	name := p.name
	if p.bundle() {
		var ok bool
		if name, ok = p.inside(); !ok {
			return fmt.Errorf("load %s: no topic name was found that hashes into this bundle: it is too narrow to be looked up", topic)
		}
	}
	if err := b.lookUp(ctx, p, name); err != nil {
		return fmt.Errorf("load %s: %w", topic, err)
	}
	if !p.bundle() {
		return nil
	}
	o, err := b.list(ctx)
	if err != nil {
		return fmt.Errorf("load %s: %w", topic, err)
	}
	if !contains(o.serving, p) {
		return fmt.Errorf("load %s: its topics are served here, but not by a bundle of that range: it was split or merged", topic)
	}
	return nil
}

func contains(list []place, p place) bool {
	return slices.ContainsFunc(list, func(q place) bool { return q.path() == p.path() })
}

// lookUp has the topic's bundle be owned by somebody, and wants that to be this broker.
func (b *Broker) lookUp(ctx context.Context, p place, name string) error {
	path, err := rest.Path("/lookup/v2/topic/persistent", p.tenant, p.ns, name)
	if err != nil {
		return err
	}
	a, err := b.rest.Do(ctx, rest.Request{Path: path})
	if err != nil {
		return err
	}
	if a.Status == http.StatusTemporaryRedirect {
		if to, err := url.Parse(a.Location()); err != nil || to.Host == "" || to.Host == b.self {
			return a.Errorf("it leads to %q, which is no other broker: its owner is being settled, ask again", a.Location())
		}
		return fmt.Errorf("%w: the lookup leads to %q", brokerapi.ErrElsewhere, a.Location())
	}
	if err := a.Want(http.StatusOK); err != nil {
		return err
	}
	var found lookup
	if err := a.JSON(&found); err != nil {
		return err
	}
	owner, err := found.owner()
	if err != nil {
		return a.Errorf("%v", err)
	}
	if owner != b.self {
		return fmt.Errorf("%w: %s", brokerapi.ErrElsewhere, owner)
	}
	return nil
}

// Unload implements brokerapi.Unloader. A bundle goes to whoever is asked for it next,
// which may be this broker; a topic alone is closed, and comes back with the next client.
func (b *Broker) Unload(ctx context.Context, topic string) error {
	p, err := parseTopic(topic)
	if err != nil {
		return err
	}
	if err := b.unload(ctx, p); err != nil {
		return fmt.Errorf("unload %s: %w", topic, err)
	}
	return nil
}

func (b *Broker) unload(ctx context.Context, p place) error {
	prefix := "/admin/v2/namespaces"
	if !p.bundle() {
		prefix = "/admin/v2/persistent"
		// 4.0.7 asked to unload a topic whose bundle nobody owns takes that (2026-11-23).
		o, err := b.list(ctx)
		if err != nil || !slices.ContainsFunc(o.serving, p.within) {
			return err
		}
	}
	path, err := rest.Path(prefix, p.tenant, p.ns, p.name, "unload")
	if err != nil {
		return err
	}
	a, err := b.rest.Do(ctx, rest.Request{Method: http.MethodPut, Path: path})
	if err != nil {
		return err
	}
	wanted := a.Want(http.StatusNoContent, http.StatusOK)
	absent := a.Status == http.StatusNotFound || a.Status == http.StatusPreconditionFailed || a.Status == http.StatusTemporaryRedirect
	switch {
	case wanted == nil:
		return nil
	case !p.bundle() && absent:
		return nil // no such topic, or not here
	case !p.bundle():
		return wanted
	}
	// The broker's own list is the judge: a release that fails leaves the bundle closed,
	// and one that is not owned here needs no unloading.
	o, err := b.list(ctx)
	if err != nil {
		return err
	}
	if contains(o.serving, p) {
		return wanted
	}
	return nil
}
