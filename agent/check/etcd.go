package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/cluster"
)

// Etcd tries etcd as a sidecar uses it, and then each endpoint by itself. registered is the
// id of the broker in the keys of etcd; empty: it is not known.
func Etcd(ctx context.Context, c config.Config, registered string, log *slog.Logger) []Finding {
	cluster.Resolve(ctx, c.Cluster())
	client, err := cluster.Open(c.Cluster(), log)
	if err != nil {
		return []Finding{{What: "etcd", Err: control.UsageError(err)}}
	}
	defer client.Close()
	id := cmp.Or(c.BrokerID, "unknown") // any id shows whether reads are answered
	bounded, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	snap, err := client.SnapshotOf(bounded, cluster.Who{Name: id, Registered: cmp.Or(registered, id)})
	if cluster.Denied(err) && cmp.Or(c.BrokerID, registered) == "" {
		err = fmt.Errorf("--etcd-endpoints %q: etcd answers, and what its user may do is looked at by the broker's id, which is not known: start the broker, or give --broker-id", strings.Join(c.EtcdEndpoints, ","))
		return []Finding{{What: "etcd", Err: err}}
	}
	if err != nil {
		return []Finding{{What: "etcd", Err: control.EtcdError(c, err)}}
	}
	f := Finding{What: "etcd", Text: fmt.Sprintf("%s, revision %d", strings.Join(c.EtcdEndpoints, ","), snap.Revision)}
	all := askEach(ctx, c, id, log)
	if len(all) > 1 {
		text, err := members(c, all)
		if err != nil {
			return []Finding{{What: "etcd", Err: control.UsageError(err)}}
		}
		f.Text += "; " + text
		f.Warn = slices.ContainsFunc(all, func(e endpoint) bool { return cluster.Classify(e.err) == cluster.ClassAuth })
	}
	switch {
	case snap.StateMalformed != "":
		f.Text += fmt.Sprintf("; the state of %s cannot be read: %q", id, snap.StateMalformed)
	case c.BrokerID == "":
	case snap.Registration != nil && snap.BrokerID != id:
		f.Text += fmt.Sprintf("; %s is registered as %s", id, snap.BrokerID)
	case snap.Registration != nil:
		f.Text += fmt.Sprintf("; %s is registered", id)
	default:
		f.Text += fmt.Sprintf("; %s is not registered", id)
	}
	return []Finding{f, renewalFinding(c, all), versionFinding(all)}
}

// endpoint is what one of etcd's said over a connection to it alone.
type endpoint struct {
	url     string
	err     error // it does not answer
	cluster uint64
	renewal error // no lease was granted, renewed and revoked
	version string
	untold  error // why it does not tell its version
}

// askEach asks all endpoints at once.
func askEach(ctx context.Context, c config.Config, id string, log *slog.Logger) []endpoint {
	all := make([]endpoint, len(c.EtcdEndpoints))
	within := func(ask func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		return ask(ctx)
	}
	var asking sync.WaitGroup
	for i, url := range c.EtcdEndpoints {
		asking.Go(func() {
			e, alone := &all[i], c.Cluster()
			e.url, alone.Endpoints = url, []string{url}
			client, err := cluster.Open(alone, log)
			if e.err, e.untold = err, err; err != nil {
				return
			}
			defer client.Close()
			e.untold = within(func(ctx context.Context) (err error) { e.version, err = client.Version(ctx); return err })
			e.err = within(func(ctx context.Context) error {
				seen, err := client.Snapshot(ctx, id)
				e.cluster = seen.ClusterID
				return err
			})
			if e.err == nil {
				e.renewal = within(func(ctx context.Context) error { return renewOnce(ctx, c, client) })
			}
		})
	}
	asking.Wait()
	return all
}

// members says which endpoints answer. That some do not is no failure as long as one does, but it
// should be known before the others are needed. That two are of different clusters is one.
func members(c config.Config, all []endpoint) (string, error) {
	var text string
	var first *endpoint
	answer := 0
	for i, e := range all {
		switch {
		case e.err != nil:
			text += fmt.Sprintf("; %s does not: %s (%s)", e.url, control.Short(e.err), cluster.Classify(e.err))
			continue
		case first == nil:
			first = &all[i]
		case e.cluster != first.cluster:
			return "", fmt.Errorf("--etcd-endpoints %q: %s is of cluster %x and %s is of cluster %x: give the members of one etcd cluster only",
				strings.Join(c.EtcdEndpoints, ","), first.url, first.cluster, e.url, e.cluster)
		}
		answer++
	}
	return fmt.Sprintf("%d of %d endpoints answer%s", answer, len(all), text), nil
}

// renewalFinding is about a lease through each endpoint that answers. What stands in between may
// carry reads and no renewal, and nothing else says so before the first lease ends.
func renewalFinding(c config.Config, all []endpoint) Finding {
	var failing []error
	asked := 0
	for _, e := range all {
		if e.err != nil {
			continue // the finding on etcd says it
		}
		if asked++; e.renewal != nil {
			failing = append(failing, fmt.Errorf("%s carries reads and no renewal: %w", e.url, e.renewal))
		}
	}
	f := Finding{What: "renewal", Text: fmt.Sprintf("a lease was granted, renewed and revoked through %d of %d endpoints that answer", asked-len(failing), asked)}
	why := errors.Join(failing...)
	switch {
	case why == nil:
	case asked == len(failing):
		f.Err = fmt.Errorf("--etcd-endpoints %q: %w: give the members of etcd themselves, or see what the proxy or firewall in between lets through",
			strings.Join(c.EtcdEndpoints, ","), why)
	default:
		f.Warn = true
		f.Text += "; " + strings.ReplaceAll(why.Error(), "\n", "; ")
	}
	return f
}

// renewOnce leaves no lease behind, and no key hangs on it.
func renewOnce(ctx context.Context, c config.Config, client *cluster.Client) error {
	id, _, err := client.Grant(ctx, c.LeaseTTL)
	if err != nil {
		return fmt.Errorf("grant: %w", control.Short(err))
	}
	if _, err := client.KeepAlive(ctx, id); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
		defer cancel()
		_ = client.Revoke(undo, id) // else it runs out
		return fmt.Errorf("renew: %w", control.Short(err))
	}
	if err := client.Revoke(ctx, id); err != nil {
		return fmt.Errorf("revoke: %w", control.Short(err))
	}
	return nil
}

// versionFinding has the endpoints with one version together. A renewal counts once a linearizable
// read has shown our key; a member whose reads may be stale can show one that is gone. An endpoint
// that does not tell its version is no warning.
func versionFinding(all []endpoint) Finding {
	f := Finding{What: "version"}
	var parts, silent []string
	at := map[string][]string{}
	for _, e := range all {
		if e.untold != nil {
			silent = append(silent, fmt.Sprintf("%s does not tell (%s)", e.url, cluster.Classify(e.untold)))
		} else {
			at[e.version] = append(at[e.version], e.url)
		}
	}
	for _, v := range slices.Sorted(maps.Keys(at)) {
		part := fmt.Sprintf("etcd %s at %s", v, strings.Join(at[v], ", "))
		if fixedIn, stale := cluster.StaleReads(v); stale {
			f.Warn = true
			part += ": its linearizable reads may be stale, so a registration that is gone may count as there, and the broker be served past its deadline: upgrade to " + fixedIn + " or newer"
		}
		parts = append(parts, part)
	}
	f.Text = strings.Join(append(parts, silent...), "; ")
	return f
}

// StaleReads says, of the member that answers, that its reads may be stale; empty: they are not, or it
// does not tell. It asks no other one: that would take a connection to each.
func StaleReads(ctx context.Context, client *cluster.Client, endpoints []string) string {
	version, err := client.Version(ctx)
	if _, stale := cluster.StaleReads(version); err != nil || !stale {
		return ""
	}
	member := strings.Join(endpoints, ", ")
	if len(endpoints) > 1 {
		member = "one of " + member
	}
	return versionFinding([]endpoint{{url: member, version: version}}).Text
}
