package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"holdfast/agent/control"
)

// output is where a verb prints. It keeps the first error, so that no verb looks at each.
type output struct {
	to  io.Writer
	err error
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

// line prints one line. What etcd, a broker or anybody else said can neither make two of it
// nor steer the terminal.
func (o *output) line(format string, args ...any) {
	fmt.Fprintln(o, control.Plain(strings.TrimRight(fmt.Sprintf(format, args...), " ")))
}

// table prints rows in columns, the head first.
func (o *output) table(rows [][]string) {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = control.Plain(cell)
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

const clock = "2006-01-02 15:04:05Z"

func withReason(s, reason string) string {
	if reason == "" {
		return s
	}
	return s + " (" + reason + ")"
}

// seconds prints to a tenth of a second: 4.2s, 1m12.5s.
func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond).String()
}

// age is how long ago t was, in the two largest units.
func age(now, t time.Time) string {
	const day = 24 * time.Hour
	d := max(0, now.Sub(t).Round(time.Second))
	switch {
	case t.IsZero():
		return "-"
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return strings.TrimSuffix(d.Truncate(time.Minute).String(), "0s")
	}
	return d.String()
}

// writeStatus prints one sentence, then a few aligned lines.
func writeStatus(o *output, s control.Status) {
	o.line("%s", s.Summary)
	o.line("")
	line := func(name, text string) {
		if text != "" {
			o.line("%-13s %s", name, text)
		}
	}
	// lastError is what went wrong, unless the first line says it already.
	lastError := func(text string) string {
		if text == "" || strings.Contains(s.Summary, text) {
			return ""
		}
		return ": " + text
	}

	kind := strings.TrimSpace(s.Driver + " " + s.Broker.Version)
	line("broker", fmt.Sprintf("%s (%s), %s", cmp.Or(s.BrokerID, "id not known yet"), kind, cmp.Or(s.Broker.Up, "unknown"))+lastError(s.Broker.LastError))
	line("attachment", s.Attachment)
	mode := withReason(cmp.Or(s.Mode, "unknown"), s.Reason)
	if s.Left {
		mode = "it has left; at its next start " + mode
	}
	line("mode", mode)
	if p := s.Pause; p != nil {
		line("pause", fmt.Sprintf("by %s for %s more, until %s: %s", p.Owner, seconds(p.RemainingSeconds), p.Until.UTC().Format(clock), p.Reason))
	}
	if !s.Shadow {
		line("guard", guardText(s.Guard))
	}
	line("ready", readyText(s))
	line("topics", topicsText(s))
	if s.Registration.State == "none" {
		line("lease", "none: nothing has a deadline (--registration none)")
	} else {
		line("lease", leaseText(s.Lease))
	}
	if s.Lease.FailureStreak > 0 {
		failing := fmt.Sprintf("failing for %s, %d in a row", seconds(s.Lease.FailingSeconds), s.Lease.FailureStreak)
		line(map[bool]string{true: "attempts", false: "renewals"}[s.Lease.ID == ""], strings.Replace(failing, " for 0s", "", 1)+lastError(s.Lease.LastError))
	}
	for _, d := range s.Denied {
		line("denied", fmt.Sprintf("%s, since %s, last %s ago", d.For, age(s.At, d.Since), age(s.At, d.Last))+lastError(d.Error))
	}
	line("registration", registrationText(s))
	line("boot", bootText(s))
	if s.Decided != nil {
		line("decided by", s.Decided.Row+": "+s.Decided.Why)
		line("otherwise", s.Decided.Otherwise)
	}
	if s.Config.Error != "" {
		line("settings", "not applied: "+s.Config.Error)
	}
	line("sidecar", fmt.Sprintf("%s, running for %s, incarnation %s", s.Version, age(s.At, s.Since), cmp.Or(s.Incarnation, "unknown")))
}

func readyText(s control.Status) string {
	text := "yes"
	if !s.Ready.OK {
		causes := strings.Join(s.Ready.Causes, "; ")
		if s.Broker.LastError != "" {
			causes = strings.ReplaceAll(causes, ": "+s.Broker.LastError, "") // the broker's line or the first one says it
		}
		text = strings.TrimSuffix("no: "+causes, ": ")
	}
	if s.Shadow {
		text = "would be " + strings.Replace(text, "no:", "no (/ready answers 200):", 1)
	}
	return text
}

// guardText is empty if the sidecar does not tell.
func guardText(g control.GuardStatus) string {
	switch g.State {
	case "off", "idle":
		return g.State + ": " + g.Remark()
	case "absent":
		return "absent: " + g.Remark() + "; see 'holdfast events'"
	case "awaited":
		return "awaited for the broker's process"
	case "stands_by":
		return fmt.Sprintf("stands by for process %d of the broker", g.Pid)
	}
	return ""
}

func leaseText(l control.LeaseStatus) string {
	text := fmt.Sprintf("%s, TTL %s, ", l.ID, seconds(l.TTLSeconds))
	switch left := seconds(l.RemainingSeconds) + " left, fence point "; {
	case l.ID == "":
		return "none held"
	case l.RemainingSeconds <= 0:
		return text + "deadline passed " + seconds(-l.RemainingSeconds) + " ago"
	case l.FenceInSeconds <= 0:
		return text + left + "passed " + seconds(-l.FenceInSeconds) + " ago"
	default:
		return text + left + "in " + seconds(l.FenceInSeconds)
	}
}

func registrationText(s control.Status) string {
	text := map[string]string{
		"none":        "kept by the broker's own cluster; here it is only watched and steered",
		"supposed":    "only supposed: nothing is written (--shadow)",
		"another":     "held by another sidecar",
		"unknown":     "unknown: it cannot be read in etcd, and may stand",
		"unconfirmed": "present, not confirmed to be ours",
	}[s.Registration.State]
	switch {
	case s.Registration.State == "unknown" && s.Epoch != 0:
		return fmt.Sprintf("%s, last seen with epoch %d", text, s.Epoch)
	case text != "":
		return text
	case !s.Registration.Present:
		return "absent"
	case s.Registration.Adopted:
		return fmt.Sprintf("present, adopted, epoch %d", s.Epoch)
	}
	return fmt.Sprintf("present, own, epoch %d", s.Epoch)
}

func topicsText(s control.Status) string {
	t := s.Topics
	switch {
	case s.Broker.Up == "up" || t.Listed:
	case t.Assigned > 0:
		return fmt.Sprintf("%d assigned; what is served is not known: the broker has not told yet", t.Assigned)
	default:
		return "not known: the broker has not told them yet"
	}
	text := fmt.Sprintf("%d of %d served", t.Served, t.Assigned)
	missing := map[bool]string{true: "withdrawn", false: "missing"}[s.Mode == "drained"]
	for i, n := range []int{t.Loading, t.Missing, t.Elsewhere, t.Orphan, t.Quarantined, t.Unreadable, t.Ignored, t.Misspelt} {
		if n > 0 {
			text += fmt.Sprintf(", %d %s", n, []string{"loading", missing, "held_elsewhere", "orphan", "quarantined", "unreadable", "ignored", "with a misspelt field"}[i])
		}
	}
	if s.Shadow {
		text += ", if anything were done"
	}
	if s.Broker.Up != "up" && t.Served+t.Orphan > 0 {
		text += ", when the broker last answered"
	}
	return text
}

func bootText(s control.Status) string {
	text := withReason(s.Boot.Kind, s.Boot.Reason)
	switch {
	case s.Boot.Kind == "unknown" && s.Mode == "":
		text = "not decided yet"
	case s.Boot.Kind == "unknown":
		text = "not seen by this sidecar: it was started after the broker"
	case s.Boot.Past:
		text = "last time " + text
	}
	if len(s.Boot.Evidence) > 0 {
		text += ": " + strings.Join(s.Boot.Evidence, "; ")
	}
	return text
}
