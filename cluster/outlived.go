package cluster

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// neighbours bounds how many registrations of others one Outlived looks at.
const neighbours = 8

// Outlived returns the registrations that nothing will end: they stand under a lease that
// etcd does not know, or under none. It looks at the broker's own and, in the order of ids
// and round, at those behind it until one is under a lease that lives, or that etcd does not
// let us ask about. So a fleet looks at all of its registrations, and what one broker asks does not grow
// with the fleet. A registration that ends at this moment is found, too: it is gone, or
// changed, at the next look.
func (c *Client) Outlived(ctx context.Context, brokerID string) ([]Registration, error) {
	list, err := c.outlived(ctx, brokerID)
	if err != nil {
		return nil, fmt.Errorf("read leases of registrations: %w", err)
	}
	return list, nil
}

func (c *Client) outlived(ctx context.Context, brokerID string) (list []Registration, err error) {
	if err := checkBroker(brokerID); err != nil {
		return nil, err
	}
	own, all := c.keys.Registration(brokerID), c.keys.Registrations()
	// With their values: where only keys are asked for, etcd 3.7 leaves their leases out.
	answer, err := c.read(ctx,
		clientv3.OpGet(own),
		clientv3.OpGet(own+"\x00", clientv3.WithRange(clientv3.GetPrefixRangeEnd(all)), clientv3.WithLimit(neighbours)),
		clientv3.OpGet(all, clientv3.WithRange(own), clientv3.WithLimit(neighbours)))
	if err != nil {
		return nil, err
	}
	if len(answer.Responses) != 3 {
		return nil, fmt.Errorf("etcd answered %d of 3 gets", len(answer.Responses))
	}
	var others []*mvccpb.KeyValue
	for _, r := range answer.Responses[1:] {
		others = append(others, r.GetResponseRange().GetKvs()...)
	}
	for _, kv := range answer.Responses[0].GetResponseRange().GetKvs() {
		if _, err := c.collectOutlived(ctx, kv, &list); err != nil {
			return nil, err
		}
	}
	for _, kv := range others[:min(len(others), neighbours)] {
		lives, err := c.collectOutlived(ctx, kv, &list)
		if Denied(err) { // other keys are under it, which we may not read
			break
		}
		if err != nil {
			return nil, err
		}
		if lives {
			break
		}
	}
	return list, nil
}

// collectOutlived adds a registration to the list unless its lease lives.
func (c *Client) collectOutlived(ctx context.Context, kv *mvccpb.KeyValue, list *[]Registration) (lives bool, err error) {
	if kv.Lease != 0 {
		if _, lives, err = c.TimeToLive(ctx, kv.Lease); err != nil || lives {
			return lives, err
		}
	}
	id, ok := c.keys.ParseRegistration(string(kv.Key))
	if ok {
		*list = append(*list, registrationOf(id, kv))
	}
	return false, nil
}
