// Command fuzz finds every fuzz target of both modules and runs each for a while, twice as
// many at a time as there are processors and at least nine, each with one worker. It fails
// when one of them finds something; the input is then below testdata/fuzz of its package,
// to be kept with the mend, and printed at the end.
//
// Of a target whose worker hung, as they do on a machine that does much else, and that named
// no input, nothing can be said. It is run again, alone, and then counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/lab/harness"
)

// target is one function.
type target struct{ dir, name string }

func main() {
	each := flag.Duration("time", time.Minute, "how long each target runs")
	procs := flag.Int("procs", max(9, 2*runtime.GOMAXPROCS(0)), "targets at a time; many of them wait for sockets")
	only := flag.String("run", "", "only targets whose directory/name matches")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *each, *procs, *only); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, each time.Duration, procs int, only string) error {
	targets, err := find(only)
	if err == nil && len(targets) == 0 {
		err = errors.New("no target found")
	}
	if err != nil {
		return err
	}
	fmt.Printf("%d fuzz targets, %v each, %d at a time\n", len(targets), each, procs)
	built := map[string]bool{}
	for _, t := range targets { // each package once; the seeds are run on the way
		if built[t.dir] {
			continue
		}
		built[t.dir] = true
		if out, err := t.test(ctx, "-run", "^Fuzz", "-fuzz", "^$"); err != nil {
			return fmt.Errorf("the seeds of %s: %w\n%s", t.dir, err, out)
		}
	}
	var mu sync.Mutex // of what follows, and of the output
	var again []target
	found := 0
	play := func(t target, alone bool) {
		out, err := t.fuzz(ctx, each)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			fmt.Printf("ok   %s %s: %s\n", t.dir, t.name, last(progress.FindAllString(out, -1)))
		case !alone && strings.Contains(out, "fuzzing process hung or terminated unexpectedly") && !input.MatchString(out):
			again = append(again, t)
		default:
			found++
			fmt.Printf("FINDING %s %s: %v\n%s\n", t.dir, t.name, err, out)
			if m := input.FindStringSubmatch(out); m != nil {
				text, _ := os.ReadFile(filepath.Join(t.dir, m[1])) // a seed has none
				fmt.Printf("input %s\n%.600s\n", m[1], text)
			}
		}
	}
	var group errgroup.Group
	group.SetLimit(procs)
	for _, t := range targets {
		group.Go(func() error { play(t, false); return nil })
	}
	_ = group.Wait() // nil
	for _, t := range again {
		play(t, true)
	}
	fmt.Printf("%d fuzz targets, %d with a finding\n", len(targets), found)
	if found > 0 {
		return fmt.Errorf("%d of %d targets failed", found, len(targets))
	}
	return ctx.Err()
}

var (
	input    = regexp.MustCompile(`(?:Failing input written to|failure while testing seed corpus entry:) (\S+)`)
	progress = regexp.MustCompile(`execs: \d+ .*`)
	function = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
)

func last(lines []string) string {
	if len(lines) == 0 {
		return "nothing"
	}
	return lines[len(lines)-1]
}

// find reads the test files of both modules.
func find(only string) (targets []target, err error) {
	root, err := harness.Root()
	if err != nil {
		return nil, err
	}
	wanted, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("-run %q: %w", only, err)
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || path != root && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			if t := (target{filepath.Dir(path), m[1]}); wanted.MatchString(t.dir + "/" + t.name) {
				targets = append(targets, t)
			}
		}
		return err
	})
	return targets, err
}

// fuzz has a bound of its own: a target that hangs is a finding.
func (t target) fuzz(ctx context.Context, each time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, each+2*time.Minute)
	defer cancel()
	// What a target over a socket covers is never twice the same, and making its inputs
	// smaller would take all of its time.
	out, err := t.test(ctx, "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(), "-fuzzminimizetime", "10x", "-parallel", "1")
	// go test may take its own deadline for a failure of the input that it was at; it then names no input.
	if err != nil && strings.Contains(out, "context deadline exceeded") && !input.MatchString(out) && ctx.Err() == nil {
		err = nil
	}
	return out, err
}

func (t target) test(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test"}, args...)...)
	cmd.Dir = t.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}
