package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// releasedValue is the marker of a topic that its broker gave up: a broker that reads
// assignments itself takes the deletion of one for an unload only beside it.
type releasedValue struct {
	Reason     string          `json:"reason"`
	FromBroker json.RawMessage `json:"from_broker"`
}

// Release gives the broker's topic back to the cluster: the assignment is deleted and the
// marker of an unload put under /cluster/unassigned, in one transaction. Without an
// assignment, or without the broker's registration, nothing is written and released is
// false: the topic is not the broker's to give, and its marker may be another one's.
//
// An etcd that hangs carries out what it was sent when it comes to itself, and by then the
// broker may have been stopped: nobody would take up a topic that is given up so late. So
// nothing is sent to one that does not answer a read just now, nor done for a broker that
// has been declared dead.
func (c *Client) Release(ctx context.Context, brokerID, topic string) (released bool, err error) {
	from, err := brokerNumber(brokerID)
	if err != nil {
		return false, fmt.Errorf("release %s from broker %s: %w", topic, brokerID, err)
	}
	marker, err := putJSON(c.keys.Unassigned(topic), releasedValue{Reason: "unload", FromBroker: from})
	if err != nil {
		return false, err
	}
	if revision, err := c.Assigned(ctx, brokerID, topic); err != nil || revision == 0 {
		return false, err
	}
	return c.ifAssigned(ctx, "release", brokerID, topic, marker, clientv3.OpDelete(c.keys.Assignment(brokerID, topic)))
}

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

// ifAssigned commits the operations if the topic is assigned to the broker, which is
// registered.
func (c *Client) ifAssigned(ctx context.Context, verb, brokerID, topic string, ops ...clientv3.Op) (done bool, err error) {
	if err := errors.Join(checkBroker(brokerID), checkTopic(topic)); err != nil {
		return false, fmt.Errorf("%s topic: %w", verb, err)
	}
	assigned := clientv3.Compare(clientv3.CreateRevision(c.keys.Assignment(brokerID, topic)), ">", 0)
	alive := clientv3.Compare(clientv3.CreateRevision(c.keys.Registration(brokerID)), ">", 0)
	switch _, err := c.write(ctx, []clientv3.Cmp{assigned, alive}, ops); {
	case err == nil:
		return true, nil
	case errors.Is(err, ErrChanged):
		return false, nil
	default:
		return false, fmt.Errorf("%s %s at broker %s: %w", verb, topic, brokerID, err)
	}
}

// brokerNumber is the id as a JSON number if it is one, as brokers that number themselves
// read it, else as a string.
func brokerNumber(id string) (json.RawMessage, error) {
	if n, err := strconv.ParseUint(id, 10, 64); err == nil && strconv.FormatUint(n, 10) == id {
		return json.RawMessage(id), nil
	}
	return json.Marshal(id)
}
