package danube

import (
	"context"
	"fmt"
	"strconv"

	"holdfast/brokerapi"
)

var _ brokerapi.PeerLister = (*raftBroker)(nil)

// Peers implements brokerapi.PeerLister: the other brokers in this one's list. One that is
// no member, knows no leader or is not in its own list has not heard of the others lately.
func (b *raftBroker) Peers(ctx context.Context) ([]brokerapi.Peer, error) {
	s, err := b.status(ctx)
	if err != nil {
		return nil, fmt.Errorf("list brokers: %w", err)
	}
	if s.GetLeaderId() == 0 {
		return nil, fmt.Errorf("list brokers: --broker-admin %s: broker %d knows no leader of its Raft cluster", b.at.admin, s.GetSelfNodeId())
	}
	if _, err := b.self(ctx); err != nil {
		return nil, fmt.Errorf("list brokers: %w", err)
	}
	list, err := b.listBrokers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list brokers: %w", err)
	}
	id := strconv.FormatUint(s.GetSelfNodeId(), 10)
	var peers []brokerapi.Peer
	for _, info := range list {
		if info.GetBrokerId() != id {
			peers = append(peers, brokerapi.Peer{ID: info.GetBrokerId(), Active: is(info, brokerapi.Active)})
		}
	}
	return peers, nil
}
