// Package guard runs a broker, its sidecar and its guard on a machine on which every processor is
// busy with something else all the time, and checks that the guard leaves the broker of a healthy
// sidecar alone.
//
// The load is two processes that only count for each processor, at the priority that everybody has;
// sidecar, guard, broker and etcd have to do with what the scheduler leaves them. It fails if the
// broker, the sidecar or the guard ended.
package guard

import (
	"context"
	"flag"
	"fmt"
	"io"
	"runtime"
	"syscall"
	"time"

	"holdfast/lab/bench/kit"
	"holdfast/lab/harness"
)

const (
	id        = "n1"
	lookEvery = 20 * time.Millisecond
)

// Busy counts until it is killed.
func Busy(string) error {
	for i := uint64(0); ; i++ {
	}
}

type plan struct {
	length, ttl time.Duration
	busy        int
}

// Bench declares its flags.
func Bench(flags *flag.FlagSet) kit.Bench {
	p := plan{}
	flags.DurationVar(&p.length, "for", 5*time.Minute, "how long")
	flags.DurationVar(&p.ttl, "ttl", 10*time.Second, "TTL of the lease, in whole seconds")
	flags.IntVar(&p.busy, "busy", 2, "busy processes for each processor")
	return func(ctx context.Context, out io.Writer) ([]kit.Limit, error) {
		return kit.InLab(func(lab *harness.Lab) ([]kit.Limit, error) { return p.run(ctx, out, lab) })
	}
}

func (p plan) run(ctx context.Context, out io.Writer, lab *harness.Lab) ([]kit.Limit, error) {
	etcd, err := lab.StartEtcd(ctx, harness.EtcdOptions{})
	if err != nil {
		return nil, err
	}
	if err := (harness.Keys{}).Assign(ctx, etcd.Client(), id, "/default/orders"); err != nil {
		return nil, err
	}
	c, err := kit.Start(ctx, lab, kit.About{ID: id, Endpoints: []string{etcd.Endpoint()}, Control: true, Flags: []string{"--lease-ttl", p.ttl.String()}})
	if err != nil {
		return nil, err
	}
	guard := c.Guard()
	for range p.busy * runtime.NumCPU() {
		_, stop, err := kit.Child("busy", "")
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	fmt.Fprintf(out, "%d busy processes on %d processors for %v, TTL %v\n", p.busy*runtime.NumCPU(), runtime.NumCPU(), p.length, p.ttl)
	closest, renewals := p.ttl, 0
	var last time.Time
	for end := time.Now().Add(p.length); time.Now().Before(end); {
		st, err := c.Status(ctx)
		switch {
		case !c.Broker.Running() || !c.Running() || syscall.Kill(guard, 0) != nil:
			return nil, fmt.Errorf(harness.Violation+"ended: broker %v, sidecar %v, guard %v", !c.Broker.Running(), !c.Running(), syscall.Kill(guard, 0))
		case err != nil:
			return nil, err
		case st.Deadline().Sub(last) > lookEvery: // two readings of the clocks differ a little
			renewals, last = renewals+1, st.Deadline()
		}
		closest = min(closest, time.Until(last))
		if err := harness.Wait(ctx, lookEvery); err != nil {
			return nil, err
		}
	}
	private, err := harness.PrivateMemory(guard)
	fmt.Fprintf(out, "No stop: %d renewals, never nearer to the deadline than %.3f s of %v; the guard has %.1f MB for itself\n",
		renewals, closest.Seconds(), p.ttl, float64(private)/1e6)
	// With fewer this sidecar was not healthy.
	return []kit.Limit{kit.AtLeast("renewals", float64(renewals), float64(int(p.length/(p.ttl/8))/2))}, err
}
