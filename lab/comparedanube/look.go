package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/compare"
	"holdfast/lab/harness"
)

const (
	silent    = 3 * time.Second  // for a topic: not served
	viewBound = 5 * time.Second  // for a change in etcd to be seen: 0.5 s on a sound broker (0.7.3, 2026-11-22)
	lookBound = 30 * time.Second // for anything that is asked
)

// ill is what an operator must do about the broker; empty: nothing.
func (s *stage) ill(ctx context.Context, pr *pair) string {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	if !pr.Running() {
		return "start " + pr.Name
	}
	c, err := s.look(ctx)
	switch id := c.ids[pr]; {
	case err != nil:
		return "start etcd: " + err.Error()
	case id == "":
		return "restart " + pr.Name + ": it is not registered"
	case !pr.answers(ctx):
		return "restart " + pr.Name + ": it does not answer"
	case pr.sidecar == nil && c.modes[id] != "" && c.modes[id] != "active":
		return "activate " + pr.Name + ": " + c.modes[id]
	}
	return ""
}

// answers asks a cheap question of the port that the broker opens last.
func (pr *pair) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := pr.Topics.ListSubscriptions(ctx, &danubepb.TopicRequest{Name: "/holdfast/health"})
	return err == nil
}

// blind says whether the broker sees no change of etcd any more.
func (s *stage) blind(ctx context.Context, pr *pair) bool {
	key := fmt.Sprintf("/topics/holdfast/health/subscriptions/lab-%d", time.Now().UnixNano())
	if _, err := s.etcd.Client().Put(ctx, key, "null"); err != nil {
		return false // nothing to see
	}
	defer func() { _, _ = s.etcd.Client().Delete(context.WithoutCancel(ctx), key) }()
	nonce := key[strings.LastIndexByte(key, '/')+1:]
	return harness.Await(ctx, viewBound, pr.Name+" to see a change", func(ctx context.Context) (bool, string) {
		r, err := pr.Topics.ListSubscriptions(ctx, &danubepb.TopicRequest{Name: "/holdfast/health"})
		return err == nil && slices.Contains(r.Subscriptions, nonce), fmt.Sprint(r, err)
	}) != nil
}

// flaws is what an operator must do about everything, as far as looking shows it, and which
// brokers serve without that.
type flaws struct {
	steps   []string
	serving int
	dead    []string // topics that take nothing
}

func (s *stage) flaws(ctx context.Context) (f flaws) {
	untaken, ungiven := s.traffic.Silent(ctx, silent)
	c, err := s.look(ctx)
	if err != nil {
		return flaws{steps: []string{"start etcd: " + err.Error()}}
	}
	twice := 0
	for _, topic := range s.topics {
		if c.owners(topic) > 1 {
			twice++
		}
	}
	if twice > 0 {
		f.steps = append(f.steps, fmt.Sprintf("leave %d topics with one broker only: they are with two", twice))
	}
	for _, pr := range s.pairs {
		ill := cmp.Or(s.ill(ctx, pr), compare.Unready(ctx, pr.Name, pr.sidecar))
		if ill == "" && s.blind(ctx, pr) {
			ill = "restart " + pr.Name + ": it sees no change any more"
		}
		if ill == "" {
			if deaf := mine(c, pr, ungiven); len(deaf) > 0 {
				ill = fmt.Sprintf("restart %s: it delivers nothing of %d topics", pr.Name, len(deaf))
			}
		}
		switch {
		case ill != "":
			f.steps = append(f.steps, ill)
		default:
			f.serving++
		}
	}
	if len(untaken) > 0 {
		f.steps = append(f.steps, fmt.Sprintf("have %d topics served", len(untaken)))
		f.dead = untaken
	}
	return f
}

// mine are those of the topics that are assigned to the broker.
func mine(c cluster, pr *pair, topics []string) (all []string) {
	for _, topic := range topics {
		if c.owner(topic) == pr {
			all = append(all, topic)
		}
	}
	return all
}

// asked are the drained brokers that an operator is asked to activate by design: their
// registration was lost while the others lived on.
func (s *stage) asked(ctx context.Context) (all []*pair) {
	for _, pr := range s.pairs {
		if pr.sidecar == nil {
			continue
		}
		st, err := pr.sidecar.Status(ctx)
		if err == nil && st.Mode == "drained" && (st.Reason == "stale_restart" || st.Reason == "registration_expired") {
			all = append(all, pr)
		}
	}
	return all
}

// revision is etcd's present one.
func (s *stage) revision(ctx context.Context) (int64, error) {
	r, err := s.etcd.Client().Get(ctx, "/cluster/leader", clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return r.Header.Revision, nil
}
