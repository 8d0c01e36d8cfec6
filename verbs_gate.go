package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

func gateVerb() *verb {
	wait := &option{name: "wait", arg: "DURATION", help: "how long to wait for a sidecar that says so; less than what the unit has for its start", def: "required"}
	return &verb{
		name:   "gate",
		args:   "[-- CMD ARG…]",
		starts: true,
		short:  "exit 0 when a sidecar says that the broker may start",
		long: "Stands before a broker that somebody else starts: as ExecStartPre= of its unit, or in its\n" +
			"container, where CMD is the broker and takes the place of this process. A broker whose lease may\n" +
			"be gone must not start before etcd answers, and none beside a sidecar that is frozen or not\n" +
			"there. When the wait is over it ends with 1 and says why; who starts the broker tries again.",
		flags: append(options{wait}, settingOptions(socketSettings...)...),
		do: func(ctx context.Context, v *verb, io streams, command []string) error {
			bound, err := gateBound(wait)
			if err != nil {
				return err
			}
			program := ""
			if len(command) > 0 {
				if program, err = exec.LookPath(command[0]); err != nil {
					return usage("gate: start the broker: %w: give the path of an executable file after --", err)
				}
			}
			client, err := v.client()
			if err != nil {
				return err
			}
			err = client.AwaitGate(ctx, bound, func(why error) {
				report(fmt.Errorf("gate: waiting up to %s for a sidecar that lets the broker start: %w", bound, why), io.err)
			})
			switch {
			case errors.Is(err, context.Canceled):
				return errors.New("gate: interrupted before a sidecar let the broker start: the broker is not started")
			case err != nil:
				return fmt.Errorf("gate: no sidecar let the broker start within %s, so it is not started: %w", bound, err)
			}
			if program == "" {
				return nil
			}
			return fmt.Errorf("gate: start the broker %s: %w", program, syscall.Exec(program, command, os.Environ()))
		},
	}
}

func gateBound(wait *option) (time.Duration, error) {
	if !wait.IsSet() {
		return 0, usage("--wait: required: give how long the broker's start may wait, such as 60s")
	}
	d, err := time.ParseDuration(wait.text())
	if err != nil {
		return 0, usage("--wait %q: not a duration: write a number with a unit, such as 60s", wait.text())
	}
	if d <= 0 {
		return 0, usage("--wait %s: no time at all: give more than 0s, such as 60s", wait.text())
	}
	return d, nil
}
