package agent

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"holdfast/cluster"
)

// askEach asks all endpoints at once, each over a connection to it alone, and returns what
// failed at each.
func askEach(c Config, log *slog.Logger, ask func(endpoint int, client *cluster.Client) error) []error {
	failures := make([]error, len(c.EtcdEndpoints))
	var all sync.WaitGroup
	for i, e := range c.EtcdEndpoints {
		all.Go(func() {
			alone := c.Cluster()
			alone.Endpoints = []string{e}
			client, err := cluster.Open(alone, log)
			if err == nil {
				err = ask(i, client)
				client.Close()
			}
			failures[i] = err
		})
	}
	all.Wait()
	return failures
}

// checkEndpoints asks each endpoint by itself. That some do not answer is no failure as
// long as one does, but it should be known before the others are needed. That two are of
// different clusters is one.
func checkEndpoints(ctx context.Context, c Config, id string, log *slog.Logger) (string, error) {
	clusters := make([]uint64, len(c.EtcdEndpoints))
	failures := askEach(c, log, func(i int, client *cluster.Client) error {
		seen, err := client.Snapshot(ctx, id)
		clusters[i] = seen.ClusterID
		return err
	})
	text := ""
	answer, first := 0, 0
	for i, err := range failures {
		if err == nil {
			if answer++; answer == 1 {
				first = i
			}
			if clusters[i] != clusters[first] {
				return "", fmt.Errorf("--etcd-endpoints %q: %s is of cluster %x and %s is of cluster %x: give the members of one etcd cluster only",
					strings.Join(c.EtcdEndpoints, ","), c.EtcdEndpoints[first], clusters[first], c.EtcdEndpoints[i], clusters[i])
			}
			continue
		}
		text += fmt.Sprintf("; %s does not: %s (%s)", c.EtcdEndpoints[i], &shortError{err}, cluster.Classify(err))
	}
	return fmt.Sprintf("%d of %d endpoints answer%s", answer, len(failures), text), nil
}
