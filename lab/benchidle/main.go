// Command benchidle measures what a sidecar and its guard cost while nothing happens:
// time of the processor, and how often a thread of theirs is switched out, which is
// about how often they wake.
//
// The sidecar has default settings, a NATS server with a few topics, a pid file, so
// that it has a guard, and an etcd of three members. Beside it, in the same minutes, runs
// a bare client of the same etcd that renews a lease and reads a key on the schedule of
// the sidecar, and does nothing else. Broker, etcd and this program are other processes.
//
// The time of the processor depends on the machine and on who shares its caches; the
// ratio to the bare client depends on that less. Exit code 1: something happened
// meanwhile, or a limit is exceeded; 75: so it is, and this machine stood still. A limit of
// 0 is none.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"holdfast/lab/harness"
	"holdfast/standstill"
)

const (
	id = "n1"
	// ttl is the default of --lease-ttl.
	ttl = 32 * time.Second
	// startBound is how long the lab may take to be ready.
	startBound = 60 * time.Second
)

var topics = []string{"/default/orders", "/default/invoices", "/default/parcels"}

// plan is what to measure.
type plan struct {
	length, settle       time.Duration
	cpu, switches, ratio float64 // limits
}

func main() {
	if endpoints := os.Getenv(bareVariable); endpoints != "" {
		if err := bare(strings.Split(endpoints, ",")); err != nil {
			fmt.Fprintln(os.Stderr, "bare client:", err)
			os.Exit(1)
		}
		return
	}
	p := plan{}
	flag.DurationVar(&p.length, "for", 10*time.Minute, "how long to measure")
	flag.DurationVar(&p.settle, "settle", 15*time.Second, "how long to leave what the start began")
	flag.Float64Var(&p.cpu, "cpu", 0.26, "most of one core that sidecar and guard may use, in percent; 0: no limit")
	flag.Float64Var(&p.switches, "switches", 56, "most switches a second; 0: no limit")
	flag.Float64Var(&p.ratio, "ratio", 0, "most times the processor of the bare client, where others keep the machine busy; 0: no limit")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := bench(ctx, os.Stdout, p)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-idle:", err)
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
	etcd, err := lab.StartEtcdCluster(ctx, 3, harness.EtcdOptions{})
	if err != nil {
		return err
	}
	var endpoints []string
	for _, m := range etcd.Members {
		endpoints = append(endpoints, m.Endpoint())
	}
	sidecar, err := start(ctx, lab, etcd, endpoints)
	if err != nil {
		return err
	}
	bare, stop, err := startBare(endpoints)
	if err != nil {
		return err
	}
	defer stop()
	if err := harness.Wait(ctx, p.settle); err != nil {
		return err
	}
	guard := sidecar.Guard()
	parties := []*party{{name: "sidecar", pid: sidecar.PID()}, {name: "guard", pid: guard}, {name: "bare client", pid: bare}}
	events, err := sidecar.Events(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d topics, %d etcd endpoints, TTL %v; %v\n", len(topics), len(endpoints), ttl, p.length)
	defer standstill.Watch()()
	began := time.Now()
	defer func() { err = excused(err, standstill.For(began, time.Now()), p.length) }()
	if err := measure(ctx, p.length, parties); err != nil {
		return err
	}
	now, err := sidecar.Events(ctx)
	if err != nil {
		return err
	}
	if g := sidecar.Guard(); len(now) != len(events) || g != guard || !sidecar.Ready(ctx) {
		return fmt.Errorf("it was not idle: %+v, guard %d and then %d; logs:\n%s", now[len(events):], guard, g, lab.Logs(10))
	}
	return p.report(out, parties)
}

// start starts a broker and its sidecar and waits until both are ready and guarded.
func start(ctx context.Context, lab *harness.Lab, etcd *harness.EtcdCluster, endpoints []string) (*harness.Sidecar, error) {
	if err := (harness.Keys{}).Assign(ctx, etcd.Client(), id, topics...); err != nil {
		return nil, err
	}
	broker, err := lab.StartNATS(ctx, harness.NATSOptions{Name: id})
	if err != nil {
		return nil, err
	}
	sidecar, err := lab.StartSidecar(harness.SidecarOptions{Broker: broker, Endpoints: endpoints,
		Flags: []string{"--broker-pid-file", broker.PIDFile}})
	if err != nil {
		return nil, err
	}
	if err := sidecar.AwaitReady(ctx, startBound); err != nil {
		return nil, err
	}
	return sidecar, sidecar.AwaitGuarded(ctx, startBound)
}

// party is one of the processes that are measured.
type party struct {
	name string
	pid  int
	uses rate
}

// measure lets the time pass and notes what each process used of it.
func measure(ctx context.Context, length time.Duration, parties []*party) error {
	before := make([]usage, len(parties))
	for i, p := range parties {
		var err error
		if before[i], err = look(p.pid); err != nil {
			return fmt.Errorf("measure the %s: %w", p.name, err)
		}
	}
	if err := harness.Wait(ctx, length); err != nil {
		return err
	}
	for i, p := range parties {
		after, err := look(p.pid)
		if err != nil {
			return fmt.Errorf("measure the %s: %w", p.name, err)
		}
		p.uses = after.since(before[i])
	}
	return nil
}

// report prints what was used; the error says which limit is exceeded.
func (p plan) report(out io.Writer, parties []*party) error {
	sidecar, guard, bare := parties[0].uses, parties[1].uses, parties[2].uses
	both := sidecar.plus(guard)
	fmt.Fprintf(out, "\n%-20s %15s %15s\n", "", "% OF ONE CORE", "SWITCHES/S")
	for _, line := range []struct {
		name string
		rate
	}{{"sidecar", sidecar}, {"guard", guard}, {"sidecar and guard", both}, {"bare client", bare}} {
		fmt.Fprintf(out, "%-20s %15.3f %15.1f\n", line.name, line.percent, line.switches)
	}
	fmt.Fprintf(out, "\nSidecar and guard, to the bare client: %.2f times the processor, %.2f times the switches\n",
		both.percent/bare.percent, both.switches/bare.switches)
	var errs []error
	if p.cpu > 0 && both.percent > p.cpu {
		errs = append(errs, fmt.Errorf("sidecar and guard use %.3f %% of a core, at most %.3f %% is allowed", both.percent, p.cpu))
	}
	if p.switches > 0 && both.switches > p.switches {
		errs = append(errs, fmt.Errorf("sidecar and guard are switched %.1f times a second, at most %.1f are allowed", both.switches, p.switches))
	}
	if times := both.percent / bare.percent; p.ratio > 0 && times > p.ratio {
		errs = append(errs, fmt.Errorf("sidecar and guard use %.2f times what the bare client does, at most %.2f is allowed", times, p.ratio))
	}
	return errors.Join(errs...)
}

// excused says that nobody knows what a failure means on a machine that stood still for more
// than a hundredth of the time.
func excused(err error, stood, length time.Duration) error {
	if err == nil || stood <= length/100 {
		return err
	}
	return fmt.Errorf("%w: stood still for %v of %v: %w", standstill.ErrUnjudged, stood.Round(time.Millisecond), length, err)
}
