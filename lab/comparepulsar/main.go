//go:build pulsar

// Command comparepulsar does the same harm to a real Pulsar cluster without and with Holdfast,
// and stands what clients and operators see of both side by side: the longest gap, messages
// lost and duplicated, brokers that serve at the end, and what an operator must do.
//
// Each fault is one row, on two new clusters at the same time, one for each side: etcd, a bookie,
// three brokers, eight topics in four bundles with 50 publishes a second each. The first broker
// has two of the bundles, and the fault. Brokers that end are started again, as a supervisor does,
// unless the row says otherwise. Bundles move for the fault alone: Pulsar's own shedding is off, since it goes by
// how busy the machine is.
//
// A run is kept in a file of its own and not repeated. A row in which Holdfast looks worse is, up
// to three times. Package verdict says what worse is. Exit code 1: a row is worse; 2: a run
// could not be made. Gaps on a busy machine say little, so its load stands beside them.
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

	"holdfast/lab/comparepulsar/verdict"
	"holdfast/lab/harness"
)

// plan is what to compare.
type plan struct {
	dir                string
	only               *regexp.Regexp
	manager, placement string
	watch              time.Duration
	most               int // runs of a row
}

var managers = map[string]string{"Modular": harness.ModularLoadManager, "Extensible": harness.ExtensibleLoadManager}

// placements are the sidecar's flags, as the page about Pulsar has them.
var placements = map[string][]string{
	"adopt": {"--registration", "adopt", "--lease-ttl", "30s"},
	"own":   {"--registration", "own", "--lease-ttl", "60s"},
}

func main() {
	p, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare-pulsar:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	worse, err := p.compare(ctx)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "compare-pulsar:", err)
		os.Exit(2)
	case worse:
		os.Exit(1)
	}
}

func parse() (p plan, err error) {
	root, err := harness.Root()
	if err != nil {
		return p, err
	}
	flag.StringVar(&p.dir, "dir", filepath.Join(root, "lab", ".bin", "compare-pulsar"), "directory of the results, and of the logs of each run")
	only := flag.String("run", "", "regular expression of the rows to do")
	flag.StringVar(&p.manager, "manager", "Modular", "load manager of the brokers: Modular or Extensible")
	flag.StringVar(&p.placement, "placement", "adopt", "of the brokers' registrations: adopt or own")
	flag.DurationVar(&p.watch, "watch", 45*time.Second, "how long to look on after a fault, at least; a session is 30 s")
	flag.IntVar(&p.most, "most", 3, "runs of a row that looks worse")
	flag.Parse()
	if p.only, err = regexp.Compile(*only); err != nil {
		return p, fmt.Errorf("-run: %w", err)
	}
	if managers[p.manager] == "" || placements[p.placement] == nil || flag.NArg() > 0 {
		return p, fmt.Errorf("-manager is Modular or Extensible, -placement is adopt or own, and there are no arguments")
	}
	return p, os.MkdirAll(p.dir, 0o755)
}

// compare makes the runs that are missing and prints the table of all rows that it has.
func (p plan) compare(ctx context.Context) (worse bool, err error) {
	if err := harness.PulsarParts(ctx); err != nil {
		return false, err
	}
	for _, program := range []harness.Program{harness.Holdfast, harness.EtcdServer} {
		if _, err := harness.Build(program); err != nil {
			return false, err
		}
	}
	noCuts := enterOwnNetwork()
	var table []verdict.Row
	var failed []error
	for _, f := range faults {
		if !p.only.MatchString(f.name) {
			continue
		}
		if f.cuts && noCuts != nil {
			fmt.Fprintf(os.Stderr, "compare-pulsar: %s: left out: packets cannot be dropped: %v\n", f.name, noCuts)
			continue
		}
		row, err := p.row(ctx, f)
		if err != nil {
			fmt.Fprintf(os.Stderr, "compare-pulsar: %s: %v\n", f.name, err)
			failed = append(failed, fmt.Errorf("%s: %w", f.name, err))
		}
		table = append(table, row)
		if ctx.Err() != nil {
			break
		}
	}
	return verdict.Table(os.Stdout, table), errors.Join(failed...)
}

// row makes the runs of one fault: one, and more while it looks worse.
func (p plan) row(ctx context.Context, f fault) (row verdict.Row, err error) {
	for n := 1; n == 1 || n <= p.most && len(row.Worse()) > 0; n++ {
		run := verdict.Run{Row: f.name, Manager: p.manager, Placement: p.placement, Number: n}
		found, err := run.Load(p.dir)
		if err != nil {
			return row, err
		}
		if !found {
			if err := p.play(ctx, f, &run); err != nil {
				return row, err
			}
			if err := run.Save(p.dir); err != nil {
				return row, err
			}
		}
		row = append(row, run)
	}
	return row, nil
}

// side is one of the two clusters of a run.
type side struct {
	name    string
	outcome *verdict.Outcome
	stage   *stage
}

// play makes a run, both sides at the same time: what the machine does besides harms both alike.
func (p plan) play(ctx context.Context, f fault, run *verdict.Run) (err error) {
	sides := []*side{{name: "bare", outcome: &run.Bare}, {name: "holdfast", outcome: &run.Holdfast}}
	began := time.Now()
	logs := filepath.Join(p.dir, "logs", run.Name())
	defer func() {
		err = errors.Join(err, each(sides, func(s *side) error { return s.stage.close(filepath.Join(logs, s.name)) }))
	}()
	if err := each(sides, func(s *side) (err error) {
		s.stage, err = setUp(ctx, p, f, s.name == "holdfast", func(format string, args ...any) {
			fmt.Fprintf(os.Stderr, "[%5.1fs] %s, %s: %s\n", time.Since(began).Seconds(), run.Name(), s.name, fmt.Sprintf(format, args...))
		})
		return err
	}); err != nil {
		return err
	}
	return each(sides, func(s *side) (err error) { *s.outcome, err = s.stage.measure(ctx); return err })
}

// each does it to both sides at once, and returns when both are done.
func each(sides []*side, do func(*side) error) error {
	errs := make([]error, len(sides))
	var both sync.WaitGroup
	for i, s := range sides {
		both.Go(func() {
			if err := do(s); err != nil {
				errs[i] = fmt.Errorf("%s: %w", s.name, err)
			}
		})
	}
	both.Wait()
	return errors.Join(errs...)
}
