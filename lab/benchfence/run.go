package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/lab/harness"
)

const (
	topic = "/default/orders"
	id    = "n1"
	// startBound is how long a lab may take to be ready.
	startBound = 60 * time.Second
	// publishEvery is the pause between two messages of the client.
	publishEvery = 5 * time.Millisecond
	// lookEvery is the pause between two looks at the shared memory.
	lookEvery = 5 * time.Millisecond
)

// run is one lab.
type run struct {
	plan
	harm harm
	hole bool // etcd is black-holed; else frozen
	rng  *rand.Rand

	lab     *harness.Lab
	etcd    *harness.Etcd
	link    harness.Link
	nats    *harness.NATS
	sidecar *harness.Sidecar
	history *harness.History
	undo    []func()

	lastServed atomic.Pointer[time.Time]
	deadline   atomic.Pointer[time.Time]
}

func (r *run) what() string {
	if r.hole {
		return string(r.harm) + ", etcd black-holed"
	}
	return string(r.harm) + ", etcd frozen"
}

func (r *run) play(ctx context.Context) (o outcome) {
	o.what = r.what()
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
		o.err = fmt.Errorf("%w; logs:\n%s", o.err, r.lab.Logs(15))
		return o
	}
	guard, _ := r.sidecar.Guard()
	if guard.PID != 0 {
		o.private, _ = harness.PrivateMemory(guard.PID)
	}
	go func() { r.publish(ctx); watchers <- struct{}{} }()
	go func() { r.follow(ctx); watchers <- struct{}{} }()
	err := r.hurt(ctx, &o)
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
	if r.etcd, err = r.lab.StartEtcd(ctx, harness.EtcdOptions{}); err != nil {
		return err
	}
	if r.link, err = harness.NewLink(r.lab, r.etcd); err != nil {
		return err
	}
	if r.history, err = r.lab.Watch(ctx, r.etcd, "/"); err != nil {
		return err
	}
	if err = (harness.Keys{}).Assign(ctx, r.etcd.Client(), id, topic); err != nil {
		return err
	}
	if r.nats, err = r.lab.StartNATS(ctx, harness.NATSOptions{Name: id, Place: r.link.Place()}); err != nil {
		return err
	}
	if r.sidecar, err = r.lab.StartSidecar(harness.SidecarOptions{Broker: r.nats, Endpoints: []string{r.link.Endpoint()}, Flags: []string{
		"--lease-ttl", r.ttl.String(), "--broker-pid-file", r.nats.PIDFile, "--guard", r.guard,
		"--health-interval", "200ms",
	}}); err != nil {
		return err
	}
	if err = r.sidecar.AwaitReady(ctx, startBound); err != nil {
		return err
	}
	if r.guard != "on" {
		return nil
	}
	return harness.Await(ctx, startBound, "an armed guard", func(context.Context) (bool, string) {
		g, ok := r.sidecar.Guard()
		return ok && g.Armed, fmt.Sprintf("%+v", g)
	})
}

// publish notes when it last got a message stored.
func (r *run) publish(ctx context.Context) {
	c, err := r.nats.Connect(nats.ReconnectWait(10 * time.Millisecond))
	if err != nil {
		return
	}
	defer c.Close()
	for ctx.Err() == nil {
		pctx, cancel := context.WithTimeout(ctx, time.Second)
		if _, err := harness.Publish(pctx, c, topic, []byte("bench")); err == nil {
			now := time.Now()
			r.lastServed.Store(&now)
		}
		cancel()
		_ = wait(ctx, publishEvery)
	}
}

// follow notes the deadline of the sidecar's last word.
func (r *run) follow(ctx context.Context) {
	for ctx.Err() == nil {
		if g, ok := r.sidecar.Guard(); ok && !g.Deadline.IsZero() {
			r.deadline.Store(&g.Deadline)
		}
		_ = wait(ctx, lookEvery)
	}
}

// hurt hurts etcd and the sidecar and measures what came of it.
func (r *run) hurt(ctx context.Context, o *outcome) error {
	_ = wait(ctx, time.Duration(r.rng.Int64N(int64(r.ttl/4)))) // any phase of the renewals
	apart := time.Duration(r.rng.Int64N(int64(r.ttl * 2 / 3)))
	if r.rng.IntN(2) == 0 {
		apart = 0
	}
	from := time.Now()
	if err := r.takeEtcd(); err != nil {
		return err
	}
	if err := wait(ctx, apart); err != nil {
		return err
	}
	if err := r.harm.do(ctx, r.sidecar, func(f func()) { r.undo = append(r.undo, f) }); err != nil && r.sidecar.Running() {
		return err
	}
	// Without a guard nobody knows the deadline; then it is this one at the latest.
	deadline := from.Add(r.ttl)
	if d := r.deadline.Load(); d != nil {
		deadline = *d
	}
	_ = wait(ctx, time.Until(deadline))
	if d := r.deadline.Load(); d != nil { // renewals of a starved sidecar
		deadline = *d
		_ = wait(ctx, time.Until(deadline))
	}
	if !r.hole {
		if err := errors.Join(r.link.Cut(), r.etcd.Thaw()); err != nil { // back for the others only
			return err
		}
	}
	gone, err := r.history.Await(ctx, 3*r.ttl, "the end of the key", r.history.From, harness.DeletedKey((harness.Keys{}).Registration(id)))
	if err != nil {
		return err
	}
	// What is served from here on would be served without a registration.
	_ = wait(ctx, time.Second)
	last := r.lastServed.Load()
	if last == nil {
		return errors.New("no message was ever served")
	}
	o.toDeadline, o.toGone = deadline.Sub(*last), gone.At.Sub(*last)
	o.by = r.stopper()
	return nil
}

func (r *run) takeEtcd() error {
	if r.hole {
		return r.link.Cut()
	}
	return r.etcd.Freeze()
}

// stopper is who stopped the broker: the guard says so in the state directory.
func (r *run) stopper() string {
	b, err := os.ReadFile(filepath.Join(r.sidecar.StateDir, "guard.log"))
	switch {
	case err == nil && len(b) > 0:
		return "guard"
	case r.nats.Running():
		return "ladder (the broker runs)"
	}
	return "ladder"
}
