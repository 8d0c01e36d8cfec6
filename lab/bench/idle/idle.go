// Package idle measures what a sidecar and its guard cost while nothing happens: time of the
// processor, and how often a thread of theirs is switched out, which is about how often they wake.
//
// The sidecar has default settings, a NATS server with a few topics, a pid file, so
// that it has a guard, and an etcd of three members. Beside it, in the same minutes, runs
// a bare client of the same etcd that renews a lease and reads a key on the schedule of
// the sidecar, and does nothing else. Broker, etcd and this program are other processes.
//
// The time of the processor depends on the machine and on who shares its caches; the
// ratio to the bare client depends on that less. It fails if something happened meanwhile.
package idle

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"holdfast/lab/bench/kit"
	"holdfast/lab/harness"
)

const (
	id  = "n1"
	ttl = 32 * time.Second // the default of --lease-ttl
)

var topics = []string{"/default/orders", "/default/invoices", "/default/parcels"}

type plan struct {
	length, settle       time.Duration
	cpu, switches, ratio float64
}

// Bench declares its flags. A limit of 0 is none.
func Bench(flags *flag.FlagSet) kit.Bench {
	p := plan{}
	flags.DurationVar(&p.length, "for", 10*time.Minute, "how long to measure")
	flags.DurationVar(&p.settle, "settle", 15*time.Second, "how long to leave what the start began")
	flags.Float64Var(&p.cpu, "cpu", 0.26, "most of one core that sidecar and guard may use, in percent; 0: no limit")
	flags.Float64Var(&p.switches, "switches", 56, "most switches a second; 0: no limit")
	flags.Float64Var(&p.ratio, "ratio", 0, "most times the processor of the bare client, where others keep the machine busy; 0: no limit")
	return func(ctx context.Context, out io.Writer) ([]kit.Limit, error) {
		return kit.InLab(func(lab *harness.Lab) ([]kit.Limit, error) { return p.run(ctx, out, lab) })
	}
}

func (p plan) run(ctx context.Context, out io.Writer, lab *harness.Lab) ([]kit.Limit, error) {
	etcd, err := lab.StartEtcdCluster(ctx, 3, harness.EtcdOptions{})
	if err != nil {
		return nil, err
	}
	var endpoints []string
	for _, m := range etcd.Members {
		endpoints = append(endpoints, m.Endpoint())
	}
	if err := (harness.Keys{}).Assign(ctx, etcd.Client(), id, topics...); err != nil {
		return nil, err
	}
	sidecar, err := kit.Start(ctx, lab, kit.About{ID: id, Endpoints: endpoints, Control: true})
	if err != nil {
		return nil, err
	}
	bare, stop, err := kit.Child("bare", strings.Join(endpoints, ","))
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := harness.Wait(ctx, p.settle); err != nil {
		return nil, err
	}
	guard := sidecar.Guard()
	events, err := sidecar.Events(ctx)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "%d topics, %d etcd endpoints, TTL %v; %v\n", len(topics), len(endpoints), ttl, p.length)
	rates, err := measure(ctx, p.length, sidecar.PID(), guard, bare)
	if err != nil {
		return nil, err
	}
	now, err := sidecar.Events(ctx)
	if err != nil {
		return nil, err
	}
	if g := sidecar.Guard(); len(now) != len(events) || g != guard || !sidecar.Ready(ctx) {
		return nil, fmt.Errorf("it was not idle: %+v, guard %d and then %d", now[len(events):], guard, g)
	}
	return p.report(out, rates), nil
}

// measure lets the time pass and notes what each process used of it.
func measure(ctx context.Context, length time.Duration, pids ...int) (rates []kit.Rate, err error) {
	before := make([]kit.Usage, len(pids))
	for i, pid := range pids {
		if before[i], err = kit.Look(pid); err != nil {
			return nil, err
		}
	}
	if err := harness.Wait(ctx, length); err != nil {
		return nil, err
	}
	for i, pid := range pids {
		after, err := kit.Look(pid)
		if err != nil {
			return nil, err
		}
		rates = append(rates, after.Since(before[i]))
	}
	return rates, nil
}

func (p plan) report(out io.Writer, rates []kit.Rate) (limits []kit.Limit) {
	both, bare := rates[0].Plus(rates[1]), rates[2]
	fmt.Fprintf(out, "\n%-20s %15s %15s\n", "", "% OF ONE CORE", "SWITCHES/S")
	for i, rate := range []kit.Rate{rates[0], rates[1], both, bare} {
		fmt.Fprintf(out, "%-20s %15.3f %15.1f\n", []string{"sidecar", "guard", "sidecar and guard", "bare client"}[i], rate.Percent, rate.Switches)
	}
	times := both.Percent / bare.Percent
	fmt.Fprintf(out, "\nSidecar and guard, to the bare client: %.2f times the processor, %.2f times the switches\n", times, both.Switches/bare.Switches)
	for _, l := range []struct {
		what       string
		got, limit float64
	}{{"percent of a core", both.Percent, p.cpu}, {"switches a second", both.Switches, p.switches}, {"times the bare client's processor", times, p.ratio}} {
		if l.limit > 0 {
			limits = append(limits, kit.AtMost(l.what, l.got, l.limit))
		}
	}
	return limits
}
