package main

import (
	"context"
	"fmt"
	"time"

	"holdfast/agent"
)

// The verbs that change the mode of the broker, through its sidecar.

func reasonOption() *option {
	return &option{name: "reason", arg: "TEXT", help: "why, kept with the mode in etcd", def: "operator"}
}

func activateVerb() *verb {
	reason := reasonOption()
	return &verb{
		name:  "activate",
		short: "let the broker serve",
		long: "Sets the mode to active: a broker with a mode of its own is told, assigned topics are loaded,\n" +
			"then clients may come.",
		flags: append(options{reason}, settingOptions(socketSettings...)...),
		do: func(ctx context.Context, v *verb, io streams, _ []string) error {
			return steer(ctx, v, io, askTimeout, func(ctx context.Context, c *agent.Client) (agent.Status, []byte, error) {
				return c.Activate(ctx, reason.text())
			})
		},
	}
}

func drainVerb() *verb {
	reason := reasonOption()
	timeout := &option{name: "timeout", arg: "DURATION", help: "how long to wait until nothing is served; the mode stays drained in any case", def: "30s"}
	return &verb{
		name:  "drain",
		short: "keep clients away from the broker, until activated",
		long: "Sets the mode to drained: clients are sent away and what is served is quiesced. Data stays.\n" +
			"A broker with a mode of its own is told, and waited for.\n" +
			"The mode survives restarts; 'holdfast activate' ends it.",
		flags: append(options{reason, timeout}, settingOptions(socketSettings...)...),
		do: func(ctx context.Context, v *verb, io streams, _ []string) error {
			wait, err := timeout.duration()
			if err != nil {
				return err
			}
			return steer(ctx, v, io, wait+askTimeout, func(ctx context.Context, c *agent.Client) (agent.Status, []byte, error) {
				return c.Drain(ctx, reason.text(), wait)
			})
		},
	}
}

func confirmVerb() *verb {
	return &verb{
		name:  "confirm",
		short: "let a sudden change of many assignments proceed",
		long: "When more than --mass-change-share of the topics, and at least 10, are unassigned at once, the\n" +
			"sidecar waits for this before it quiesces them.",
		flags: settingOptions(socketSettings...),
		do: func(ctx context.Context, v *verb, io streams, _ []string) error {
			return steer(ctx, v, io, askTimeout, func(ctx context.Context, c *agent.Client) (agent.Status, []byte, error) {
				return c.Confirm(ctx)
			})
		},
	}
}

func steer(ctx context.Context, v *verb, io streams, bound time.Duration,
	do func(context.Context, *agent.Client) (agent.Status, []byte, error)) error {
	client, err := v.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	s, raw, err := do(ctx, client)
	if err != nil {
		return err
	}
	if len(raw) == 0 || s.Mode == "" {
		return say(io.out, v.name+": done")
	}
	return say(io.out, fmt.Sprintf("%s: mode %s. %s", s.BrokerID, withReason(s.Mode, s.Reason), s.Summary))
}
