package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/lab/harness"
)

const (
	// startBound is how long all may take to register, and backBound to come back.
	startBound = 2 * time.Minute
	backBound  = 2 * time.Minute
	// counted is how often etcd is asked how many requests it has had.
	counted = 250 * time.Millisecond
)

// proof is how long it took from the send of a renewal to its proof.
type proof struct {
	sent time.Time
	took time.Duration
}

// fleet is the sidecars.
type fleet struct {
	endpoint string
	life     context.Context
	end      context.CancelFunc
	running  sync.WaitGroup
	sidecars []*sidecar

	mu     sync.Mutex
	proofs []proof
}

func newFleet(endpoint string) *fleet {
	f := &fleet{endpoint: endpoint}
	f.life, f.end = context.WithCancel(context.Background())
	return f
}

func (f *fleet) stop() {
	f.end()
	f.running.Wait()
}

func (f *fleet) proved(sent, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.proofs = append(f.proofs, proof{sent, now.Sub(sent)})
}

// taken returns the proofs since it was last asked.
func (f *fleet) taken() []proof {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.proofs
	f.proofs = nil
	return taken
}

// start begins all at once, as after a power cut, and waits until they are attached.
func (f *fleet) start(ctx context.Context, n int) error {
	began := time.Now()
	for i := range n {
		s, err := newSidecar(f, fmt.Sprintf("broker-%05d", i))
		if err != nil {
			return err
		}
		f.sidecars = append(f.sidecars, s)
		f.running.Go(func() { s.run(f.life) })
	}
	return errors.Join(f.await(ctx, began, startBound, (*sidecar).attached), f.await(ctx, began, startBound, (*sidecar).watching))
}

// await waits until something is so of all, since then.
func (f *fleet) await(ctx context.Context, since time.Time, bound time.Duration, so func(*sidecar, time.Time) bool) error {
	return harness.Await(ctx, bound, "all sidecars", func(context.Context) (bool, string) {
		missing := 0
		for _, s := range f.sidecars {
			if !so(s, since) {
				missing++
			}
		}
		return missing == 0, fmt.Sprintf("%d of %d are missing", missing, len(f.sidecars))
	})
}

// lost is how many leases were lost so far.
func (f *fleet) lost() (n int) {
	for _, s := range f.sidecars {
		n += s.keeper.View().Losses
	}
	return n
}

// cuts is how often one was detached so far.
func (f *fleet) cuts() (n int) {
	for _, s := range f.sidecars {
		n += int(s.cuts.Load())
	}
	return n
}

// steady watches them while nothing happens.
func (f *fleet) steady(ctx context.Context, etcd *harness.Etcd, p plan, empty usage) (steady, error) {
	f.taken() // of the start
	before, err := look(etcd.PID())
	if err != nil {
		return steady{}, err
	}
	wait := time.NewTimer(p.length)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
		return steady{}, ctx.Err()
	case <-etcd.Exited():
		return steady{}, errors.New("etcd has ended")
	}
	after, err := look(etcd.PID())
	return steady{proofs: f.taken(), lost: f.lost(), cpu: after.cpu - before.cpu, memory: after.memory - empty.memory}, err
}

// outage kills etcd and starts it again.
func (f *fleet) outage(ctx context.Context, etcd *harness.Etcd, p plan) (back, error) {
	lost, cuts := f.lost(), f.cuts()
	if err := etcd.Kill(); err != nil {
		return back{}, err
	}
	wait := time.NewTimer(p.away)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
		return back{}, ctx.Err()
	}
	began := time.Now()
	counting, stop := context.WithCancel(ctx)
	peak := make(chan int, 1)
	go func() { peak <- mostRequests(counting, etcd.Endpoint()) }()
	err := etcd.Start(ctx)
	b := back{etcd: time.Since(began)}
	if err == nil {
		err = f.await(ctx, began, backBound, (*sidecar).attached)
		b.attached = time.Since(began)
	}
	if err == nil {
		err = f.await(ctx, began, backBound, (*sidecar).watching)
		b.watching = time.Since(began)
	}
	b.lost, b.detached = f.lost()-lost, f.cuts()-cuts
	stop()
	b.peak = <-peak
	return b, err
}
