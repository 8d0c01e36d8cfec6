package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast/agent"
	"holdfast/recovery"
)

// The verbs that have the sidecar change something.

// steer asks for what the verb is called, and says how the broker is then.
func steer(c call, body map[string]any) error {
	var s agent.Status
	if err := c.sidecar().Post(c.Context, "/v1/"+c.Command.Name, body, &s); err != nil {
		return err
	}
	if s.Mode == "" {
		c.out().line("%s: done", c.Command.Name)
	} else {
		c.out().line("%s: mode %s. %s", s.BrokerID, withReason(s.Mode, s.Reason), s.Summary)
	}
	return nil
}

func activate(c call) error { return steer(c, map[string]any{"reason": c.String("reason")}) }
func confirm(c call) error  { return steer(c, map[string]any{}) }
func drain(c call) error {
	return steer(c, map[string]any{"reason": c.String("reason"), "timeout_seconds": c.Duration("timeout").Seconds()})
}

func leave(c call) error {
	if err := settle(c); err != nil {
		return err
	}
	err := steer(c, map[string]any{"timeout_seconds": c.Duration("timeout").Seconds(), "wait": c.Bool("wait"), "with_sidecar": c.Bool("with-sidecar")})
	var answered *agent.ExitError
	if err != nil && !errors.As(err, &answered) {
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
		var s agent.Status
		_, err := c.sidecar().Get(ctx, "/v1/status", &s)
		cancel()
		ending := errors.Is(err, agent.ErrNoSidecar) && agent.Held(c.settings.StateDir)
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
	req := agent.PauseRequest{Owner: c.String("owner"), Reason: c.String("reason"), ForSeconds: c.Duration("for").Seconds()}
	if err := req.Validate(); err != nil {
		return usage("%w", err)
	}
	return setPause(c, req)
}

func resume(c call) error { return setPause(c, struct{}{}) }

// setPause says what became of the pause, in one line.
func setPause(c call, body any) error {
	var a agent.PauseAnswer
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
	var done agent.Reloaded
	if err := c.sidecar().Post(c.Context, "/v1/reload", struct{}{}, &done); err != nil {
		return fmt.Errorf("reload: %w", err)
	}
	what := "the settings were read anew: nothing changed"
	if len(done.Changed) > 0 {
		what = "applied: " + strings.Join(done.Changed, ", ")
	}
	c.out().line("%s: %s.", cmp.Or(done.BrokerID, "the broker"), what)
	return nil
}
