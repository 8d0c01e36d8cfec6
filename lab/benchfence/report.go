package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"holdfast/standstill"
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

// verdict is what one run says about the claim.
type verdict string

const (
	inTime   verdict = "in time"
	tooLate  verdict = "TOO LATE"
	unjudged verdict = standstill.Word
)

func (o outcome) verdict() verdict {
	v := inTime
	for _, err := range append([]error{o.err}, o.claims...) {
		switch {
		case errors.Is(err, standstill.ErrUnjudged):
			v = unjudged
		case err != nil:
			return tooLate
		}
	}
	return v
}

func (o outcome) String() string {
	if o.err != nil {
		return fmt.Sprintf("%-*s %v", width, o.what, o.err)
	}
	var said []string
	say := func(s span, format string, args ...any) {
		if s.known {
			said = append(said, fmt.Sprintf(format, args...))
		}
	}
	say(o.toDeadline, "last served %s before the deadline", seconds(o.toDeadline.Duration))
	say(o.toGone, "last served %s before the key was gone", seconds(o.toGone.Duration))
	say(o.served, "served for %s after it was brought back, limit %s", seconds(o.served.Duration), seconds(o.limit))
	if o.kept {
		said = append(said, "the lease was renewed all the time")
	}
	text := fmt.Sprintf("%-*s %s; stopped by %s", width, o.what, strings.Join(said, ", "), o.by)
	if v := o.verdict(); v != inTime {
		text += fmt.Sprintf("  %s: %v", v, errors.Join(o.claims...))
	}
	return text
}

// width of the column of the faults.
const width = 62

// report prints the distributions and says whether every run was in time.
func report(out io.Writer, outcomes []outcome) (ok bool, err error) {
	verdicts := map[verdict]int{}
	kinds := map[string][]outcome{}
	var private int64
	for _, o := range outcomes {
		verdicts[o.verdict()]++
		if o.err == nil {
			kinds[o.what] = append(kinds[o.what], o)
		}
		private = max(private, o.private)
	}
	names := []string{}
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, f := range []struct {
		title string
		pick  func(outcome) span
	}{
		{"deadline - last served message", func(o outcome) span { return o.toDeadline }},
		{"key gone - last served message", func(o outcome) span { return o.toGone }},
		{"served after others brought it back", func(o outcome) span { return o.served }},
	} {
		var total []time.Duration
		line := func(name string, all []time.Duration) {
			if len(all) > 0 {
				slices.Sort(all)
				fmt.Fprintf(out, "%-*s %5d %9s %9s %9s %9s\n", width, name, len(all), seconds(all[0]), seconds(quantile(all, 0.5)), seconds(quantile(all, 0.9)), seconds(all[len(all)-1]))
			}
		}
		for _, name := range names {
			var all []time.Duration
			for _, o := range kinds[name] {
				if s := f.pick(o); s.known {
					all = append(all, s.Duration)
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
	for _, name := range names {
		kept := 0
		for _, o := range kinds[name] {
			if o.kept {
				kept++
			}
		}
		if kept > 0 {
			fmt.Fprintf(out, "\n%s: the lease was renewed all the time in %d of %d runs\n", name, kept, len(kinds[name]))
		}
	}
	for i, o := range outcomes {
		if o.err != nil {
			fmt.Fprintf(out, "\nRun %d (%s) measured nothing: %v\n", i+1, o.what, o.err)
		}
	}
	fmt.Fprintf(out, "\nMemory of the guard: at most %.1f MB private, limit %.1f MB\n", float64(private)/1e6, float64(maxPrivate)/1e6)
	fmt.Fprintf(out, "In time: %d of %d runs\n", verdicts[inTime], len(outcomes))
	if n := verdicts[unjudged]; n > 0 {
		err = fmt.Errorf("%w: %d runs on a machine that stood still", standstill.ErrUnjudged, n)
	}
	return verdicts[tooLate] == 0 && private <= maxPrivate, err
}

// maxPrivate is what a guard may have in memory for itself, in bytes.
const maxPrivate = 8 << 20

// quantile is the value that at least the share q of sorted is not above.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*q))]
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()) }
