package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// cluster is what etcd shows at one moment.
type cluster struct {
	ids    map[*pair]string    // of each registered broker's process
	modes  map[string]string   // by id
	topics map[string][]string // by id
	leader string              // id
}

func (c cluster) topicsOf(pr *pair) []string { return c.topics[c.ids[pr]] }

// owner is the broker to which the topic is assigned; nil: none of them.
func (c cluster) owner(topic string) *pair {
	for pr, id := range c.ids {
		if slices.Contains(c.topics[id], topic) {
			return pr
		}
	}
	return nil
}

// owners counts the brokers to which the topic is assigned.
func (c cluster) owners(topic string) (n int) {
	for pr := range c.ids {
		if slices.Contains(c.topicsOf(pr), topic) {
			n++
		}
	}
	return n
}

// look reads it. A process that was replaced may be registered for a while beside its successor.
func (s *stage) look(ctx context.Context) (cluster, error) {
	c := cluster{ids: map[*pair]string{}, modes: map[string]string{}, topics: map[string][]string{}}
	found, err := s.etcd.Client().Get(ctx, "/cluster/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return c, fmt.Errorf("look at the cluster: %w", err)
	}
	for _, kv := range found.Kvs {
		key, value := string(kv.Key), string(kv.Value)
		if id, ok := strings.CutPrefix(key, "/cluster/register/"); ok {
			for _, pr := range s.pairs {
				if strings.Contains(value, `"http://`+pr.AdminAddr()+`"`) {
					c.ids[pr] = id // the youngest wins
				}
			}
			continue
		}
		if key == "/cluster/leader" {
			c.leader = strings.Trim(value, `"`)
			continue
		}
		rest, ok := strings.CutPrefix(key, "/cluster/brokers/")
		if !ok {
			continue
		}
		id, rest, _ := strings.Cut(rest, "/")
		if rest == "state" {
			var state struct{ Mode string }
			_ = json.Unmarshal(kv.Value, &state) // what is malformed is active to Danube
			c.modes[id] = state.Mode
		} else if strings.Contains(rest, "/") {
			c.topics[id] = append(c.topics[id], "/"+rest)
		}
	}
	return c, nil
}

// destroyed are the topics whose cursors or whose index of stored messages were deleted since the
// revision. A seal is deleted at each load.
func (s *stage) destroyed(ctx context.Context, since int64) (all []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	// What was deleted before this one is known when it is seen.
	last, err := s.etcd.Client().Put(ctx, "/topics/holdfast/end", "null")
	if err != nil {
		return nil, fmt.Errorf("look for what was destroyed: %w", err)
	}
	for _, prefix := range []string{"/topics/", "/danube-data/storage/topics/"} {
		if prefix != "/topics/" {
			if last, err = s.etcd.Client().Put(ctx, prefix+"holdfast/end", "null"); err != nil {
				return nil, fmt.Errorf("look for what was destroyed: %w", err)
			}
		}
		for r := range s.etcd.Client().Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(since)) {
			if err := r.Err(); err != nil {
				return nil, fmt.Errorf("look for what was destroyed: %w", err)
			}
			seen := false
			for _, e := range r.Events {
				seen = seen || e.Kv.ModRevision >= last.Header.Revision
				if topic, doomed := doomed(strings.TrimPrefix(string(e.Kv.Key), prefix)); doomed && e.Type == clientv3.EventTypeDelete && !slices.Contains(all, topic) {
					all = append(all, topic)
				}
			}
			if seen {
				break
			}
		}
	}
	return all, ctx.Err()
}

// doomed says whether the key below a topic's root is one without which messages are gone.
func doomed(rest string) (topic string, is bool) {
	parts := strings.Split(rest, "/")
	if len(parts) < 3 || parts[0] == "holdfast" {
		return "", false
	}
	cursor := len(parts) == 5 && parts[2] == "subscriptions" && parts[4] == "cursor"
	if !cursor && parts[2] != "objects" {
		return "", false
	}
	return "/" + parts[0] + "/" + parts[1], true
}
