package pulsar

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"holdfast/brokerapi/rest"
)

// A namespace isolation policy keeps a broker out of the choice of both load managers: who is
// primary of any policy gets no bundle of a namespace that has none. Ours is for a namespace
// that does not exist. It names hosts, not brokers.
//
// Seen on 4.0.7 with etcd 3.4.23 and two brokers (2026-11-23): POST 204 in 9 to 60 ms, also again
// and for a host without a broker; in force at both with the answer. DELETE 204, also of a policy
// that is not there. The list is 404 before the first policy and {} after the last; of another
// cluster it is 404, and a POST 412. The extensible load manager brought no bundle back in 4 of 4
// drains. While it was told to keep every broker away, it answered all lookups with 503: so the
// last broker is left out. The modular one sends a bundle that it assigned lately to the same broker
// again, whatever the policies, until that has reported its load: for 50 s after the start.

const (
	// awayBound bounds all calls about the policy together: what else a drain asks for has
	// the rest of its time.
	awayBound = 5 * time.Second
	// backBound is the same when the broker becomes active, which does not wait for it.
	backBound = 2 * time.Second
)

// policy is a namespace isolation policy.
type policy struct {
	Namespaces []string `json:"namespaces"`
	Primary    []string `json:"primary"`
	Secondary  []string `json:"secondary"`
	Failover   failover `json:"auto_failover_policy"`
	Scope      string   `json:"unload_scope"`
}

type failover struct {
	Type       string            `json:"policy_type"`
	Parameters map[string]string `json:"parameters"`
}

// hostOf is the host of a broker's id.
func hostOf(id string) string {
	if i := strings.LastIndexByte(id, ':'); i >= 0 {
		return id[:i]
	}
	return id
}

func policyName(host string) string { return "holdfast-drained-" + host }

func policyOf(host string) policy {
	return policy{
		Namespaces: []string{"holdfast/drained-" + host}, Primary: []string{regexp.QuoteMeta(host)}, Secondary: []string{},
		Failover: failover{"min_available", map[string]string{"min_limit": "1", "usage_threshold": "100"}},
		Scope:    "none", // or the broker unloads by itself whatever matches
	}
}

// names reports whether one of the patterns, each of which has to match all of it, names the
// host. One that cannot be read may.
func names(patterns []string, host string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		re, err := regexp.Compile("^(?:" + pattern + ")$")
		return err != nil || re.MatchString(host)
	})
}

// isolation is what the cluster's policies say.
type isolation struct {
	name     string
	readable bool
	policy   policy
}

// takes is false for a host that may be primary of a policy.
func takes(all []isolation, host string) bool {
	return !slices.ContainsFunc(all, func(i isolation) bool { return !i.readable || names(i.policy.Primary, host) })
}

// policies are those of the cluster, sorted by name. One that cannot be read voids no other.
func (b *Broker) policies(ctx context.Context) ([]isolation, error) {
	path, err := rest.Path("/admin/v2/clusters", b.cfg.Cluster, "namespaceIsolationPolicies")
	if err != nil {
		return nil, err
	}
	a, err := b.rest.Do(ctx, rest.Request{Path: path})
	if err != nil {
		return nil, err
	}
	if a.Status == http.StatusNotFound {
		return nil, nil
	}
	if err := a.Want(http.StatusOK); err != nil {
		return nil, err
	}
	var list map[string]json.RawMessage
	if err := a.JSON(&list); err != nil {
		return nil, err
	}
	var all []isolation
	for name, text := range list {
		i := isolation{name: name}
		i.readable = json.Unmarshal(text, &i.policy) == nil
		all = append(all, i)
	}
	slices.SortFunc(all, func(x, y isolation) int { return cmp.Compare(x.name, y.name) })
	return all, nil
}

// brokers are the ids of those that the cluster knows.
func (b *Broker) brokers(ctx context.Context) ([]string, error) {
	path, err := rest.Path("/admin/v2/brokers", b.cfg.Cluster)
	if err != nil {
		return nil, err
	}
	a, err := b.rest.Do(ctx, rest.Request{Path: path})
	if err != nil {
		return nil, err
	}
	if err := a.Want(http.StatusOK); err != nil {
		return nil, err
	}
	var ids []string
	if err := a.JSON(&ids); err != nil {
		return nil, err
	}
	return ids, nil
}

// setPolicy sets or removes ours. One that is being set is waited for to the end of ctx's time,
// though nobody wants it any more: given up, it could come into force after its removal.
func (b *Broker) setPolicy(ctx context.Context, set bool) error {
	if until, ok := ctx.Deadline(); ok && set {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(context.WithoutCancel(ctx), until)
		defer cancel()
	}
	host := hostOf(b.self)
	path, err := rest.Path("/admin/v2/clusters", b.cfg.Cluster, "namespaceIsolationPolicies", policyName(host))
	if err != nil {
		return err
	}
	r := rest.Request{Method: http.MethodDelete, Path: path}
	if set {
		r = rest.Request{Method: http.MethodPost, Path: path, Body: policyOf(host)}
	}
	a, err := b.rest.Do(ctx, r)
	if err != nil {
		return err
	}
	return a.Want(http.StatusNoContent, http.StatusOK)
}

// keepAway has the cluster place no bundle here, or ends that. It may be repeated, and must be while
// it is to last: brokers come and go. flaw says in one sentence why bundles may come here all the
// same, or stay away; empty: nothing speaks against it. It unloads nothing.
func (b *Broker) keepAway(ctx context.Context, away bool) (flaw string) {
	bound := awayBound
	if !away {
		bound = backBound
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	all, err := b.policies(ctx)
	ours := slices.ContainsFunc(all, func(i isolation) bool { return i.name == policyName(hostOf(b.self)) })
	switch {
	case !away && refused(err):
		return "" // who may read no policies has set none
	case !away && err != nil:
		return fmt.Sprintf("it is not known whether a policy keeps bundles away: %v", err)
	case !away && ours:
		if err := b.setPolicy(ctx, false); err != nil {
			return fmt.Sprintf("the policy %s keeps bundles away and is not removed: %v", policyName(hostOf(b.self)), err)
		}
		return ""
	case !away:
		return ""
	case err != nil:
		return fmt.Sprintf("bundles may come back: %v", err)
	}
	ids, err := b.brokers(ctx)
	if err != nil {
		return fmt.Sprintf("bundles may come back: %v", err)
	}
	set, why := b.mayKeepAway(ids, all)
	if set != ours {
		err = b.setPolicy(ctx, set)
	}
	switch {
	case err != nil:
		return fmt.Sprintf("bundles may come back: %v", err)
	case why != "":
		return "bundles may come back: " + why
	}
	return ""
}

// refused reports whether the broker answered that we may not ask.
func refused(err error) bool {
	var a *rest.AnswerError
	return errors.As(err, &a) && (a.Answer.Status == http.StatusUnauthorized || a.Answer.Status == http.StatusForbidden)
}

// mayKeepAway decides whether our policy is to be there, and says why bundles may come back.
func (b *Broker) mayKeepAway(ids []string, all []isolation) (set bool, why string) {
	host := hostOf(b.self)
	var beside, theirs []string
	free := 0
	for _, id := range ids {
		switch {
		case id == b.self:
		case hostOf(id) == host:
			beside = append(beside, id)
		case takes(all, hostOf(id)):
			free++
		}
	}
	for _, i := range all {
		if i.name != policyName(host) && (!i.readable || names(i.policy.Primary, host) || names(i.policy.Secondary, host)) {
			theirs = append(theirs, i.name)
		}
	}
	switch {
	case len(beside) > 0:
		return false, fmt.Sprintf("a policy names hosts, and would keep them away from %s too", few(beside))
	case free == 0:
		return false, "no other broker of the cluster takes any"
	case len(theirs) > 0:
		return true, fmt.Sprintf("those of the namespaces of the policy %s, which may name %s", few(theirs), host)
	}
	return true, ""
}
