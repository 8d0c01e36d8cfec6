package compare

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

	"holdfast/lab/compare/verdict"
	"holdfast/lab/harness"
)

// Plan is what to compare.
type Plan struct {
	Command         string // its name, in messages
	Kind, Placement string // of the brokers, and of their registrations; named in the results
	KindIs          string // heading of the two in the table
	Faults          []Fault
	Watch           time.Duration // how long to look on after a fault, at least
	dir             string
	only            *regexp.Regexp
	most            int // runs of a row
	onlyText        string
}

// Fault is one row.
type Fault struct {
	Name  string
	Cuts  bool // it drops packets
	SetUp SetUp
}

// SetUp starts one of the two clusters of a run, with clients, and waits until all is well. The
// Side that it returns is to be closed, also with an error; it may then be nil.
type SetUp func(ctx context.Context, p *Plan, holdfast bool, say func(string, ...any)) (Side, error)

// Side is a cluster with a fault to come.
type Side interface {
	// Measure does the harm and sees what came of it.
	Measure(context.Context) (verdict.Outcome, error)
	// Close ends all and keeps the logs in the directory.
	Close(logs string) error
}

// Flags declares those that all comparisons have.
func (p *Plan) Flags(watch time.Duration) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	flag.StringVar(&p.dir, "dir", filepath.Join(root, "lab", ".bin", p.Command), "directory of the results, and of the logs of each run")
	flag.StringVar(&p.onlyText, "run", "", "regular expression of the rows to do")
	flag.DurationVar(&p.Watch, "watch", watch, "how long to look on after a fault, at least")
	flag.IntVar(&p.most, "most", 3, "runs of a row that looks worse")
	return nil
}

// Parse reads them.
func (p *Plan) Parse() (err error) {
	flag.Parse()
	if p.only, err = regexp.Compile(p.onlyText); err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	if flag.NArg() > 0 {
		return fmt.Errorf("there are no arguments: %q", flag.Args())
	}
	return os.MkdirAll(p.dir, 0o755)
}

// Main compares and ends the process: 1, a row is worse; 2, a run could not be made.
func (p *Plan) Main(prepare func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	worse, err := false, prepare(ctx)
	if err == nil {
		worse, err = p.compare(ctx)
	}
	stop()
	switch {
	case err != nil:
		p.say("%v", err)
		os.Exit(2)
	case worse:
		os.Exit(1)
	}
}

func (p *Plan) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, p.Command+": "+format+"\n", args...)
}

// compare makes the runs that are missing and prints the table of all rows that it has.
func (p *Plan) compare(ctx context.Context) (worse bool, err error) {
	for _, program := range []harness.Program{harness.Holdfast, harness.EtcdServer} {
		if _, err := harness.Build(program); err != nil {
			return false, err
		}
	}
	noCuts := enterOwnNetwork()
	var table []verdict.Row
	var failed []error
	for _, f := range p.Faults {
		if !p.only.MatchString(f.Name) {
			continue
		}
		if f.Cuts && noCuts != nil {
			p.say("%s: left out: packets cannot be dropped: %v", f.Name, noCuts)
			continue
		}
		row, err := p.row(ctx, f)
		if err != nil {
			p.say("%s: %v", f.Name, err)
			failed = append(failed, fmt.Errorf("%s: %w", f.Name, err))
		}
		table = append(table, row)
		if ctx.Err() != nil {
			break
		}
	}
	return verdict.Table(os.Stdout, p.KindIs, table), errors.Join(failed...)
}

// row makes the runs of one fault: one, and more while it looks worse.
func (p *Plan) row(ctx context.Context, f Fault) (row verdict.Row, err error) {
	for n := 1; n == 1 || n <= p.most && len(row.Worse()) > 0; n++ {
		run := verdict.Run{Row: f.Name, Manager: p.Kind, Placement: p.Placement, Number: n}
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

// half is one of the two clusters of a run.
type half struct {
	name    string
	outcome *verdict.Outcome
	side    Side
}

// play makes a run, both sides at the same time.
func (p *Plan) play(ctx context.Context, f Fault, run *verdict.Run) (err error) {
	halves := []*half{{name: "bare", outcome: &run.Bare}, {name: "holdfast", outcome: &run.Holdfast}}
	began := time.Now()
	logs := filepath.Join(p.dir, "logs", run.Name())
	defer func() {
		err = errors.Join(err, each(halves, func(h *half) error {
			if h.side == nil {
				return nil // it has not begun
			}
			return h.side.Close(filepath.Join(logs, h.name))
		}))
	}()
	if err := each(halves, func(h *half) (err error) {
		h.side, err = f.SetUp(ctx, p, h.name == "holdfast", func(format string, args ...any) {
			fmt.Fprintf(os.Stderr, "[%5.1fs] %s, %s: %s\n", time.Since(began).Seconds(), run.Name(), h.name, fmt.Sprintf(format, args...))
		})
		return err
	}); err != nil {
		return err
	}
	return each(halves, func(h *half) (err error) { *h.outcome, err = h.side.Measure(ctx); return err })
}

// each does it to both at once, and returns when both are done.
func each(halves []*half, do func(*half) error) error {
	errs := make([]error, len(halves))
	var both sync.WaitGroup
	for i, h := range halves {
		both.Go(func() {
			if err := do(h); err != nil {
				errs[i] = fmt.Errorf("%s: %w", h.name, err)
			}
		})
	}
	both.Wait()
	return errors.Join(errs...)
}
