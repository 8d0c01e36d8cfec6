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

// colours are those of the contract's words, by how much they matter at night, where one stands
// in a column, alone, after a number or as what something became.
var colours = map[string]*regexp.Regexp{
	"32": where("attached|active|up|served|yes|present|stands by"),
	"33": where("degraded|draining|drained|loading|unknown|quarantined|held_elsewhere|unreadable|off|awaited|failing|not applied"),
	"31": where("detached|down|missing|orphan|foreign_owner|no|absent|none held|held by another sidecar|NOT registered|deadline passed|fence point passed"),
}

func where(words string) *regexp.Regexp {
	return regexp.MustCompile(`( {2}|, |\d |→ |is |would be )(` + words + `)\b`)
}

// line prints one line. What etcd, a broker or anybody else said can neither make two of it
// nor steer the terminal.
func (o *output) line(format string, args ...any) {
	text := agent.Plain(strings.TrimRight(fmt.Sprintf(format, args...), " "))
	for code, words := range colours {
		if o.colours {
			text = words.ReplaceAllString(text, "$1\x1b["+code+"m$2\x1b[0m")
		}
	}
	fmt.Fprintln(o, text)
}

// table prints rows in columns, the head first.
func (o *output) table(rows [][]string) {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = agent.Plain(cell)
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	for line := range strings.Lines(b.String()) {
		o.line("%s", strings.TrimSuffix(line, "\n"))
	}
}

// fold breaks text into lines of at most width characters, where its words allow it.
func fold(text string, width int, newline string) string {
	lines := regexp.MustCompile(fmt.Sprintf(`(.{1,%d})(?: |$)`, width))
	return strings.TrimSuffix(lines.ReplaceAllString(strings.Join(strings.Fields(text), " "), "$1"+newline), newline)
}
