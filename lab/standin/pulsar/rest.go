package pulsar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func refuse(w http.ResponseWriter, status int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"reason": reason})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func text(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "text/plain")
	_, _ = w.Write([]byte(body))
}

// plain answers with text as the admin API does: it is called JSON.
func plain(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(body))
}

// page is what the web server says where nobody says anything: so /ready of 4.0.7 while it boots.
func page(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "text/html;charset=iso-8859-1")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<html>\n<head>\n<title>Error %[1]d %[2]s</title>\n</head>\n<body><h2>HTTP ERROR %[1]d %[2]s</h2>\n</body>\n</html>\n", status, http.StatusText(status))
}

// takesJSON reports whether the caller takes what the admin API makes, which is only
// application/json; no header takes anything.
func takesJSON(r *http.Request) bool {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if accept == "" {
		return true
	}
	for part := range strings.SplitSeq(accept, ",") {
		kind, _, _ := strings.Cut(part, ";")
		if slices.Contains([]string{"*/*", "application/*", "application/json"}, strings.TrimSpace(kind)) {
			return true
		}
	}
	return false
}

// handler is the REST table of BROKERS, the metrics, and what is the lab's own.
func (b *Broker) handler() http.Handler {
	mux := http.NewServeMux()
	admin := func(pattern string, params []string, f http.HandlerFunc) {
		mux.HandleFunc(pattern, b.admit(params, f))
	}
	admin("GET /admin/v2/brokers/health", []string{"topicVersion"}, b.health)
	admin("GET /admin/v2/brokers/ready", nil, b.isReady)
	admin("GET /admin/v2/brokers/version", nil, func(w http.ResponseWriter, _ *http.Request) { plain(w, version) })
	admin("GET /admin/v2/clusters", nil, func(w http.ResponseWriter, _ *http.Request) { answer(w, []string{b.cfg.Cluster}) })
	admin("GET /admin/v2/clusters/{cluster}/namespaceIsolationPolicies", nil, b.listPolicies)
	admin("POST /admin/v2/clusters/{cluster}/namespaceIsolationPolicies/{policy}", nil, b.setPolicy)
	admin("DELETE /admin/v2/clusters/{cluster}/namespaceIsolationPolicies/{policy}", nil, b.removePolicy)
	admin("GET /admin/v2/brokers/{cluster}", nil, b.brokers)
	admin("GET /admin/v2/brokers/{cluster}/{broker}/ownedNamespaces", nil, b.ownedNamespaces)
	admin("GET /admin/v2/persistent/{tenant}/{ns}", []string{"bundle"}, b.listTopics)
	admin("GET /lookup/v2/topic/persistent/{tenant}/{ns}/{topic}", []string{"authoritative"}, b.lookup)
	admin("PUT /admin/v2/namespaces/{tenant}/{ns}/{bundle}/unload", []string{"authoritative", "destinationBroker"}, b.unloadBundle)
	mux.HandleFunc("GET /status.html", b.status)
	mux.HandleFunc("GET /metrics/", b.metrics)
	mux.HandleFunc("POST /lab/publish", b.labPublish)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, "HTTP 404 Not Found: "+r.Method+" "+r.URL.Path)
	})
	return mux
}

// admit lets in who asks for nothing unknown.
func (b *Broker) admit(params []string, f http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !takesJSON(r) { // so health, ready and version of 4.0.7 on 2026-11-23
			w.Header().Set("Content-Type", "text/plain;charset=iso-8859-1")
			w.WriteHeader(http.StatusNotAcceptable)
			_, _ = w.Write([]byte("HTTP ERROR 406 Not Acceptable\n"))
			return
		}
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		for name := range query {
			if !slices.Contains(params, name) {
				refuse(w, http.StatusBadRequest, "unknown parameter "+name)
				return
			}
		}
		f(w, r)
	}
}

func (b *Broker) isUp() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready
}

func (b *Broker) health(w http.ResponseWriter, r *http.Request) {
	if v := r.URL.Query().Get("topicVersion"); v != "V2" && v != "V1" && v != "" {
		refuse(w, http.StatusBadRequest, "topicVersion "+v)
		return
	}
	if !b.isUp() {
		refuse(w, http.StatusInternalServerError, "health check failed: message was not received")
		return
	}
	plain(w, "ok")
}

func (b *Broker) isReady(w http.ResponseWriter, _ *http.Request) {
	if !b.isUp() {
		page(w, http.StatusInternalServerError)
		return
	}
	plain(w, "ok")
}

func (b *Broker) status(w http.ResponseWriter, _ *http.Request) {
	if _, err := os.Stat(b.cfg.StatusFile); b.cfg.StatusFile == "" || err != nil {
		refuse(w, http.StatusNotFound, "status file is not there")
		return
	}
	if !b.isUp() {
		refuse(w, http.StatusServiceUnavailable, "broker is not ready")
		return
	}
	text(w, "OK")
}

// metrics is large in life; here it is what is asked for, and some lines around it.
func (b *Broker) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	fmt.Fprintf(w, "# TYPE pulsar_topics_count gauge\npulsar_topics_count{cluster=%q} 0\n# TYPE process_start_time_seconds gauge\n"+
		"process_start_time_seconds{cluster=%q} %.3f\n", b.cfg.Cluster, b.cfg.Cluster, float64(b.started.UnixMilli())/1000)
	for i := range 100 {
		fmt.Fprintf(w, "pulsar_rate_in{cluster=%q,topic=\"%d\"} 0\n", b.cfg.Cluster, i)
	}
}

// registered lists the brokers by age.
func (b *Broker) registered(ctx context.Context) ([]string, error) {
	const prefix = "/loadbalance/brokers/"
	found, err := b.session.etcd.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, kv := range found.Kvs {
		names = append(names, strings.TrimPrefix(string(kv.Key), prefix))
	}
	return names, nil
}

// brokers lists the brokers of this cluster, whatever cluster is asked about: so does 4.0.7.
func (b *Broker) brokers(w http.ResponseWriter, r *http.Request) {
	names, err := b.registered(r.Context())
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	answer(w, names)
}

// ownedNamespaces answers about this broker whatever the cluster, and whether or not it is
// registered. Of another broker it says where to ask, or that none is registered so. 4.0.7.
func (b *Broker) ownedNamespaces(w http.ResponseWriter, r *http.Request) {
	if name := r.PathValue("broker"); name != b.cfg.Advertised {
		names, err := b.registered(r.Context())
		switch {
		case err != nil:
			refuse(w, http.StatusInternalServerError, err.Error())
		case !slices.Contains(names, name):
			refuse(w, http.StatusNotFound, "Broker id '"+name+"' not found in available brokers.")
		default:
			b.redirect(w, r, "http://"+name)
		}
		return
	}
	type status struct {
		Assignment string `json:"broker_assignment"`
		Controlled bool   `json:"is_controlled"`
		Active     bool   `json:"is_active"`
	}
	all := map[string]status{}
	for _, o := range b.cache() {
		b.mu.Lock()
		active := o.active
		b.mu.Unlock()
		all[o.bundle.String()] = status{"shared", false, active}
	}
	answer(w, all)
}

// redirect sends the asker to the same path at another broker.
func (b *Broker) redirect(w http.ResponseWriter, r *http.Request, to string) {
	query := r.URL.Query()
	if strings.HasPrefix(r.URL.Path, "/lookup/") || strings.HasSuffix(r.URL.Path, "/unload") {
		leader, err := b.leader(r.Context())
		query.Set("authoritative", strconv.FormatBool(err == nil && leader == b.cfg.Advertised))
	}
	target := to + r.URL.EscapedPath()
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	w.Header().Set("Location", target)
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// named takes tenant and namespace from the path.
func named(w http.ResponseWriter, r *http.Request) (namespace string, ok bool) {
	if !legal.MatchString(r.PathValue("tenant")) || !legal.MatchString(r.PathValue("ns")) {
		refuse(w, http.StatusPreconditionFailed, "Namespace name is not valid")
		return "", false
	}
	return r.PathValue("tenant") + "/" + r.PathValue("ns"), true
}

// lookup tells who serves a topic, and has this broker own its bundle if nobody does. No
// topic comes to be by it.
func (b *Broker) lookup(w http.ResponseWriter, r *http.Request) {
	namespace, ok := named(w, r)
	if !ok {
		return
	}
	if !b.isUp() {
		refuse(w, http.StatusServiceUnavailable, "broker is not ready")
		return
	}
	bundle := bundleOf(namespace, r.PathValue("topic"), b.cfg.Bundles)
	if ns, _, odd := strings.Cut(r.PathValue("topic"), "/"); odd {
		// 4.0.7: taken for a topic of the first form, in a namespace that nobody made.
		bundle = Bundle{namespace + "/" + ns, 0, full}
	}
	owner, sent, err := b.ownerOf(r.Context(), bundle, r.URL.Query().Get("authoritative") == "true")
	switch {
	case errors.Is(err, errNobody):
		page(w, http.StatusServiceUnavailable)
	case errors.Is(err, errUnloading):
		refuse(w, http.StatusServiceUnavailable, err.Error())
	case err != nil:
		refuse(w, http.StatusInternalServerError, err.Error())
	case sent:
		b.redirect(w, r, owner)
	default: // 4.0.7 on 2026-11-27: any broker names the owner
		_, at, _ := strings.Cut(owner, "://")
		native := "pulsar://" + at
		answer(w, map[string]string{"brokerUrl": native, "httpUrl": owner, "nativeUrl": native, "brokerUrlSsl": ""})
	}
}

// ownedHere finds the bundle in the cache, or answers why it is not there.
func (b *Broker) ownedHere(w http.ResponseWriter, r *http.Request, bundle Bundle) *owned {
	b.mu.Lock()
	o := b.owned[bundle.String()]
	b.mu.Unlock()
	if o != nil {
		return o
	}
	owner, err := b.read(r.Context(), bundle)
	switch {
	case err != nil:
		refuse(w, http.StatusInternalServerError, err.Error())
	case owner != "" && owner != b.httpURL():
		b.redirect(w, r, owner)
	default:
		w.WriteHeader(http.StatusNoContent) // 4.0.7: there is nothing to unload
	}
	return nil
}

func (b *Broker) unloadBundle(w http.ResponseWriter, r *http.Request) {
	namespace, ok := named(w, r)
	if !ok {
		return
	}
	bundle, ok := parseBundle(namespace, r.PathValue("bundle"), b.cfg.Bundles)
	if !ok {
		refuse(w, http.StatusPreconditionFailed, "Invalid bundle range "+r.PathValue("bundle"))
		return
	}
	if !b.noteSent(w, r, bundle) {
		return
	}
	o := b.ownedHere(w, r, bundle)
	if o == nil {
		return
	}
	if err := b.unload(r.Context(), o); err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
