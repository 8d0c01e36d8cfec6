package danube

import (
	"context"
	"fmt"

	"holdfast/brokerapi"
)

var _ brokerapi.PeerLister = (*raftBroker)(nil)

// Peers implements brokerapi.PeerLister: the other brokers in this one's list. One that is
// no member, knows no leader or is not in its own list has not heard of the others lately.
func (b *raftBroker) Peers(ctx context.Context) ([]brokerapi.Peer, error) {
	s, id, err := b.status(ctx)
	if err == nil && s.GetLeaderId() == 0 {
		err = fmt.Errorf("--broker-admin %s: broker %s knows no leader of its Raft cluster", b.admin.url, id)
	}
	var peers []brokerapi.Peer
	if err == nil {
		_, others, failed := b.self(ctx)
		for _, info := range others {
			peers = append(peers, brokerapi.Peer{ID: info.GetBrokerId(), Active: is(info, brokerapi.Active)})
		}
		err = failed
	}
	if err != nil {
		return nil, fmt.Errorf("list brokers: %w", err)
	}
	return peers, nil
}
