package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// runner runs steps. out is where what they say is kept.
type runner struct {
	root, out string
	debian    debian
}

func (r *runner) file(step, ending string) string { return filepath.Join(r.out, step+"."+ending) }

// step runs all legs of a step.
func (r *runner) step(s step) (t tally) {
	fmt.Printf("\n######## %s\n", s.name)
	began := time.Now()
	missing := r.debian.install(s.needs)
	if len(missing) > 0 {
		t.leftOut = append(t.leftOut, fmt.Sprintf("%s: %s", s.name, strings.Join(missing, ", ")))
		if s.must {
			return t
		}
	}
	kept, err := os.Create(r.file(s.name, "json"))
	if err != nil {
		return broken(s, err)
	}
	defer kept.Close()
	var all []ended
	for _, l := range s.legs {
		if !l.test {
			t.add(r.program(s, l))
			continue
		}
		now, ends := r.tests(s, l, kept)
		t.add(now)
		all = append(all, ends...)
	}
	if err := r.keep(s, all); err != nil {
		t.add(broken(s, err))
	}
	fmt.Printf("%s: %s, %d flaky in %.0f s\n", s.name, t.counts(), len(t.flaky), time.Since(began).Seconds())
	return t
}

// broken is a step that failed in itself.
func broken(s step, err error) tally {
	return tally{failures: []failure{{id: id{pkg: s.name}, output: err.Error()}}}
}

// program runs a leg that is no test, and once more where its failure may be chance.
func (r *runner) program(s step, l leg) tally {
	said, err := r.run(l, l.args)
	if err == nil {
		return tally{}
	}
	if l.repeat && !final.MatchString(said) {
		fmt.Printf("\n=== ALONE %s\n", s.name)
		if _, err := r.run(l, l.args); err == nil {
			return tally{flaky: []string{s.name + ": " + strings.Join(essence(said, 1), "")}}
		}
	}
	return tally{failures: []failure{{id: id{pkg: s.name}, output: said + err.Error(), repeat: commandLine(l, l.args)}}}
}

// tests runs a leg of tests, and once more, alone, what may have failed by chance: all that
// failed may, and is not much.
func (r *runner) tests(s step, l leg, kept io.Writer) (tally, []ended) {
	x, err := r.expand(l)
	if err != nil {
		return broken(s, err), nil
	}
	args := slices.Concat(x.pkgs, x.args)
	all, err := r.test(l, args, kept)
	if err != nil {
		return broken(s, err), all
	}
	t := judge(all)
	if t.passed+t.skipped+len(t.failures) == 0 {
		return broken(s, fmt.Errorf("no test ran: %s", commandLine(l, append(fields("go test"), args...)))), all
	}
	chance := len(t.failures) <= most
	for i, f := range t.failures {
		t.failures[i].repeat = commandLine(l, append(fields("go test"), x.alone(f.id)...))
		chance = chance && r.mayBeChance(f)
	}
	if chance {
		failed := t.failures
		t.failures = nil
		t.add(r.again(l, x, failed, kept))
	}
	for _, pattern := range x.unmatched(all) {
		t.add(broken(s, fmt.Errorf("no test is called %s", pattern)))
	}
	return t, all
}

// again runs failed tests once more, each alone.
func (r *runner) again(l leg, x expanded, failed []failure, kept io.Writer) (t tally) {
	seen := map[string]bool{} // by rows of the same test
	for _, f := range failed {
		if seen[f.repeat] {
			continue
		}
		seen[f.repeat] = true
		fmt.Printf("\n=== ALONE %s\n", f.id)
		ends, err := r.test(l, x.alone(f.id), kept)
		switch now := judge(ends); {
		case err != nil || now.passed == 0 && len(now.failures) == 0: // it did not run
			t.failures = append(t.failures, f)
		case len(now.failures) > 0:
			now.failures[0].repeat = f.repeat
			t.failures = append(t.failures, now.failures...)
		default:
			t.passed++
			t.flaky = append(t.flaky, fmt.Sprintf("%s: %s", f.id, strings.Join(essence(f.output, 1), "")))
		}
	}
	return t
}

// mayBeChance says whether a failure is run once more.
func (r *runner) mayBeChance(f failure) bool {
	if final.MatchString(f.output) {
		return false
	}
	if f.test == "" {
		return ownEnd.MatchString(f.output)
	}
	pkg, inLab := strings.CutPrefix(f.pkg, "holdfast/lab/")
	if inLab {
		return !regexp.MustCompile("^(" + deterministicLab + ")$").MatchString(pkg)
	}
	pkg = strings.TrimPrefix(f.pkg, "holdfast/")
	if regexp.MustCompile("^(" + realTimeRoot + ")$").MatchString(pkg) {
		return true
	}
	_, tests, err := r.realTime()
	return err == nil && slices.Contains(tests, f.top().test)
}

// run runs a command, shows what it says and returns it.
func (r *runner) run(l leg, args []string) (string, error) {
	var said bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = filepath.Join(r.root, l.dir), append(os.Environ(), l.env...)
	cmd.Stdout = io.MultiWriter(os.Stdout, &said)
	cmd.Stderr = cmd.Stdout
	cmd.WaitDelay = time.Second // what it started may have its output
	err := cmd.Run()
	return said.String(), err
}

// test runs go test -json and reads what it says.
func (r *runner) test(l leg, args []string, kept io.Writer) ([]ended, error) {
	cmd := exec.Command("go", append([]string{"test", "-json", "-vet=off", "-count=1", "-ldflags=-w"}, args...)...)
	cmd.Dir, cmd.Env = filepath.Join(r.root, l.dir), append(os.Environ(), l.env...)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("run go test: %w", err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("run go test: %w", err)
	}
	all, err := read(pipe, kept, os.Stdout)
	if end := cmd.Wait(); err == nil && (len(all) == 0 || end != nil && len(judge(all).failures) == 0) {
		err = fmt.Errorf("go test ended without a result: %w", cmp.Or(end, errors.New("no test")))
	}
	return all, err
}

// commandLine is a command as one types it.
func commandLine(l leg, args []string) string {
	var b strings.Builder
	if l.dir != "." {
		fmt.Fprintf(&b, "cd %s && ", l.dir)
	}
	for _, e := range l.env {
		b.WriteString(e + " ")
	}
	for i, a := range args {
		if i > 0 {
			b.WriteByte(' ')
		}
		if strings.ContainsAny(a, "^$|*?()[] ") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		b.WriteString(a)
	}
	return b.String()
}

// keep writes the seconds of each test, the slowest first, and why tests were skipped.
func (r *runner) keep(s step, all []ended) error {
	all = slices.DeleteFunc(slices.Clone(all), func(e ended) bool { return e.test == "" })
	slices.SortStableFunc(all, func(a, b ended) int { return cmp.Compare(b.seconds, a.seconds) })
	var seconds, skipped strings.Builder
	for _, e := range all {
		fmt.Fprintf(&seconds, "%8.2f %s %s\n", e.seconds, e.action, e.id)
		if e.action == "skip" {
			fmt.Fprintf(&skipped, "%s: %s\n", e.id, strings.Join(essence(e.output, 1), ""))
		}
	}
	return errors.Join(os.WriteFile(r.file(s.name, "seconds"), []byte(seconds.String()), 0o644),
		os.WriteFile(r.file(s.name, "skipped"), []byte(skipped.String()), 0o644))
}
