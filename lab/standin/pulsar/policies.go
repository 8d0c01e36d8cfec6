package pulsar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// policy is a namespace isolation policy, as far as it keeps brokers from other namespaces.
type policy struct {
	Namespaces []string        `json:"namespaces"`
	Primary    []string        `json:"primary"`
	Secondary  []string        `json:"secondary"`
	Failover   json.RawMessage `json:"auto_failover_policy"`
	Scope      string          `json:"unload_scope,omitempty"`
}

func (b *Broker) policiesKey() string {
	return "/admin/clusters/" + b.cfg.Cluster + "/namespaceIsolationPolicies"
}

// policies are all of them; nil: there never was one.
func (b *Broker) policies(ctx context.Context) (map[string]policy, error) {
	found, err := b.session.etcd.Get(ctx, b.policiesKey())
	if err != nil || len(found.Kvs) == 0 {
		return nil, err
	}
	all := map[string]policy{}
	return all, json.Unmarshal(found.Kvs[0].Value, &all)
}

// changePolicies writes them anew; the lab has nobody write them at the same time.
func (b *Broker) changePolicies(ctx context.Context, change func(map[string]policy)) error {
	all, err := b.policies(ctx)
	if err != nil {
		return err
	}
	if all == nil {
		all = map[string]policy{}
	}
	change(all)
	value, err := json.Marshal(all)
	if err != nil {
		return err
	}
	_, err = b.session.etcd.Put(ctx, b.policiesKey(), string(value))
	return err
}

// ofCluster answers a question about another cluster as 4.0.7 does.
func (b *Broker) ofCluster(w http.ResponseWriter, r *http.Request, status int) bool {
	if name := r.PathValue("cluster"); name != b.cfg.Cluster {
		refuse(w, status, "Cluster "+name+" does not exist.")
		return false
	}
	return true
}

func (b *Broker) listPolicies(w http.ResponseWriter, r *http.Request) {
	if !b.ofCluster(w, r, http.StatusNotFound) {
		return
	}
	all, err := b.policies(r.Context())
	switch {
	case err != nil:
		refuse(w, http.StatusInternalServerError, err.Error())
	case all == nil:
		refuse(w, http.StatusNotFound, "NamespaceIsolationPolicies for cluster "+b.cfg.Cluster+" does not exist")
	default:
		answer(w, all)
	}
}

func (b *Broker) setPolicy(w http.ResponseWriter, r *http.Request) {
	if !b.ofCluster(w, r, http.StatusPreconditionFailed) {
		return
	}
	var p policy
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil || json.Unmarshal(body, &p) != nil || len(p.Namespaces) == 0 || len(p.Primary) == 0 || p.Secondary == nil || p.Failover == nil {
		refuse(w, http.StatusBadRequest, fmt.Sprintf("Invalid format of input policy data. policy: %s; data: %s", r.PathValue("policy"), body))
		return
	}
	err = b.changePolicies(r.Context(), func(all map[string]policy) { all[r.PathValue("policy")] = p })
	if err == nil && p.Scope == "" { // 4.0.7 has stored it when it says so
		err = errors.New("unload_scope is missing")
	}
	b.wrotePolicies(w, err)
}

// removePolicy says 204 of one that is not there, too.
func (b *Broker) removePolicy(w http.ResponseWriter, r *http.Request) {
	if !b.ofCluster(w, r, http.StatusPreconditionFailed) {
		return
	}
	b.wrotePolicies(w, b.changePolicies(r.Context(), func(all map[string]policy) { delete(all, r.PathValue("policy")) }))
}

func (b *Broker) wrotePolicies(w http.ResponseWriter, err error) {
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// shared reports whether a broker gets bundles of namespaces without a policy.
func shared(all map[string]policy, broker string) bool {
	host := broker[:strings.LastIndexByte(broker, ':')]
	for _, p := range all {
		for _, pattern := range p.Primary {
			if ok, _ := regexp.MatchString("^(?:"+pattern+")$", host); ok {
				return false
			}
		}
	}
	return true
}

// chosen is the web address of the broker that is to own a free bundle: this one if a policy
// does not keep it away; empty: there is none.
func (b *Broker) chosen(ctx context.Context) (httpURL string, err error) {
	all, err := b.policies(ctx)
	if err != nil {
		return "", err
	}
	if shared(all, b.cfg.Advertised) {
		return b.httpURL(), nil
	}
	const prefix = "/loadbalance/brokers/"
	found, err := b.session.etcd.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return "", err
	}
	for _, kv := range found.Kvs {
		if name := strings.TrimPrefix(string(kv.Key), prefix); shared(all, name) {
			return strings.Replace(b.httpURL(), b.cfg.Advertised, name, 1), nil
		}
	}
	return "", nil
}
