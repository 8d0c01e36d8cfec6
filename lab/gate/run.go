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
		return tally{failures: []failure{{id: id{pkg: s.name}, output: err.Error()}}}
	}
	defer kept.Close()
	var all []ended
	for _, l := range s.legs {
		now, ends := r.leg(s, l, kept)
		t.add(now)
		all = append(all, ends...)
	}
	if err := r.keep(s, all); err != nil {
		t.failures = append(t.failures, failure{id: id{pkg: s.name}, output: err.Error()})
	}
	fmt.Printf("%s: %s in %.0f s\n", s.name, t.counts(), time.Since(began).Seconds())
	return t
}

// leg runs one leg, and once more, alone, what may have failed by chance.
func (r *runner) leg(s step, l leg, kept io.Writer) (tally, []ended) {
	broken := func(err error) tally {
		return tally{failures: []failure{{id: id{pkg: s.name}, output: err.Error()}}}
	}
	if !l.test {
		said, err := r.run(l, l.args)
		if err == nil {
			return tally{}, nil
		}
		if l.repeat && !final.MatchString(said) {
			fmt.Printf("\n=== ALONE %s\n", s.name)
			if _, err := r.run(l, l.args); err == nil {
				return tally{flaky: []string{s.name + ": " + strings.Join(essence(said, 1), "")}}, nil
			}
		}
		return tally{failures: []failure{{id: id{pkg: s.name}, output: said + err.Error(), repeat: commandLine(l, l.args)}}}, nil
	}
	x, err := r.expand(l)
	if err != nil {
		return broken(err), nil
	}
	all, err := r.test(l, slices.Concat(x.pkgs, x.args), kept)
	if err != nil {
		return broken(err), all
	}
	t := judge(all)
	if t.passed+t.skipped+len(t.failures) == 0 {
		return broken(fmt.Errorf("no test ran: %s", commandLine(l, append(fields("go test"), slices.Concat(x.pkgs, x.args)...)))), all
	}
	for _, pattern := range x.unmatched(all) {
		t.failures = append(t.failures, failure{id: id{pkg: s.name}, output: "no test is called " + pattern})
	}
	chance := len(t.failures) <= most
	for i := range t.failures {
		f := &t.failures[i]
		if f.test != "" {
			f.repeat = commandLine(l, append([]string{"go", "test"}, x.alone(f.id)...))
		}
		chance = chance && r.mayBeChance(*f)
	}
	if !chance || len(t.failures) == 0 {
		return t, all
	}
	failed := t.failures
	t.failures = nil
	seen := map[string]bool{}
	for _, f := range failed {
		args := x.alone(f.id)
		if seen[strings.Join(args, " ")] {
			continue
		}
		seen[strings.Join(args, " ")] = true
		fmt.Printf("\n=== ALONE %s\n", f.id)
		ends, err := r.test(l, args, kept)
		again := judge(ends)
		switch {
		case err != nil || again.passed == 0 && len(again.failures) == 0:
			t.failures = append(t.failures, f)
		case len(again.failures) > 0:
			again.failures[0].repeat = f.repeat
			t.failures = append(t.failures, again.failures...)
		default:
			t.passed++
			t.flaky = append(t.flaky, fmt.Sprintf("%s: %s", f.id, strings.Join(essence(f.output, 1), "")))
		}
	}
	return t, all
}

// mayBeChance says whether a failure is run once more.
func (r *runner) mayBeChance(f failure) bool {
	if f.test == "" || final.MatchString(f.output) {
		return false
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
	cmd := exec.Command("go", append([]string{"test", "-json", "-vet=off", "-count=1"}, args...)...)
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
