// Package neighbours puts the traffic of many sidecars on one etcd: what they need of
// it while nothing happens, and how they come back when it was away.
//
// Each of the sidecars is what a sidecar is to etcd, in this process: the code of the lease
// with its default timing, a line of its own for renewals and their proofs, a client of its
// own with a stream of watches, and a registration as a sidecar writes it. There is no
// broker and no guard. etcd is one server on this machine, which waits for its disk.
//
// For -for they renew. Printed are how long it took from the send of a renewal to its proof,
// and what etcd used for each thousand sidecars: of a processor, and of memory above what
// it had before the first came. Then etcd is killed, and started again after -away. Who was
// detached by then, because its fence point had passed, looks at everything and notes the cut
// in its member record, as a sidecar does. Printed are how many these are; how long after its
// start the last sidecar was attached again, which is a renewal sent since then and proven, and
// that note written, and the last had its watches again.
//
// Two thousand take about 9,000 open files, half of them etcd's, and a gigabyte and a half
// of memory: this is to be run on a machine that does nothing else. Sidecars and
// etcd share its processors, so the figures are on the safe side.
package neighbours

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"holdfast/lab/bench/kit"
	"holdfast/lab/harness"
)

type plan struct {
	sidecars            int
	length, away, limit time.Duration
}

// Bench declares its flags.
func Bench(flags *flag.FlagSet) kit.Bench {
	p := plan{}
	flags.IntVar(&p.sidecars, "sidecars", 2000, "sidecars")
	flags.DurationVar(&p.length, "for", 5*time.Minute, "how long they renew")
	flags.DurationVar(&p.away, "away", 20*time.Second, "how long etcd is away")
	flags.DurationVar(&p.limit, "limit", time.Second, "99 of 100 renewals are proven within this")
	return func(ctx context.Context, out io.Writer) ([]kit.Limit, error) {
		return kit.InLab(func(lab *harness.Lab) ([]kit.Limit, error) { return p.run(ctx, out, lab) })
	}
}

func (p plan) run(ctx context.Context, out io.Writer, lab *harness.Lab) ([]kit.Limit, error) {
	etcd, err := lab.StartEtcd(ctx, harness.EtcdOptions{Heartbeat: 100 * time.Millisecond, Election: time.Second, Fsync: true})
	if err != nil {
		return nil, err
	}
	empty, err := kit.Look(etcd.PID())
	if err != nil {
		return nil, err
	}
	f := newFleet(etcd.Endpoint())
	defer f.stop()
	began := time.Now()
	if err := f.start(ctx, p.sidecars); err != nil {
		return nil, err
	}
	say := func(what, format string, args ...any) {
		fmt.Fprintf(out, "%-24s "+format+"\n", append([]any{what}, args...)...)
	}
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	say("registered", "%d sidecars in %v", p.sidecars, ms(time.Since(began)))

	f.taken() // of the start
	before, err := kit.Look(etcd.PID())
	if err != nil {
		return nil, err
	}
	if err := waitWith(ctx, etcd, p.length); err != nil {
		return nil, err
	}
	after, err := kit.Look(etcd.PID())
	if err != nil {
		return nil, err
	}
	proofs, lost := f.taken(), f.lost()
	p99 := kit.Share(proofs, 0.99)
	say("renewals", "%d in %v; from the send to the proof: median %v, 99th percentile %v, longest %v", len(proofs), p.length, ms(kit.Median(proofs)), ms(p99), ms(kit.Share(proofs, 1)))
	say("leases lost", "%d", lost)
	thousands, memory := float64(p.sidecars)/1000, float64(after.Resident-empty.Resident)/(1<<20)
	percent := after.Since(before).Percent
	say("etcd", "%.1f %% of a processor, %.1f %% for each thousand; %.0f MB of memory, %.0f MB for each thousand", percent, percent/thousands, memory, memory/thousands)
	limits := []kit.Limit{
		kit.AtMost("leases lost while nothing happens", float64(lost), 0),
		kit.AtLeast("renewals", float64(len(proofs)), 1),
		kit.AtMost("99th percentile of the proofs, seconds", p99.Seconds(), p.limit.Seconds()),
	}

	cuts := f.cuts()
	if err := etcd.Kill(); err != nil {
		return nil, err
	}
	if err := harness.Wait(ctx, p.away); err != nil {
		return nil, err
	}
	began = time.Now()
	var times [3]time.Duration // it answers, all are attached, all have their watches
	for i, step := range []func() error{
		func() error { return etcd.Start(ctx) },
		func() error { return f.await(ctx, began, (*sidecar).attached) },
		func() error { return f.await(ctx, began, (*sidecar).watching) },
	} {
		err = errors.Join(err, step())
		times[i] = time.Since(began)
	}
	lost = f.lost() - lost
	say("etcd", "killed, and started after %v; it answered after %v", p.away, ms(times[0]))
	say("last attached again", "%v after its start; %d leases lost", ms(times[1]), lost)
	say("detached meanwhile", "%d, whose fence point passed", f.cuts()-cuts)
	say("last has its watches", "%v after its start", ms(times[2]))
	limits = append(limits, kit.AtMost("last attached again, seconds after etcd answered", (times[1]-times[0]).Seconds(), 5))
	if p.away <= timing.SurvivesExpiry() {
		limits = append(limits, kit.AtMost("leases lost in the outage", float64(lost), 0))
	}
	return limits, err
}

// waitWith waits while etcd lives.
func waitWith(ctx context.Context, etcd *harness.Etcd, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-etcd.Exited():
		return errors.New("etcd has ended")
	}
}
