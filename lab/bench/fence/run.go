package fence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/lab/bench/kit"
	"holdfast/lab/harness"
	"holdfast/standstill"
)

const (
	topic = "/default/orders"
	id    = "n1"
	// publishEvery is the pause between two messages of the client.
	publishEvery = 5 * time.Millisecond
	// lookEvery is the pause between two looks at the status.
	lookEvery = 5 * time.Millisecond
	// healthInterval is the sidecar's.
	healthInterval = 200 * time.Millisecond
)

// run is one lab.
type run struct {
	plan
	fault
	rng *rand.Rand

	lab     *harness.Lab
	etcd    *harness.Etcd        // the only one, or one that never hangs
	cluster *harness.EtcdCluster // nil: there is one member
	leader  *harness.Etcd        // of the cluster, at the start
	link    harness.Link         // nil in a cluster
	kit.Couple
	history *harness.History
	undo    []func()

	mu       sync.Mutex
	stored   []message
	refused  atomic.Pointer[time.Time] // when the topic was last said not to be served
	deadline atomic.Pointer[time.Time]
}

// message is one that was stored.
type message struct{ sent, stored time.Time }

// errNotUp begins what kept a lab from coming up, before there was a fault.
var errNotUp = errors.New("the lab did not come up")

func (r *run) play(ctx context.Context) (o outcome) {
	o.what = r.name
	if r.lab, o.err = harness.New(); o.err != nil {
		return o
	}
	ctx, cancel := context.WithCancel(ctx)
	watchers := make(chan struct{}, 2)
	defer func() {
		cancel()
		for _, undo := range r.undo {
			undo()
		}
		if err := r.lab.Close(); err != nil && o.err == nil {
			o.err = err
		}
	}()
	if o.err = r.setUp(ctx); o.err != nil {
		o.err = fmt.Errorf("%w: %w; logs:\n%s", errNotUp, o.err, r.lab.Logs(15))
		return o
	}
	if g := r.Sidecar.Guard(); g != 0 && !r.bare {
		o.private, _ = harness.PrivateMemory(g)
	}
	go func() { r.publish(ctx); watchers <- struct{}{} }()
	go func() { r.follow(ctx); watchers <- struct{}{} }()
	_ = harness.Wait(ctx, time.Duration(r.rng.Int64N(int64(r.ttl/4)))) // any phase of the renewals
	err := r.hurt(ctx, r, &o)
	o.by = r.stopper(o)
	cancel()
	<-watchers
	<-watchers
	if err != nil {
		o.err = fmt.Errorf("%w; logs:\n%s", err, r.lab.Logs(15))
	}
	return o
}

// setUp starts everything and waits until it is ready and guarded.
func (r *run) setUp(ctx context.Context) (err error) {
	endpoints, place, err := r.setUpEtcd(ctx)
	if err != nil {
		return err
	}
	if r.history, err = r.lab.Watch(ctx, r.etcd, "/"); err != nil {
		return err
	}
	if err = (harness.Keys{}).Assign(ctx, r.etcd.Client(), id, topic); err != nil {
		return err
	}
	r.Couple, err = kit.Start(ctx, r.lab, kit.About{ID: id, Place: place, Endpoints: endpoints, Control: !r.bare, Unguarded: r.bare || r.guard == "off",
		Flags: []string{"--lease-ttl", r.ttl.String(), "--health-interval", healthInterval.String()}})
	return err
}

// setUpEtcd starts one member behind a link, or three of a kind whose leader can hang.
func (r *run) setUpEtcd(ctx context.Context) (endpoints []string, place harness.Place, err error) {
	if r.hangs == "" {
		if r.etcd, err = r.lab.StartEtcd(ctx, harness.EtcdOptions{}); err != nil {
			return nil, place, err
		}
		if r.link, err = harness.NewLink(r.lab, r.etcd); err != nil {
			return nil, place, err
		}
		return []string{r.link.Endpoint()}, r.link.Place(), nil
	}
	binary, err := harness.LyingEtcd()
	if err != nil {
		return nil, place, err
	}
	if r.cluster, err = r.lab.StartEtcdCluster(ctx, 3, harness.EtcdOptions{Binary: binary, Fsync: true}); err != nil {
		return nil, place, err
	}
	if r.leader, err = r.cluster.Leader(ctx); err != nil {
		return nil, place, err
	}
	r.etcd = r.cluster.Other(r.leader)
	for _, m := range r.cluster.Members {
		if r.hangs == everyEndpoint || m == r.leader {
			endpoints = append(endpoints, m.Endpoint())
		}
	}
	return endpoints, place, nil
}

// publish notes each message that it got stored.
func (r *run) publish(ctx context.Context) {
	c, err := r.Broker.Connect(nats.ReconnectWait(10 * time.Millisecond))
	if err != nil {
		return
	}
	defer c.Close()
	for ctx.Err() == nil {
		pctx, cancel := context.WithTimeout(ctx, time.Second)
		m := message{sent: time.Now()}
		_, err := harness.Publish(pctx, c, topic, []byte("bench"))
		cancel()
		m.stored = time.Now()
		switch {
		case err == nil:
			r.mu.Lock()
			r.stored = append(r.stored, m)
			r.mu.Unlock()
		case errors.Is(err, nats.ErrNoResponders):
			r.refused.Store(&m.sent)
		}
		_ = harness.Wait(ctx, publishEvery)
	}
}

// last is the last message that was stored before a moment, and how many were sent after
// another one before it.
func (r *run) last(after, before time.Time) (last message, late int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.stored {
		if m.stored.After(before) {
			break
		}
		last = m
		if m.sent.After(after) {
			late++
		}
	}
	if last.stored.IsZero() {
		err = errors.New("no message was ever served")
	}
	return last, late, err
}

// servedAfter is from the first message after a moment to the last one before another.
func (r *run) servedAfter(after, before time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var first, last time.Time
	for _, m := range r.stored {
		if m.stored.Before(after) || m.stored.After(before) {
			continue
		}
		if first.IsZero() {
			first = m.sent
		}
		last = m.stored
	}
	return last.Sub(first)
}

// follow notes the deadline that the sidecar tells last.
func (r *run) follow(ctx context.Context) {
	for ctx.Err() == nil {
		if st, err := r.Sidecar.Status(ctx); err == nil && st.Lease.RemainingSeconds > 0 {
			d := st.Deadline()
			r.deadline.Store(&d)
		}
		_ = harness.Wait(ctx, lookEvery)
	}
}

// judge waits for the end of the key and goes on watching for a while. What is served then,
// and before the broker is registered again, is served without a registration.
func (r *run) judge(ctx context.Context, o *outcome, on time.Duration) error {
	key := (harness.Keys{}).Registration(id)
	gone, err := r.history.Await(ctx, 3*r.ttl, "the end of the key", r.history.From, harness.DeletedKey(key))
	if err != nil {
		return err
	}
	_ = harness.Wait(ctx, on)
	until := time.Now()
	if again, ok := r.history.Find(gone.Revision+1, harness.PutKey(key)); ok {
		until = again.At
	}
	last, late, err := r.last(gone.At, until)
	if err != nil {
		return err
	}
	if r.found > 0 {
		o.served, o.limit = known(r.servedAfter(gone.At, until)), r.found
		o.claim(standstill.Judge("served", gone.At, until, o.served.Duration, o.limit))
		return r.history.Err()
	}
	o.toGone = known(gone.At.Sub(last.stored))
	o.claim(standstill.JudgeOrder("a message was stored", last.stored, "the key was gone", gone.At))
	if late > 0 { // whenever this process saw it
		o.claim(fmt.Errorf("%d messages were sent after the key was gone, and stored", late))
	}
	if d := r.deadline.Load(); o.toDeadline.known && d != nil {
		o.toDeadline = known(d.Sub(last.stored))
		o.claim(standstill.JudgeOrder("a message was stored", last.stored, "the deadline", *d))
	}
	return r.history.Err()
}

// stopper is who stopped the broker: the guard says so in the state directory.
func (r *run) stopper(o outcome) string {
	b, err := os.ReadFile(filepath.Join(r.Sidecar.StateDir, "guard.log"))
	switch {
	case err == nil && len(b) > 0:
		return "the guard"
	case o.kept:
		return "nobody"
	case r.Broker.Running():
		return "the ladder (the broker runs)"
	}
	return "the ladder"
}
