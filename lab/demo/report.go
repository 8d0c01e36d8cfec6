package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"holdfast/lab/harness"
)

// trial is one scenario: what should happen, and what did.
type trial struct {
	name     string
	expected string
	nodes    []*node // whose logs tell more
	facts    []string
	wrong    []string
	recovery time.Duration // what it counts is in the text of the scenario
}

// saw notes what was observed.
func (t *trial) saw(format string, args ...any) {
	t.facts = append(t.facts, fmt.Sprintf(format, args...))
}

// must notes what was observed as wrong unless ok.
func (t *trial) must(ok bool, format string, args ...any) {
	if !ok {
		t.wrong = append(t.wrong, fmt.Sprintf(format, args...))
	}
}

// holds notes an error as wrong.
func (t *trial) holds(err error) {
	if err != nil {
		t.wrong = append(t.wrong, err.Error())
	}
}

func (t *trial) observed() string {
	if len(t.wrong) == 0 {
		return strings.Join(t.facts, ", ")
	}
	first, _, _ := strings.Cut(t.wrong[0], "\n")
	if len(t.wrong) > 1 {
		first += fmt.Sprintf(" (and %d more)", len(t.wrong)-1)
	}
	return "WRONG: " + first
}

// run plays everything. same is true if all that was seen is what was expected.
func run(ctx context.Context, out io.Writer, stay bool) (same bool, err error) {
	lab, err := harness.New()
	if err != nil {
		return false, err
	}
	s := &stage{out: out, start: time.Now(), lab: lab}
	defer func() {
		var closing error
		if s.prom != nil {
			closing = s.prom.Close()
		}
		if closing = errors.Join(closing, lab.Close()); err == nil {
			err = closing
		}
	}()
	if err := s.setUp(ctx); err != nil {
		for _, n := range s.nodes {
			fmt.Fprintf(out, "---- last lines of %s's log\n%s\n", n.sidecar.Name, n.sidecar.LogTail(15))
		}
		return false, fmt.Errorf("set up: %w", err)
	}
	telling, stop := context.WithCancel(ctx)
	var told sync.WaitGroup
	told.Go(func() { s.tellAlerts(telling) })
	defer func() { stop(); told.Wait() }()
	trials := scenarios(s)
	same = true
	for _, t := range trials {
		s.say("")
		s.say("SCENARIO %s", t.name)
		s.say("expected: %s", t.expected)
		if err := s.allReady(ctx); err != nil {
			t.must(false, "could not be played, not everybody is ready: %v", err)
		} else if err := t.play(ctx, t.trial); err != nil {
			t.must(false, "could not be played to its end: %v", err)
		}
		if ctx.Err() != nil {
			return false, fmt.Errorf("interrupted: %w", ctx.Err())
		}
		if len(t.wrong) > 0 {
			same = false
			for _, w := range t.wrong {
				s.say("WRONG: %s", w)
			}
			for _, n := range t.nodes {
				s.print(fmt.Sprintf("---- last lines of %s's log\n%s\n", n.sidecar.Name, n.sidecar.LogTail(30)))
			}
		} else {
			s.say("as expected: %s", t.observed())
		}
	}
	var report strings.Builder
	table(&report, trials)
	fmt.Fprintf(&report, "\n%s\n%.0f s in all. Cuts were made by a proxy, which is kinder than a network that drops packets:\n"+
		"\"make bench-heal\" measures the way back from those.\n", s.stillFiring(), time.Since(s.start).Seconds())
	s.print("\n" + report.String())
	if stay {
		s.remain(ctx)
	}
	return same, nil
}

// Widths of the table's columns, in characters.
const (
	nameWidth = 26
	textWidth = 44
)

func table(out io.Writer, trials []scenario) {
	line := func(verdict string, cells ...string) {
		wrapped := make([][]string, len(cells))
		rows := 1
		for i, c := range cells {
			width := textWidth
			if i == 0 {
				width = nameWidth
			}
			wrapped[i] = wrap(c, width)
			rows = max(rows, len(wrapped[i]))
		}
		for r := range rows {
			at := func(i int) string {
				if r < len(wrapped[i]) {
					return wrapped[i][r]
				}
				return ""
			}
			last := ""
			if r == 0 {
				last = verdict
			}
			fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("%-*s  %-*s  %-*s  %-11s  %s",
				nameWidth, at(0), textWidth, at(1), textWidth, at(2), at(3), last), " "))
		}
	}
	line("", "SCENARIO", "EXPECTED", "OBSERVED", "RECOVERED IN")
	for _, t := range trials {
		verdict, recovered := "same", "-"
		if len(t.wrong) > 0 {
			verdict = "DIFFERS"
		} else if t.recovery > 0 {
			recovered = fmt.Sprintf("%d ms", t.recovery.Milliseconds())
		}
		line(verdict, t.name, t.expected, t.observed(), recovered)
	}
}

// wrap breaks a text at spaces into lines of at most width characters; longer
// words get a line of their own.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}
