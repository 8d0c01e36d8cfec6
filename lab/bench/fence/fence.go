// Package fence measures how long before the end of its lease a broker has
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
// other hands, or by a broker that was started when the key was gone, to the last message. It fails
// if one of the first two is not above zero in some run, one of the third is above its limit, or a
// broker was not stopped, or a key never went; and where it is unjudged, see package standstill. A
// lab that does not come up is made once more.
package fence

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"sync"
	"time"

	"holdfast/internal/testseed"
	"holdfast/lab/bench/kit"
	"holdfast/lab/harness"
	"holdfast/standstill"
)

// plan is what to measure.
type plan struct {
	each, parallel int
	only           string
	ttl            time.Duration
	seed           uint64
	guard          string // "on", or "off" for what it is without
	margin         float64
}

// Bench declares its flags.
func Bench(flags *flag.FlagSet) kit.Bench {
	p := plan{}
	flags.IntVar(&p.each, "each", 5, "runs of each fault")
	flags.IntVar(&p.parallel, "parallel", 12, "runs at a time; they mostly wait")
	flags.StringVar(&p.only, "only", "", "regular expression of the faults to do")
	flags.DurationVar(&p.ttl, "ttl", 6*time.Second, "TTL of the leases, in whole seconds")
	flags.Uint64Var(&p.seed, "seed", testseed.Value(), "of the moments of the faults")
	flags.StringVar(&p.guard, "guard", "on", "on or off: off shows what the guard is for")
	flags.Float64Var(&p.margin, "margin", 0.3, "seconds before its deadline at which each broker has stopped")
	return p.run
}

func (p *plan) run(ctx context.Context, out io.Writer) ([]kit.Limit, error) {
	only, err := regexp.Compile(p.only)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	for _, program := range []harness.Program{harness.Holdfast, harness.EtcdServer, harness.NATSServer} {
		if _, err := harness.Build(program); err != nil {
			return nil, err
		}
	}
	if err := harness.CanDropPackets(); err != nil {
		fmt.Fprintf(out, "Note: packets cannot be dropped here (%v): black holes are made by a proxy.\n", err)
	}
	defer standstill.Watch()()
	var all []func() outcome
	for i := range p.each { // each in turn, so that those that compute are not together
		for k, f := range faults(out, i) {
			if only.MatchString(f.name) {
				rng := rand.New(rand.NewPCG(p.seed, uint64(i*1000+k)))
				all = append(all, func() outcome { return (&run{plan: *p, fault: f, rng: rng}).play(ctx) })
			}
		}
	}
	fmt.Fprintf(out, "%d runs, %d at a time, TTL %v, guard %s, seed %d\n", len(all), p.parallel, p.ttl, p.guard, p.seed)
	began := time.Now()
	outcomes := make([]outcome, len(all))
	slots := make(chan struct{}, p.parallel)
	var underway sync.WaitGroup
	var mu sync.Mutex // of out
	for i, play := range all {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		underway.Go(func() {
			defer func() { <-slots }()
			for range 2 {
				outcomes[i] = play()
				mu.Lock()
				fmt.Fprintf(out, "[%5.1fs] run %2d: %s\n", time.Since(began).Seconds(), i+1, outcomes[i])
				mu.Unlock()
				if !errors.Is(outcomes[i].err, errNotUp) || ctx.Err() != nil {
					return // else it says nothing of the fault
				}
			}
		})
	}
	underway.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return p.report(out, outcomes), nil
}
