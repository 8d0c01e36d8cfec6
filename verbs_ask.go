package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"holdfast/agent"
)

// The verbs that ask the sidecar and change nothing.

func statusVerb() *verb {
	return &verb{
		name:  "status",
		short: "this broker, as its sidecar sees it",
		long: "Shows the sidecar's view of its broker: one sentence first, then the details.\n" +
			"Asks the control socket of the sidecar that runs here.",
		flags: append(options{outputOption("table", "json")}, settingOptions(socketSettings...)...),
		do: func(ctx context.Context, v *verb, io streams, _ []string) error {
			asJSON, err := v.wantsJSON()
			if err != nil {
				return err
			}
			client, err := v.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			s, raw, err := client.Status(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(io.out, raw)
			}
			return writeStatus(io.out, s, painterFor(io.out))
		},
	}
}

var (
	topicStates = append([]string{"served", "missing", "loading", "orphan", "quarantined"}, rareStates...)
	// rareStates are counted only where there is one.
	rareStates = []string{"unreadable", "held_elsewhere", "foreign_owner"}
)

func topicsVerb() *verb {
	state := &option{name: "state", arg: "STATE", help: "only topics in this state: served, missing, loading, orphan, quarantined, unreadable, held_elsewhere or foreign_owner"}
	return &verb{
		name:  "topics",
		short: "topics wanted and served, one a line",
		long: "Lists every topic that is assigned to this broker or served by it. missing: assigned and not\n" +
			"served; orphan: served and not assigned; quarantined: an orphan that was quiesced;\n" +
			"unreadable: listed by the broker under what is no topic here, and left alone.\n" +
			"With ownership locks, held_elsewhere: assigned, and another broker owns it; foreign_owner: served\n" +
			"here although another broker owns it.",
		flags: append(options{outputOption("table", "json"), state}, settingOptions(socketSettings...)...),
		do: func(ctx context.Context, v *verb, io streams, _ []string) error {
			asJSON, err := v.wantsJSON()
			if err != nil {
				return err
			}
			if state.IsSet() {
				if _, err := state.oneOf(topicStates...); err != nil {
					return err
				}
			}
			client, err := v.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			all, raw, err := client.Topics(ctx)
			if err != nil {
				return err
			}
			if asJSON && !state.IsSet() {
				return printJSON(io.out, raw)
			}
			shown := all
			if state.IsSet() {
				other := func(t agent.TopicStatus) bool { return t.State != state.text() }
				shown = slices.DeleteFunc(slices.Clone(all), other)
			}
			if asJSON {
				if raw, err = json.Marshal(append([]agent.TopicStatus{}, shown...)); err != nil {
					return fmt.Errorf("encode topics: %w", err)
				}
				return printJSON(io.out, raw)
			}
			if err := writeTopics(io.out, all, shown, painterFor(io.out)); err != nil {
				return err
			}
			s, _, err := client.Status(ctx)
			switch {
			case len(all) == 0 && err != nil:
				return err
			case len(all) == 0: // which says how topics come here, or what is in their way
				return writeNote(io.out, s.Summary)
			case err == nil && s.Broker.Up != "up":
				return writeNote(io.out, "The broker does not answer: so it was when it last did.")
			}
			return nil
		},
	}
}

func eventsVerb() *verb {
	follow := &option{name: "follow", short: "f", help: "wait for more, until interrupted"}
	since := &option{name: "since", arg: "ID", help: "only events after this one"}
	return &verb{
		name:  "events",
		short: "the journal of transitions",
		long: "Prints the journal, oldest first. 'holdfast explain ID' tells why something happened. If no\n" +
			"sidecar runs here, the journal that it left in --state-dir is shown.",
		flags: append(options{outputOption("text", "json"), follow, since}, settingOptions(socketSettings...)...),
		do: func(ctx context.Context, v *verb, io streams, _ []string) error {
			asJSON, err := v.wantsJSON()
			if err != nil {
				return err
			}
			var o agent.EventOptions
			if o.Follow, err = follow.on(); err != nil {
				return err
			}
			if since.IsSet() {
				if o.Since, err = since.number(); err != nil {
					return err
				}
			}
			client, c, err := v.sidecar()
			if err != nil {
				return err
			}
			if !o.Follow {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, askTimeout)
				defer cancel()
			}
			p := painterFor(io.out)
			show := func(e agent.Event, raw []byte) error {
				if asJSON {
					return printJSON(io.out, raw)
				}
				return writeEvent(io.out, e, p)
			}
			err = client.Events(ctx, o, show)
			if errors.Is(err, agent.ErrNoSidecar) {
				return showLeft(io, c, o, err, show)
			}
			return err
		},
	}
}

// leftJournal is what there is to read when no sidecar answers, which is what gone says.
// It tells people so.
func leftJournal(io streams, c agent.Config, gone error) ([]agent.Event, error) {
	events, err := agent.LeftJournal(c.StateDir)
	switch {
	case err != nil:
		return nil, err
	case len(events) == 0:
		return nil, gone
	}
	last := events[len(events)-1].At.UTC().Format("2006-01-02 15:04:05Z")
	if _, err := fmt.Fprintf(io.err, "no sidecar runs here: this is its journal up to %s\n", last); err != nil {
		return nil, fmt.Errorf("print note: %w", err)
	}
	return events, nil
}

// showLeft shows the events that a sidecar left which does not run.
func showLeft(io streams, c agent.Config, o agent.EventOptions, gone error, show func(agent.Event, []byte) error) error {
	if o.Follow {
		return fmt.Errorf("%w; there is nothing to follow: leave out --follow to read the journal that it left", gone)
	}
	events, err := leftJournal(io, c, gone)
	if err != nil {
		return err
	}
	for _, e := range events {
		if e.ID <= o.Since {
			continue
		}
		raw, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("encode event: %w", err)
		}
		if err := show(e, raw); err != nil {
			return err
		}
	}
	return nil
}

// explainLeft explains an event that a sidecar left which does not run.
func explainLeft(io streams, c agent.Config, id int64, gone error) (x agent.Explanation, raw []byte, err error) {
	events, err := leftJournal(io, c, gone)
	if err != nil {
		return x, nil, err
	}
	i := slices.IndexFunc(events, func(e agent.Event) bool { return e.ID == id })
	if i < 0 {
		return x, nil, usage("event %d: not in the journal (any more): 'holdfast events' lists them", id)
	}
	if _, err := fmt.Fprintln(io.err, "times in the explanation are those of the default settings: what it had is not known"); err != nil {
		return x, nil, fmt.Errorf("print note: %w", err)
	}
	x = agent.Explain(events[i], c)
	if raw, err = json.MarshalIndent(x, "", "  "); err != nil {
		return x, nil, fmt.Errorf("encode explanation: %w", err)
	}
	return x, raw, nil
}

func explainVerb() *verb {
	return &verb{
		name:  "explain",
		args:  "EVENT",
		short: "why an event came, and what would have avoided it",
		long:  "Explains one event of the journal, by its number in 'holdfast events'.",
		flags: append(options{outputOption("text", "json")}, settingOptions(socketSettings...)...),
		do: func(ctx context.Context, v *verb, io streams, args []string) error {
			asJSON, err := v.wantsJSON()
			if err != nil {
				return err
			}
			arg, err := v.oneArg(args)
			if err != nil {
				return err
			}
			id, err := parseEventID(arg)
			if err != nil {
				return err
			}
			client, c, err := v.sidecar()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			e, raw, err := client.Event(ctx, id)
			if errors.Is(err, agent.ErrNoSidecar) {
				e, raw, err = explainLeft(io, c, id, err)
			}
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(io.out, raw)
			}
			return writeExplanation(io.out, e, painterFor(io.out))
		},
	}
}

// parseEventID takes 12 and #12, as events prints it.
func parseEventID(arg string) (int64, error) {
	digits := arg
	if len(digits) > 0 && digits[0] == '#' {
		digits = digits[1:]
	}
	id, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || id < 1 {
		return 0, usage("explain: event %q: not an event number: take one from 'holdfast events', such as 12", arg)
	}
	return id, nil
}

// age is how long ago t was, in the two largest units.
func age(now, t time.Time) string {
	d := now.Sub(t).Round(time.Second)
	switch {
	case t.IsZero():
		return "-"
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}
