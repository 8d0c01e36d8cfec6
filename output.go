package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
	"text/tabwriter"

	"golang.org/x/term"

	"holdfast/agent"
)

// output is where a verb prints. It keeps the first error, so that no verb looks at each.
type output struct {
	to      io.Writer
	colours bool
	err     error
}

// newOutput colours only what a person looks at; see no-color.org.
func newOutput(w io.Writer) *output {
	return &output{to: w, colours: isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Write prints as it is.
func (o *output) Write(b []byte) (int, error) {
	if o.err == nil {
		_, o.err = o.to.Write(b)
	}
	return len(b), o.err
}

// failure is why what was printed did not arrive. That nobody reads it any more, as 'head'
// does not, is none.
func (o *output) failure() error {
	if o.err == nil || errors.Is(o.err, syscall.EPIPE) {
		return nil
	}
	return fmt.Errorf("print answer: %w", o.err)
}

// painted are the only sequences that steer a terminal, whoever wrote them.
var painted = regexp.MustCompile(`\\x1b(\[(?:0|1|31|32|33|39)m)`)

// line prints one line. What etcd, a broker or anybody else said can neither make two of it
// nor steer the terminal.
func (o *output) line(format string, args ...any) {
	text := agent.Plain(strings.TrimRight(fmt.Sprintf(format, args...), " "))
	if o.colours {
		text = painted.ReplaceAllString(text, "\x1b$1")
	}
	fmt.Fprintln(o, text)
}

// table prints rows in columns, the head first. The words of a column of states have colours,
// each as many characters, so that no column moves.
func (o *output) table(states []int, rows [][]string) {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = agent.Plain(cell)
		}
		for _, i := range states {
			row[i] = o.state(row[i])
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	for line := range strings.Lines(b.String()) {
		o.line("%s", strings.TrimSuffix(line, "\n"))
	}
}

func (o *output) paint(code, s string) string {
	if !o.colours {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (o *output) good(s string) string { return o.paint("32", s) }
func (o *output) warn(s string) string { return o.paint("33", s) }
func (o *output) bad(s string) string  { return o.paint("31", s) }

// state colours the words of the contract by how much they matter at night.
func (o *output) state(s string) string {
	switch strings.TrimPrefix(s, "would be ") {
	case "attached", "active", "up", "served", "yes":
		return o.good(s)
	case "degraded", "draining", "drained", "loading", "unknown", "quarantined", "held_elsewhere", "unreadable":
		return o.warn(s)
	case "detached", "down", "missing", "orphan", "foreign_owner", "no":
		return o.bad(s)
	}
	return o.paint("39", s)
}

// fold breaks text into lines of at most width characters, where its words allow it.
func fold(text string, width int, newline string) string {
	lines := regexp.MustCompile(fmt.Sprintf(`(.{1,%d})(?: |$)`, width))
	return strings.TrimSuffix(lines.ReplaceAllString(strings.Join(strings.Fields(text), " "), "$1"+newline), newline)
}
