package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"holdfast/cluster"
)

// checkVersions asks each endpoint for its version, and then each member of etcd that is none of
// them. A renewal counts once a linearizable read has shown our key; a member whose reads may be
// stale can show one that is gone, also to a member that is asked.
func checkVersions(ctx context.Context, c Config, log *slog.Logger) Finding {
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	n := len(c.EtcdEndpoints)
	versions, ids, lists, unlisted := make([]string, n), make([]uint64, n), make([][]cluster.EtcdMember, n), make([]error, n)
	failures := askEach(c, c.EtcdEndpoints, log, func(i int, client *cluster.Client) (err error) {
		if versions[i], ids[i], err = client.Version(bounded); err == nil {
			lists[i], unlisted[i] = client.EtcdMembers(bounded)
		}
		return err
	})
	names, others := slices.Clone(c.EtcdEndpoints), ""
	for i, list := range lists {
		if failures[i] != nil {
			continue
		}
		if len(list) == 0 || unlisted[i] != nil {
			others = cmp.Or(others, "the members of etcd are not listed, so nobody but the endpoints was asked")
			continue
		}
		m := askMembers(ctx, c, log, list, ids)
		names, versions, failures, others = append(names, m.names...), append(versions, m.versions...), append(failures, m.failures...), ""
		break // one cluster has one list
	}
	f := versionFinding(names, versions, failures)
	if others != "" {
		f.Text += "; " + others
	}
	return f
}

// toldBy are answers, by who gave them.
type toldBy struct {
	names, versions []string
	failures        []error
}

// silence is why a member was not asked, or its answer does not count.
type silence string

func (u silence) Error() string { return string(u) }

const (
	notStarted  silence = "it has not started"
	plainOnly   silence = "it advertises no https URL"
	otherMember silence = "somebody else answers there" // members that advertise localhost are asked here
)

// askMembers asks the members that have not answered as endpoints, each at the first of its URLs
// that can be asked as safely as the endpoints, all at once.
func askMembers(ctx context.Context, c Config, log *slog.Logger, list []cluster.EtcdMember, asked []uint64) (t toldBy) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var urls []string
	var ids []uint64
	whys := map[int]error{}
	secure := encrypted(c.EtcdEndpoints[0]) || !strings.Contains(c.EtcdEndpoints[0], "://") && c.EtcdCACert+c.EtcdCert != ""
	for _, m := range list {
		if slices.Contains(asked, m.ID) || slices.ContainsFunc(m.ClientURLs, func(url string) bool { return slices.Contains(c.EtcdEndpoints, url) }) {
			continue
		}
		name := cmp.Or(m.Name, fmt.Sprintf("%x", m.ID))
		at := slices.IndexFunc(m.ClientURLs, func(url string) bool { return encrypted(url) || !secure })
		label, url := "member "+name, ""
		switch {
		case len(m.ClientURLs) == 0:
			whys[len(urls)] = notStarted
		case at < 0: // a password is not sent in the clear
			whys[len(urls)] = plainOnly
		default:
			url = m.ClientURLs[at]
			label = fmt.Sprintf("%s (member %s)", url, name)
		}
		t.names, urls, ids = append(t.names, label), append(urls, url), append(ids, m.ID)
	}
	t.versions = make([]string, len(urls))
	t.failures = askEach(c, urls, log, func(i int, client *cluster.Client) (err error) {
		id := uint64(0)
		if t.versions[i], id, err = client.Version(ctx); err == nil && id != ids[i] {
			err = otherMember
		}
		return err
	})
	for i, why := range whys {
		t.failures[i] = why
	}
	return t
}

func encrypted(url string) bool {
	return strings.HasPrefix(url, "https:") || strings.HasPrefix(url, "unixs:")
}

// versionFinding has the endpoints with one version together. An endpoint that does not
// tell its version is no warning.
func versionFinding(endpoints, versions []string, failures []error) Finding {
	f := Finding{What: "version"}
	var told, silent []string
	of := map[string][]string{}
	for i, e := range endpoints {
		if err := failures[i]; err != nil {
			silent = append(silent, fmt.Sprintf("%s does not tell (%s)", e, untold(err)))
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

func untold(err error) string {
	if why := silence(""); errors.As(err, &why) {
		return why.Error()
	}
	return string(cluster.Classify(err))
}

// warnOfVersion logs once if the reads of the member that answers may be stale. It asks no
// other one: that would take a connection to each.
func (a *agent) warnOfVersion(ctx context.Context) {
	version, _, err := a.main.Version(ctx)
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
