package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Health is what a sidecar says of its broker in its member record; empty: nothing.
type Health string

// What it says.
const (
	HealthWell Health = "well"
	HealthIll  Health = "ill"
	HealthAway Health = "away" // it answers, and is drained or leaves: nobody else may rely on it
)

// UnmarshalJSON takes what is not known here for nothing. It has no error: it must not hide the
// rest of the member record.
func (h *Health) UnmarshalJSON(value []byte) error {
	var word string
	*h = ""
	if json.Unmarshal(value, &word) == nil && slices.Contains([]Health{HealthWell, HealthIll, HealthAway}, Health(word)) {
		*h = Health(word)
	}
	return nil
}

// HealthNote says of which registration the broker is well or ill.
type HealthNote struct {
	Who         Who
	Epoch       int64 // create revision of the registration that we hold
	LeaseID     int64 // that it is under
	Incarnation string
	Health      Health
}

// NoteHealth has the member record say how the broker is, and reports whether that was news. It
// returns ErrChanged when the registration is not that one under that lease any more, or the
// record is not ours, cannot be read, says that the broker leaves, or was written meanwhile.
func (c *Client) NoteHealth(ctx context.Context, n HealthNote) (written bool, err error) {
	for _, id := range []string{n.Who.Name, n.Who.Registered} {
		if err := checkBroker(id); err != nil {
			return false, err
		}
	}
	if written, err = c.noteHealth(ctx, n); err != nil {
		return false, fmt.Errorf("note the health of broker %s: %w", n.Who.Name, err)
	}
	return written, nil
}

func (c *Client) noteHealth(ctx context.Context, n HealthNote) (written bool, err error) {
	registration, record := c.keys.Registration(n.Who.Registered), c.keys.Member(n.Who.Name)
	found, _, err := c.gets(ctx, []string{registration, record})
	if err != nil {
		return false, err
	}
	if found[0] == nil || found[0].CreateRevision != n.Epoch || found[0].Lease != n.LeaseID || found[1] == nil {
		return false, ErrChanged
	}
	m, _ := memberOf(found[1])
	switch {
	case m == nil || m.Incarnation != n.Incarnation || m.Left != nil || m.Cut != nil && m.Cut.Malformed != "":
		return false, ErrChanged
	case m.Health == n.Health:
		return false, nil
	}
	if m.Name, m.Health = n.Who.Name, n.Health; m.ModRevision == found[0].ModRevision {
		m.Bound = m.ModRevision
	}
	put, err := c.putMember(n.Who.Registered, *m)
	if err != nil {
		return false, err
	}
	_, err = c.write(ctx, []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(registration), "=", found[0].ModRevision),
		clientv3.Compare(clientv3.ModRevision(record), "=", m.ModRevision),
	}, []clientv3.Op{put})
	return err == nil, err
}

// PeerHealth is what the member record of another broker says of it.
type PeerHealth struct {
	Name    string
	Health  Health
	LeaseID int64 // of its registration
}

// PeersHealth lists what the records of up to MostPeers other brokers say, of those that are
// registered under a lease, and the raft term of the answer. A record that cannot be read says
// nothing. All records are read only where somebody is registered under another id than his name.
func (c *Client) PeersHealth(ctx context.Context, own Who) (peers []PeerHealth, term uint64, err error) {
	if peers, term, err = c.peersHealth(ctx, own); err != nil {
		return nil, 0, fmt.Errorf("read the health of other brokers: %w", err)
	}
	return peers, term, nil
}

func (c *Client) peersHealth(ctx context.Context, own Who) (peers []PeerHealth, term uint64, err error) {
	for _, id := range []string{own.Name, own.Registered} {
		if err := checkBroker(id); err != nil {
			return nil, 0, err
		}
	}
	drawn, err := c.drawn(ctx, c.keys.Registrations(), c.keys.Registration(own.Registered), own.Name)
	if err != nil || len(drawn) == 0 {
		return nil, 0, err
	}
	drawn = drawn[:min(len(drawn), MostPeers)]
	keys := make([]string, 2*len(drawn))
	for i, id := range drawn {
		keys[i], keys[len(drawn)+i] = c.keys.Registration(id), c.keys.Member(id)
	}
	found, head, err := c.gets(ctx, keys)
	if err != nil {
		return nil, 0, err
	}
	term = head.RaftTerm
	unnamed := map[string]int64{} // leases of those that are registered under another id than their name
	for i, id := range drawn {
		registration, record := found[i], found[len(drawn)+i]
		switch {
		case registration == nil || registration.Lease == 0:
		case record == nil:
			unnamed[id] = registration.Lease
		default:
			one := PeerHealth{Name: id, LeaseID: registration.Lease}
			if m, _ := memberOf(record); m != nil {
				one.Health = m.Health
			}
			peers = append(peers, one)
		}
	}
	if len(unnamed) == 0 {
		return peers, term, nil
	}
	_, err = c.scan(ctx, Target{Key: c.keys.Members(), Prefix: true}, 0, func(kv KV) {
		name, ok := c.keys.ParseMember(kv.Key)
		if m, _ := memberOf(kv.raw()); ok && m != nil && unnamed[m.RegisteredAs] != 0 {
			peers = append(peers, PeerHealth{Name: name, Health: m.Health, LeaseID: unnamed[m.RegisteredAs]})
		}
	})
	return peers, term, err
}
