package main

import (
	"context"
	"errors"
	"time"

	"holdfast/agent"
	"holdfast/recovery"
)

// The verb of a planned stop.

func leaveVerb() *verb {
	timeout := &option{name: "timeout", arg: "DURATION", help: "how long to wait until nothing is served and the registration is given up; after it the broker stays", def: "30s"}
	wait := &option{name: "wait", help: "wait, for the timeout at most, until the broker can leave: attached, active and up"}
	sidecar := &option{name: "with-sidecar", help: "the sidecar is stopped next: if its broker was not, the sidecar's next start takes it back at once"}
	return &verb{
		name:  "leave",
		short: "prepare the broker for a planned stop: its next start is active again",
		long: "Keeps clients away, quiesces what is served, notes in etcd that the broker leaves on purpose, and\n" +
			"gives its registration up. Then stop the broker: its next start is active, whatever others did\n" +
			"meanwhile, within --return-within of 'run' (1h). If it is not stopped within --leave-timeout (5m),\n" +
			"or is activated, it is taken back. One that is drained, detached or down does not leave (exit code\n" +
			"3); the end of a drain, or of a sidecar that is being stopped, is waited for.",
		flags: append(options{timeout, wait, sidecar}, settingOptions(socketSettings...)...),
		do: func(ctx context.Context, v *verb, io streams, _ []string) error {
			bound, err := timeout.duration()
			if err != nil {
				return err
			}
			patient, err := wait.on()
			if err != nil {
				return err
			}
			withSidecar, err := sidecar.on()
			if err != nil {
				return err
			}
			_, settings, err := v.sidecar()
			if err != nil {
				return err
			}
			return steer(ctx, v, io, bound+askTimeout, func(ctx context.Context, c *agent.Client) (agent.Status, []byte, error) {
				if err := settle(ctx, c, settings.StateDir, bound); err != nil {
					return agent.Status{}, nil, err
				}
				s, raw, err := c.Leave(ctx, bound, patient, withSidecar)
				var answered *agent.ExitError
				if err != nil && !errors.As(err, &answered) {
					_ = settle(ctx, c, settings.StateDir, bound) // the sidecar may have been stopped meanwhile
				}
				return s, raw, err
			})
		},
	}
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
