package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"holdfast/agent"
	"holdfast/recovery"
)

// The verbs that have the sidecar change something.

// steering makes one whose answer is the broker's state.
func steering(name string, do func(*cli.Context, *agent.Client, agent.Config) (agent.Status, []byte, error), flags ...cli.Flag) *cli.Command {
	return asking(name, func(c *cli.Context, client *agent.Client, settings agent.Config) error {
		s, raw, err := do(c, client, settings)
		switch {
		case err != nil:
			return err
		case len(raw) == 0 || s.Mode == "":
			out(c).line("%s: done", name)
		default:
			out(c).line("%s: mode %s. %s", s.BrokerID, withReason(s.Mode, s.Reason), s.Summary)
		}
		return nil
	}, flags...)
}

func reasonFlag() cli.Flag {
	return textFlag("reason", "TEXT", "why, kept with the mode in etcd", "operator")
}

func activateVerb() *cli.Command {
	return steering("activate", func(c *cli.Context, client *agent.Client, _ agent.Config) (agent.Status, []byte, error) {
		return client.Activate(c.Context, c.String("reason"))
	}, reasonFlag())
}

func drainVerb() *cli.Command {
	return steering("drain", func(c *cli.Context, client *agent.Client, _ agent.Config) (agent.Status, []byte, error) {
		return client.Drain(c.Context, c.String("reason"), c.Duration("timeout"))
	}, reasonFlag(), durationFlag("timeout", "how long to wait until nothing is served; the mode stays drained in any case", 30*time.Second, 0))
}

func confirmVerb() *cli.Command {
	return steering("confirm", func(c *cli.Context, client *agent.Client, _ agent.Config) (agent.Status, []byte, error) {
		return client.Confirm(c.Context)
	})
}

func leaveVerb() *cli.Command {
	return steering("leave", func(c *cli.Context, client *agent.Client, settings agent.Config) (agent.Status, []byte, error) {
		bound := c.Duration("timeout")
		if err := settle(c.Context, client, settings.StateDir, bound); err != nil {
			return agent.Status{}, nil, err
		}
		s, raw, err := client.Leave(c.Context, bound, c.Bool("wait"), c.Bool("with-sidecar"))
		var answered *agent.ExitError
		if err != nil && !errors.As(err, &answered) {
			_ = settle(c.Context, client, settings.StateDir, bound) // the sidecar may have been stopped meanwhile
		}
		return s, raw, err
	},
		durationFlag("timeout", "how long to wait until nothing is served and the registration is given up; after it the broker stays", 30*time.Second, 0),
		&cli.BoolFlag{Name: "wait", Usage: "wait, for the timeout at most, until the broker can leave: attached, active and up"},
		&cli.BoolFlag{Name: "with-sidecar", Usage: "the sidecar is stopped next: if its broker was not, the sidecar's next start takes it back at once"})
}

// aliveTimeout bounds a question of settle. A sidecar that is frozen answers none, and
// whoever stops the broker next waits for us.
const aliveTimeout = 5 * time.Second

// settle returns, after the bound at the latest, when whoever stops the broker next is not in
// the way of what is under way already: a drain, or the end of a sidecar, at which it has its
// broker leave by itself.
func settle(ctx context.Context, c *agent.Client, stateDir string, bound time.Duration) error {
	end := time.After(bound)
	for {
		asking, cancel := context.WithTimeout(ctx, aliveTimeout)
		s, _, err := c.Status(asking)
		cancel()
		ending := errors.Is(err, agent.ErrNoSidecar) && agent.Held(stateDir)
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

func pauseVerb() *cli.Command {
	long := durationFlag("for", "how long, from 1s to 24h; then recovery goes on by itself", 0, time.Second)
	owner := textFlag("owner", "TEXT", "who answers for it, such as a name or a ticket", "")
	reason := textFlag("reason", "TEXT", "why, for those who find the broker paused", "")
	long.DefaultText, owner.DefaultText, reason.DefaultText = "required", "required", "required"
	return asking("pause", func(c *cli.Context, client *agent.Client, _ agent.Config) error {
		req := agent.PauseRequest{Owner: c.String("owner"), Reason: c.String("reason"), ForSeconds: c.Duration("for").Seconds()}
		if err := req.Validate(); err != nil {
			return &agent.ExitError{Code: agent.ExitUsage, Err: err}
		}
		a, err := client.Pause(c.Context, req)
		return sayPause(c, a, err)
	}, long, owner, reason)
}

func resumeVerb() *cli.Command {
	return asking("resume", func(c *cli.Context, client *agent.Client, _ agent.Config) error {
		a, err := client.Resume(c.Context)
		return sayPause(c, a, err)
	})
}

// sayPause says what became of the pause, in one line.
func sayPause(c *cli.Context, a agent.PauseAnswer, err error) error {
	if err != nil {
		return err
	}
	name, before := or(a.BrokerID, "the broker"), ""
	if b := a.Before; b != nil {
		before = fmt.Sprintf("the pause by %s (%s)", b.Owner, b.Reason)
	}
	switch {
	case a.Pause != nil:
		text := fmt.Sprintf("%s: recovery is paused for %s, until %s, by %s: %s. The lease and the fencing go on; 'holdfast resume' ends it.",
			name, seconds(a.Pause.RemainingSeconds), a.Pause.Until.UTC().Format(clock), a.Pause.Owner, a.Pause.Reason)
		if before != "" {
			text += fmt.Sprintf(" It replaces %s, which had %s left.", before, seconds(a.Before.RemainingSeconds))
		}
		out(c).line("%s", text)
	case before != "":
		out(c).line("%s: recovery goes on: %s is over, %s early.", name, before, seconds(a.Before.RemainingSeconds))
	default:
		out(c).line("%s: recovery was not paused: nothing to resume.", name)
	}
	return nil
}

func reloadVerb() *cli.Command {
	return asking("reload", func(c *cli.Context, client *agent.Client, _ agent.Config) error {
		done, err := client.Reload(c.Context)
		if err != nil {
			return fmt.Errorf("reload: %w", err)
		}
		what := "the settings were read anew: nothing changed"
		if len(done.Changed) > 0 {
			what = "applied: " + strings.Join(done.Changed, ", ")
		}
		out(c).line("%s: %s.", or(done.BrokerID, "the broker"), what)
		return nil
	})
}
