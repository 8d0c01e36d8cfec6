package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// What is here is about topics that wait for a broker, in clusters that have a leader of
// their own to assign them.

// Waiting is the prefix of the markers of all topics that wait for a broker.
func (k Keys) Waiting() string { return k.prefix + "/cluster/unassigned/" }

// ParseWaiting takes the topic out of a marker's key.
func (k Keys) ParseWaiting(key string) (topic string, ok bool) {
	topic, ok = strings.CutPrefix(key, strings.TrimSuffix(k.Waiting(), "/"))
	return topic, ok && checkTopic(topic) == nil
}

// Leader is the key under which the brokers' own leader writes its number.
func (k Keys) Leader() string { return k.prefix + "/cluster/leader" }

// WaitingTopic is the marker of a topic that waits for a broker.
type WaitingTopic struct {
	Topic       string
	ModRevision int64
}

// WaitingTopics lists the markers, in order of their topics. One whose topic is assigned
// to some broker is left out: a leader that ended between the two has assigned it and not
// taken the marker away, and whoever saw that come anew would assign the topic once more.
// Only if there are markers does it cost a look at all assignments.
func (c *Client) WaitingTopics(ctx context.Context) ([]WaitingTopic, error) {
	var list []WaitingTopic
	revision, err := c.scan(ctx, Target{Key: c.keys.Waiting(), Prefix: true, KeysOnly: true}, 0, func(kv KV) {
		if topic, ok := c.keys.ParseWaiting(kv.Key); ok {
			list = append(list, WaitingTopic{topic, kv.ModRevision})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read the topics that wait for a broker: %w", err)
	}
	if len(list) == 0 {
		return nil, nil
	}
	assigned := make(map[string]bool)
	_, err = c.scan(ctx, Target{Key: c.keys.Brokers(), Prefix: true, KeysOnly: true}, revision, func(kv KV) {
		if _, topic, ok := c.keys.ParseAssignment(kv.Key); ok {
			assigned[topic] = true
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read which of the topics that wait are assigned: %w", err)
	}
	return slices.DeleteFunc(list, func(w WaitingTopic) bool { return assigned[w.Topic] }), nil
}

// PutWaitingAgain puts a marker again, its bytes and its lease unchanged, if nobody has
// changed it since it was seen; false: somebody has, or took it. Whoever watches sees it
// come anew.
func (c *Client) PutWaitingAgain(ctx context.Context, seen WaitingTopic) (put bool, err error) {
	if err := checkTopic(seen.Topic); err != nil {
		return false, err
	}
	key := c.keys.Unassigned(seen.Topic)
	_, err = c.write(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", seen.ModRevision)},
		[]clientv3.Op{clientv3.OpPut(key, "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ErrChanged):
		return false, nil
	}
	return false, fmt.Errorf("put the marker of %s again: %w", seen.Topic, err)
}

// LeaderID is the id of the brokers' own leader; empty: none leads now, or what stands
// there is no number.
func (c *Client) LeaderID(ctx context.Context) (string, error) {
	answer, err := c.read(ctx, clientv3.OpGet(c.keys.Leader()))
	if err != nil {
		return "", fmt.Errorf("read the brokers' leader: %w", err)
	}
	for _, kv := range answer.Responses[0].GetResponseRange().GetKvs() {
		if n, err := strconv.ParseUint(string(bytes.TrimSpace(kv.Value)), 10, 64); err == nil {
			return strconv.FormatUint(n, 10), nil
		}
	}
	return "", nil
}

// AnyActive reports whether some broker is registered and may take topics. A mode that is
// absent or cannot be read is active, as brokers that read it themselves take it.
func (c *Client) AnyActive(ctx context.Context) (bool, error) {
	var ids []string
	revision, err := c.scan(ctx, Target{Key: c.keys.Registrations(), Prefix: true, KeysOnly: true}, 0, func(kv KV) {
		if id, ok := c.keys.ParseRegistration(kv.Key); ok {
			ids = append(ids, id)
		}
	})
	if err != nil {
		return false, fmt.Errorf("read registrations: %w", err)
	}
	for batch := range slices.Chunk(ids, opsPerTxn) {
		gets := make([]clientv3.Op, len(batch))
		for i, id := range batch {
			gets[i] = clientv3.OpGet(c.keys.State(id), clientv3.WithRev(revision))
		}
		answer, err := c.read(ctx, gets...)
		if err != nil {
			return false, fmt.Errorf("read states of %d brokers: %w", len(ids), err)
		}
		for _, response := range answer.Responses {
			kvs := response.GetResponseRange().GetKvs()
			if len(kvs) == 0 {
				return true, nil
			}
			if s, _ := stateOf(kvs[0]); s == nil || s.Mode == ModeActive {
				return true, nil
			}
		}
	}
	return false, nil
}
