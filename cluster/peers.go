package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
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

// PeerIDs lists who is registered but for own, of which the first is the broker's id now, in
// an order that the seed draws; see drawn.
func (c *Client) PeerIDs(ctx context.Context, seed string, own ...string) (ids []string, err error) {
	defer during(&err, "read registrations of other brokers")
	ids, err = c.drawn(ctx, c.keys.Registrations(), own[0], seed)
	return slices.DeleteFunc(ids, func(id string) bool { return slices.Contains(own, id) }), err
}

// keysOf are the keys of these brokers.
func keysOf(key func(string) string, ids []string) []string {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = key(id)
	}
	return keys
}

// Peers is one linearizable read of the registrations of these brokers, MostPeers at most, and
// the raft term of its answer. What is bound to no lease never runs out, so it says nothing
// of anybody's life and is left out, as what is absent is.
func (c *Client) Peers(ctx context.Context, ids []string) (peers []Registration, term uint64, err error) {
	defer during(&err, "read registrations of other brokers")
	found, head, err := c.gets(ctx, keysOf(c.keys.Registration, ids))
	for i, kv := range found {
		if kv != nil && kv.Lease != 0 {
			peers = append(peers, *registrationOf(ids[i], kv))
		}
	}
	return peers, head.GetRaftTerm(), err
}

// Members reads the member records of up to MostPeers brokers at one revision; 0: now. What is
// absent is not in the answer; what cannot be read is nil.
func (c *Client) Members(ctx context.Context, names []string, revision int64) (members map[string]*Member, err error) {
	defer during(&err, "read member records")
	found, _, err := c.gets(ctx, keysOf(c.keys.Member, names), clientv3.WithRev(revision))
	members = map[string]*Member{}
	for i, kv := range found {
		if kv != nil {
			members[names[i]], _ = memberOf(kv)
		}
	}
	return members, err
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

// Companion is a broker that was registered before a revision and is registered now, and what
// there is of it.
type Companion struct {
	Name string // of the member record
	// Lost: the registration that it had then is not there any more.
	Lost bool
	// Planned: it gave that registration up on purpose, and is back.
	Planned bool
	Member  *Member // now; nil: absent, or malformed
	// MemberMalformed says what stands there instead, and at which key.
	MemberMalformed string
}

// Companions looks at MostPeers of the brokers that are registered and were so before that
// revision, whichever the broker's name and the revision draw of the member records; of those
// that have gone nobody can tell when they went. One whose record cannot be read is among them,
// also where that hides under which id it is registered.
func (c *Client) Companions(ctx context.Context, name string, revision int64) (list []Companion, err error) {
	defer during(&err, "read what became of other brokers")
	names, err := c.drawn(ctx, c.keys.Members(), name, fmt.Sprintf("%s %d", name, revision))
	if err != nil {
		return nil, err
	}
	names = names[:min(len(names), MostPeers)]
	records, _, err := c.gets(ctx, keysOf(c.keys.Member, names))
	if err != nil {
		return nil, err
	}
	all, keys := make([]Companion, len(names)), keysOf(c.keys.Registration, names)
	for i, record := range records {
		all[i].Name = names[i]
		if record == nil {
			continue
		}
		m, malformed := memberOf(record)
		if all[i].Member, all[i].MemberMalformed = m, at(malformed, record.Key); m != nil && m.RegisteredAs != "" {
			keys[i] = c.keys.Registration(m.RegisteredAs)
		}
	}
	registrations, _, err := c.gets(ctx, keys)
	if err != nil {
		return nil, err
	}
	then, _, err := c.gets(ctx, keys, clientv3.WithKeysOnly(), clientv3.WithRev(revision))
	if errors.Is(err, ErrCompacted) {
		then, err = registrations, nil // what is now stands for it
	}
	if err != nil {
		return nil, err
	}
	for i, one := range all {
		r, record := registrations[i], records[i]
		switch {
		case then[i] == nil && one.MemberMalformed == "":
			continue // not registered then: what it lost it had lost before
		case r == nil && one.MemberMalformed != "": // it may be under another id
		case r == nil || record == nil || r.CreateRevision > revision && record.CreateRevision > revision:
			continue // not registered, or not known to have been then
		default:
			one.Lost = r.CreateRevision > revision
			if m := one.Member; m != nil {
				one.Planned = m.Planned == r.CreateRevision || one.Lost && m.Planned != 0 && m.Planned <= revision
			}
		}
		list = append(list, one)
	}
	return list, nil
}
