package main

import (
	"context"
	"fmt"
	"time"

	"holdfast/agent"
)

// The verbs for maintenance that ends by itself.

func pauseVerb() *verb {
	long := &option{name: "for", arg: "DURATION", help: "how long, from 1s to 24h; then recovery goes on by itself", def: "required"}
	owner := &option{name: "owner", arg: "TEXT", help: "who answers for it, such as a name or a ticket", def: "required"}
	reason := &option{name: "reason", arg: "TEXT", help: "why, for those who find the broker paused", def: "required"}
	return &verb{
		name:  "pause",
		short: "take no recovery action for a time, for maintenance",
		long: "Nothing is loaded, quiesced, registered again, drained, restarted or stopped by policy until the\n" +
			"pause ends by itself or by 'holdfast resume'. It survives a restart of the sidecar. What keeps the\n" +
			"broker from serving what is not its own goes on: the lease is renewed, a broker that is cut off is\n" +
			"fenced, and 'holdfast activate' and 'holdfast drain' are obeyed. Pausing again replaces the pause.",
		flags: append(options{long, owner, reason}, settingOptions(socketSettings...)...),
		do: func(ctx context.Context, v *verb, io streams, _ []string) error {
			req := agent.PauseRequest{}
			for _, o := range []struct {
				from *option
				to   *string
			}{{owner, &req.Owner}, {reason, &req.Reason}} {
				if o.from.IsSet() {
					*o.to = o.from.text()
				}
			}
			if long.IsSet() {
				d, err := time.ParseDuration(long.text())
				if err != nil {
					return usage("--for %q: not a duration: write a number with a unit, such as 30m", long.text())
				}
				if d <= 0 {
					return usage("--for %s: no time at all: give at least 1s and at most 24h", long.text())
				}
				req.ForSeconds = d.Seconds()
			}
			if err := req.Validate(); err != nil {
				return &agent.ExitError{Code: agent.ExitUsage, Err: err}
			}
			return changePause(ctx, v, io, func(ctx context.Context, c *agent.Client) (agent.PauseAnswer, error) {
				return c.Pause(ctx, req)
			})
		},
	}
}

func resumeVerb() *verb {
	return &verb{
		name:  "resume",
		short: "end the pause: recovery goes on at once",
		long:  "What waited during 'holdfast pause' is done now. Without a pause it changes nothing.",
		flags: settingOptions(socketSettings...),
		do: func(ctx context.Context, v *verb, io streams, _ []string) error {
			return changePause(ctx, v, io, func(ctx context.Context, c *agent.Client) (agent.PauseAnswer, error) {
				return c.Resume(ctx)
			})
		},
	}
}

func changePause(ctx context.Context, v *verb, io streams, do func(context.Context, *agent.Client) (agent.PauseAnswer, error)) error {
	client, err := v.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer, err := do(ctx, client)
	if err != nil {
		return err
	}
	return say(io.out, pauseText(answer))
}

// pauseText is what became of the pause, in one line.
func pauseText(a agent.PauseAnswer) string {
	name := a.BrokerID
	if name == "" {
		name = "the broker"
	}
	switch {
	case a.Pause != nil:
		text := fmt.Sprintf("%s: recovery is paused for %s, until %s, by %s: %s. The lease and the fencing go on; 'holdfast resume' ends it.",
			name, seconds(a.Pause.RemainingSeconds), a.Pause.Until.UTC().Format("2006-01-02 15:04:05Z"), a.Pause.Owner, a.Pause.Reason)
		if a.Before != nil {
			text += fmt.Sprintf(" It replaces the pause by %s (%s), which had %s left.", a.Before.Owner, a.Before.Reason, seconds(a.Before.RemainingSeconds))
		}
		return text
	case a.Before != nil:
		return fmt.Sprintf("%s: recovery goes on: the pause by %s (%s) is over, %s early.", name, a.Before.Owner, a.Before.Reason, seconds(a.Before.RemainingSeconds))
	}
	return name + ": recovery was not paused: nothing to resume."
}
