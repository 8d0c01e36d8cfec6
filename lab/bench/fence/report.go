package fence

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"holdfast/lab/bench/kit"
)

// outcome is one run.
type outcome struct {
	what string // the faults
	by   string // who stopped the broker

	toDeadline span // from the last served message
	toGone     span // the same, to the end of the key
	kept       bool // the key never went: the lease was renewed at another member
	served     span // for how long, at most, after others had brought the topic back
	limit      time.Duration

	claims  []error // that did not hold, or could not be judged
	private int64   // memory of the guard, in bytes; 0: not measured
	err     error   // nothing was measured
}

// span is a time that some faults have and others have not.
type span struct {
	time.Duration
	known bool
}

func known(d time.Duration) span { return span{d, true} }

// claim notes what came of one; nil: it holds.
func (o *outcome) claim(err error) {
	if err != nil {
		o.claims = append(o.claims, err)
	}
}

func (o outcome) String() string {
	if o.err != nil {
		return fmt.Sprintf("%-*s %v", width, o.what, o.err)
	}
	var said []string
	for _, s := range []struct {
		span
		format string
	}{
		{o.toDeadline, "last served %.3f s before the deadline"},
		{o.toGone, "last served %.3f s before the key was gone"},
		{o.served, "served for %.3f s after it was brought back, limit " + o.limit.String()},
	} {
		if s.known {
			said = append(said, fmt.Sprintf(s.format, s.Seconds()))
		}
	}
	if o.kept {
		said = append(said, "the lease was renewed all the time")
	}
	text := fmt.Sprintf("%-*s %s; stopped by %s", width, o.what, strings.Join(said, ", "), o.by)
	if err := errors.Join(o.claims...); err != nil {
		text += fmt.Sprintf("  NOT IN TIME: %v", err)
	}
	return text
}

// width of the column of the faults.
const width = 62

// maxPrivate is what a guard may have in memory for itself, in MB.
const maxPrivate = 8.4

// report prints the distributions.
func (p plan) report(out io.Writer, outcomes []outcome) []kit.Limit {
	kinds, kept := map[string][]outcome{}, map[string]int{}
	late, private := 0, int64(0)
	var margins []float64
	for i, o := range outcomes {
		if o.err != nil || len(o.claims) > 0 {
			late++
		}
		if o.err != nil {
			fmt.Fprintf(out, "\nRun %d (%s) measured nothing: %v\n", i+1, o.what, o.err)
			continue
		}
		kinds[o.what] = append(kinds[o.what], o)
		if o.kept {
			kept[o.what]++
		}
		if o.toDeadline.known {
			margins = append(margins, o.toDeadline.Seconds())
		}
		private = max(private, o.private)
	}
	for _, f := range []struct {
		title string
		pick  func(outcome) span
	}{
		{"deadline - last served message", func(o outcome) span { return o.toDeadline }},
		{"key gone - last served message", func(o outcome) span { return o.toGone }},
		{"served after others brought it back", func(o outcome) span { return o.served }},
	} {
		var total []float64
		line := func(name string, all []float64) {
			if len(all) > 0 {
				fmt.Fprintf(out, "%-*s %5d %7.3f s %7.3f s %7.3f s %7.3f s\n", width, name, len(all), kit.Share(all, 0), kit.Median(all), kit.Share(all, 0.9), kit.Share(all, 1))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(kinds)) {
			var all []float64
			for _, o := range kinds[name] {
				if s := f.pick(o); s.known {
					all = append(all, s.Seconds())
				}
			}
			if len(total) == 0 && len(all) > 0 {
				fmt.Fprintf(out, "\n%-*s %5s %9s %9s %9s %9s\n", width, f.title, "RUNS", "MIN", "P50", "P90", "MAX")
			}
			line(name, all)
			total = append(total, all...)
		}
		line("all", total)
	}
	for name, n := range kept {
		fmt.Fprintf(out, "\n%s: the lease was renewed all the time in %d of %d runs\n", name, n, len(kinds[name]))
	}
	limits := []kit.Limit{
		kit.AtMost(fmt.Sprintf("runs of %d that were not in time", len(outcomes)), float64(late), 0),
		kit.AtMost("private memory of the guard, MB", float64(private)/1e6, maxPrivate),
	}
	if len(margins) > 0 {
		limits = append(limits, kit.AtLeast("seconds before its deadline, the latest stop", kit.Share(margins, 0), p.margin))
	}
	return limits
}
