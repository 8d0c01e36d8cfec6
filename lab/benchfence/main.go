// Command benchfence measures how long before the end of its lease a broker has
// stopped serving, fault by fault:
//
//   - its sidecar cannot stop it: frozen (SIGSTOP), killed -9, or starved (1 % of the time,
//     by signals or by a quota of the cgroup), while etcd is frozen or black-holed;
//   - the leader of etcd hangs in its disk: another one leads and expires the lease, and this
//     one goes on confirming renewals;
//   - the sidecar is frozen, and whoever started the broker starts it again after each end;
//   - the sidecar is killed -9 in a black hole and started again, once at a tenth of the TTL
//     or at each of them;
//   - the broker is quiesced in a black hole, and other hands bring its topic back.
//
// Each run is a lab of its own: an etcd, a NATS server, a sidecar with its guard, and
// a client that publishes all the time, ignores /ready, and notes when it got a
// message stored. Faults come at random moments; those that harm a sidecar up to the last
// third of the TTL after the one of etcd, so that they also hit a fence that is under way.
// The deadline is what the sidecar's status says last; the end of the key
// from a watch on an etcd that was never cut. An etcd that was frozen runs on from the
// deadline, the first moment at which it may take the key away, and is cut off from the
// sidecar then.
//
// Distributions are printed: from the last served message to the deadline, to the moment
// at which the key was gone, and for how long others had a topic served: from its return by
// other hands, or by a broker that was started when the key was gone, to the last message. Exit code 1: one of the first two is not above zero in some run,
// one of the third is above its limit, or a broker was not stopped, or a key never went.
// Exit code 75: else, but for a run that could not be judged; see package standstill. A lab
// that does not come up is made once more.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"sync"
	"syscall"
	"time"

	"holdfast/internal/testseed"
	"holdfast/lab/harness"
	"holdfast/standstill"
)

// plan is what to measure.
type plan struct {
	each, parallel int
	only           *regexp.Regexp
	ttl            time.Duration
	seed           uint64
	guard          string // "on", or "off" for what it is without
}

func main() {
	p := plan{}
	flag.IntVar(&p.each, "each", 5, "runs of each fault")
	flag.IntVar(&p.parallel, "parallel", 12, "runs at a time; they mostly wait")
	only := flag.String("only", "", "regular expression of the faults to do")
	flag.DurationVar(&p.ttl, "ttl", 6*time.Second, "TTL of the leases, in whole seconds")
	flag.Uint64Var(&p.seed, "seed", testseed.Value(), "of the moments of the faults")
	flag.StringVar(&p.guard, "guard", "on", "on or off: off shows what the guard is for")
	flag.Parse()
	var err error
	if p.only, err = regexp.Compile(*only); err != nil {
		fmt.Fprintln(os.Stderr, "bench-fence: -only:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ended := standstill.Watch()
	ok, err := bench(ctx, os.Stdout, p)
	ended()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-fence:", err)
	}
	switch {
	case errors.Is(err, standstill.ErrUnjudged) && ok:
		os.Exit(standstill.ExitCode)
	case err != nil || !ok:
		os.Exit(1)
	}
}

func bench(ctx context.Context, out io.Writer, p plan) (bool, error) {
	for _, program := range []harness.Program{harness.Holdfast, harness.EtcdServer, harness.NATSServer} {
		if _, err := harness.Build(program); err != nil {
			return false, err
		}
	}
	if err := harness.CanDropPackets(); err != nil {
		fmt.Fprintf(out, "Note: packets cannot be dropped here (%v): black holes are made by a proxy.\n", err)
	}
	var runs []*run
	for i := range p.each { // each in turn, so that those that compute are not together
		for k, f := range faults(out, i) {
			if p.only.MatchString(f.name) {
				runs = append(runs, &run{plan: p, fault: f, number: i, rng: rand.New(rand.NewPCG(p.seed, uint64(i*1000+k)))})
			}
		}
	}
	fmt.Fprintf(out, "%d runs, %d at a time, TTL %v, guard %s, seed %d\n", len(runs), p.parallel, p.ttl, p.guard, p.seed)
	began := time.Now()
	outcomes := make([]outcome, len(runs))
	slots := make(chan struct{}, p.parallel)
	var underway sync.WaitGroup
	var mu sync.Mutex // of out
	for i, r := range runs {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		underway.Go(func() {
			defer func() { <-slots }()
			say := func(o outcome) {
				mu.Lock()
				defer mu.Unlock()
				fmt.Fprintf(out, "[%5.1fs] run %2d: %s\n", time.Since(began).Seconds(), i+1, o)
			}
			o := r.play(ctx)
			if errors.Is(o.err, errNotUp) && ctx.Err() == nil { // of the fault it says nothing
				say(o)
				o = (&run{plan: r.plan, fault: r.fault, number: r.number, rng: r.rng}).play(ctx)
			}
			outcomes[i] = o
			say(o)
		})
	}
	underway.Wait()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	return report(out, outcomes)
}
