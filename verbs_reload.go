package main

import (
	"context"
	"fmt"
	"strings"

	"holdfast/agent"
)

func reloadVerb() *verb {
	return &verb{
		name:  "reload",
		short: "read the settings anew, without a restart",
		long: "Has the sidecar that runs here read its file of settings again, and validate all of them as at\n" +
			"its start; its flags and its environment still win. It applies, all or none:\n" +
			strings.Join(wrap(strings.Fields(strings.Join(agent.LiveSettings(), ", ")+"."), 98), "\n") + "\n" +
			"If anything else changed, it says what, and applies nothing: that needs a restart. SIGHUP does\n" +
			"the same. Renewed certificates, passwords and tokens are used without either.",
		flags: settingOptions(socketSettings...),
		do: func(ctx context.Context, v *verb, io streams, _ []string) error {
			client, err := v.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			done, err := client.Reload(ctx)
			if err != nil {
				return fmt.Errorf("reload: %w", err)
			}
			return say(io.out, reloadText(done))
		},
	}
}

func reloadText(r agent.Reloaded) string {
	name := r.BrokerID
	if name == "" {
		name = "the broker"
	}
	if len(r.Changed) == 0 {
		return name + ": the settings were read anew: nothing changed."
	}
	return name + ": applied: " + strings.Join(r.Changed, ", ") + "."
}
