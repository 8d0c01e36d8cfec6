package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"holdfast/cluster"
)

// checkVersions asks each endpoint for its version. A renewal counts once a linearizable read has
// shown our key; a member whose reads may be stale can show one that is gone.
func checkVersions(ctx context.Context, c Config, log *slog.Logger) Finding {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	versions := make([]string, len(c.EtcdEndpoints))
	failures := askEach(c, log, func(i int, client *cluster.Client) (err error) {
		versions[i], err = client.Version(ctx)
		return err
	})
	return versionFinding(c.EtcdEndpoints, versions, failures)
}

// versionFinding has the endpoints with one version together. An endpoint that does not
// tell its version is no warning.
func versionFinding(endpoints, versions []string, failures []error) Finding {
	f := Finding{What: "version"}
	var told, silent []string
	of := map[string][]string{}
	for i, e := range endpoints {
		if err := failures[i]; err != nil {
			silent = append(silent, fmt.Sprintf("%s does not tell (%s)", e, cluster.Classify(err)))
			continue
		}
		if of[versions[i]] == nil {
			told = append(told, versions[i])
		}
		of[versions[i]] = append(of[versions[i]], e)
	}
	slices.Sort(told)
	var parts []string
	for _, v := range told {
		part := fmt.Sprintf("etcd %s at %s", v, strings.Join(of[v], ", "))
		if fixedIn, stale := cluster.StaleReads(v); stale {
			f.Warn = true
			part += ": its linearizable reads may be stale, so a registration that is gone may count as there, and the broker be served past its deadline: upgrade to " + fixedIn + " or newer"
		} else if cluster.AtItsEnd(v) {
			f.Warn = true
			part += ": its minor version gets no more fixes: upgrade to 3.5.28, 3.6.9 or newer"
		}
		parts = append(parts, part)
	}
	f.Text = strings.Join(append(parts, silent...), "; ")
	return f
}

// warnOfVersion logs once if the reads of the member that answers may be stale. It asks no
// other one: that would take a connection to each.
func (a *agent) warnOfVersion(ctx context.Context) {
	version, err := a.main.Version(ctx)
	if err != nil {
		return
	}
	member := strings.Join(a.cfg.EtcdEndpoints, ", ")
	if len(a.cfg.EtcdEndpoints) > 1 {
		member = "one of " + member
	}
	if _, stale := cluster.StaleReads(version); stale {
		f := versionFinding([]string{member}, []string{version}, []error{nil})
		a.log.Warn("etcd is too old: its word on a registration may be stale", "detail", f.Text)
	}
}
