package cluster

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// opsPerTxn stays below etcd's default limit of 128 operations a transaction.
	opsPerTxn = 100
	// keysPerPage bounds one answer to a scan.
	keysPerPage = 1000
)

// Records reads the records of topics, by topic. A topic without one is not in the map.
// Not all are read at one revision.
func (c *Client) Records(ctx context.Context, topics []string) (map[string][]byte, error) {
	keys := make([]string, len(topics))
	for i, topic := range topics {
		if err := checkTopic(topic); err != nil {
			return nil, err
		}
		keys[i] = c.keys.TopicRecord(topic)
	}
	found, _, err := c.gets(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("read records of %d topics: %w", len(topics), err)
	}
	records := make(map[string][]byte, len(topics))
	for i, kv := range found {
		if kv != nil {
			records[topics[i]] = kv.Value
		}
	}
	return records, nil
}

// Assignments lists the topics that are assigned to the broker, in order of their names.
func (c *Client) Assignments(ctx context.Context, brokerID string) ([]string, error) {
	if err := checkBroker(brokerID); err != nil {
		return nil, err
	}
	var topics []string
	_, err := c.scan(ctx, Target{Key: c.keys.Assignments(brokerID), Prefix: true, KeysOnly: true}, 0, func(kv KV) {
		if _, topic, ok := c.keys.ParseAssignment(kv.Key); ok {
			topics = append(topics, topic)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read assignments of broker %s: %w", brokerID, err)
	}
	return topics, nil
}

// Assignees reads which brokers each of the topics is assigned to, and whether any topic at
// all is assigned to somebody. Its cost grows with the number of assignments in the cluster,
// and it needs the right to read all of them.
func (c *Client) Assignees(ctx context.Context, topics []string) (brokers map[string][]string, some bool, err error) {
	wanted := make(map[string]bool, len(topics))
	for _, topic := range topics {
		wanted[topic] = true
	}
	brokers = map[string][]string{}
	_, err = c.scan(ctx, Target{Key: c.keys.Brokers(), Prefix: true, KeysOnly: true}, 0, func(kv KV) {
		id, topic, ok := c.keys.ParseAssignment(kv.Key)
		if some = some || ok; ok && wanted[topic] {
			brokers[topic] = append(brokers[topic], id)
		}
	})
	if err != nil {
		return nil, false, fmt.Errorf("read all assignments: %w", err)
	}
	return brokers, some, nil
}

// Assign puts assignments of topics to the broker, a hundred at a time: an error may
// leave some of them done. It does not touch other brokers' assignments.
func (c *Client) Assign(ctx context.Context, brokerID string, topics []string) error {
	return c.eachTopic(ctx, "assign", brokerID, topics, func(key string) clientv3.Op {
		return clientv3.OpPut(key, "null")
	})
}

// Unassign deletes assignments of topics to the broker, a hundred at a time: an error may
// leave some of them done. It writes no marker, so to a broker that reads assignments
// itself this is not an unload.
func (c *Client) Unassign(ctx context.Context, brokerID string, topics []string) error {
	return c.eachTopic(ctx, "unassign", brokerID, topics, func(key string) clientv3.Op {
		return clientv3.OpDelete(key)
	})
}

func (c *Client) eachTopic(ctx context.Context, verb, brokerID string, topics []string, op func(key string) clientv3.Op) error {
	if err := checkBroker(brokerID); err != nil {
		return err
	}
	for _, topic := range topics {
		if err := checkTopic(topic); err != nil {
			return err
		}
	}
	for batch := range slices.Chunk(topics, opsPerTxn) {
		ops := make([]clientv3.Op, len(batch))
		for i, topic := range batch {
			ops[i] = op(c.keys.Assignment(brokerID, topic))
		}
		if _, err := c.write(ctx, nil, ops); err != nil {
			return fmt.Errorf("%s %d topics at broker %s: %w", verb, len(topics), brokerID, err)
		}
	}
	return nil
}
