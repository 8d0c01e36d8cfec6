package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/agent/control"
	"holdfast/recovery"
)

// The verbs that ask the sidecar and change nothing.

func status(c call) error {
	var s control.Status
	raw, err := c.sidecar().Get(c.Context, "/v1/status", &s)
	if errors.Is(err, control.ErrNoSidecar) && c.String("output") != "json" {
		writeEnd(c)
	}
	return c.answer(raw, err, func(o *output) { writeStatus(o, s) })
}

// writeEnd prints how the sidecar ended that ran here, and the last events. What does not show that
// says nothing: why nobody answers is said anyway.
func writeEnd(c call) {
	const most = 5
	events, _ := control.LeftJournal(c.settings.StateDir)
	for _, e := range slices.Backward(events) {
		how := map[string]string{
			"started":  "ended without a stop: it was killed, it failed, or its host did",
			"stopped":  "was stopped",
			"shutdown": "ended by itself: " + e.Detail,
		}[e.To]
		if e.Kind != "agent" || how == "" {
			continue
		}
		c.out().line("The sidecar that ran here %s. Its last events:", how)
		for _, e := range events[max(0, len(events)-most):] {
			writeEvent(c.out(), e)
		}
		return
	}
}

var (
	topicStates = append([]string{"served", "missing", "loading", "orphan", "quarantined"}, rareStates...)
	// rareStates are counted only where there is one.
	rareStates = []string{"withdrawn", "unreadable", "held_elsewhere", "foreign_owner", "ignored"}
)

func topics(c call) error {
	var all []control.TopicStatus
	raw, err := c.sidecar().Get(c.Context, "/v1/topics", &all)
	if err != nil {
		return err
	}
	shown := all
	if wanted := c.String("state"); wanted != "" {
		shown = slices.DeleteFunc(append([]control.TopicStatus{}, all...), func(t control.TopicStatus) bool { return t.State != wanted })
		raw, err = json.Marshal(shown)
	}
	var s control.Status
	if c.String("output") != "json" {
		_, err = c.sidecar().Get(c.Context, "/v1/status", &s)
	}
	return c.answer(raw, err, func(o *output) {
		writeTopics(o, all, shown)
		switch {
		case len(all) == 0: // how topics come here, or what is in their way
			o.line("")
			o.line("%s", s.Summary)
		case s.Broker.Up != "up" && slices.ContainsFunc(all, func(t control.TopicStatus) bool { return t.State == topicStates[0] }):
			o.line("")
			o.line("The broker does not answer: so it was when it last did.")
		}
	})
}

// writeTopics prints how many of all are in each state, then those shown.
func writeTopics(o *output, all, shown []control.TopicStatus) {
	counts := map[string]int{}
	for _, t := range all {
		counts[t.State]++
	}
	var parts []string
	for _, s := range topicStates {
		if counts[s] > 0 || !slices.Contains(rareStates, s) {
			parts = append(parts, fmt.Sprintf("%d %s", counts[s], s))
		}
	}
	o.line("%s", strings.Join(parts, ", "))
	if len(shown) == 0 {
		return
	}
	rows := [][]string{{"TOPIC", "STATE", "ERROR"}}
	for _, t := range shown {
		state := t.State
		if t.Supposed {
			state = "would be " + state
		}
		rows = append(rows, []string{t.Topic, state, t.Error})
	}
	o.line("")
	o.table(rows)
}

func events(c call) error {
	show := func(e control.Event, raw []byte) error {
		_ = c.answer(raw, nil, func(o *output) { writeEvent(o, e) })
		return c.out().err
	}
	err := c.sidecar().Events(c.Context, 0, c.Bool("follow"), show)
	switch {
	case !errors.Is(err, control.ErrNoSidecar):
		return err
	case c.Bool("follow"):
		return fmt.Errorf("%w; there is nothing to follow: leave out --follow to read the journal that it left", err)
	}
	left, err := leftJournal(c, err)
	for _, e := range left {
		raw, _ := json.Marshal(e)
		_ = show(e, raw)
	}
	return err
}

// leftJournal is what there is to read when no sidecar answers, which is what gone says.
// It tells people so.
func leftJournal(c call, gone error) ([]control.Event, error) {
	events, err := control.LeftJournal(c.settings.StateDir)
	switch {
	case err != nil:
		return nil, err
	case len(events) == 0:
		return nil, gone
	}
	fmt.Fprintf(c.App.ErrWriter, "no sidecar runs here: this is its journal up to %s\n", events[len(events)-1].At.UTC().Format(clock))
	return events, nil
}

func eventText(e control.Event) string {
	change := e.To
	if e.From != "" && e.From != e.To {
		change = e.From + " → " + e.To
	}
	return fmt.Sprintf("%s  #%d %s %s", e.At.UTC().Format(clock), e.ID, e.Kind, withReason(change, e.Reason))
}

func writeEvent(o *output, e control.Event) {
	text := eventText(e)
	if e.Detail != "" {
		text += " " + e.Detail
	}
	if e.Otherwise != "" {
		text += fmt.Sprintf(" (decided by %s; otherwise: %s)", e.Row, e.Otherwise)
	}
	o.line("%s", text)
}

func explain(c call) error {
	arg := c.Args().First()
	id, err := strconv.ParseInt(strings.TrimPrefix(arg, "#"), 10, 64) // events prints #12
	if err != nil || id < 1 {
		return usage("explain: event %q: not an event number: take one from 'holdfast events', such as 12", arg)
	}
	var x control.Explanation
	raw, err := c.sidecar().Get(c.Context, fmt.Sprintf("/v1/events/%d", id), &x)
	if errors.Is(err, control.ErrNoSidecar) {
		x, err = explainLeft(c, id, err)
		raw, _ = json.MarshalIndent(x, "", "  ")
	}
	return c.answer(raw, err, func(o *output) { writeExplanation(o, x) })
}

// explainLeft explains an event that a sidecar left which does not run.
func explainLeft(c call, id int64, gone error) (x control.Explanation, err error) {
	events, err := leftJournal(c, gone)
	if err != nil {
		return x, err
	}
	i := slices.IndexFunc(events, func(e control.Event) bool { return e.ID == id })
	if i < 0 {
		return x, usage("event %d: not in the journal (any more): 'holdfast events' lists them", id)
	}
	fmt.Fprintln(c.App.ErrWriter, "times in the explanation are those of the default settings: what it had is not known")
	return control.Explain(events[i], c.settings), nil
}

func writeExplanation(o *output, x control.Explanation) {
	o.line("%s", eventText(x.Event))
	what := x.Event.Detail
	if x.Event.Epoch > 0 && what != "" {
		what += fmt.Sprintf(" (epoch %d)", x.Event.Epoch)
	}
	for _, part := range [][2]string{{"what", what}, {"why", x.Why}, {"avoid", x.Avoid}, {"else", x.Otherwise}, {"next", cmp.Or(x.Next, "Nothing.")}} {
		name := part[0]
		for line := range strings.Lines(fold(control.Plain(part[1]), 88, "\n")) {
			o.line("%-6s %s", name, strings.TrimSpace(line))
			name = ""
		}
	}
}

// The verbs that have the sidecar change something.

// steer asks for what the verb is called, and says how the broker is then.
func steer(c call, body map[string]any) error {
	var s control.Status
	if err := c.sidecar().Post(c.Context, "/v1/"+c.Command.Name, body, &s); err != nil {
		return err
	}
	switch {
	case s.Mode == "":
		c.out().line("%s: done", c.Command.Name)
	case s.Left:
		c.out().line("%s", s.Summary)
	default:
		c.out().line("%s: mode %s. %s", s.BrokerID, withReason(s.Mode, s.Reason), s.Summary)
	}
	return nil
}

func activate(c call) error { return steer(c, map[string]any{"reason": c.String("reason")}) }
func confirm(c call) error  { return steer(c, map[string]any{}) }
func drain(c call) error {
	if c.Bool("move") {
		return drainMove(c)
	}
	for _, name := range []string{"to", "deadline", "leave-unmoved", "dry-run"} {
		if c.IsSet(name) {
			return usage("drain: --%s goes with --move: add it, or leave --%s out", name, name)
		}
	}
	return steer(c, map[string]any{"reason": c.String("reason"), "timeout_seconds": c.Duration("timeout").Seconds()})
}

func leave(c call) error {
	if err := settle(c); err != nil {
		return err
	}
	err := steer(c, map[string]any{"timeout_seconds": c.Duration("timeout").Seconds(), "wait": c.Bool("wait"), "with_sidecar": c.Bool("with-sidecar")})
	if _, answered := errors.AsType[*control.ExitError](err); err != nil && !answered {
		_ = settle(c) // the sidecar may have been stopped meanwhile
	}
	return err
}

// aliveTimeout bounds a question of settle. A sidecar that is frozen answers none, and
// whoever stops the broker next waits for us.
const aliveTimeout = 5 * time.Second

// settle returns, after the timeout at the latest, when whoever stops the broker next is not in
// the way of what is under way already: a drain, or the end of a sidecar, at which it has its
// broker leave by itself.
func settle(c call) error {
	end := time.After(c.Duration("timeout"))
	for {
		ctx, cancel := context.WithTimeout(c.Context, aliveTimeout)
		var s control.Status
		_, err := c.sidecar().Get(ctx, "/v1/status", &s)
		cancel()
		ending := errors.Is(err, control.ErrNoSidecar) && control.Held(c.settings.StateDir)
		draining := err == nil && s.Mode == string(recovery.Drained) && s.Topics.Served+s.Topics.Orphan > 0
		if !ending && !draining {
			return err
		}
		select {
		case <-end:
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func pause(c call) error {
	req := control.PauseRequest{Owner: c.String("owner"), Reason: c.String("reason"), ForSeconds: c.Duration("for").Seconds()}
	if err := req.Validate(); err != nil {
		return usage("%w", err)
	}
	return setPause(c, req)
}

func resume(c call) error { return setPause(c, struct{}{}) }

// setPause says what became of the pause, in one line.
func setPause(c call, body any) error {
	var a control.PauseAnswer
	if err := c.sidecar().Post(c.Context, "/v1/"+c.Command.Name, body, &a); err != nil {
		return err
	}
	text, before := "recovery was not paused: nothing to resume.", ""
	if b := a.Before; b != nil {
		before = fmt.Sprintf("the pause by %s (%s)", b.Owner, b.Reason)
		text = fmt.Sprintf("recovery goes on: %s is over, %s early.", before, seconds(b.RemainingSeconds))
	}
	if p := a.Pause; p != nil {
		text = fmt.Sprintf("recovery is paused for %s, until %s, by %s: %s. The lease and the fencing go on; 'holdfast resume' ends it.",
			seconds(p.RemainingSeconds), p.Until.UTC().Format(clock), p.Owner, p.Reason)
		if before != "" {
			text += fmt.Sprintf(" It replaces %s, which had %s left.", before, seconds(a.Before.RemainingSeconds))
		}
	}
	c.out().line("%s: %s", cmp.Or(a.BrokerID, "the broker"), text)
	return nil
}

func reload(c call) error {
	var done control.Reloaded
	if err := c.sidecar().Post(c.Context, "/v1/reload", struct{}{}, &done); err != nil {
		return fmt.Errorf("reload: %w", err)
	}
	what := "the settings were read anew: nothing changed"
	if len(done.Changed) > 0 {
		what = "applied: " + strings.Join(done.Changed, ", ")
	}
	c.out().line("%s: %s.", cmp.Or(done.BrokerID, "the broker"), strings.Join(append([]string{what}, done.Found...), "; "))
	return nil
}
