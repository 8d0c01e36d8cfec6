//go:build pulsar

// Command comparepulsar does the same harm to a real Pulsar cluster without and with Holdfast,
// and stands what clients and operators see of both side by side: the longest gap, messages
// lost and duplicated, brokers that serve at the end, and what an operator must do.
//
// Each fault is one row, on two new clusters at the same time, so that what else the machine does
// harms both alike: etcd, a bookie, three brokers, eight topics in four bundles with 50 publishes a
// second each. The first broker has two of the bundles, and the fault. Brokers that end are started
// again, as a supervisor does, unless the row says otherwise. Bundles move for the fault alone:
// Pulsar's own shedding is off, since it goes by how busy the machine is.
//
// Packets are dropped in a network namespace of the program's own. Where it cannot have one, the
// rows that need it are left out, and that is said. Exit code 1: a row is worse, or could not be
// made. Gaps on a busy machine say little, so its load stands beside them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"holdfast/lab/harness"
)

var managers = map[string]string{"Modular": harness.ModularLoadManager, "Extensible": harness.ExtensibleLoadManager}

// beside are the sidecar's flags, as the page about Pulsar has them.
var beside = []string{"--registration", "own", "--lease-ttl", "60s"}

// plan is what to compare.
type plan struct {
	only    *regexp.Regexp
	manager string
	watch   time.Duration // how long to look on after a fault, at least
	logs    string
}

func main() {
	var p plan
	only := flag.String("run", "", "regular expression of the rows to do")
	flag.StringVar(&p.manager, "manager", "Modular", "load manager of the brokers: Modular or Extensible")
	flag.DurationVar(&p.watch, "watch", 45*time.Second, "how long to look on after a fault, at least; a session is 30 s")
	flag.StringVar(&p.logs, "logs", "", "directory for the logs of each row; empty: none are kept")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := p.compare(ctx, *only)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare-pulsar:", err)
		os.Exit(1)
	}
}

// compare prints the table, a row as soon as it is made.
func (p plan) compare(ctx context.Context, only string) (err error) {
	if p.only, err = regexp.Compile(only); err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	if managers[p.manager] == "" || flag.NArg() > 0 {
		return fmt.Errorf("-manager is Modular or Extensible, and there are no arguments: %q", flag.Args())
	}
	if err := harness.PulsarParts(ctx); err != nil {
		return err
	}
	for _, program := range []harness.Program{harness.Holdfast, harness.EtcdServer} {
		if _, err := harness.Build(program); err != nil {
			return err
		}
	}
	noCuts := enterOwnNetwork()
	fmt.Println("| fault | | longest gap | lost | duplicated | serving at the end | an operator must | load |\n|---|---|---|---|---|---|---|---|")
	var bad []error
	for _, f := range faults {
		if !p.only.MatchString(f.name) || ctx.Err() != nil {
			continue
		}
		if f.cuts && noCuts != nil {
			fmt.Fprintf(os.Stderr, "compare-pulsar: %s: left out: packets cannot be dropped: %v\n", f.name, noCuts)
			continue
		}
		bare, with, err := p.play(ctx, f)
		if err == nil {
			fmt.Printf("| %s | bare | %s |\n| | with | %s |\n", f.name, bare, with)
			err = with.worse(bare)
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("%s: %w", f.name, err))
		}
	}
	return errors.Join(append(bad, ctx.Err())...)
}

// play makes a row, both sides at the same time.
func (p plan) play(ctx context.Context, f fault) (bare, with outcome, err error) {
	began := time.Now()
	var stages [2]*stage
	names, outcomes := [2]string{"bare", "holdfast"}, [2]*outcome{&bare, &with}
	both := func(do func(i int) error) error {
		var errs [2]error
		var group sync.WaitGroup
		for i := range errs {
			group.Go(func() { errs[i] = do(i) })
		}
		group.Wait()
		return errors.Join(errs[:]...)
	}
	defer func() {
		err = errors.Join(err, both(func(i int) error {
			if stages[i] == nil {
				return nil // it has not begun
			}
			return stages[i].close(filepath.Join(p.logs, f.name, names[i]))
		}))
	}()
	if err := both(func(i int) (err error) {
		stages[i], err = p.setUp(ctx, f, i == 1, func(format string, args ...any) {
			fmt.Fprintf(os.Stderr, "[%5.1fs] %s, %s: %s\n", time.Since(began).Seconds(), f.name, names[i], fmt.Sprintf(format, args...))
		})
		return err
	}); err != nil {
		return bare, with, err
	}
	return bare, with, both(func(i int) (err error) { *outcomes[i], err = stages[i].measure(ctx); return err })
}
