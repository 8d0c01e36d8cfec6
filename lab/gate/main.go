// Command gate runs the steps that decide whether a change is good, one at a time.
//
//	gate [STEP…]           the gate, or some of its steps; ends at the first red one
//	gate -proof [STEP…]    what takes too long for the gate; without what is green at this commit
//	gate -list             the steps of both
//
// Guaranteed: no two steps run at a time. A failed test that needs real time, sockets or
// processes is run once more, alone; it is flaky if it passes then, and is named at the end.
// Nothing else is run again: no deterministic test, no broken safety rule (VIOLATION), no
// data race, no crash but one of the race detector itself; but a schedule of the simulation is,
// by its own test. Nothing comes from the cache of go test. What the machine lacks is named as
// left out. The last line is
//
//	N passed, M failed, K skipped
//
// where a test counts without the tests that it consists of, and a step that is no test adds
// to M only. Before it stand the failures, each with its message and the command that repeats
// it. Not guaranteed: that what is flaky is harmless.
//
// lab/.bin/gate keeps the stream of go test -json of each step, the seconds of each test and
// the reasons of what was skipped; lab/.bin/proof the verdict of each step with its commit.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	proof := flag.Bool("proof", false, "run the steps of the proof; those that are green at this commit are not run again unless they are named")
	list := flag.Bool("list", false, "list the steps")
	all := flag.Bool("all", os.Getenv("GATE") == "all", "go on after a red step; so does GATE=all")
	flag.Parse()
	if *list {
		fmt.Printf("gate:  %s\nproof: %s\n", names(gateSteps), names(proofSteps))
		return
	}
	root, err := enter()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(2)
	}
	steps, bin := gateSteps, filepath.Join(root, "lab", ".bin")
	r := runner{root: root, out: filepath.Join(bin, "gate"), debian: debian{dir: filepath.Join(bin, "debian")}}
	if *proof {
		steps, r.out = proofSteps, filepath.Join(bin, "proof")
	}
	chosen, err := choose(steps, flag.Args())
	if err == nil {
		err = os.MkdirAll(r.out, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(2)
	}
	if *proof {
		if os.Getenv(seedVariable) == "" {
			os.Setenv(seedVariable, strconv.FormatInt(time.Now().Unix(), 10))
		}
		fmt.Printf("%s=%s\n", seedVariable, os.Getenv(seedVariable))
		err = r.prove(chosen, len(flag.Args()) > 0)
	} else {
		err = r.gate(chosen, *all)
	}
	if err != nil {
		os.Exit(1)
	}
}

// seedVariable is what all tests that draw take their seed from. Without it they take a fixed one.
const seedVariable = "HOLDFAST_SEED"

// enter finds the root of the repository and sets what all steps have in common.
func enter() (root string, err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w: run this in lab/", err)
	}
	root = filepath.Dir(strings.TrimSpace(string(out)))
	bin := filepath.Join(root, "lab", ".bin")
	for name, value := range map[string]string{
		"CGO_ENABLED":        "0", // with C all libraries would be compiled twice
		"HOLDFAST_LAB_QUICK": "yes",
		"PATH": strings.Join([]string{os.Getenv("PATH"), "/usr/sbin", "/sbin",
			filepath.Join(bin, "debian/usr/sbin"), filepath.Join(bin, "debian/usr/bin")}, ":"),
	} {
		if err := os.Setenv(name, value); err != nil {
			return "", fmt.Errorf("set %s: %w", name, err)
		}
	}
	return root, nil
}

func names(steps []step) string {
	var b strings.Builder
	for _, s := range steps {
		b.WriteString(" " + s.name)
	}
	return strings.TrimSpace(b.String())
}

func choose(steps []step, wanted []string) ([]step, error) {
	if len(wanted) == 0 {
		return steps, nil
	}
	var chosen []step
	for _, name := range wanted {
		before := len(chosen)
		for _, s := range steps {
			if s.name == name {
				chosen = append(chosen, s)
			}
		}
		if len(chosen) == before {
			return nil, fmt.Errorf("no step %q: have %s", name, names(steps))
		}
	}
	return chosen, nil
}

var errRed = errors.New("red")

// gate runs the steps and ends at the first red one, unless all is set.
func (r *runner) gate(steps []step, all bool) error {
	var sum tally
	var seconds []string
	for _, s := range steps {
		began := time.Now()
		t := r.step(s)
		seconds = append(seconds, fmt.Sprintf("%s %.0f", s.name, time.Since(began).Seconds()))
		sum.add(t)
		if len(t.failures) > 0 && !all {
			break
		}
	}
	fmt.Printf("\n######## end\nseconds: %s\n", strings.Join(seconds, ", "))
	sum.print(os.Stdout)
	if len(sum.failures) > 0 {
		return errRed
	}
	return nil
}

// prove runs the steps that are not known to be green at this commit, and prints the verdicts
// of all.
func (r *runner) prove(steps []step, again bool) error {
	var sum tally
	for _, s := range steps {
		if verdict := r.verdict(s); !again && strings.HasPrefix(verdict, "green") && strings.Contains(verdict, " "+r.commit()+" ") {
			continue
		}
		commit := r.commit()
		began := time.Now()
		t := r.step(s)
		sum.add(t)
		word := "green"
		switch {
		case len(t.failures) > 0:
			word = "red"
		case t.passed == 0 && len(t.leftOut) > 0:
			word = "left out"
		}
		if r.commit() != commit {
			commit += "-changed"
		}
		line := fmt.Sprintf("%-8s %s %5.0f s  %s, %d flaky  %s  seed %s", word, commit, time.Since(began).Seconds(), t.counts(), len(t.flaky),
			time.Now().UTC().Format(time.DateTime), os.Getenv(seedVariable))
		if err := os.WriteFile(r.file(s.name, "verdict"), []byte(line+"\n"), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "gate: write verdict:", err)
			return errRed
		}
	}
	fmt.Println("\n######## end")
	var err error
	for _, s := range proofSteps {
		verdict := r.verdict(s)
		fmt.Printf("%-12s %s\n", s.name, verdict)
		if strings.HasPrefix(verdict, "red") {
			err = errRed
		}
	}
	sum.print(os.Stdout)
	return err
}

// verdict is the last one of a step.
func (r *runner) verdict(s step) string {
	b, err := os.ReadFile(r.file(s.name, "verdict"))
	if err != nil {
		return "not run"
	}
	return strings.TrimSpace(string(b))
}

// commit is the one that is checked out; where the tree differs it is none that comes again.
func (r *runner) commit() string {
	git := func(args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Dir = r.root
		out, err := cmd.Output()
		if err != nil {
			return "unknown"
		}
		return strings.TrimSpace(string(out))
	}
	at := git("rev-parse", "--short=10", "HEAD")
	if git("status", "--porcelain") != "" {
		at += time.Now().UTC().Format("-dirty-150405")
	}
	return at
}
