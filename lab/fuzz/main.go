// Command fuzz finds every fuzz target of both modules and runs each for a while, twice as
// many at a time as there are processors and at least nine, each with one worker. It fails
// when one of them finds something; the input is then below testdata/fuzz of its package,
// to be kept with the mend, and printed at the end.
//
// Of a target whose worker hung, as they do on a machine that does much else, and that named
// no input, nothing can be said. It is run again, alone, and then counts.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
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

	"holdfast/lab/harness"
	"holdfast/standstill"
)

// target is one function.
type target struct {
	dir  string // of its package
	name string
}

func main() {
	each := flag.Duration("time", time.Minute, "how long each target runs")
	procs := flag.Int("procs", max(9, 2*runtime.GOMAXPROCS(0)), "targets at a time; many of them wait for sockets")
	only := flag.String("run", "", "only targets whose package/name matches")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *each, *procs, *only); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, each time.Duration, procs int, only string) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	wanted, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-run %q: %w", only, err)
	}
	targets, err := find(root, wanted)
	if err != nil {
		return err
	}
	if len(targets) == 0 {
		return errors.New("no target found")
	}
	fmt.Printf("%d fuzz targets, %v each, %d at a time\n", len(targets), each, procs)
	if err := build(ctx, targets); err != nil {
		return err
	}
	var (
		next     = make(chan target)
		work     sync.WaitGroup
		mu       sync.Mutex // of the output and of what follows
		unjudged []target
		found    []string // how each failure is told at the end
	)
	for range procs {
		work.Go(func() {
			for t := range next {
				out, err := t.fuzz(ctx, each)
				mu.Lock()
				t.report(root, out, err)
				switch {
				case err == nil:
				case hung.Match(out) && finding(out) == "":
					unjudged = append(unjudged, t)
				default:
					found = append(found, t.tell(root, out, err))
				}
				mu.Unlock()
			}
		})
	}
	for _, t := range targets {
		next <- t
	}
	close(next)
	work.Wait()
	for _, t := range unjudged {
		fmt.Printf("%s: its worker hung; alone: %s %s\n", standstill.Word, t.pkg(root), t.name)
		out, err := t.fuzz(ctx, each)
		t.report(root, out, err)
		if err != nil {
			found = append(found, t.tell(root, out, err))
		}
	}
	for _, f := range found {
		fmt.Print(f)
	}
	fmt.Printf("%d fuzz targets, %d with a finding\n", len(targets), len(found))
	if len(found) > 0 {
		return fmt.Errorf("%d of %d targets failed", len(found), len(targets))
	}
	return ctx.Err()
}

func (t target) report(root string, out []byte, err error) {
	if err != nil {
		fmt.Printf("bad  %s %s: %v\n%s\n", t.pkg(root), t.name, err, out)
	} else {
		fmt.Printf("ok   %s %s: %s\n", t.pkg(root), t.name, executed(out))
	}
}

var (
	written = regexp.MustCompile(`Failing input written to (\S+)`)
	seed    = regexp.MustCompile(`failure while testing seed corpus entry: (\S+)`)
	hung    = regexp.MustCompile(`fuzzing process hung or terminated unexpectedly`)
	failure = regexp.MustCompile(`(?m)^\s+\w+_test\.go:\d+: .*|^\s*(panic|fatal error): .*`)
)

// finding is the input that failed: its file within the package, or the seed's name.
func finding(out []byte) string {
	for _, named := range []*regexp.Regexp{written, seed} {
		if m := named.FindSubmatch(out); m != nil {
			return string(m[1])
		}
	}
	return ""
}

// tell is a failure in a few lines: what was said about it, and the input.
func (t target) tell(root string, out []byte, err error) string {
	short := func(text []byte) string { return fmt.Sprintf("%.600s", bytes.TrimSpace(text)) }
	text := fmt.Sprintf("FINDING %s %s: %v\n  %s\n  input %s\n", t.pkg(root), t.name, err, short(failure.Find(out)), finding(out))
	if input, err := os.ReadFile(filepath.Join(t.dir, finding(out))); err == nil {
		text += "  " + strings.ReplaceAll(short(input), "\n", "\n  ") + "\n"
	}
	return text
}

// find reads the test files of both modules.
func find(root string, wanted *regexp.Regexp) (targets []target, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || path != root && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			if t := (target{filepath.Dir(path), f.Name.Name}); wanted.MatchString(t.pkg(root) + "/" + t.name) {
				targets = append(targets, t)
			}
		}
		return nil
	})
	return targets, err
}

func (t target) pkg(root string) string {
	rel, err := filepath.Rel(root, t.dir)
	if err != nil {
		return t.dir
	}
	return rel
}

// build compiles each package once, so that the targets of one do not do it at the same
// time. The seeds are run on the way.
func build(ctx context.Context, targets []target) error {
	done := map[string]bool{}
	for _, t := range targets {
		if done[t.dir] {
			continue
		}
		done[t.dir] = true
		if out, err := t.test(ctx, "-run", "^Fuzz", "-fuzz", "^$").CombinedOutput(); err != nil {
			return fmt.Errorf("the seeds of %s: %w\n%s", t.dir, err, out)
		}
	}
	return nil
}

// fuzz has a bound of its own: a target that hangs is a finding.
func (t target) fuzz(ctx context.Context, each time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, each+2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	// What a target over a socket covers is never twice the same, and making its inputs
	// smaller would take all of its time.
	cmd := t.test(ctx, "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(), "-fuzzminimizetime", "10x", "-parallel", "1")
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	// go test may take its own deadline for a failure of the input that it was at
	//; it then names no input.
	if err != nil && bytes.Contains(out.Bytes(), []byte("context deadline exceeded")) && !bytes.Contains(out.Bytes(), []byte("Failing input")) && ctx.Err() == nil {
		err = nil
	}
	return out.Bytes(), err
}

func (t target) test(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test"}, args...)...)
	cmd.Dir = t.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

var progress = regexp.MustCompile(`execs: (\d+) .*`)

// executed is the last line of progress.
func executed(out []byte) string {
	lines := progress.FindAll(out, -1)
	if len(lines) == 0 {
		return "nothing"
	}
	return string(lines[len(lines)-1])
}
