// Command guardload runs a broker, its sidecar and its guard on a machine on which
// every processor is busy with something else all the time, and checks that the guard
// leaves the broker of a healthy sidecar alone.
//
// The load is two processes that only count for each processor, at the priority that
// everybody has; sidecar, guard, broker and etcd have to do with what the scheduler
// leaves them.
//
// Exit code 1: the guard stopped the broker, or the broker or the guard ended, or the
// sidecar did not renew.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"holdfast/lab/harness"
)

const (
	id = "n1"
	// startBound is how long the lab may take to be ready; the load comes after that.
	startBound = 60 * time.Second
	lookEvery  = 20 * time.Millisecond
	tellEvery  = 30 * time.Second
)

// burnVariable makes a process that counts until it is killed.
const burnVariable = "HOLDFAST_GUARDLOAD_BURN"

func main() {
	if os.Getenv(burnVariable) != "" {
		for i := uint64(0); ; i++ {
		}
	}
	length := flag.Duration("for", 5*time.Minute, "how long")
	ttl := flag.Duration("ttl", 10*time.Second, "TTL of the lease, in whole seconds")
	busy := flag.Int("busy", 2, "busy processes for each processor")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := load(ctx, os.Stdout, *length, *ttl, *busy)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "guard-load:", err)
		os.Exit(1)
	}
}

func load(ctx context.Context, out io.Writer, length, ttl time.Duration, busy int) (err error) {
	lab, err := harness.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	broker, sidecar, err := start(ctx, lab, ttl)
	if err != nil {
		return err
	}
	guard := sidecar.Guard()
	burners := busy * runtime.NumCPU()
	stop, err := burn(burners)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Fprintf(out, "%d busy processes on %d processors for %v, TTL %v\n", burners, runtime.NumCPU(), length, ttl)

	began := time.Now()
	told, closest, words := began, ttl, 0
	var last time.Time
	for time.Since(began) < length && ctx.Err() == nil {
		st, err := sidecar.Status(ctx)
		switch {
		case !broker.Running() || !sidecar.Running():
			return fmt.Errorf(harness.Violation+"the broker or the sidecar ended:\n%s", lab.Logs(20))
		case syscall.Kill(guard, 0) != nil:
			return fmt.Errorf(harness.Violation+"the guard ended:\n%s", lab.Logs(20))
		case err != nil && ctx.Err() == nil:
			return err
		case err == nil:
			if st.Deadline().Sub(last) > lookEvery { // two readings of the clocks differ a little
				words, last = words+1, st.Deadline()
			}
			closest = min(closest, time.Until(last))
		}
		if time.Since(told) >= tellEvery {
			told = time.Now()
			fmt.Fprintf(out, "[%5.0fs] %d renewals; never nearer to the deadline than %.3f s\n", time.Since(began).Seconds(), words, closest.Seconds())
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	private, err := harness.PrivateMemory(guard)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "No stop in %v: %d renewals, never nearer to the deadline than %.3f s of %v; the guard has %.1f MB for itself\n",
		length, words, closest.Seconds(), ttl, float64(private)/1e6)
	if least := int(length/(ttl/8)) / 2; words < least {
		return fmt.Errorf("%d renewals in %v, want at least %d: this sidecar was not healthy", words, length, least)
	}
	return nil
}

// start starts etcd, a broker and its sidecar, and waits for the guard.
func start(ctx context.Context, lab *harness.Lab, ttl time.Duration) (*harness.NATS, *harness.Sidecar, error) {
	etcd, err := lab.StartEtcd(ctx, harness.EtcdOptions{})
	if err != nil {
		return nil, nil, err
	}
	if err := (harness.Keys{}).Assign(ctx, etcd.Client(), id, "/default/orders"); err != nil {
		return nil, nil, err
	}
	broker, err := lab.StartNATS(ctx, harness.NATSOptions{Name: id})
	if err != nil {
		return nil, nil, err
	}
	sidecar, err := lab.StartSidecar(harness.SidecarOptions{Broker: broker, Endpoints: []string{etcd.Endpoint()},
		Flags: []string{"--lease-ttl", ttl.String(), "--broker-pid-file", broker.PIDFile}})
	if err != nil {
		return nil, nil, err
	}
	if err := sidecar.AwaitReady(ctx, startBound); err != nil {
		return nil, nil, err
	}
	return broker, sidecar, sidecar.AwaitGuarded(ctx, startBound)
}

// burn starts n processes that die with this one.
func burn(n int) (stop func(), err error) {
	// The parent-death signal is bound to the thread that forked.
	runtime.LockOSThread()
	var all []*exec.Cmd
	stop = func() {
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
		}
		runtime.UnlockOSThread()
	}
	for range n {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), burnVariable+"=1", "GOMAXPROCS=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			stop()
			return nil, fmt.Errorf("start a busy process: %w", err)
		}
		all = append(all, cmd)
	}
	return stop, nil
}
