package pulsar

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
)

const (
	// unloadsAtOnce is how many bundles are unloaded at the same time.
	unloadsAtOnce = 8
	// drainPause is between two looks at what is left.
	drainPause = 100 * time.Millisecond
	// awayBound bounds all calls about the policy together: what else a drain asks for has
	// the rest of its time. backBound is the same for one that becomes active, which does not wait for it.
	awayBound, backBound = 5 * time.Second, 2 * time.Second
)

// SetMode implements brokerapi.ModeSetter, for a broker that has no modes. Drained, a namespace
// isolation policy has the cluster choose others, which needs a superuser's rights, load balancers
// that ask the status file send nobody here, and bundles are unloaded until none is left. Where there
// can be no policy, a client that looks a topic up brings its bundle back until the next call: that
// is said, and no reason to try it again at once. reason goes nowhere: Pulsar takes none.
func (b *Broker) SetMode(ctx context.Context, mode brokerapi.Mode, reason string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("set the mode %s: %w", mode, err)
	}
	switch mode {
	case brokerapi.Active:
		flaw := b.keepAway(ctx, false)
		if err := b.showStatus(ctx); err != nil || flaw == nil {
			return err
		}
		return fmt.Errorf("%w: %w", brokerapi.ErrRemains, flaw)
	case brokerapi.Drained:
		_ = b.keepAway(ctx, true) // first: what is unloaded before that may come back
		return b.drain(ctx)
	}
	return fmt.Errorf("set the mode %q: want %s or %s", mode, brokerapi.Active, brokerapi.Drained)
}

func (b *Broker) showStatus(ctx context.Context) error {
	if _, err := b.list(ctx); err != nil || b.cfg.StatusFile == "" { // it is to be there
		return err
	}
	if _, err := os.Stat(b.cfg.StatusFile); err == nil {
		return nil
	}
	if err := os.WriteFile(b.cfg.StatusFile, []byte("OK\n"), 0o644); err != nil {
		return fmt.Errorf("--pulsar-status-file: create it: %w: make its directory writable for this sidecar", err)
	}
	return nil
}

// drain returns when no bundle is left that could be elsewhere.
func (b *Broker) drain(ctx context.Context) error {
	if err := os.Remove(b.cfg.StatusFile); b.cfg.StatusFile != "" && err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--pulsar-status-file: remove it: %w: make its directory writable for this sidecar", err)
	}
	for {
		o, err := b.list(ctx)
		if err != nil || len(o.serving)+len(o.leaving) == 0 {
			return err
		}
		var unloads errgroup.Group // one that fails keeps no other
		unloads.SetLimit(unloadsAtOnce)
		for _, bundle := range o.serving {
			unloads.Go(func() error { return b.unload(ctx, bundle) })
		}
		if err := unloads.Wait(); err != nil {
			return err
		}
		if err := brokerapi.Sleep(ctx, drainPause); err != nil {
			return fmt.Errorf("bundles left: %d served, %d being unloaded: %w", len(o.serving), len(o.leaving), err)
		}
	}
}

// A namespace isolation policy keeps a broker out of the choice of both load managers, for who is
// primary of any policy gets no bundle of a namespace that has none. Ours is for a namespace that does
// not exist. It names hosts, not brokers.
//
// Seen on 4.0.7 with etcd 3.4.23 and two brokers (2026-11-23): POST 204 in 9 to 60 ms, also again
// and for a host without a broker; in force at both with the answer. DELETE 204, also of a policy
// that is not there. The list is 404 before the first policy and {} after the last; of another
// cluster it is 404, and a POST 412. The extensible load manager brought no bundle back in 4 of 4
// drains. While it was told to keep every broker away, it answered all lookups with 503: so the
// last broker is left out. The modular one sends a bundle that it assigned lately to the same broker
// again, whatever the policies, until that has reported its load: for 50 s after the start.

// hostOf is the host of a broker's id.
func hostOf(id string) string { return id[:max(0, strings.LastIndexByte(id, ':'))] }

func policyName(host string) string { return "holdfast-drained-" + host }

// policyOf is our policy. Without its scope the broker would unload by itself whatever matches.
func policyOf(host string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"namespaces":["holdfast/drained-%s"],"primary":[%q],"secondary":[],"auto_failover_policy":`+
		`{"policy_type":"min_available","parameters":{"min_limit":"1","usage_threshold":"100"}},"unload_scope":"none"}`, host, regexp.QuoteMeta(host)))
}

// names reports whether a policy may have the host as primary: one of its patterns, each of which has
// to match all of it. What cannot be read may name everybody.
func names(policy json.RawMessage, host string) bool {
	var p struct{ Primary []string }
	return json.Unmarshal(policy, &p) != nil || slices.ContainsFunc(p.Primary, func(pattern string) bool {
		re, err := regexp.Compile("^(?:" + pattern + ")$")
		return err != nil || re.MatchString(host)
	})
}

// keepAway has the cluster place no bundle here, or ends that. It may be repeated, and must be while
// it is to last: brokers come and go. The error says why bundles may come here all the same, or stay
// away, and is logged when it changes. It unloads nothing.
func (b *Broker) keepAway(ctx context.Context, away bool) error {
	bound, risk := backBound, fmt.Sprintf("the policy %s may keep bundles away", policyName(b.host))
	if away {
		bound, risk = awayBound, "bundles may come back"
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err := b.placePolicy(ctx, away)
	text := ""
	if err != nil {
		err = fmt.Errorf("%s: %w", risk, err)
		text = err.Error()
	}
	if was := b.flaw.Swap(text); text != "" && text != was {
		b.cfg.Logger.Warn("the mode of the broker may not hold", "why", text)
	}
	return err
}

// placePolicy has our policy be there or not.
func (b *Broker) placePolicy(ctx context.Context, away bool) error {
	var all map[string]json.RawMessage
	err := b.read(ctx, b.policiesPath, &all)
	switch status := refusal(err); {
	case status == http.StatusNotFound: // there never was one
	case !away && (status == http.StatusUnauthorized || status == http.StatusForbidden):
		return nil // who may read no policies has set none
	case err != nil:
		return err
	}
	var why error
	if away {
		var ids []string
		if err := b.read(ctx, b.brokersPath, &ids); err != nil {
			return err
		}
		why = b.mayNotKeepAway(ids, all)
	}
	set, name := away && why == nil, policyName(b.host)
	if _, is := all[name]; is == set {
		return why
	}
	// It is waited for though nobody wants it any more: given up, it could come into force after
	// its removal.
	until, _ := ctx.Deadline()
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	r := rest.Request{Method: http.MethodDelete, Path: b.policiesPath + "/" + url.PathEscape(name)}
	if set {
		r.Method, r.Body = http.MethodPost, policyOf(b.host)
	}
	a, err := b.ask(ctx, r)
	if err != nil {
		return err
	}
	return cmp.Or(a.Want(http.StatusNoContent, http.StatusOK), why)
}

// mayNotKeepAway is why our policy is not to be there; nil: it may be.
func (b *Broker) mayNotKeepAway(ids []string, all map[string]json.RawMessage) error {
	var beside []string
	others := false // take bundles
	for _, id := range ids {
		kept := func(policy json.RawMessage) bool { return names(policy, hostOf(id)) }
		if hostOf(id) != b.host {
			others = others || !slices.ContainsFunc(slices.Collect(maps.Values(all)), kept)
		} else if id != b.self {
			beside = append(beside, id)
		}
	}
	switch {
	case len(beside) > 0:
		return fmt.Errorf("a policy names hosts, and would keep them away from %s too", few(beside))
	case !others:
		return errors.New("no other broker of the cluster takes any")
	}
	return nil
}
