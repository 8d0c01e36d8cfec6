package clustertest

import (
	"strings"
	"testing"
	"time"

	"holdfast/cluster"
)

// TestAnEndpointOfAnotherClusterIsNotBelieved has two etcds that know nothing of each
// other under one list of endpoints.
func TestAnEndpointOfAnotherClusterIsNotBelieved(t *testing.T) {
	cfg, _ := ownEtcd(t, nil)
	theirs := cfg.AdvertiseClientUrls[0].String()
	_, twice := ways(t, 1)
	config := shared.config(t)
	config.Endpoints, config.Identity = []string{shared.url, twice[0]}, &cluster.Identity{}
	ours := open(t, config)
	id := lease(t, ours, time.Minute)
	for name, endpoints := range map[string][]string{"ours first": {shared.url, theirs}, "theirs first": {theirs, shared.url}} {
		t.Run(name, func(t *testing.T) {
			both := config
			both.Endpoints = endpoints
			main, line := open(t, both), openLine(t, both)
			for range 20 {
				if _, err := line.KeepAlive(bounded(t), id, true); err != nil {
					t.Fatalf("a lease that lives is not renewed: %v", err)
				}
				seen, err := main.Snapshot(bounded(t), "b")
				if err != nil {
					t.Fatalf("a read is not asked again where it can be: %v", err)
				}
				if now := must[cluster.Snapshot](t)(ours.Snapshot(bounded(t), "b")); seen.Revision > now.Revision || seen.Revision < now.Revision-100 {
					t.Fatalf("read revision %d of another cluster; ours is at %d", seen.Revision, now.Revision)
				}
			}
			for range 2 { // the reads have led the way
				if _, _, err := main.Grant(bounded(t), time.Minute); err != nil {
					t.Errorf("a write: %v", err)
				}
			}
			refused := openLine(t, cluster.Config{Endpoints: []string{theirs, strings.Replace(theirs, "127.0.0.1", "localhost", 1)}, Identity: config.Identity})
			if _, err := refused.KeepAlive(bounded(t), id, false); err == nil || !strings.Contains(err.Error(), theirs[strings.LastIndex(theirs, ":"):]+" is of cluster") {
				t.Errorf("%v; want the endpoint of the other cluster named", err)
			}
		})
	}
}
