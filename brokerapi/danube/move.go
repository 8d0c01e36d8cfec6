package danube

import (
	"context"

	"holdfast/brokerapi"
)

// Send implements brokerapi.Sender: an unload, and then lookups until another broker has the
// topic. Which one is the cluster's own choice.
func (b *raftBroker) Send(ctx context.Context, topic string, to brokerapi.Peer) (seen string, err error) {
	if to.ID != "" {
		return "", brokerapi.Errorf(brokerapi.ErrRefused, "a Danube cluster chooses by itself who takes a topic: leave --to out")
	}
	if err := b.Withdraw(ctx, topic); err != nil {
		return "", err
	}
	err = b.await(ctx, topic, func(at place) (bool, error) { return at == elsewhere, nil })
	return "by the broker's own lookup another broker of its cluster has it", ended(ctx, "unload", topic, "no broker has taken it: see the brokers' logs", err)
}
