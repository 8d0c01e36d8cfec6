package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

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
func (c *Client) Companions(ctx context.Context, name string, revision int64) ([]Companion, error) {
	list, err := c.companions(ctx, name, revision)
	if err != nil {
		return nil, fmt.Errorf("read what became of other brokers: %w", err)
	}
	return list, nil
}

func (c *Client) companions(ctx context.Context, name string, revision int64) (list []Companion, err error) {
	if err := checkBroker(name); err != nil {
		return nil, err
	}
	names, err := c.drawn(ctx, c.keys.Members(), c.keys.Member(name), fmt.Sprintf("%s %d", name, revision))
	if err != nil || len(names) == 0 {
		return nil, err
	}
	names = names[:min(len(names), MostPeers)]
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = c.keys.Member(name)
	}
	records, _, err := c.gets(ctx, keys)
	if err != nil {
		return nil, err
	}
	for i, record := range records {
		one := Companion{Name: names[i]}
		if keys[i] = c.keys.Registration(names[i]); record != nil {
			if one.Member, one.MemberMalformed = memberOf(record); one.Member == nil {
				one.MemberMalformed = fmt.Sprintf("%q at key %s", one.MemberMalformed, record.Key)
			} else {
				keys[i] = c.keys.Registration(cmp.Or(one.Member.RegisteredAs, names[i]))
			}
		}
		list = append(list, one)
	}
	registrations, _, err := c.gets(ctx, keys)
	if err != nil {
		return nil, err
	}
	then, _, err := c.gets(ctx, keys, clientv3.WithKeysOnly(), clientv3.WithRev(revision))
	if errors.Is(wrap(ctx, "read the past", err), ErrCompacted) {
		then, err = registrations, nil // what is now stands for it
	}
	if err != nil {
		return nil, err
	}
	kept := list[:0]
	for i, one := range list {
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
		kept = append(kept, one)
	}
	return kept, nil
}
