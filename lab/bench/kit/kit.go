// Package kit is what benches have in common: limits, medians, what a process uses, a child that
// keeps the machine busy or is compared with, and a broker with its sidecar.
package kit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"holdfast/lab/harness"
)

// Bench measures, prints its figures and returns its limits. It is made from its flags.
type Bench func(ctx context.Context, out io.Writer) ([]Limit, error)

// Limit is a figure that must not be above another one, or not below it.
type Limit struct {
	what       string
	got, bound float64
	least      bool
}

// AtMost is a limit that holds where got is not above it. Times are in seconds.
func AtMost(what string, got, limit float64) Limit { return Limit{what, got, limit, false} }

// AtLeast is like AtMost where got is not below it.
func AtLeast(what string, got, limit float64) Limit { return Limit{what, got, limit, true} }

// Holds says whether it does. What is no number does not.
func (l Limit) Holds() bool { return l.got <= l.bound && !l.least || l.got >= l.bound && l.least }

func (l Limit) String() string {
	word, verdict := "at most", "ok"
	if l.least {
		word = "at least"
	}
	if !l.Holds() {
		verdict = "BROKEN"
	}
	return fmt.Sprintf("%-6s  %s: %.3g, %s %.3g", verdict, l.what, l.got, word, l.bound)
}

// Median is Share of a half.
func Median[N cmp.Ordered](all []N) N { return Share(all, 0.5) }

// Share is the value that such a part of all does not exceed; of none it is 0.
func Share[N cmp.Ordered](all []N, part float64) (n N) {
	if len(all) == 0 {
		return n
	}
	all = slices.Sorted(slices.Values(all))
	return all[min(int(part*float64(len(all))), len(all)-1)]
}

// StartBound is how long what a bench starts may take to be ready.
const StartBound = 2 * time.Minute

// InLab runs a bench in a lab of its own. An error is returned with what the processes said last.
func InLab(do func(*harness.Lab) ([]Limit, error)) (limits []Limit, err error) {
	lab, err := harness.New()
	if err != nil {
		return nil, err
	}
	if limits, err = do(lab); err != nil {
		err = fmt.Errorf("%w; logs:\n%s", err, lab.Logs(15))
	}
	return limits, errors.Join(err, lab.Close())
}

// Couple is a broker and its sidecar.
type Couple struct {
	*harness.Sidecar
	Broker *harness.NATS
}

// About says how a couple is started.
type About struct {
	ID        string
	Place     harness.Place
	Endpoints []string // of etcd
	Control   bool     // the sidecar knows the broker's pid file, and so has a guard
	Unguarded bool
	Flags     []string
}

// Start starts a broker and its sidecar, and waits until it is ready, and guarded if it can be.
func Start(ctx context.Context, lab *harness.Lab, a About) (c Couple, err error) {
	if c.Broker, err = lab.StartNATS(ctx, harness.NATSOptions{Name: a.ID, Place: a.Place}); err != nil {
		return c, err
	}
	if a.Control {
		a.Flags = append(a.Flags, "--broker-pid-file", c.Broker.PIDFile)
	}
	if a.Unguarded {
		a.Flags = append(a.Flags, "--guard", "off")
	}
	if c.Sidecar, err = lab.StartSidecar(harness.SidecarOptions{Broker: c.Broker, Endpoints: a.Endpoints, Flags: a.Flags}); err != nil {
		return c, err
	}
	if err := c.AwaitReady(ctx, StartBound); err != nil || !a.Control || a.Unguarded {
		return c, err
	}
	return c, c.AwaitGuarded(ctx, StartBound)
}

// childVariable makes this program the child of a bench: what it is to be, and an argument.
const childVariable = "HOLDFAST_BENCH_CHILD"

// BeChild does not return where this process is a child.
func BeChild(all map[string]func(string) error) {
	word, argument, _ := strings.Cut(os.Getenv(childVariable), " ")
	if be := all[word]; be != nil {
		fmt.Fprintln(os.Stderr, word, "child:", be(argument))
		os.Exit(1)
	}
}

// Child starts this program again as a child, which dies with it.
func Child(word, argument string) (pid int, stop func(), err error) {
	runtime.LockOSThread() // the parent-death signal is bound to the thread that forked
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"="+word+" "+argument)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		runtime.UnlockOSThread()
		return 0, nil, fmt.Errorf("start a %s child: %w", word, err)
	}
	return cmd.Process.Pid, func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		runtime.UnlockOSThread()
	}, nil
}

// Registration is a value as long as a sidecar's own.
const Registration = `{"broker_url":"nats://10.0.0.1:4222","connect_url":"nats://10.0.0.1:4222","admin_addr":"10.0.0.1:8222",` +
	`"prom_exporter":"10.0.0.1:7777","incarnation":"0123456789abcdef0123456789abcdef","run":"0123456789abcdef"}`
