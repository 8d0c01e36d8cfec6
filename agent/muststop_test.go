package agent

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/brokerapi"
)

func TestABrokerThatMustBeStoppedIsRefusedIfItCannotBe(t *testing.T) {
	must := brokerapi.Traits{AtDeadline: brokerapi.Stop}
	for _, row := range []struct {
		name   string
		can    brokerapi.Traits
		change func(*config.Config)
		want   string // begin of the refusal; empty: none
	}{
		{"it need not be stopped", brokerapi.Traits{}, func(*config.Config) {}, ""},
		{"no way", must, func(*config.Config) {}, "--broker-pid-file: not given, and no other way to stop the broker's process either: " + mustStopWhy + ": " + config.WaysToStop},
		{"by pid file", must, func(c *config.Config) { c.BrokerPIDFile = "/run/b.pid" }, ""},
		{"by name", must, func(c *config.Config) { c.BrokerProcess = "b" }, ""},
		{"by command", must, func(c *config.Config) { c.StopCommand = "systemctl stop b" }, ""},
		{"a child", must, func(c *config.Config) { c.Command = []string{"b"} }, ""},
		{"no step stop", must, func(c *config.Config) { c.BrokerProcess, c.Fence = "b", []string{"ready", "quiesce"} }, "--fence: without the step stop"},
		{"no detachment", must, func(c *config.Config) { c.BrokerProcess, c.Detach = "b", false }, "--detach=false: the broker would never be stopped"},
		{"no guard", must, func(c *config.Config) { c.BrokerProcess, c.Guard = "b", "off" }, "--guard off: nothing stops the broker's process if this sidecar hangs"},
		{"nothing is done in shadow", must, func(c *config.Config) { c.Shadow = true }, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := natsDefaults()
			row.change(&c)
			c = c.Effective()
			if got := unstoppable(c, row.can); (got == "") != (row.want == "") || !strings.HasPrefix(got, row.want) {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
			a := &agent{cfg: c, traits: row.can, log: slog.New(slog.DiscardHandler)}
			err := a.refuseUnstoppable()
			f := checkMustStop(c, row.can)
			var exit *control.ExitError
			if refusal := errors.As(err, &exit) && exit.Code == control.ExitRefused; refusal != (row.want != "") || (f.Err != nil) != refusal {
				t.Errorf("run: %v, check: %v", err, f.Err)
			}
			if err != nil && (strings.Contains(err.Error(), "\n") || !strings.HasSuffix(err.Error(), "to run all the same: --i-know")) {
				t.Errorf("%v", err)
			}
			a.cfg.IKnow = true
			if err := a.refuseUnstoppable(); err != nil || (a.risk != "") != (row.want != "") {
				t.Errorf("with --i-know: %v, %q", err, a.risk)
			}
			if f := checkMustStop(a.cfg, row.can); f.Err != nil || f.Warn != (row.want != "") {
				t.Errorf("check with --i-know: %+v", f)
			}
		})
	}
}

func TestWhoKnowsTheRiskIsToldOfItInTheStatus(t *testing.T) {
	inLifeAfter(t, nil, func(l *sidecarLife) { l.risk = "--guard off: because" }, func(l *sidecarLife) {
		if s := l.status().Summary; s != "n1 serves 1 topic, but DANGER (--i-know): --guard off: because." {
			t.Error(s)
		}
	})
}
