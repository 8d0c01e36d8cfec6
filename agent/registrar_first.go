package agent

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
func neverRegistered(seen cluster.Snapshot, m memory) bool {
	return !m.FirstBootDone && m.Distrust == "" && m.Revision == 0 &&
		seen.Member == nil && seen.MemberMalformed == "" &&
		seen.StateRevision == 0 && seen.Former.StateRevision == 0
}

// inventory finds out, before a broker that was never registered is, what it serves that is
// not its own. That is not guessed; only etcd's refusal is an answer, and it fails closed:
// asking again changes nothing.
func (r *registrar) inventory(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now life) error {
	r.strange = ""
	if kind, _ := recovery.JudgeBoot(now.boot); r.serves == nil || kind == recovery.FirstBoot || !neverRegistered(seen, now.memory) {
		return nil
	}
	serving, err := r.serves(ctx)
	if err != nil {
		return fmt.Errorf("%w: what the broker serves is not known: %w", lease.ErrDeferred, err)
	}
	if len(serving) == 0 {
		return nil
	}
	assigned, any, err := client.Assignees(ctx, serving)
	if cluster.Classify(err) == cluster.ClassAuth {
		r.strange = fmt.Sprintf("whose its %s are is not known, because etcd refuses to show all assignments: "+
			"grant this user read on %s, or compare by hand ('holdfast fleet') and activate", plural(len(serving), "topic"), client.Keys().Brokers())
		return nil
	}
	if err != nil {
		return err
	}
	r.strange = recovery.Holdings{Serving: serving, Assigned: assigned, Any: any}.Strange(seen.BrokerID)
	return nil
}

// servedNow lists what clients can use at the broker now.
func (a *agent) servedNow(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, a.settings().HealthTimeout)
	defer cancel()
	serving, _, err := a.broker.Topics(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("the broker did not list its topics within %s (--health-timeout): %w", formatDuration(a.settings().HealthTimeout), err)
	}
	return serving, err
}
