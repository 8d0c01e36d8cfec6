// Command benchetcd measures what a sidecar's two requests to etcd cost when many others
// are registered: the look on which a registration is decided (cluster.Snapshot), and the
// transaction that writes it (cluster.Register), which every member of etcd applies one by
// one. The baseline is the same request on the same etcd below a prefix with few
// registrations. The two take turns, and a figure is the median of all of them.
//
// It also shows, without a limit, what is not meant to be that cheap: the first look of a
// process, which knows no peer yet and has etcd count all registrations, and the look that
// asks for the oldest peer, of a broker that registers itself, which has etcd sort them.
//
// Exit code 1: the ratio of one of the first two is above -limit; 75: it is, but not without
// the time for which this process stood still.
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

	"holdfast/lab/harness"
	"holdfast/standstill"
)

// plan is what to measure.
type plan struct {
	few, many, turns int
	limit            float64
}

func main() {
	p := plan{}
	flag.IntVar(&p.few, "few", 10, "registrations of the baseline")
	flag.IntVar(&p.many, "many", 10_000, "registrations of what is measured")
	flag.IntVar(&p.turns, "turns", 300, "times that each request is made")
	flag.Float64Var(&p.limit, "limit", 1.5, "largest accepted ratio")
	flag.Parse()
	if p.few < 2 || p.many < p.few || p.turns < 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "benchetcd: -few must be at least 2, -many at least that, -turns at least 1, and there are no arguments")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := bench(ctx, os.Stdout, p)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchetcd:", err)
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
	etcd, err := lab.StartEtcd(ctx, harness.EtcdOptions{Heartbeat: 100 * time.Millisecond, Election: time.Second})
	if err != nil {
		return err
	}
	defer standstill.Watch()()
	few, err := newFleet(ctx, etcd, p.few)
	if err != nil {
		return err
	}
	defer few.close()
	many, err := newFleet(ctx, etcd, p.many)
	if err != nil {
		return err
	}
	defer many.close()
	all := deeds()
	for range p.turns {
		for i := range all {
			for n, f := range []*fleet{few, many} {
				took, err := all[i].once(f, ctx)
				if err != nil {
					return fmt.Errorf("%s among %d registrations: %w", all[i].name, f.size, err)
				}
				all[i].took[n] = append(all[i].took[n], took)
			}
		}
	}
	return report(out, p, all)
}

// took is how long one request took, and how much of that this process stood still.
type took struct{ whole, still time.Duration }

// deed is a request, and how long it took each time: among few registrations, among many.
type deed struct {
	name   string
	judged bool
	once   func(*fleet, context.Context) (took, error)
	took   [2][]took
}

func deeds() []deed {
	return []deed{
		{name: "register", judged: true, once: (*fleet).register},
		{name: "look again", judged: true, once: (*fleet).lookAgain},
		{name: "first look", once: (*fleet).firstLook},
		{name: "look, with the oldest peer", once: (*fleet).lookForOldest},
	}
}

// ratio is that of the medians.
func (d deed) ratio(of func(took) time.Duration) float64 {
	return float64(median(d.took[1], of)) / float64(max(1, median(d.took[0], of)))
}

func median(all []took, of func(took) time.Duration) time.Duration {
	var v []time.Duration
	for _, t := range all {
		v = append(v, of(t))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func whole(t took) time.Duration       { return t.whole }
func undisturbed(t took) time.Duration { return max(0, t.whole-t.still) }

// report prints the table and says whether the limit holds.
func report(out io.Writer, p plan, all []deed) error {
	fmt.Fprintf(out, "Median of %d requests to one etcd; the baseline is the one among %d registrations.\n", p.turns, p.few)
	fmt.Fprintf(out, "%-28s %12s %12s %8s\n", "", fmt.Sprintf("AMONG %d", p.few), fmt.Sprintf("AMONG %d", p.many), "RATIO")
	var errs []error
	for _, d := range all {
		ratio := d.ratio(whole)
		fmt.Fprintf(out, "%-28s %12v %12v %8.2f\n", d.name, median(d.took[0], whole).Round(time.Microsecond), median(d.took[1], whole).Round(time.Microsecond), ratio)
		switch alone := d.ratio(undisturbed); {
		case !d.judged || ratio <= p.limit:
		case alone <= p.limit:
			errs = append(errs, fmt.Errorf("%w: %s: ratio %.2f, without the time for which this process stood still %.2f", standstill.ErrUnjudged, d.name, ratio, alone))
		default:
			return fmt.Errorf("%s: ratio %.2f is above %.2f", d.name, ratio, p.limit)
		}
	}
	if len(errs) == 0 {
		fmt.Fprintf(out, "ok: at most %.2f\n", p.limit)
	}
	return errors.Join(errs...)
}
