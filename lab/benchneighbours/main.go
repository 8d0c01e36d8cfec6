// Command benchneighbours puts the traffic of many sidecars on one etcd: what they need of
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
// that note written, and the last had its watches again; and the most requests, streams
// included, that etcd counted in a second.
//
// Two thousand take about 9,000 open files, half of them etcd's, and a gigabyte and a half
// of memory: this is to be run by hand, on a machine that does nothing else. Sidecars and
// etcd share its processors, so the figures are on the safe side.
//
// Exit code 1: a lease was lost, the 99th percentile of the proofs is above -limit, or not
// all came back; 75: the percentile is above it, but not without the time for which this
// process stood still.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"holdfast/lab/harness"
	"holdfast/standstill"
)

// plan is what to measure.
type plan struct {
	sidecars     int
	length, away time.Duration
	limit        time.Duration
}

func main() {
	p := plan{}
	flag.IntVar(&p.sidecars, "sidecars", 2000, "sidecars")
	flag.DurationVar(&p.length, "for", 5*time.Minute, "how long they renew")
	flag.DurationVar(&p.away, "away", 20*time.Second, "how long etcd is away")
	flag.DurationVar(&p.limit, "limit", time.Second, "99 of 100 renewals are proven within this")
	flag.Parse()
	if p.sidecars < 1 || p.length <= 0 || p.away <= 0 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "benchneighbours: -sidecars, -for and -away must be more than 0, and there are no arguments")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := bench(ctx, os.Stdout, p)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchneighbours:", err)
	}
	switch {
	case errors.Is(err, standstill.ErrUnjudged):
		os.Exit(standstill.ExitCode)
	case err != nil:
		os.Exit(1)
	}
}

func bench(ctx context.Context, out io.Writer, p plan) (err error) {
	lab, err := harness.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	etcd, err := lab.StartEtcd(ctx, harness.EtcdOptions{Heartbeat: 100 * time.Millisecond, Election: time.Second, Fsync: true})
	if err != nil {
		return err
	}
	defer standstill.Watch()()
	empty, err := look(etcd.PID())
	if err != nil {
		return err
	}
	f := newFleet(etcd.Endpoint())
	defer f.stop()
	began := time.Now()
	if err := f.start(ctx, p.sidecars); err != nil {
		return err
	}
	fmt.Fprintf(out, "%-24s %d sidecars in %v\n", "registered", p.sidecars, time.Since(began).Round(10*time.Millisecond))
	steady, err := f.steady(ctx, etcd, p, empty)
	if err != nil {
		return err
	}
	if err := steady.report(out, p); err != nil {
		return err
	}
	back, err := f.outage(ctx, etcd, p)
	if err != nil {
		return err
	}
	return back.report(out, p)
}
