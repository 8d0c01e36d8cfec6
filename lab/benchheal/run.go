package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
	"holdfast/standstill"
)

// startBound is how long a pair may take until both are registered at first.
const startBound = 60 * time.Second

// sidecarBound is how long to wait for the sidecar after the heal.
const sidecarBound = 30 * time.Second

type benchRig struct {
	plan
	out     io.Writer
	lab     *harness.Lab
	etcd    *harness.Etcd
	keys    harness.Keys
	history *harness.History
	pairs   []*pair
}

// pair is a sidecar with its broker, and a session loop, behind one link.
type pair struct {
	id         string
	link       harness.Link
	sidecar    *harness.Sidecar
	sessionKey string
}

func setUp(ctx context.Context, out io.Writer, p plan) (*benchRig, error) {
	lab, err := harness.New()
	if err != nil {
		return nil, err
	}
	b := &benchRig{plan: p, out: out, lab: lab}
	if err := harness.CanDropPackets(); err != nil {
		fmt.Fprintf(out, "Note: packets cannot be dropped here (%v): a proxy holds everything back instead.\n"+
			"It spares both sides the kernel's retransmission timers, so the figures say little: run this as root.\n", err)
	} else {
		fmt.Fprintln(out, "Packets are dropped in network namespaces.")
	}
	if b.etcd, err = lab.StartEtcd(ctx, harness.EtcdOptions{Heartbeat: 100 * time.Millisecond, Election: time.Second}); err != nil {
		return b, err
	}
	if b.history, err = lab.Watch(ctx, b.etcd, ""); err != nil {
		return b, err
	}
	// A key without a lease, so that the fleet is never empty.
	if _, err := b.etcd.Client().Put(ctx, b.keys.Registration("peer"), `{"broker_url":"nats://peer"}`); err != nil {
		return b, fmt.Errorf("register the peer: %w", err)
	}
	for i := range p.runs {
		pr, err := b.newPair(ctx, i+1)
		if err != nil {
			return b, err
		}
		b.pairs = append(b.pairs, pr)
	}
	return b, nil
}

func (b *benchRig) newPair(ctx context.Context, number int) (*pair, error) {
	pr := &pair{id: fmt.Sprintf("n%d", number)}
	pr.sessionKey = "/session/" + pr.id
	var err error
	if pr.link, err = harness.NewLink(b.lab, b.etcd); err != nil {
		return nil, err
	}
	broker, err := b.lab.StartNATS(ctx, harness.NATSOptions{Name: pr.id, Place: pr.link.Place()})
	if err != nil {
		return nil, err
	}
	pr.sidecar, err = b.lab.StartSidecar(harness.SidecarOptions{
		Broker: broker, Endpoints: []string{pr.link.Endpoint()},
		// With drain it first looks, for one renewal, at who lived on: that is no reconnection.
		Flags: []string{"--lease-ttl", b.ttl.String(), "--session-expired-policy", "reconnect"},
	})
	return pr, err
}

// run cuts every pair once, all in the same minute, and measures.
func (b *benchRig) run(ctx context.Context) ([]outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	var loops sync.WaitGroup
	loopErrs := make([]error, len(b.pairs))
	defer loops.Wait()
	defer cancel()
	for i, pr := range b.pairs {
		loops.Go(func() { loopErrs[i] = keepSession(ctx, pr.link, pr.sessionKey, b.ttl) })
	}
	defer standstill.Watch()()
	outcomes := make([]outcome, len(b.pairs))
	errs := make([]error, len(b.pairs))
	began := time.Now()
	var runs sync.WaitGroup
	for i, pr := range b.pairs {
		runs.Go(func() {
			// The cuts hit each pair at another phase of its renewals, which come every
			// TTL/8 with holdfast and every TTL/3 with the session.
			stagger := b.ttl / 3 * time.Duration(i) / time.Duration(len(b.pairs))
			if outcomes[i], errs[i] = b.measure(ctx, pr, stagger); errs[i] != nil {
				errs[i] = fmt.Errorf("run %d: %w; last lines of the sidecar's log:\n%s", i+1, errs[i], pr.sidecar.LogTail(20))
				return
			}
			fmt.Fprintf(b.out, "[%5.1fs] run %2d (%s): holdfast %s, session %s\n", time.Since(began).Seconds(),
				i+1, pr.link.Kind(), show(outcomes[i].sidecar), show(outcomes[i].session))
		})
	}
	runs.Wait()
	cancel()
	loops.Wait()
	return outcomes, errors.Join(append(errs, loopErrs...)...)
}

// measure is one run.
func (b *benchRig) measure(ctx context.Context, pr *pair, stagger time.Duration) (outcome, error) {
	o := outcome{sidecar: missing, session: missing}
	reg := b.keys.Registration(pr.id)
	for _, key := range []string{reg, pr.sessionKey} {
		if _, err := b.history.Await(ctx, startBound, "the first put of "+key, 0, harness.PutKey(key)); err != nil {
			return o, err
		}
	}
	if _, err := pr.sidecar.Await(ctx, startBound, "attached", func(s harness.Status) bool { return s.Attachment == "attached" }); err != nil {
		return o, err
	}
	if err := harness.Wait(ctx, stagger); err != nil {
		return o, err
	}
	from, err := b.etcd.Client().Get(ctx, reg, clientv3.WithCountOnly())
	if err != nil {
		return o, fmt.Errorf("read revision: %w", err)
	}
	if err := pr.link.Cut(); err != nil {
		return o, err
	}
	if err := harness.Wait(ctx, b.hole); err != nil {
		return o, err
	}
	var lost [2]harness.Change
	for i, key := range []string{reg, pr.sessionKey} {
		var gone bool
		if lost[i], gone = b.history.Find(from.Header.Revision+1, harness.DeletedKey(key)); !gone {
			return o, fmt.Errorf("%s did not expire in a hole of %v", key, b.hole)
		}
	}
	healed := time.Now()
	if err := pr.link.Heal(); err != nil {
		return o, err
	}
	back, err := b.history.Await(ctx, sidecarBound, "the registration of "+pr.id, lost[0].Revision+1, harness.PutKey(reg))
	if err != nil {
		return o, err
	}
	o.sidecar, o.added = back.At.Sub(healed), standstill.Added(healed, back.At)
	if err := b.together(pr, back); err != nil {
		return o, err
	}
	again, err := b.history.Await(ctx, b.sessionBound-time.Since(healed), "the session's key", lost[1].Revision+1, harness.PutKey(pr.sessionKey))
	if err == nil {
		o.session = again.At.Sub(healed)
	}
	return o, ctx.Err()
}

// together checks that the fast registration is also a right one: with its mode, in the
// same transaction.
func (b *benchRig) together(pr *pair, back harness.Change) error {
	return activeIn(b.history.At(back.Revision), back.Revision, b.keys.State(pr.id))
}

// activeIn looks for the state among the changes of the revision that registered. Without
// one a safety rule is broken whatever the machine did. Another mode or reason is what one
// that stood still may bring about, with all leases at once too.
func activeIn(changes []harness.Change, revision int64, state string) error {
	for _, c := range changes {
		switch {
		case c.Key != state:
		case strings.Contains(c.Value, `"active"`) && !strings.Contains(c.Value, "fleet_expired"):
			return nil
		default:
			return fmt.Errorf("registered in revision %d for another reason: %v", revision, c)
		}
	}
	return fmt.Errorf(harness.Violation+"registered in revision %d without its mode in the same one: %v", revision, changes)
}
