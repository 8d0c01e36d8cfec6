//go:build pulsar

package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
	"holdfast/lab/pulsar"
)

const (
	silent    = 2 * time.Second  // for a topic: not served
	viewBound = 15 * time.Second // of a broker's view of who has a bundle
)

// ill is what an operator must do about the broker; empty: nothing.
func (s *stage) ill(ctx context.Context, pr *pair) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if !pr.Running() {
		return "start " + pr.Name
	}
	if a, err := pr.Admin(ctx, http.MethodGet, "/admin/v2/brokers/ready", ""); err != nil || a.Status != http.StatusOK {
		return "restart " + pr.Name + ": it does not answer"
	}
	found, err := s.cluster.Etcd.Client().Get(ctx, "/loadbalance/brokers/"+pr.Advertised(), clientv3.WithCountOnly())
	if err != nil {
		return "start etcd: " + err.Error()
	}
	if found.Count == 0 {
		return "restart " + pr.Name + ": it is not registered"
	}
	return ""
}

// flaws is what an operator must do about everything, as far as looking shows it.
func (s *stage) flaws(ctx context.Context) (all []string) {
	for _, pr := range s.pairs {
		if pr.gone {
			continue
		}
		if ill := cmp.Or(s.ill(ctx, pr), unready(ctx, pr.Name, pr.sidecar)); ill != "" {
			all = append(all, ill)
		}
	}
	if there, err := s.cluster.BookieRegistered(ctx); err != nil || !there {
		all = append(all, "restart the bookie: it is not registered")
	}
	if quiet := s.quiet(ctx); len(quiet) > 0 {
		all = append(all, fmt.Sprintf("have %d topics served", len(quiet)))
	}
	return all
}

// quiet are the topics that store nothing now.
func (s *stage) quiet(ctx context.Context) (all []string) {
	before := s.traffic.Tallies()
	if harness.Wait(ctx, silent) != nil {
		return nil
	}
	for i, now := range s.traffic.Tallies() {
		if now.Acknowledged == before[i].Acknowledged {
			all = append(all, now.Topic)
		}
	}
	return all
}

// serving moves a bundle to each broker that should serve, and counts those that then serve it,
// where all others say so too. It returns what an operator must do besides.
func (s *stage) serving(ctx context.Context) (n int, steps []string) {
	for i, pr := range s.pairs {
		if pr.gone || s.ill(ctx, pr) != "" {
			continue
		}
		topic := s.topics[i]
		if err := pulsar.LeadBundle(ctx, pr.ApacheBroker, topic); err != nil {
			s.say("%v", err)
			steps = append(steps, "restart "+pr.Name+": it takes no bundle")
			continue
		}
		if err := s.traffic.AwaitFlow(ctx, harness.Patience, topic); err != nil {
			s.say("%v", err)
			steps = append(steps, "unload a bundle: moved to "+pr.Name+" it is not served")
			continue
		}
		n++
		for _, other := range s.pairs {
			if other == pr || other.gone || s.ill(ctx, other) != "" {
				continue
			}
			if err := harness.Await(ctx, viewBound, other.Name+" to know who has "+topic, func(ctx context.Context) (bool, string) {
				owner, err := other.Owner(ctx, topic)
				return err == nil && owner == pr.URL(), fmt.Sprint(owner, " ", err)
			}); err != nil {
				s.say("%v", err)
				steps = append(steps, "restart "+other.Name+": its lookups are stale")
			}
		}
	}
	return n, steps
}
