package main

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"holdfast/agent"
)

// plain has every text in what v is or points to shown as agent.Plain does.
func plain(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(agent.Plain(v.String()))
	case reflect.Pointer:
		if !v.IsNil() {
			plain(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			plain(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() { // else a time's
				plain(f)
			}
		}
	}
}

// say prints one line.
func say(w io.Writer, text string) error {
	if _, err := fmt.Fprintln(w, agent.Plain(text)); err != nil {
		return fmt.Errorf("print answer: %w", err)
	}
	return nil
}

// painter colours text for a terminal, or leaves it alone.
type painter bool

func (p painter) paint(code, s string) string {
	if !p {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p painter) good(s string) string { return p.paint("32", s) }
func (p painter) warn(s string) string { return p.paint("33", s) }
func (p painter) bad(s string) string  { return p.paint("31", s) }
func (p painter) bold(s string) string { return p.paint("1", s) }

// state colours the words of the contract by how much they matter at night.
func (p painter) state(s string) string {
	switch s {
	case "attached", "active", "up", "served", "yes":
		return p.good(s)
	case "degraded", "draining", "drained", "loading", "unknown", "quarantined", "held_elsewhere", "unreadable":
		return p.warn(s)
	case "detached", "down", "missing", "orphan", "foreign_owner", "no":
		return p.bad(s)
	}
	return s
}

func withReason(s, reason string) string {
	if reason == "" {
		return s
	}
	return s + " (" + reason + ")"
}

// writeStatus prints one sentence, then a few aligned lines.
func writeStatus(w io.Writer, s agent.Status, p painter) error {
	plain(reflect.ValueOf(&s))
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", p.bold(s.Summary))
	line := func(name, text string) { fmt.Fprintf(&b, "%-13s %s\n", name, text) }

	line("broker", brokerLine(s, p))
	line("attachment", p.state(s.Attachment))
	line("mode", withReason(p.state(known(s.Mode)), s.Reason))
	if s.Pause != nil {
		line("pause", p.warn(fmt.Sprintf("by %s for %s more, until %s", s.Pause.Owner, seconds(s.Pause.RemainingSeconds),
			s.Pause.Until.UTC().Format("2006-01-02 15:04:05Z")))+": "+s.Pause.Reason)
	}
	if text := guardLine(s.Guard, p); text != "" && !s.Shadow {
		line("guard", text)
	}
	line("ready", readyLine(s, p))
	topics := topicsLine(s.Topics, p)
	if s.Shadow {
		topics += ", if anything were done"
	}
	switch {
	case s.Broker.Up != "up" && !s.Topics.Listed:
		topics = "not known: the broker has not told them yet"
		if s.Topics.Assigned > 0 {
			topics = fmt.Sprintf("%d assigned; what is served is not known: the broker has not told yet", s.Topics.Assigned)
		}
	case s.Broker.Up != "up":
		topics += ", when the broker last answered"
	}
	line("topics", topics)
	if s.Registration.State == "none" {
		line("lease", "none: nothing has a deadline (--registration none)")
	} else {
		line("lease", leaseLine(s.Lease, p))
	}
	if s.Lease.FailureStreak > 0 {
		line("renewals", p.warn(fmt.Sprintf("failing for %s, %d in a row", seconds(s.Lease.FailingSeconds), s.Lease.FailureStreak))+lastError(s, s.Lease.LastError))
	}
	line("registration", registrationLine(s, p))
	boot := withReason(s.Boot.Kind, s.Boot.Reason)
	if s.Boot.Past {
		boot = "last time " + boot
	}
	switch {
	case s.Boot.Kind == "unknown" && s.Mode == "":
		boot = "not decided yet"
	case s.Boot.Kind == "unknown":
		boot = "not seen by this sidecar: it was started after the broker"
	}
	if len(s.Boot.Evidence) > 0 {
		boot += ": " + strings.Join(s.Boot.Evidence, "; ")
	}
	line("boot", boot)
	if s.Decided != nil {
		line("decided by", s.Decided.Row+": "+s.Decided.Why)
		line("otherwise", s.Decided.Otherwise)
	}
	if s.Config.Error != "" {
		line("settings", p.warn("not applied")+": "+s.Config.Error)
	}
	line("sidecar", fmt.Sprintf("%s, running for %s, incarnation %s", s.Version, age(s.At, s.Since), known(s.Incarnation)))
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print status: %w", err)
	}
	return nil
}

func readyLine(s agent.Status, p painter) string {
	causes := strings.Join(s.Ready.Causes, "; ")
	if s.Broker.LastError != "" {
		causes = strings.ReplaceAll(causes, ": "+s.Broker.LastError, "") // the broker's line or the first one says it
	}
	switch {
	case s.Shadow && s.Ready.OK:
		return "would be " + p.state("yes")
	case s.Shadow:
		return "would be " + p.state("no") + " (/ready answers 200): " + causes
	case s.Ready.OK:
		return p.state("yes")
	}
	return strings.TrimSuffix(p.state("no")+": "+causes, ": ")
}

// guardLine is empty if the sidecar does not tell.
func guardLine(g agent.GuardStatus, p painter) string {
	switch g.State {
	case "off":
		return p.warn("off") + ": " + g.Remark()
	case "stands_by":
		if g.Pid == 0 {
			return p.good("stands by")
		}
		return fmt.Sprintf("%s for process %d of the broker", p.good("stands by"), g.Pid)
	case "awaited":
		return p.warn("awaited") + " for the broker's process"
	case "absent":
		return p.bad("absent") + ": " + g.Remark() + "; see 'holdfast events'"
	case "idle":
		return "idle: " + g.Remark()
	}
	return ""
}

func brokerLine(s agent.Status, p painter) string {
	name := s.BrokerID
	if name == "" {
		name = "id not known yet"
	}
	kind := strings.TrimSpace(s.Driver + " " + s.Broker.Version)
	return fmt.Sprintf("%s (%s), %s", name, kind, p.state(known(s.Broker.Up))) + lastError(s, s.Broker.LastError)
}

// known shows what the sidecar cannot tell yet as unknown.
func known(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// lastError is what went wrong, unless the first line says it already.
func lastError(s agent.Status, text string) string {
	if text == "" || strings.Contains(s.Summary, text) {
		return ""
	}
	return ": " + text
}

func leaseLine(l agent.LeaseStatus, p painter) string {
	if l.ID == "" {
		return p.bad("none held")
	}
	text := fmt.Sprintf("%s, TTL %s, ", l.ID, seconds(l.TTLSeconds))
	switch {
	case l.RemainingSeconds <= 0:
		return text + p.bad("deadline passed "+seconds(-l.RemainingSeconds)+" ago")
	case l.FenceInSeconds <= 0:
		return text + seconds(l.RemainingSeconds) + " left, " + p.bad("fence point passed "+seconds(-l.FenceInSeconds)+" ago")
	}
	return text + seconds(l.RemainingSeconds) + " left, fence point in " + seconds(l.FenceInSeconds)
}

func registrationLine(s agent.Status, p painter) string {
	switch s.Registration.State {
	case "none":
		return "kept by the broker's own cluster; here it is only watched and steered"
	case "supposed":
		return "only supposed: nothing is written (--shadow)"
	case "another":
		return p.bad("held by another sidecar")
	case "unknown":
		if s.Epoch == 0 {
			return p.warn("unknown") + ": no word from etcd"
		}
		return fmt.Sprintf("%s: no word from etcd, last seen with epoch %d", p.warn("unknown"), s.Epoch)
	case "unconfirmed":
		return p.warn("present") + ", not confirmed to be ours"
	}
	if !s.Registration.Present {
		return p.bad("absent")
	}
	kind := "own"
	if s.Registration.Adopted {
		kind = "adopted"
	}
	return fmt.Sprintf("%s, %s, epoch %d", p.good("present"), kind, s.Epoch)
}

func topicsLine(t agent.TopicCounts, p painter) string {
	text := fmt.Sprintf("%d of %d served", t.Served, t.Assigned)
	for _, part := range []struct {
		n     int
		state string
	}{{t.Loading, "loading"}, {t.Missing, "missing"}, {t.Elsewhere, "held_elsewhere"}, {t.Orphan, "orphan"}, {t.Quarantined, "quarantined"}, {t.Unreadable, "unreadable"}} {
		if part.n > 0 {
			text += fmt.Sprintf(", %d %s", part.n, p.state(part.state))
		}
	}
	return text
}

// seconds prints to a tenth of a second: 4.2s, 1m12.5s.
func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond).String()
}

// writeTopics prints how many of all are in each state, then those shown.
func writeTopics(w io.Writer, all, shown []agent.TopicStatus, p painter) error {
	counts := map[string]int{}
	for _, t := range all {
		counts[t.State]++
	}
	parts := make([]string, 0, len(topicStates))
	for _, s := range topicStates {
		if counts[s] > 0 || !slices.Contains(rareStates, s) {
			parts = append(parts, fmt.Sprintf("%d %s", counts[s], s))
		}
	}
	t := table{head: []string{"TOPIC", "STATE", "ERROR"}}
	for _, s := range shown {
		state := s.State
		if s.Supposed {
			state = "would be " + state
		}
		t.add(s.Topic, state, s.Error)
	}
	t.paint = func(column int, s string) string {
		if column == 1 {
			word := strings.TrimPrefix(s, "would be ")
			return strings.TrimSuffix(s, word) + p.state(word)
		}
		return s
	}
	text := strings.Join(parts, ", ") + "\n"
	if len(shown) > 0 {
		text += "\n" + t.String()
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print topics: %w", err)
	}
	return nil
}

// writeNote prints a sentence below what was shown.
func writeNote(w io.Writer, text string) error {
	if _, err := fmt.Fprintln(w); err != nil {
		return fmt.Errorf("print note: %w", err)
	}
	return say(w, text)
}

// eventLine is one event without its detail.
func eventLine(e agent.Event, p painter) string {
	change := p.state(e.To)
	if e.From != "" {
		change = e.From + " → " + change
	}
	return fmt.Sprintf("%s  #%d %s %s", e.At.UTC().Format("2006-01-02 15:04:05Z"), e.ID, e.Kind, withReason(change, e.Reason))
}

func writeEvent(w io.Writer, e agent.Event, p painter) error {
	plain(reflect.ValueOf(&e))
	text := eventLine(e, p)
	if e.Detail != "" {
		text += " " + e.Detail
	}
	if e.Otherwise != "" {
		text += fmt.Sprintf(" (decided by %s; otherwise: %s)", e.Row, e.Otherwise)
	}
	if _, err := fmt.Fprintln(w, text); err != nil {
		return fmt.Errorf("print event: %w", err)
	}
	return nil
}

func writeExplanation(w io.Writer, x agent.Explanation, p painter) error {
	plain(reflect.ValueOf(&x))
	var b strings.Builder
	fmt.Fprintln(&b, eventLine(x.Event, p))
	if x.Event.Epoch > 0 {
		x.Event.Detail = strings.TrimSpace(fmt.Sprintf("%s (epoch %d)", x.Event.Detail, x.Event.Epoch))
	}
	next := x.Next
	if next == "" {
		next = "Nothing."
	}
	for _, part := range []struct{ name, text string }{
		{"what", x.Event.Detail}, {"why", x.Why}, {"avoid", x.Avoid}, {"else", x.Otherwise}, {"next", next},
	} {
		if part.text == "" {
			continue
		}
		name := part.name
		for _, line := range wrap(strings.Fields(part.text), 88) {
			fmt.Fprintf(&b, "%-6s %s\n", name, line)
			name = ""
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print explanation: %w", err)
	}
	return nil
}

// table aligns columns by what is seen, not by the bytes that colour it.
type table struct {
	head  []string
	rows  [][]string
	paint func(column int, s string) string // nil: no colours
}

func (t *table) add(cells ...string) {
	plain(reflect.ValueOf(cells))
	t.rows = append(t.rows, cells)
}

func (t *table) String() string {
	widths := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	var b strings.Builder
	for n, row := range append([][]string{t.head}, t.rows...) {
		line := ""
		for i, cell := range row {
			shown := pad(cell, widths[i])
			if n > 0 && t.paint != nil {
				shown = strings.Replace(shown, cell, t.paint(i, cell), 1)
			}
			line += shown + "  "
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}
