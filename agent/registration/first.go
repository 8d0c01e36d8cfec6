package registration

import (
	"context"
	"errors"
	"fmt"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// This file is the first installation: what a broker serves beside which no sidecar ran yet.

// neverRegistered reports whether nothing says that this broker ever was: neither we, nor
// its member record, nor a state. What is there and cannot be read says that it was.
func (r *Registrar) neverRegistered(seen cluster.Snapshot, m Past) bool {
	return !m.FirstBootDone && m.Distrust == "" && m.Revision == 0 &&
		seen.Member == nil && seen.MemberMalformed == "" && r.knownState(seen) == 0
}

// knownState is the mod revision of a state of before; 0: there is none. The state of a broker
// that has another id at each start is as old as the process that answers.
func (r *Registrar) knownState(seen cluster.Snapshot) int64 {
	if r.ByInstance {
		return seen.Former.StateRevision
	}
	return seen.StateRevision
}

// inventory finds out, before a broker that was never registered is, what it serves that is
// not its own. That is not guessed. A right that etcd refuses is an answer, and it fails
// closed: asking again changes nothing.
func (r *Registrar) inventory(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now Life) error {
	r.strange = ""
	kind, _ := recovery.JudgeBoot(now.Boot)
	decided := r.Config.Join || seen.Registration != nil && !r.ByInstance // whatever it serves
	if r.Serves == nil || decided || kind == recovery.FirstBoot || !r.neverRegistered(seen, now.Past) {
		return nil
	}
	serving, err := r.listed(ctx, now.Instance)
	if err != nil {
		return fmt.Errorf("%w: what the broker serves is not known: %w", lease.ErrDeferred, err)
	}
	if len(serving) == 0 {
		return nil
	}
	assigned, some, err := client.Assignees(ctx, serving)
	if cluster.Denied(err) {
		r.strange = fmt.Sprintf("whose topics it serves (%d) is not known, because etcd refuses to show all assignments: "+
			"grant this user read on %s, or compare by hand ('holdfast fleet') and activate", len(serving), client.Keys().Brokers())
		return nil
	}
	if err != nil {
		return err
	}
	r.strange = recovery.Holdings{Serving: serving, Assigned: assigned, Any: some}.Strange(seen.BrokerID)
	return nil
}

// listing is what a process of the broker served when it was asked.
type listing struct {
	instance string
	done     chan struct{} // closed when the rest is known
	serving  []string
	err      error
}

// listed asks that process of the broker what it serves. A question that takes longer than ctx goes on,
// and its answer is there when this is called again.
func (r *Registrar) listed(ctx context.Context, instance string) ([]string, error) {
	if r.Beside == nil {
		return r.Serves(ctx)
	}
	if r.listing == nil || r.listing.instance != instance {
		l := &listing{instance: instance, done: make(chan struct{})}
		r.listing = l
		r.Beside(func(ctx context.Context) {
			defer close(l.done)
			l.serving, l.err = r.Serves(ctx)
		})
	}
	select {
	case <-r.listing.done:
		l := r.listing
		r.listing = nil
		return l.serving, l.err
	case <-ctx.Done():
		return nil, errors.New("it has not listed its topics yet")
	}
}
