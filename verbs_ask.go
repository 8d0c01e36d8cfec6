package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"holdfast/agent"
)

// The verbs that ask the sidecar and change nothing.

func statusVerb() *cli.Command {
	return asking("status", func(c *cli.Context, client *agent.Client, _ agent.Config) error {
		s, raw, err := client.Status(c.Context)
		if err != nil {
			return err
		}
		return answer(c, raw, func(o *output) { writeStatus(o, s) })
	}, outputFlag("table", "json"))
}

var (
	topicStates = append([]string{"served", "missing", "loading", "orphan", "quarantined"}, rareStates...)
	// rareStates are counted only where there is one.
	rareStates = []string{"unreadable", "held_elsewhere", "foreign_owner"}
)

func topicsVerb() *cli.Command {
	last := len(topicStates) - 1
	state := textFlag("state", "STATE", "only topics in this state: "+strings.Join(topicStates[:last], ", ")+" or "+topicStates[last], "")
	state.Action = oneOf("state", topicStates)
	return asking("topics", func(c *cli.Context, client *agent.Client, _ agent.Config) error {
		all, raw, err := client.Topics(c.Context)
		if err != nil {
			return err
		}
		shown := all
		if wanted := c.String("state"); wanted != "" {
			shown = slices.DeleteFunc(append([]agent.TopicStatus{}, all...), func(t agent.TopicStatus) bool { return t.State != wanted })
			if raw, err = json.Marshal(shown); err != nil {
				return fmt.Errorf("encode topics: %w", err)
			}
		}
		if c.String("output") == "json" {
			return answer(c, raw, nil)
		}
		o := out(c)
		writeTopics(o, all, shown)
		s, _, err := client.Status(c.Context)
		note := ""
		switch {
		case len(all) == 0 && err != nil:
			return err
		case len(all) == 0: // which says how topics come here, or what is in their way
			note = s.Summary
		case err == nil && s.Broker.Up != "up":
			note = "The broker does not answer: so it was when it last did."
		}
		if note != "" {
			o.line("")
			o.line("%s", note)
		}
		return nil
	}, outputFlag("table", "json"), state)
}

// writeTopics prints how many of all are in each state, then those shown.
func writeTopics(o *output, all, shown []agent.TopicStatus) {
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
	o.table([]int{1}, rows)
}

func eventsVerb() *cli.Command {
	return asking("events", func(c *cli.Context, client *agent.Client, settings agent.Config) error {
		options := agent.EventOptions{Follow: c.Bool("follow"), Since: c.Int64("since")}
		show := func(e agent.Event, raw []byte) error {
			_ = answer(c, raw, func(o *output) { writeEvent(o, e) })
			return out(c).err
		}
		err := client.Events(c.Context, options, show)
		if !errors.Is(err, agent.ErrNoSidecar) {
			return err
		}
		if options.Follow {
			return fmt.Errorf("%w; there is nothing to follow: leave out --follow to read the journal that it left", err)
		}
		events, err := leftJournal(c, settings, err)
		for _, e := range events {
			if e.ID <= options.Since {
				continue
			}
			raw, err := json.Marshal(e)
			if err != nil {
				return fmt.Errorf("encode event: %w", err)
			}
			_ = show(e, raw)
		}
		return err
	},
		outputFlag("text", "json"),
		&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "wait for more, until interrupted"},
		&cli.Int64Flag{Name: "since", Usage: "`ID` only events after this one"})
}

// leftJournal is what there is to read when no sidecar answers, which is what gone says.
// It tells people so.
func leftJournal(c *cli.Context, settings agent.Config, gone error) ([]agent.Event, error) {
	events, err := agent.LeftJournal(settings.StateDir)
	switch {
	case err != nil:
		return nil, err
	case len(events) == 0:
		return nil, gone
	}
	fmt.Fprintf(c.App.ErrWriter, "no sidecar runs here: this is its journal up to %s\n", events[len(events)-1].At.UTC().Format(clock))
	return events, nil
}

func eventText(o *output, e agent.Event) string {
	change := o.state(e.To)
	if e.From != "" {
		change = e.From + " → " + change
	}
	return fmt.Sprintf("%s  #%d %s %s", e.At.UTC().Format(clock), e.ID, e.Kind, withReason(change, e.Reason))
}

func writeEvent(o *output, e agent.Event) {
	text := eventText(o, e)
	if e.Detail != "" {
		text += " " + e.Detail
	}
	if e.Otherwise != "" {
		text += fmt.Sprintf(" (decided by %s; otherwise: %s)", e.Row, e.Otherwise)
	}
	o.line("%s", text)
}

func explainVerb() *cli.Command {
	return asking("explain", func(c *cli.Context, client *agent.Client, settings agent.Config) error {
		arg := c.Args().First()
		id, err := strconv.ParseInt(strings.TrimPrefix(arg, "#"), 10, 64) // events prints #12
		if err != nil || id < 1 {
			return usage("explain: event %q: not an event number: take one from 'holdfast events', such as 12", arg)
		}
		x, raw, err := client.Event(c.Context, id)
		if errors.Is(err, agent.ErrNoSidecar) {
			x, raw, err = explainLeft(c, settings, id, err)
		}
		if err != nil {
			return err
		}
		return answer(c, raw, func(o *output) { writeExplanation(o, x) })
	}, outputFlag("text", "json"))
}

// explainLeft explains an event that a sidecar left which does not run.
func explainLeft(c *cli.Context, settings agent.Config, id int64, gone error) (x agent.Explanation, raw []byte, err error) {
	events, err := leftJournal(c, settings, gone)
	if err != nil {
		return x, nil, err
	}
	i := slices.IndexFunc(events, func(e agent.Event) bool { return e.ID == id })
	if i < 0 {
		return x, nil, usage("event %d: not in the journal (any more): 'holdfast events' lists them", id)
	}
	fmt.Fprintln(c.App.ErrWriter, "times in the explanation are those of the default settings: what it had is not known")
	x = agent.Explain(events[i], settings)
	raw, err = json.MarshalIndent(x, "", "  ")
	return x, raw, err
}

func writeExplanation(o *output, x agent.Explanation) {
	o.line("%s", eventText(o, x.Event))
	what := x.Event.Detail
	if x.Event.Epoch > 0 {
		what += fmt.Sprintf(" (epoch %d)", x.Event.Epoch)
	}
	for _, part := range [][2]string{{"what", what}, {"why", x.Why}, {"avoid", x.Avoid}, {"else", x.Otherwise}, {"next", or(x.Next, "Nothing.")}} {
		name := part[0]
		for line := range strings.Lines(fold(agent.Plain(part[1]), 88, "\n")) {
			o.line("%-6s %s", name, strings.TrimSpace(line))
			name = ""
		}
	}
}
