package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// MostPeers is how many other brokers are looked at, at most: two keys of each fill a
// transaction, of which etcd takes 128 operations.
const MostPeers = 64

// mostNames is how many names are drawn from, from the start of all and from behind the
// broker's own on each.
const mostNames = 1024

// drawn lists the names below a prefix but for the broker's own, in an order that the seed
// draws. Brokers whose names are next to each other often share a rack or a zone, and their fate
// with it: a few of them do not stand for the fleet. Of a fleet that is larger than mostNames, not
// all need be in the list.
func (c *Client) drawn(ctx context.Context, prefix, own, seed string) (names []string, err error) {
	some := []clientv3.OpOption{clientv3.WithKeysOnly(), clientv3.WithLimit(mostNames)}
	found, _, err := c.read(ctx,
		clientv3.OpGet(prefix, append(some, clientv3.WithRange(prefix+own))...),
		clientv3.OpGet(prefix+own+"\x00", append(some, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)))...))
	for _, kv := range slices.Concat(found...) {
		if name := strings.TrimPrefix(kv.Key, prefix); checkBroker(name) == nil {
			names = append(names, name)
		}
	}
	lot := func(name string) string { // of its own for each name: one that comes or goes moves no other
		h := sha256.Sum256([]byte(seed + " " + name))
		return string(h[:8])
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(lot(a), lot(b)) })
	return names, err
}

// keysOf are the keys of these brokers.
func keysOf(key func(string) string, ids []string) []string {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = key(id)
	}
	return keys
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
	defer during(&err, "read the health of other brokers")
	ids, err := c.drawn(ctx, c.keys.Registrations(), own.Registered, own.Name)
	ids = ids[:min(len(ids), MostPeers)]
	found, head, err2 := c.gets(ctx, append(keysOf(c.keys.Registration, ids), keysOf(c.keys.Member, ids)...))
	if err = cmp.Or(err, err2); err != nil {
		return nil, 0, err
	}
	unnamed := map[string]int64{} // leases of those that are registered under another id than their name
	for i, id := range ids {
		registration, record := found[i], found[len(ids)+i]
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
	if len(unnamed) > 0 {
		_, err = c.scan(ctx, Target{Key: c.keys.Members(), Prefix: true}, 0, func(kv KV) {
			name, ok := c.keys.ParseMember(kv.Key)
			if m, _ := memberOf(&kv); ok && m != nil && unnamed[m.RegisteredAs] != 0 {
				peers = append(peers, PeerHealth{Name: name, Health: m.Health, LeaseID: unnamed[m.RegisteredAs]})
			}
		})
	}
	return peers, head.GetRaftTerm(), err
}

// Other is another broker, as one look shows it.
type Other struct {
	Name  string
	Epoch int64 // create revision of its registration; 0: it is not registered
	// Member is its record; nil: absent, or malformed.
	Member *Member
	// Malformed says what stands there instead, and at which key.
	Malformed string
}

// OthersOf draws MostPeers of the other brokers that are registered, and then of those that are
// members only.
func (c *Client) OthersOf(ctx context.Context, own Who, seed string) (names []string, err error) {
	defer during(&err, "list other brokers")
	names, err = c.drawn(ctx, c.keys.Registrations(), own.Registered, seed)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(id string) bool { return id == own.Former })
	members, err := c.drawn(ctx, c.keys.Members(), own.Name, seed) // who has left, and who is registered under another id
	if err != nil {
		return nil, err
	}
	for _, name := range members {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names[:min(len(names), MostPeers)], nil
}

// Others looks at these brokers, MostPeers at most, at one revision, and says which that was and in
// which raft term it was read.
func (c *Client) Others(ctx context.Context, names []string) (list []Other, revision int64, term uint64, err error) {
	defer during(&err, "look at other brokers")
	found, head, err := c.gets(ctx, append(keysOf(c.keys.Member, names), keysOf(c.keys.Registration, names)...))
	if err != nil {
		return nil, 0, 0, err
	}
	as := map[string]int{} // who is registered under another id than his name
	for i, name := range names {
		one := Other{Name: name}
		if kv := found[i]; kv != nil {
			var malformed string
			one.Member, malformed = memberOf(kv)
			one.Malformed = at(malformed, kv.Key)
		}
		if kv := found[len(names)+i]; kv != nil && kv.Lease != 0 { // one without a lease never runs out: it says nothing of a life
			one.Epoch = kv.CreateRevision
		} else if m := one.Member; m != nil && m.RegisteredAs != "" {
			as[m.RegisteredAs] = len(list)
		}
		list = append(list, one)
	}
	ids := slices.Sorted(maps.Keys(as))
	if found, _, err = c.gets(ctx, keysOf(c.keys.Registration, ids), clientv3.WithRev(head.GetRevision())); err != nil {
		return nil, 0, 0, err
	}
	for i, kv := range found {
		if kv != nil && kv.Lease != 0 {
			list[as[ids[i]]].Epoch = kv.CreateRevision
		}
	}
	list = slices.DeleteFunc(list, func(o Other) bool {
		_, another := as[o.Name]
		return another || o.Member == nil && o.Malformed == "" && o.Epoch == 0
	})
	return list, head.GetRevision(), head.GetRaftTerm(), nil
}
