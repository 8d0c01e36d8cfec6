package verdict

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Table writes the rows in Markdown, each with a line without Holdfast and one with it, and says
// whether one of them is worse with it. kind is the heading of kind of broker and placement.
func Table(out io.Writer, kind string, rows []Row) (worse bool) {
	fmt.Fprintf(out, "| fault | %s | | longest gap | lost | duplicated | serving at the end | an operator must | load |\n"+
		"|---|---|---|---|---|---|---|---|---|\n", kind)
	var verdicts []string
	for _, r := range rows {
		if len(r) == 0 {
			continue
		}
		name, kind := r[0].Row, r[0].Manager+", "+r[0].Placement
		fmt.Fprintf(out, "| %s | %s | bare | %s |\n", name, kind, r.cells(bare))
		why := r.Worse()
		with := "with"
		if len(why) > 0 {
			worse = true
			with = "with: **worse**"
			verdicts = append(verdicts, fmt.Sprintf("- %s (%s): %s", name, kind, strings.Join(why, "; ")))
		}
		fmt.Fprintf(out, "| | | %s | %s |\n", with, r.cells(holdfast))
	}
	if worse {
		fmt.Fprintf(out, "\nWorse with Holdfast:\n\n%s\n", strings.Join(verdicts, "\n"))
	}
	return worse
}

// cells is what follows the name of the row.
func (r Row) cells(of func(Run) Outcome) string {
	counts := func(of func(Run) string) string {
		var all []string
		for _, run := range r {
			all = append(all, of(run))
		}
		if len(slices.Compact(slices.Clone(all))) == 1 {
			return all[0]
		}
		return strings.Join(all, ", ")
	}
	gap := fmt.Sprintf("%.1f s", median(r.gaps(of)))
	if len(r) > 1 {
		var each []string
		for _, g := range r.gaps(of) {
			each = append(each, fmt.Sprintf("%.1f", g))
		}
		gap += " (" + strings.Join(each, ", ") + ")"
	}
	return strings.Join([]string{
		gap,
		counts(func(r Run) string { return fmt.Sprint(of(r).Lost) }),
		counts(func(r Run) string { return fmt.Sprint(of(r).Duplicated) }),
		counts(func(r Run) string {
			o := of(r)
			text := fmt.Sprintf("%d of %d", o.Serving, o.Brokers)
			if o.Destroyed > 0 {
				text += fmt.Sprintf(" (topics destroyed: %d)", o.Destroyed)
			}
			if hung := o.Hung + o.Resubscribed; hung > 0 {
				text += fmt.Sprintf(" (consumers hung: %d)", hung)
			}
			if o.Stopped > 0 {
				text += fmt.Sprintf(" (stopped: %d)", o.Stopped)
			}
			return text
		}),
		r.steps(of),
		counts(func(r Run) string { return fmt.Sprintf("%.0f", of(r).Load) }),
	}, " | ")
}

func inBrackets(what string, all []string) (quoted []string) {
	for _, one := range all {
		quoted = append(quoted, "("+what+one+")")
	}
	return quoted
}

// steps are all that any of the runs wanted.
func (r Row) steps(of func(Run) Outcome) string {
	var all []string
	for _, run := range r {
		o := of(run)
		for _, step := range slices.Concat(o.Steps, inBrackets("asked for by design: ", o.Asked), o.Notes) {
			if step = strings.ReplaceAll(step, "|", `\|`); !slices.Contains(all, step) {
				all = append(all, step)
			}
		}
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, "; ")
}
