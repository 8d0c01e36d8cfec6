package agent

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"holdfast/cluster"
)

const (
	// outlivedEvery is the time between two looks for registrations that outlive their lease.
	outlivedEvery = 5 * time.Minute
	outlivedBound = 10 * time.Second // of one look
)

// watchOutlived finds registrations, this broker's own and those next to it, that stand
// although their lease is gone, or without one: everybody takes such a broker for alive, and
// nothing ends that. etcd is known to keep keys so, with authentication and snapshots. They
// are reported and left alone: whose they are, and whether that broker serves, a person finds out.
func (a *agent) watchOutlived(ctx context.Context) error {
	next := time.NewTimer(outlivedPhase(a.view.Load().brokerID))
	defer next.Stop()
	var before, reported []cluster.Registration
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
			next.Reset(outlivedEvery)
		}
		id := a.registeredID()
		if id == "" {
			continue
		}
		bounded, done := context.WithTimeout(ctx, outlivedBound)
		found, err := a.main.Outlived(bounded, id)
		done()
		if err != nil { // what was found stands
			a.log.Debug("no look at the leases of registrations", "err", err)
			continue
		}
		stay := inBoth(before, found)
		before = found
		a.noteOutlived(reported, stay)
		reported = stay
	}
}

// outlivedPhase spreads the looks of a fleet that was started at once.
func outlivedPhase(id string) time.Duration {
	h := fnv.New64a()
	h.Write([]byte(id))
	return time.Duration(h.Sum64() % uint64(outlivedEvery))
}

// inBoth returns the registrations that two looks in a row found unchanged. One that was
// about to end with its lease is in the first alone.
func inBoth(before, now []cluster.Registration) (both []cluster.Registration) {
	for _, r := range now {
		if slices.ContainsFunc(before, func(b cluster.Registration) bool {
			return b.BrokerID == r.BrokerID && b.ModRevision == r.ModRevision
		}) {
			both = append(both, r)
		}
	}
	return both
}

// noteOutlived reports what changed.
func (a *agent) noteOutlived(reported, stay []cluster.Registration) {
	a.lingers.Store(len(stay) > 0)
	was, is := a.describeOutlived(reported), a.describeOutlived(stay)
	switch {
	case was == is:
	case is != "":
		a.log.Error("registration outlives its lease: nothing ends it", "which", is)
		a.event(Event{Kind: "registration", To: "outlives_lease", Detail: is})
	default:
		a.log.Info("registration that outlived its lease is gone", "which", was)
		a.event(Event{Kind: "registration", From: "outlives_lease", To: "outlived_gone", Detail: was})
	}
}

func (a *agent) describeOutlived(list []cluster.Registration) string {
	var each []string
	for _, r := range list {
		why := "has no lease"
		if r.LeaseID != 0 {
			why = fmt.Sprintf("is under lease %x, which etcd does not know", r.LeaseID)
		}
		each = append(each, a.main.Keys().Registration(r.BrokerID)+" "+why)
	}
	return strings.Join(each, "; ")
}
