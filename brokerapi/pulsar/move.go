package pulsar

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
)

// Send implements brokerapi.Sender: the bundle is unloaded, and then looked up by one of its topics.
// Where nobody has it yet, the lookup has somebody take it. Called again, it leaves alone what has arrived.
func (b *Broker) Send(ctx context.Context, topic string, to brokerapi.Peer) (seen string, err error) {
	defer func() {
		if refusal(err)/100 == 4 {
			err = fmt.Errorf("%w (%w)", err, brokerapi.ErrRefused)
		}
	}()
	bundle, err := bundleOf(topic)
	if err != nil {
		return "", err
	}
	var ids, names []string
	namespace, hashes := path.Split(bundle)
	err = cmp.Or(b.read(ctx, b.brokersPath, &ids), b.read(ctx, "/admin/v2/persistent/"+path.Clean(namespace)+"?bundle="+hashes, &names))
	switch {
	case err != nil:
		return "", err
	case to.ID != "" && !slices.Contains(ids, to.ID):
		return "", brokerapi.Errorf(brokerapi.ErrRefused, "--to %s: Pulsar's cluster has the brokers %q: leave --broker-id out there, or leave --to out", to.ID, few(ids))
	case len(names) == 0:
		return "", brokerapi.Errorf(brokerapi.ErrRefused, "bundle %s has no persistent topic to look its owner up by: there is nothing to move", bundle)
	}
	look := rest.Request{Path: "/lookup/v2/topic/persistent/" + namespace + url.PathEscape(path.Base(names[0]))}
	unload, tries := rest.Request{Method: http.MethodPut, Path: "/admin/v2/namespaces/" + bundle + "/unload"}, 1
	if to.ID != "" {
		unload.Query, tries = url.Values{"destinationBroker": {to.ID}}, 3 // a client's lookup may be between: 1 in 20 on 4.0.7, 2026-11-27
	}
	owner, err := b.ownerBy(ctx, ids, look)
	arrived := func() bool { return owner == to.ID || to.ID == "" && owner != b.self }
	for ; err == nil && !arrived() && tries > 0; tries-- {
		if _, err = b.follow(ctx, ids, unload); err == nil {
			owner, err = b.ownerBy(ctx, ids, look)
		}
	}
	switch {
	case err != nil:
		return "", err
	case !arrived():
		return "", brokerapi.Errorf(brokerapi.ErrRefused, "Pulsar's cluster has given bundle %s to %s: unload it there, with --to", bundle, owner)
	}
	return fmt.Sprintf("by Pulsar's own lookup %s owns the bundle, with its topics, %d of them", owner, len(names)), nil
}

// ownerBy is who owns the bundle of the topic that is looked up.
func (b *Broker) ownerBy(ctx context.Context, ids []string, look rest.Request) (id string, err error) {
	var owner struct{ HTTPURL, HTTPURLTLS string }
	a, err := b.follow(ctx, ids, look)
	if err == nil {
		err = a.JSON(&owner)
	}
	_, id, _ = strings.Cut(cmp.Or(owner.HTTPURL, owner.HTTPURLTLS), "://")
	return id, err
}

// follow makes a call, again at each broker that it is sent on to: where a bundle goes is the leader's
// word. None but the hosts that the broker here lists are asked, and a token is shown by https alone.
func (b *Broker) follow(ctx context.Context, ids []string, r rest.Request) (a *rest.Answer, err error) {
	at := b.rest
	for range 5 {
		if a, err = at.Do(ctx, r); err != nil {
			return nil, err
		}
		to, err := url.Parse(a.Location())
		if err != nil || !slices.ContainsFunc(ids, func(id string) bool { return hostOf(id) == hostOf(to.Host) }) {
			break
		}
		r.Path, r.Query, at = to.EscapedPath(), to.Query(), b.rest
		switch {
		case to.Host == b.self:
		case b.cfg.TokenFile != "" && to.Scheme != "https":
			return nil, brokerapi.Errorf(brokerapi.ErrRefused, "broker %s decides about it, and is shown no token over http: write https:// in --broker-admin", to.Host)
		default:
			if at, err = rest.New(rest.Config{URL: to.Scheme + "://" + to.Host, Files: b.cfg.Files}); err != nil {
				return nil, err
			}
			defer at.Close()
		}
	}
	return a, a.Want(http.StatusOK, http.StatusNoContent)
}
