package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"holdfast/agent/lease"
	"holdfast/cluster"
)

// This file is the lost session of a broker that registers itself under a lease of its own. While
// it is connected it never makes another one: it renews the one that it had, in vain, and whoever
// sends it a topic finds it wedged. Granted again under the same ID the lease is the broker's own
// once more, and it goes on (seen on Pulsar 4.0.7). Under any other lease its keys would live
// without it.
//
// What it had it serves on. But a broker that has looked at a key of its own in the meantime, and
// could not put it, waits for that for ever: it can give up that topic only when it ends.

// resume has the broker's own session live, for a registration that is to be written under it:
// it may live still, or it is granted again. free are the topics that the broker serves and whose
// locks went with the session.
//
// A topic that another broker has taken meanwhile cannot be given up any more by the one that had
// it: it answers 409 and is stuck with it until its process is another. Such a broker gets no
// registration.
func (r *registrar) resume(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now life) (g lease.Grant, free []string, err error) {
	id := now.memory.LeaseID
	if id == 0 || !now.memory.Joined || now.memory.Instance != now.instance {
		return g, nil, errNothingToAdopt
	}
	sent := r.clock()
	renewal, err := client.KeepAlive(ctx, id)
	gone := errors.Is(err, cluster.ErrLeaseNotFound)
	if !gone && (err != nil || r.regranted != id) {
		return renewed(id, sent, renewal), nil, err
	}
	if free, err = r.untaken(ctx, client, seen, now); err != nil {
		return g, nil, err
	}
	if !gone { // by the try before, which wrote nothing
		return renewed(id, sent, renewal), free, nil
	}
	sent = r.clock()
	granted, err := client.GrantAgain(ctx, id, max(r.cfg.LeaseTTL, r.session))
	if err != nil {
		return g, nil, err
	}
	r.regranted = id
	r.log.Warn("broker session expired: granted again under its own lease ID", "hint", "restart the broker before it is drained: it may be unable to unload what it has now",
		"lease", fmt.Sprintf("%x", id), "ttl", granted, "topics", len(free))
	return lease.Grant{LeaseID: id, SentAt: sent, TTL: granted}, free, nil
}

// untaken lists the topics that the broker serves and nobody holds the locks of; it is an error
// that another broker holds one.
func (r *registrar) untaken(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now life) (free []string, err error) {
	serving, err := r.listed(ctx, r.holds, now.instance)
	if err != nil {
		return nil, fmt.Errorf("%w: what the broker serves is not known: %w", lease.ErrDeferred, err)
	}
	serving = slices.DeleteFunc(serving, func(topic string) bool {
		_, locked := r.cfg.layout().LockKey(topic)
		return !locked
	})
	owners, err := client.Owners(ctx, serving)
	if err != nil {
		return nil, err
	}
	var taken []string
	for _, topic := range serving {
		switch o := owners[topic]; {
		case o.Free():
			free = append(free, topic)
		case !o.Of(r.claimant(seen, now, lease.Grant{})):
			taken = append(taken, topic)
		}
	}
	if len(taken) > 0 {
		holder := owners[taken[0]]
		return nil, fmt.Errorf("%w: %w: %s that it serves, %s among them, by now another broker's (%s)",
			lease.ErrDeferred, errTaken, plural(len(taken), "topic"), taken[0], describeOwner(holder))
	}
	return free, nil
}

// errTaken says that a broker which has lost its session cannot go on with it.
var errTaken = errors.New("the broker's session is lost, and it is not registered again until it is restarted")

func describeOwner(o cluster.Owner) string {
	if o.Malformed != "" {
		return "whose, cannot be read: " + o.Malformed
	}
	return o.BrokerID
}

func (r *registrar) claimant(seen cluster.Snapshot, now life, g lease.Grant) cluster.Claimant {
	return cluster.Claimant{BrokerID: seen.BrokerID, Incarnation: now.memory.Incarnation, Epoch: g.Epoch, LeaseID: g.LeaseID, Registration: now.value}
}

// takeBack puts the locks that went with the session, where nobody has put one since. What of it
// fails is not lost: the ownership looks at each lock once the registration counts.
func (r *registrar) takeBack(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now life, g lease.Grant, free []string) {
	if r.cfg.OwnershipLocks != "on" || len(free) == 0 {
		return
	}
	requests := make([]cluster.LockRequest, len(free))
	for i, topic := range free {
		requests[i] = cluster.LockRequest{Act: cluster.Take, Topic: topic}
	}
	if _, err := client.Lock(ctx, r.claimant(seen, now, g), requests); err != nil {
		r.log.Warn("locks of the broker's topics not put again yet", "topics", len(free), "err", err)
	}
}
