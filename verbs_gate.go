package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"holdfast/agent"
)

func gateVerb() *cli.Command {
	wait := durationFlag("wait", "how long to wait for a sidecar that says so; less than what the unit has for its start", 0, time.Millisecond)
	wait.DefaultText = "required"
	return verb("gate", func(c *cli.Context) (err error) {
		bound := c.Duration("wait")
		if bound == 0 {
			return usage("--wait: required: give how long the broker's start may wait, such as 60s")
		}
		program, command := "", c.Args().Slice()
		if len(command) > 0 {
			if program, err = exec.LookPath(command[0]); err != nil {
				return usage("gate: start the broker: %w: give the path of an executable file after --", err)
			}
		}
		settings, err := load(c, socketSettings...)
		if err != nil {
			return err
		}
		err = agent.NewClient(settings.ControlSocket, settings.StateDir).AwaitGate(c.Context, bound, func(why error) {
			report(fmt.Errorf("gate: waiting up to %s for a sidecar that lets the broker start: %w", bound, why), c.App.ErrWriter)
		})
		switch {
		case errors.Is(err, context.Canceled):
			return errors.New("gate: interrupted before a sidecar let the broker start: the broker is not started")
		case err != nil:
			return fmt.Errorf("gate: no sidecar let the broker start within %s, so it is not started: %w", bound, err)
		case program == "":
			return nil
		}
		return fmt.Errorf("gate: start the broker %s: %w", program, syscall.Exec(program, command, os.Environ()))
	}, someSettings(socketSettings, wait)...)
}
