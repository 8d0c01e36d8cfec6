package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Some things only so many brokers of a fleet may do at once. Each place is a key under a
// lease, so one whose holder has died is free again when the lease has run out.
//
// Guaranteed: of those that ask with the same number of places, at most that many hold one
// at any moment; a place that cannot be read is taken.
//
// Not guaranteed: an order among those that wait; that who asks with a higher number waits
// for who asks with a lower one; that a holder whose lease has run out has stopped.

// FleetLock is what its holders do.
type FleetLock string

// The fleet locks.
const (
	LockRestart FleetLock = "restart"
	LockDrain   FleetLock = "drain"
)

// ErrNoPlace says that others hold all places.
var ErrNoPlace = errors.New("all places are taken")

// Place is one of the places of a fleet lock, as read.
type Place struct {
	Number   int       `json:"-"` // from 0
	Holder   string    `json:"broker_id"`
	Reason   string    `json:"reason"`
	At       time.Time `json:"at"`
	Until    time.Time `json:"until"` // when the holder wants to be done: for people, nothing ends then
	LeaseID  int64     `json:"-"`
	Revision int64     `json:"-"` // at which it was taken
	// Malformed is not empty when the place cannot be read; it holds key and value.
	Malformed string `json:"-"`
}

func (p Place) String() string {
	if p.Malformed != "" {
		return "somebody (" + p.Malformed + ")"
	}
	return fmt.Sprintf("%s (%s, until %s)", p.Holder, p.Reason, p.Until.UTC().Format(time.RFC3339))
}

// FleetLockRequest asks for a place.
type FleetLockRequest struct {
	Lock    FleetLock
	Places  int   // how many there are, at least 1
	LeaseID int64 // that the place is to stand under
	Place   Place // Holder, Reason, At and Until
}

func (r FleetLockRequest) check() error {
	switch {
	case r.Lock != LockRestart && r.Lock != LockDrain:
		return fmt.Errorf("fleet lock %q: want %s or %s", r.Lock, LockRestart, LockDrain)
	case r.Places < 1:
		return fmt.Errorf("fleet lock %s: %d places: want at least 1", r.Lock, r.Places)
	case r.LeaseID == 0:
		return fmt.Errorf("fleet lock %s: it needs a lease", r.Lock)
	}
	return checkBroker(r.Place.Holder)
}

// TakePlace takes a free place. Who holds one under the same lease already is given that, so
// it may be asked again when an answer was lost. ErrNoPlace names the holders;
// ErrLeaseNotFound says that the lease is gone.
func (c *Client) TakePlace(ctx context.Context, r FleetLockRequest) (Place, error) {
	if err := r.check(); err != nil {
		return Place{}, err
	}
	p := r.Place
	p.At, p.Until, p.LeaseID = p.At.UTC(), p.Until.UTC(), r.LeaseID
	value, err := json.Marshal(p)
	if err != nil {
		return Place{}, fmt.Errorf("encode a place of fleet lock %s: %w", r.Lock, err)
	}
	for {
		taken, err := c.Places(ctx, r.Lock)
		if err != nil {
			return Place{}, err
		}
		if i := slices.IndexFunc(taken, func(t Place) bool { return t.Holder == p.Holder && t.LeaseID == r.LeaseID }); i >= 0 {
			return taken[i], nil
		}
		if len(taken) >= r.Places {
			return Place{}, fmt.Errorf("fleet lock %s: %w by %s", r.Lock, ErrNoPlace, names(taken))
		}
		p.Number = free(taken)
		key := c.keys.FleetLock(r.Lock, p.Number)
		answer, err := c.write(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
			[]clientv3.Op{clientv3.OpPut(key, string(value), clientv3.WithLease(clientv3.LeaseID(r.LeaseID)))})
		if errors.Is(err, ErrChanged) {
			continue // somebody was sooner, and one more is taken
		}
		if err != nil {
			return Place{}, fmt.Errorf("take a place of fleet lock %s: %w", r.Lock, err)
		}
		p.Revision = answer.Header.Revision
		return p, nil
	}
}

// LeavePlace gives a place back. ErrChanged says that it is not the holder's any more.
func (c *Client) LeavePlace(ctx context.Context, l FleetLock, p Place) error {
	key := c.keys.FleetLock(l, p.Number)
	_, err := c.write(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", p.Revision)}, []clientv3.Op{clientv3.OpDelete(key)})
	if err != nil {
		return fmt.Errorf("give back a place of fleet lock %s: %w", l, err)
	}
	return nil
}

// Places lists the places that are taken, in order.
func (c *Client) Places(ctx context.Context, l FleetLock) ([]Place, error) {
	var taken []Place
	prefix := c.keys.FleetLocks(l)
	_, err := c.scan(ctx, Target{Key: prefix, Prefix: true}, 0, func(kv KV) {
		var p Place
		number, err := strconv.Atoi(strings.TrimPrefix(kv.Key, prefix))
		if err == nil {
			err = json.Unmarshal(kv.Value, &p)
		}
		if err != nil || p.Holder == "" {
			p = Place{Malformed: fmt.Sprintf("%q at key %s", excerpt(kv.Value), kv.Key)}
		}
		p.Number, p.LeaseID, p.Revision = number, kv.Lease, kv.CreateRevision
		taken = append(taken, p)
	})
	if err != nil {
		return nil, fmt.Errorf("read fleet lock %s: %w", l, err)
	}
	return taken, nil
}

// free is the lowest number that nobody has, so below the number of places while one is free.
func free(taken []Place) int {
	for n := 0; ; n++ {
		if !slices.ContainsFunc(taken, func(p Place) bool { return p.Number == n }) {
			return n
		}
	}
}

func names(taken []Place) string {
	var all []string
	for _, p := range taken {
		all = append(all, p.String())
	}
	return strings.Join(all, ", ")
}
