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
			read := 0
			for range 20 {
				if _, err := line.KeepAlive(bounded(t), id, true); err != nil {
					t.Fatalf("a lease that lives is not renewed: %v", err)
				}
				seen, err := main.Snapshot(bounded(t), "b")
				if err != nil { // as long as only theirs is connected, nothing can be read
					continue
				}
				read++
				if now := must[cluster.Snapshot](t)(ours.Snapshot(bounded(t), "b")); seen.Revision > now.Revision || seen.Revision < now.Revision-100 {
					t.Fatalf("read revision %d of another cluster; ours is at %d", seen.Revision, now.Revision)
				}
			}
			if read < 10 {
				t.Errorf("%d of 20 reads were answered; most should be asked again where they can be", read)
			}
			var refused error
			for range 2 { // a write is not repeated: one of two goes the wrong way
				if _, _, err := main.Grant(bounded(t), time.Minute); err != nil {
					refused = err
				}
			}
			if refused == nil || !strings.Contains(refused.Error(), strings.TrimPrefix(theirs, "http://")+" is of cluster") {
				t.Errorf("writes: %v; want the endpoint of the other cluster named", refused)
			}
		})
	}
}
