package cluster

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Assigned is the revision at which the topic was last assigned to the broker; 0: it is not.
func (c *Client) Assigned(ctx context.Context, brokerID, topic string) (revision int64, err error) {
	if err := errors.Join(checkBroker(brokerID), checkTopic(topic)); err != nil {
		return 0, fmt.Errorf("read assignment: %w", err)
	}
	answer, err := c.read(ctx, clientv3.OpGet(c.keys.Assignment(brokerID, topic), clientv3.WithKeysOnly()))
	if err != nil {
		return 0, fmt.Errorf("read assignment of %s to broker %s: %w", topic, brokerID, err)
	}
	for _, kv := range answer.Responses[0].GetResponseRange().GetKvs() {
		revision = kv.ModRevision
	}
	return revision, nil
}

// Reassign puts the broker's assignment of the topic again, as it is, for a broker that
// acts only on assignments that it sees come. Without an assignment, or if it was put since
// that revision, nothing is written and reassigned is false. A broker that has loaded the
// topic may load it a second time: ask it first. One that is not active gives an assignment
// back that it sees come, and with it what it has loaded: for such a one nothing is written,
// and that is an error, as is ErrChanged: assignment or state changed this very moment.
func (c *Client) Reassign(ctx context.Context, brokerID, topic string, revision int64) (reassigned bool, err error) {
	if err := errors.Join(checkBroker(brokerID), checkTopic(topic)); err != nil {
		return false, fmt.Errorf("reassign topic: %w", err)
	}
	assignment, state := c.keys.Assignment(brokerID, topic), c.keys.State(brokerID)
	if reassigned, err = c.reassign(ctx, assignment, revision, state); err != nil {
		return false, fmt.Errorf("reassign %s at broker %s: %w", topic, brokerID, err)
	}
	return reassigned, nil
}

func (c *Client) reassign(ctx context.Context, assignment string, revision int64, state string) (bool, error) {
	seen, err := c.read(ctx, clientv3.OpGet(assignment, clientv3.WithKeysOnly()), clientv3.OpGet(state))
	if err != nil {
		return false, err
	}
	assigned, states := seen.Responses[0].GetResponseRange().GetKvs(), seen.Responses[1].GetResponseRange().GetKvs()
	if len(assigned) == 0 || assigned[0].ModRevision != revision {
		return false, nil
	}
	stateRevision := int64(0) // absent, which brokers read as active, as what cannot be read
	if len(states) > 0 {
		stateRevision = states[0].ModRevision
		if s, _ := stateOf(states[0]); s != nil && s.Mode != ModeActive {
			return false, fmt.Errorf("the broker is %s", s.Mode)
		}
	}
	_, err = c.write(ctx, []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(assignment), "=", revision),
		clientv3.Compare(clientv3.ModRevision(state), "=", stateRevision),
	}, []clientv3.Op{clientv3.OpPut(assignment, "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())})
	return err == nil, err
}
