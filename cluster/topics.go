package cluster

import (
	"cmp"
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Records reads the records of topics, by topic. A topic without one is not in the map.
// Not all are read at one revision.
func (c *Client) Records(ctx context.Context, topics []string) (records map[string][]byte, err error) {
	defer during(&err, "read records of %d topics", len(topics))
	found, _, err := c.gets(ctx, keysOf(c.keys.TopicRecord, topics))
	records = make(map[string][]byte, len(found))
	for i, kv := range found {
		if kv != nil {
			records[topics[i]] = kv.Value
		}
	}
	return records, err
}

// Assignments lists the topics that are assigned to the broker, in order of their names.
func (c *Client) Assignments(ctx context.Context, brokerID string) (topics []string, err error) {
	defer during(&err, "read assignments of broker %s", brokerID)
	_, err = c.scan(ctx, Target{Key: c.keys.Assignments(brokerID), Prefix: true, KeysOnly: true}, 0, func(kv KV) {
		if _, topic, ok := c.keys.ParseAssignment(kv.Key); ok {
			topics = append(topics, topic)
		}
	})
	return topics, err
}

// Assignees reads which brokers each of the topics is assigned to, and whether any topic at
// all is assigned to somebody. Its cost grows with the number of assignments in the cluster,
// and it needs the right to read all of them.
func (c *Client) Assignees(ctx context.Context, topics []string) (brokers map[string][]string, some bool, err error) {
	defer during(&err, "read all assignments")
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
	return brokers, some, err
}

// Assigned is the revision at which the topic was last assigned to the broker; 0: it is not.
func (c *Client) Assigned(ctx context.Context, brokerID, topic string) (revision int64, err error) {
	defer during(&err, "read assignment of %s to broker %s", topic, brokerID)
	if err := cmp.Or(checkBroker(brokerID), checkTopic(topic)); err != nil {
		return 0, err
	}
	kv, _, err := c.get(ctx, c.keys.Assignment(brokerID, topic), clientv3.WithKeysOnly())
	return kv.revision(), err
}

// Reassign puts the broker's assignment of the topic again, as it is, for a broker that
// acts only on assignments that it sees come. Without an assignment, or if it was put since
// that revision, nothing is written and reassigned is false. A broker that has loaded the
// topic may load it a second time: ask it first. One that is not active gives an assignment
// back that it sees come, and with it what it has loaded: for such a one nothing is written,
// and that is an error, as is ErrChanged: assignment or state changed this very moment.
func (c *Client) Reassign(ctx context.Context, brokerID, topic string, revision int64) (reassigned bool, err error) {
	defer during(&err, "reassign %s at broker %s", topic, brokerID)
	if err := cmp.Or(checkBroker(brokerID), checkTopic(topic)); err != nil {
		return false, err
	}
	assignment, state := c.keys.Assignment(brokerID, topic), c.keys.State(brokerID)
	found, _, err := c.gets(ctx, []string{assignment, state})
	if err != nil || found[0] == nil || found[0].ModRevision != revision {
		return false, err
	}
	// Absent, or not to be read: brokers take that for active.
	if s, _ := stateOf(found[1]); s != nil && s.Mode != ModeActive {
		return false, fmt.Errorf("the broker is %s", s.Mode)
	}
	_, _, err = c.write(ctx, []clientv3.Cmp{written(assignment, revision), written(state, found[1].revision())},
		clientv3.OpPut(assignment, "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease()))
	return err == nil, err
}
