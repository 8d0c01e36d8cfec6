// Package heal measures how long after a black hole a broker is registered again: for the sidecar,
// and beside it, in the same namespace at the same time, for a loop over the etcd client's own session.
//
// Each pair has a namespace (or, without root, a proxy) of its own. Its path to etcd is cut for 60 s
// at a TTL of 15 s, so both registrations really expire, and the time from the heal to the
// registration is read from a watch on etcd that was never cut. The phases of the pairs are staggered.
// The heal counts from before the command that removes the rules, so the figures are slightly too
// long, never too short. A peer stays registered throughout. The policy is reconnect: drain waits for
// one renewal, to see who lived on.
//
// It fails if a registration did not expire, or was made in another revision than its mode.
package heal

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/bench/kit"
	"holdfast/lab/harness"
)

// sidecarBound is how long to wait for the sidecar after the heal.
const sidecarBound = 30 * time.Second

type plan struct {
	pairs        int
	hole, ttl    time.Duration
	sessionBound time.Duration
}

// Bench declares its flags.
func Bench(flags *flag.FlagSet) kit.Bench {
	p := plan{}
	flags.IntVar(&p.pairs, "runs", 10, "pairs that are cut at once")
	flags.DurationVar(&p.hole, "hole", 60*time.Second, "length of the black hole")
	flags.DurationVar(&p.ttl, "ttl", 15*time.Second, "TTL of the registrations, in whole seconds")
	flags.DurationVar(&p.sessionBound, "session-bound", 75*time.Second, "how long to wait for the session loop after the heal")
	return func(ctx context.Context, out io.Writer) ([]kit.Limit, error) {
		if p.hole < 2*p.ttl {
			return nil, fmt.Errorf("a hole of %v cannot be relied on to outlast a TTL of %v: make it at least %v", p.hole, p.ttl, 2*p.ttl)
		}
		return kit.InLab(func(lab *harness.Lab) ([]kit.Limit, error) { return p.run(ctx, out, lab) })
	}
}

// rig is an etcd that is never cut, and what is cut off from it.
type rig struct {
	plan
	etcd    *harness.Etcd
	history *harness.History
	pairs   []*pair
}

// pair is a sidecar with its broker, and a session loop, behind one link.
type pair struct {
	id, sessionKey string
	link           harness.Link
	sidecar        kit.Couple
	took, session  float64 // seconds from the heal; session 0: it was given up
}

var keys harness.Keys

func (p plan) run(ctx context.Context, out io.Writer, lab *harness.Lab) ([]kit.Limit, error) {
	if err := harness.CanDropPackets(); err != nil {
		fmt.Fprintf(out, "Note: packets cannot be dropped here (%v): a proxy holds everything back instead.\n"+
			"It spares both sides the kernel's retransmission timers, so the figures say little: run this as root.\n", err)
	}
	r := &rig{plan: p}
	var err error
	if r.etcd, err = lab.StartEtcd(ctx, harness.EtcdOptions{Heartbeat: 100 * time.Millisecond, Election: time.Second}); err != nil {
		return nil, err
	}
	if r.history, err = lab.Watch(ctx, r.etcd, ""); err != nil {
		return nil, err
	}
	// A key without a lease, so that the fleet is never empty.
	if _, err := r.etcd.Client().Put(ctx, keys.Registration("peer"), `{"broker_url":"nats://peer"}`); err != nil {
		return nil, fmt.Errorf("register the peer: %w", err)
	}
	for i := range p.pairs {
		pr := &pair{id: fmt.Sprintf("n%d", i+1)}
		pr.sessionKey = "/session/" + pr.id
		if pr.link, err = harness.NewLink(lab, r.etcd); err != nil {
			return nil, err
		}
		if pr.sidecar, err = kit.Start(ctx, lab, kit.About{ID: pr.id, Place: pr.link.Place(), Endpoints: []string{pr.link.Endpoint()},
			Flags: []string{"--lease-ttl", p.ttl.String(), "--session-expired-policy", "reconnect"}}); err != nil {
			return nil, err
		}
		r.pairs = append(r.pairs, pr)
	}
	if err := r.cutAll(ctx, out); err != nil {
		return nil, err
	}
	return r.report(out), nil
}

// cutAll cuts every pair once, all in the same minute, and measures.
func (r *rig) cutAll(ctx context.Context, out io.Writer) error {
	sessions, end := context.WithCancel(ctx)
	var loops, runs sync.WaitGroup
	defer loops.Wait()
	defer end()
	errs := make([]error, 2*len(r.pairs))
	for i, pr := range r.pairs {
		loops.Go(func() { errs[2*i] = keepSession(sessions, pr.link, pr.sessionKey, r.ttl) })
		runs.Go(func() {
			// The cuts hit each pair at another phase of its renewals, which come every
			// TTL/8 with holdfast and every TTL/3 with the session.
			if errs[2*i+1] = r.measure(ctx, pr, r.ttl/3*time.Duration(i)/time.Duration(len(r.pairs))); errs[2*i+1] == nil {
				fmt.Fprintf(out, "run %2d (%s): holdfast %.3f s, session %.3f s\n", i+1, pr.link.Kind(), pr.took, pr.session)
			}
		})
	}
	runs.Wait()
	end()
	loops.Wait()
	return errors.Join(errs...)
}

// measure is one run.
func (r *rig) measure(ctx context.Context, pr *pair, stagger time.Duration) error {
	reg := keys.Registration(pr.id)
	if _, err := r.history.Await(ctx, kit.StartBound, "the session's key", 0, harness.PutKey(pr.sessionKey)); err != nil {
		return err
	}
	if err := harness.Wait(ctx, stagger); err != nil {
		return err
	}
	from, err := r.etcd.Client().Get(ctx, reg, clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("read revision: %w", err)
	}
	if err := errors.Join(pr.link.Cut(), harness.Wait(ctx, r.hole)); err != nil {
		return err
	}
	var lost [2]harness.Change
	for i, key := range []string{reg, pr.sessionKey} {
		var gone bool
		if lost[i], gone = r.history.Find(from.Header.Revision+1, harness.DeletedKey(key)); !gone {
			return fmt.Errorf("%s did not expire in a hole of %v", key, r.hole)
		}
	}
	healed := time.Now()
	if err := pr.link.Heal(); err != nil {
		return err
	}
	back, err := r.history.Await(ctx, sidecarBound, "the registration of "+pr.id, lost[0].Revision+1, harness.PutKey(reg))
	if err != nil {
		return err
	}
	pr.took = back.At.Sub(healed).Seconds()
	if err := r.activeIn(back.Revision, keys.State(pr.id)); err != nil {
		return err
	}
	again, err := r.history.Await(ctx, r.sessionBound-time.Since(healed), "the session's key", lost[1].Revision+1, harness.PutKey(pr.sessionKey))
	if err == nil {
		pr.session = again.At.Sub(healed).Seconds()
	}
	return ctx.Err()
}

// activeIn checks that the fast registration is also a right one: with its mode, in the same
// revision. Another mode or reason is what a machine that stood still may bring about, with all leases at once too.
func (r *rig) activeIn(revision int64, state string) error {
	changes := r.history.At(revision)
	for _, c := range changes {
		if c.Key != state {
			continue
		}
		if !strings.Contains(c.Value, `"active"`) || strings.Contains(c.Value, "fleet_expired") {
			return fmt.Errorf("registered in revision %d for another reason: %v", revision, c)
		}
		return nil
	}
	return fmt.Errorf(harness.Violation+"registered in revision %d without its mode in the same one: %v", revision, changes)
}

func (r *rig) report(out io.Writer) []kit.Limit {
	var took, session []float64
	for _, pr := range r.pairs {
		took = append(took, pr.took)
		if pr.session > 0 {
			session = append(session, pr.session)
		}
	}
	fmt.Fprintf(out, "\nFrom the heal to the registration in etcd, %d runs, TTL %v, black hole %v:\n%-28s %8s %8s %8s\n", len(took), r.ttl, r.hole, "", "MIN", "MEDIAN", "MAX")
	for i, all := range [][]float64{took, session} {
		fmt.Fprintf(out, "%-28s %6.3f s %6.3f s %6.3f s\n", []string{"holdfast", "etcd client's session, loop"}[i], kit.Share(all, 0), kit.Median(all), kit.Share(all, 1))
	}
	if n := len(took) - len(session); n > 0 {
		fmt.Fprintf(out, "The session loop was given up after %v in %d runs; its figures are of the others.\n", r.sessionBound, n)
	}
	return []kit.Limit{kit.AtMost("slowest, seconds", kit.Share(took, 1), 1), kit.AtMost("median, seconds", kit.Median(took), 0.5)}
}
