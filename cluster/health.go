package cluster

import (
	"cmp"
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
// nothing. Records of brokers that have gone stand for ever, and may be many: whoever is
// registered is found among them.
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
	recorded, err := c.recorded(ctx, own)
	if err != nil || len(recorded) == 0 {
		return nil, 0, err
	}
	registrations := make([]string, len(recorded))
	for i, r := range recorded {
		registrations[i] = c.keys.Registration(r.registeredAs)
	}
	found, term, err := c.gets(ctx, registrations)
	if err != nil {
		return nil, 0, err
	}
	for i, kv := range found {
		if kv != nil && kv.Lease != 0 {
			peers = append(peers, PeerHealth{Name: recorded[i].name, Health: recorded[i].health, LeaseID: kv.Lease})
		}
	}
	return peers, term, nil
}

// healthRecord is what a member record says of its broker's health, and where it is registered.
type healthRecord struct {
	name, registeredAs string
	health             Health
}

// recorded draws up to MostPeers others that have a registration and a member record. Most are
// registered under the name of their record: those are looked at first.
func (c *Client) recorded(ctx context.Context, own Who) (list []healthRecord, err error) {
	registrations, err := c.drawn(ctx, c.keys.Registrations(), c.keys.Registration(own.Registered), 0, own.Name)
	if err != nil {
		return nil, err
	}
	records, err := c.drawn(ctx, c.keys.Members(), c.keys.Member(own.Name), 0, own.Name)
	if err != nil {
		return nil, err
	}
	hasRecord, registered := map[string]bool{}, map[string]bool{}
	for _, kv := range records {
		if name, ok := c.keys.ParseMember(string(kv.Key)); ok {
			hasRecord[name] = true
		}
	}
	var names []string
	for _, kv := range registrations {
		if id, ok := c.keys.ParseRegistration(string(kv.Key)); ok {
			registered[id] = true
			if hasRecord[id] || len(records) >= mostNames { // not all records were listed
				names = append(names, id)
			}
		}
	}
	for _, kv := range records {
		if name, ok := c.keys.ParseMember(string(kv.Key)); ok && !registered[name] {
			names = append(names, name)
		}
	}
	seen := map[string]bool{}
	for batch := range slices.Chunk(names, MostPeers) {
		keys := make([]string, len(batch))
		for i, name := range batch {
			keys[i] = c.keys.Member(name)
		}
		found, _, err := c.gets(ctx, keys)
		if err != nil {
			return nil, err
		}
		for i, kv := range found {
			r := healthRecord{name: batch[i], registeredAs: batch[i]}
			if kv == nil {
				continue
			}
			if m, _ := memberOf(kv); m != nil {
				r.health, r.registeredAs = m.Health, cmp.Or(m.RegisteredAs, r.name)
			}
			if registered[r.registeredAs] {
				list, seen[r.registeredAs] = append(list, r), true
			}
		}
		if len(list) >= MostPeers || len(seen) == len(registered) {
			break
		}
	}
	return list[:min(len(list), MostPeers)], nil
}
