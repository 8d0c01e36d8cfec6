// Command benchfence measures how long before the end of its lease a broker has
// stopped serving when its sidecar cannot stop it: frozen (SIGSTOP), killed -9, or
// starved (1 % of the time, by signals or by a quota of the cgroup), while etcd is
// frozen or black-holed.
//
// Each run is a lab of its own: an etcd, a NATS server, a sidecar with its guard, and
// a client that publishes all the time, ignores /ready, and notes when it last got a
// message stored. Both faults come at random moments, up to the last third of the TTL
// apart, so that they also hit a fence that is under way. The deadline is read from
// the memory that sidecar and guard share; the end of the key from a watch on etcd
// that was never cut. An etcd that was frozen runs on from the deadline, the first
// moment at which it may take the key away, and is cut off from the sidecar then.
//
// Two distributions are printed: from the last served message to the deadline, and to
// the moment at which the key was gone. Exit code 1: one of them is not above zero in
// some run, or a broker was not stopped, or a key never went.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"holdfast/lab/harness"
)

// plan is what to measure.
type plan struct {
	runs, parallel int
	ttl            time.Duration
	seed           uint64
	guard          string // "on", or "off" for what it is without
}

func main() {
	p := plan{}
	flag.IntVar(&p.runs, "n", 50, "runs")
	flag.IntVar(&p.parallel, "parallel", 8, "runs at a time")
	flag.DurationVar(&p.ttl, "ttl", 6*time.Second, "TTL of the leases, in whole seconds")
	flag.Uint64Var(&p.seed, "seed", uint64(time.Now().UnixNano()), "of the moments of the faults")
	flag.StringVar(&p.guard, "guard", "on", "on or off: off shows what the guard is for")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := bench(ctx, os.Stdout, p)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-fence:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func bench(ctx context.Context, out io.Writer, p plan) (bool, error) {
	for _, program := range []harness.Program{harness.Holdfast, harness.EtcdServer, harness.NATSServer} {
		if _, err := harness.Build(program); err != nil {
			return false, err
		}
	}
	harms := []harm{frozen, killed, starved}
	if err := canThrottle(); err != nil {
		fmt.Fprintf(out, "Note: no quota of the processor can be set here (%v): starved by signals only.\n", err)
	} else {
		harms = append(harms, throttled)
	}
	if err := harness.CanDropPackets(); err != nil {
		fmt.Fprintf(out, "Note: packets cannot be dropped here (%v): black holes are made by a proxy.\n", err)
	}
	fmt.Fprintf(out, "%d runs, %d at a time, TTL %v, guard %s, seed %d\n", p.runs, p.parallel, p.ttl, p.guard, p.seed)
	began := time.Now()
	outcomes := make([]outcome, p.runs)
	slots := make(chan struct{}, p.parallel)
	var runs sync.WaitGroup
	var mu sync.Mutex // of out
	for i := range p.runs {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		runs.Go(func() {
			defer func() { <-slots }()
			r := &run{plan: p, harm: harms[i/2%len(harms)], hole: i%2 == 1, rng: rand.New(rand.NewPCG(p.seed, uint64(i)))}
			outcomes[i] = r.play(ctx)
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(out, "[%5.1fs] run %2d: %s\n", time.Since(began).Seconds(), i+1, outcomes[i])
		})
	}
	runs.Wait()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	return report(out, outcomes), nil
}

// outcome is one run.
type outcome struct {
	what       string // the faults
	by         string // who stopped the broker
	toDeadline time.Duration
	toGone     time.Duration
	private    int64 // memory of the guard, in bytes; 0: not measured
	err        error // nothing was measured
}

func (o outcome) String() string {
	if o.err != nil {
		return fmt.Sprintf("%-34s %v", o.what, o.err)
	}
	verdict := ""
	if !o.ok() {
		verdict = "  TOO LATE"
	}
	return fmt.Sprintf("%-34s last served %s before the deadline, %s before the key was gone; stopped by the %s%s",
		o.what, seconds(o.toDeadline), seconds(o.toGone), o.by, verdict)
}

func (o outcome) ok() bool { return o.err == nil && o.toDeadline > 0 && o.toGone > 0 }

// report prints the distributions and says whether every run was in time.
func report(out io.Writer, outcomes []outcome) bool {
	good := 0
	kinds := map[string][]outcome{}
	var private int64
	for _, o := range outcomes {
		if o.ok() {
			good++
		}
		if o.err == nil {
			kinds[o.what] = append(kinds[o.what], o)
			kinds["all"] = append(kinds["all"], o)
		}
		private = max(private, o.private)
	}
	for _, f := range []struct {
		title string
		pick  func(outcome) time.Duration
	}{
		{"deadline - last served message", func(o outcome) time.Duration { return o.toDeadline }},
		{"key gone - last served message", func(o outcome) time.Duration { return o.toGone }},
	} {
		fmt.Fprintf(out, "\n%-36s %5s %9s %9s %9s %9s\n", f.title, "RUNS", "MIN", "P50", "P90", "MAX")
		names := []string{}
		for name := range kinds {
			if name != "all" {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range append(names, "all") {
			var all []time.Duration
			for _, o := range kinds[name] {
				all = append(all, f.pick(o))
			}
			if len(all) == 0 {
				continue
			}
			slices.Sort(all)
			fmt.Fprintf(out, "%-36s %5d %9s %9s %9s %9s\n", name, len(all), seconds(all[0]), seconds(quantile(all, 0.5)), seconds(quantile(all, 0.9)), seconds(all[len(all)-1]))
		}
	}
	for i, o := range outcomes {
		if o.err != nil {
			fmt.Fprintf(out, "\nRun %d (%s) measured nothing: %v\n", i+1, o.what, o.err)
		}
	}
	fmt.Fprintf(out, "\nMemory of the guard: at most %.1f MB private, limit %.1f MB\n", float64(private)/1e6, float64(maxPrivate)/1e6)
	fmt.Fprintf(out, "Stopped before the deadline and before the key was gone: %d of %d runs\n", good, len(outcomes))
	return good == len(outcomes) && private <= maxPrivate
}

// maxPrivate is what a guard may have in memory for itself, in bytes.
const maxPrivate = 8 << 20

// quantile is the value that at least the share q of sorted is not above.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*q))]
}

func seconds(d time.Duration) string { return strings.TrimSpace(fmt.Sprintf("%.3f s", d.Seconds())) }
