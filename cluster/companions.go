package cluster

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Companion is a broker that was registered at an earlier revision, and what there is of it
// now.
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

// Companions looks at MostPeers of the brokers that were registered at that revision, whichever
// the broker's name and the revision draw of the member records of then. Where etcd does not
// remember the revision any more, it looks at those that are registered now and were registered
// before; of those that have gone nobody can tell when they went. One whose record cannot be read
// is among them, also where that hides under which id it was registered.
func (c *Client) Companions(ctx context.Context, name string, revision int64) ([]Companion, error) {
	list, err := c.companions(ctx, name, revision, revision)
	if errors.Is(err, ErrCompacted) {
		list, err = c.companions(ctx, name, revision, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("read what became of other brokers: %w", err)
	}
	return list, nil
}

// companions reads the past at the revision past; 0: there is none, and now stands for it. What
// is now is read at one revision.
func (c *Client) companions(ctx context.Context, name string, revision, past int64) (list []Companion, err error) {
	if err := checkBroker(name); err != nil {
		return nil, err
	}
	then, err := c.membersThen(ctx, name, revision, past)
	if err != nil || len(then) == 0 {
		return nil, err
	}
	registrations, both := make([]string, len(then)), make([]string, 2*len(then))
	for i, m := range then {
		registrations[i] = c.keys.Registration(m.registeredAs)
		both[i], both[len(then)+i] = registrations[i], c.keys.Member(m.name)
	}
	present, _, err := c.gets(ctx, both)
	if err != nil {
		return nil, err
	}
	before := present
	if past != 0 {
		if before, _, err = c.gets(ctx, registrations, clientv3.WithKeysOnly(), clientv3.WithRev(past)); err != nil {
			return nil, err
		}
	}
	for i, m := range then {
		was, now, record := before[i], present[i], present[len(then)+i]
		one := Companion{Name: m.name}
		if record != nil {
			if one.Member, one.MemberMalformed = memberOf(record); one.Member == nil {
				one.MemberMalformed = fmt.Sprintf("%q at key %s", one.MemberMalformed, record.Key)
			}
		}
		if was == nil && one.MemberMalformed != "" { // its registration may be under another id
			list = append(list, one)
			continue
		}
		if was == nil || was.CreateRevision > revision && m.created > revision {
			continue // not registered then, or not known to have been
		}
		one.Lost = now == nil || now.CreateRevision != was.CreateRevision || was.CreateRevision > revision
		if one.Member != nil {
			gave := one.Member.Planned
			one.Planned = gave == was.CreateRevision || was.CreateRevision > revision && gave != 0 && gave <= revision
		}
		list = append(list, one)
	}
	return list, nil
}

// memberThen is a member record as far as it tells where the broker's registration was.
type memberThen struct {
	name, registeredAs string
	created            int64 // revision of its first registration
}

// membersThen are member records as of the revision past; 0: now.
func (c *Client) membersThen(ctx context.Context, name string, revision, past int64) (list []memberThen, err error) {
	drawn, err := c.drawn(ctx, c.keys.Members(), c.keys.Member(name), past, fmt.Sprintf("%s %d", name, revision))
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, kv := range drawn {
		if name, ok := c.keys.ParseMember(string(kv.Key)); ok && len(list) < MostPeers {
			keys = append(keys, string(kv.Key))
			list = append(list, memberThen{name, name, kv.CreateRevision})
		}
	}
	if len(list) == 0 {
		return nil, nil
	}
	records, _, err := c.gets(ctx, keys, clientv3.WithRev(past))
	if err != nil {
		return nil, err
	}
	for i, kv := range records {
		if kv == nil {
			continue // it has gone since it was listed
		}
		if m, _ := memberOf(kv); m != nil && m.RegisteredAs != "" {
			list[i].registeredAs = m.RegisteredAs
		}
	}
	return list, nil
}
