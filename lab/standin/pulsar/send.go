package pulsar

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
)

// What is sent to a named broker, as the modular load manager of 4.0.7 does it (2026-11-27): the leader
// remembers who is to take a bundle, and sends the next lookup of it there, once. Who is not the leader
// sends whoever asks to it. In life that is in the leader's memory.

func (b *Broker) sentKey(bundle Bundle) string { return "/standin/sent/" + bundle.String() }

// leader is the eldest broker.
func (b *Broker) leader(ctx context.Context) (string, error) {
	names, err := b.registered(ctx)
	if err != nil || len(names) == 0 {
		return b.cfg.Advertised, err
	}
	return names[0], nil
}

// noteSent takes notice of who is to have the bundle. Unless ok, it has answered.
func (b *Broker) noteSent(w http.ResponseWriter, r *http.Request, bundle Bundle) (ok bool) {
	to := r.URL.Query().Get("destinationBroker")
	if to == "" {
		return true
	}
	names, err := b.registered(r.Context())
	switch {
	case err != nil:
		refuse(w, http.StatusInternalServerError, err.Error())
	case !slices.Contains(names, to):
		refuse(w, http.StatusConflict, "Not allowed unload namespace bundle to inactive destination broker")
	case names[0] != b.cfg.Advertised:
		b.redirect(w, r, b.urlOf(names[0]))
	default:
		if _, err := b.session.etcd.Put(r.Context(), b.sentKey(bundle), to); err != nil {
			refuse(w, http.StatusInternalServerError, err.Error())
			return false
		}
		query := r.URL.Query()
		query.Del("destinationBroker")
		r.URL.RawQuery = query.Encode()
		return true
	}
	return false
}

// sent is the web address of who is asked next about a bundle that is sent to somebody; empty: it is not.
func (b *Broker) sent(ctx context.Context, bundle Bundle) (httpURL string, err error) {
	found, err := b.session.etcd.Get(ctx, b.sentKey(bundle))
	if err != nil || len(found.Kvs) == 0 {
		return "", err
	}
	leader, err := b.leader(ctx)
	if err != nil || leader != b.cfg.Advertised {
		return b.urlOf(leader), err
	}
	_, err = b.session.etcd.Delete(ctx, b.sentKey(bundle))
	return b.urlOf(string(found.Kvs[0].Value)), err
}

func (b *Broker) urlOf(name string) string {
	return strings.Replace(b.httpURL(), b.cfg.Advertised, name, 1)
}

// listTopics lists those of a bundle that were published to.
func (b *Broker) listTopics(w http.ResponseWriter, r *http.Request) {
	namespace, ok := named(w, r)
	if !ok {
		return
	}
	bundle, ok := parseBundle(namespace, r.URL.Query().Get("bundle"), b.cfg.Bundles)
	if !ok {
		refuse(w, http.StatusPreconditionFailed, "Invalid bundle range "+r.URL.Query().Get("bundle"))
		return
	}
	files, err := os.ReadDir(b.cfg.Data)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	names := []string{}
	for _, f := range files {
		topic, err := url.PathUnescape(strings.TrimSuffix(f.Name(), ".log"))
		name, is := strings.CutPrefix(topic, namespace+"/")
		if cmp.Or(err != nil, !is) || bundleOf(namespace, name, b.cfg.Bundles) != bundle {
			continue
		}
		names = append(names, "persistent://"+topic)
	}
	answer(w, names)
}
