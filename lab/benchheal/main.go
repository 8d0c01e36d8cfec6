// Command benchheal measures how long after a black hole a broker is registered
// again: for the sidecar, and beside it, in the same namespace at the same time,
// for a loop over the etcd client's own session.
//
// Each pair has a namespace (or, without root, a proxy) of its own. Its path to
// etcd is cut for 60 s at a TTL of 15 s, so both registrations really expire, and
// the time from the heal to the registration is read from a watch on etcd that was
// never cut. The phases of the pairs are staggered. The heal counts from before the
// command that removes the rules, so the figures are slightly too long, never too
// short. A peer stays registered throughout. The policy is reconnect: drain waits for one
// renewal, to see who lived on.
//
// Exit code 1: the sidecar's slowest run took more than 1 s, or the median more
// than 0.5 s, or a registration did not expire. Exit code 75: it took longer while this
// machine stood still.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"holdfast/standstill"
)

// Limits of the sidecar, from the issue that asks for them.
const (
	maxLimit    = time.Second
	medianLimit = 500 * time.Millisecond
)

func main() {
	p := plan{}
	flag.IntVar(&p.runs, "runs", 10, "pairs that are cut at once")
	flag.DurationVar(&p.hole, "hole", 60*time.Second, "length of the black hole")
	flag.DurationVar(&p.ttl, "ttl", 15*time.Second, "TTL of the registrations, in whole seconds")
	flag.DurationVar(&p.sessionBound, "session-bound", 75*time.Second, "how long to wait for the session loop after the heal")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := bench(ctx, os.Stdout, p)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-heal:", err)
	}
	switch {
	case errors.Is(err, standstill.ErrUnjudged):
		os.Exit(standstill.ExitCode)
	case err != nil || !ok:
		os.Exit(1)
	}
}

// plan is what to measure.
type plan struct {
	runs         int
	hole, ttl    time.Duration
	sessionBound time.Duration
}

// outcome is one run. A figure that is negative is missing.
type outcome struct {
	sidecar, session time.Duration
	added            time.Duration // by a machine that stood still, at most, to the sidecar's
}

const missing = time.Duration(-1)

func bench(ctx context.Context, out io.Writer, p plan) (ok bool, err error) {
	if p.hole < 2*p.ttl {
		return false, fmt.Errorf("a hole of %v cannot be relied on to outlast a TTL of %v: make it at least %v", p.hole, p.ttl, 2*p.ttl)
	}
	b, err := setUp(ctx, out, p)
	if b != nil {
		defer func() { err = errors.Join(err, b.lab.Close()) }()
	}
	if err != nil {
		return false, err
	}
	outcomes, err := b.run(ctx)
	if err != nil {
		return false, err
	}
	return report(out, p, outcomes)
}

// report prints the table and says whether the limits hold. They are unjudged if they would
// hold without what the machine may have added.
func report(out io.Writer, p plan, outcomes []outcome) (ok bool, err error) {
	sidecar := newFigures(outcomes, func(o outcome) time.Duration { return o.sidecar })
	session := newFigures(outcomes, func(o outcome) time.Duration { return o.session })
	fmt.Fprintf(out, "\nFrom the heal to the registration in etcd, %d runs, TTL %v, black hole %v:\n", len(outcomes), p.ttl, p.hole)
	fmt.Fprintf(out, "%-28s %10s %10s %10s %8s\n", "", "MIN", "MEDIAN", "MAX", "MISSING")
	for _, row := range []struct {
		name string
		f    figures
	}{{"holdfast", sidecar}, {"etcd client's session, loop", session}} {
		fmt.Fprintf(out, "%-28s %10s %10s %10s %8d\n", row.name, show(row.f.min), show(row.f.median), show(row.f.max), row.f.missing)
	}
	if sidecar.median > 0 && session.median > 0 {
		fmt.Fprintf(out, "%-28s %9.0fx %9.0fx %9.0fx\n", "ratio", ratio(session.min, sidecar.min), ratio(session.median, sidecar.median), ratio(session.max, sidecar.max))
	}
	if session.missing > 0 {
		fmt.Fprintf(out, "The session loop was given up after %v in %d runs; its figures are of the others.\n", p.sessionBound, session.missing)
	}
	own := newFigures(outcomes, func(o outcome) time.Duration { return max(o.sidecar-o.added, min(o.sidecar, 0)) })
	verdict := "BROKEN"
	switch {
	case sidecar.hold():
		verdict, ok = "holds", true
	case own.hold():
		verdict = standstill.Word
		err = fmt.Errorf("%w: without what the machine added by standing still, median %s, max %s", standstill.ErrUnjudged, show(own.median), show(own.max))
	}
	fmt.Fprintf(out, "Limit for holdfast: every run at most %v, median at most %v: %s\n", maxLimit, medianLimit, verdict)
	return ok, err
}

func (f figures) hold() bool {
	return f.missing == 0 && f.max <= maxLimit && f.median <= medianLimit
}

// figures sums up the runs that have one. All are missing: negative.
type figures struct {
	min, median, max time.Duration
	missing          int
}

func newFigures(outcomes []outcome, pick func(outcome) time.Duration) figures {
	var all []time.Duration
	for _, o := range outcomes {
		if d := pick(o); d >= 0 {
			all = append(all, d)
		}
	}
	f := figures{min: missing, median: missing, max: missing, missing: len(outcomes) - len(all)}
	if n := len(all); n > 0 {
		slices.Sort(all)
		f.min, f.max = all[0], all[n-1]
		f.median = (all[(n-1)/2] + all[n/2]) / 2
	}
	return f
}

func show(d time.Duration) string {
	if d < 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f s", d.Seconds())
}

func ratio(a, b time.Duration) float64 {
	if b <= 0 {
		return 0
	}
	return float64(a) / float64(b)
}
