package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/agent/registration"
	"holdfast/probes"
	"holdfast/recovery"
)

// dies ends the broker's process, which is watched.
func (l *leaver) dies() {
	who, _ := l.identity.get()
	l.inLoop(func() {
		l.set(func() { l.ended, l.serving = true, false })
		l.served = process.Target{Pid: 1<<22 + 1, StartTicks: 1}
		l.recognizer.Settle(l.served, who.Instance, recognize.IsBroker, "")
	})
}

func TestTheRegistrationOfADeadBrokerThatFencesItselfIsNotedAndGivenUp(t *testing.T) {
	within := func(c *config.Config) { stoppable(c); c.Fence, c.RestartGrace = []string{"ready"}, 3*time.Second }
	can := fencesItself
	for _, row := range []struct {
		name   string
		can    kind
		change func(c *config.Config)
		before func(l *leaver)
		notes  int
		given  bool // up
	}{
		{"as by default", can, nil, nil, 1, true},
		{"its storage does not fence it", kind{}, nil, nil, 0, true},
		{"its registration is kept", can, func(c *config.Config) { c.RestartGrace = 0 }, nil, 0, false},
		{"drained by an operator", can, nil, func(l *leaver) {
			l.inLoop(func() {
				l.setMode(recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}, l.modeRev+1, "")
			})
		}, 0, true},
		{"etcd refuses the note", can, nil, func(l *leaver) { l.fails = recovery.ErrNothingToLeave }, 0, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			inLifeOf(t, row.can, func(c *config.Config) {
				within(c)
				if row.change != nil {
					row.change(c)
				}
			}, nil, func(base *sidecarLife) {
				l := &leaver{sidecarLife: base}
				l.guard = nil
				base.note = func(_ context.Context, d registration.Departure) error {
					if base.revokes > 0 || !d.Crash || d.Stop {
						t.Errorf("noted %+v after %d revokes", d, base.revokes)
					}
					if l.fails == nil {
						l.notes++
					}
					return l.fails
				}
				if row.before != nil {
					row.before(l)
				}
				l.dies()
				l.until(l.age() + 2*time.Second)
				if l.revokes > 0 {
					t.Error("given up before --restart-grace is over")
				}
				l.until(l.age() + 4*time.Second)
				if l.notes != row.notes || (l.revokes > 0) != row.given {
					t.Errorf("%d notes, %d revokes; want %d, given up %t", l.notes, l.revokes, row.notes, row.given)
				}
			})
		})
	}
}

// Revoked before it is noted, it would come back as one that was declared dead.
func TestALeaseIsNotGivenUpWhileTheCrashIsBeingNoted(t *testing.T) {
	within := func(c *config.Config) { stoppable(c); c.Fence, c.RestartGrace = []string{"ready"}, 3*time.Second }
	inLifeOf(t, fencesItself, within, nil, func(base *sidecarLife) {
		l := &leaver{sidecarLife: base}
		l.guard = nil
		var notes int
		base.note = func(ctx context.Context, _ registration.Departure) error {
			if probes.Sleep(ctx, noteTimeout); notes == 0 {
				notes++
				return context.DeadlineExceeded
			}
			notes++
			if base.revokes > 0 {
				t.Error("revoked first")
			}
			return nil
		}
		l.dies()
		l.until(l.age() + 4*time.Second)
		if l.revokes > 0 {
			t.Error("revoked while the note is on its way")
		}
		l.until(l.age() + 5*time.Second)
		if notes != 2 || l.revokes == 0 {
			t.Errorf("%d notes, %d revokes", notes, l.revokes)
		}
	})
}

func TestTheDefaultOfTheRestartGrace(t *testing.T) {
	base := func(driver string) config.Config {
		c := config.Default()
		c.Driver, c.PulsarCluster = driver, "lab"
		return c
	}
	for _, row := range []struct {
		name   string
		driver string
		change func(c *config.Config)
		want   time.Duration
	}{
		{"it fences itself and is watched", "pulsar", stoppable, 3 * time.Second},
		{"the TTL is short", "pulsar", func(c *config.Config) { stoppable(c); c.LeaseTTL = 8 * time.Second }, 2 * time.Second},
		{"its process is not watched", "pulsar", nil, 0},
		{"only a command could stop it", "pulsar", func(c *config.Config) { c.StopCommand = "true" }, 0},
		{"asked to keep it", "pulsar", func(c *config.Config) { stoppable(c); c.RestartGrace = 0 }, 0},
		{"asked for more", "pulsar", func(c *config.Config) { stoppable(c); c.RestartGrace = 5 * time.Second }, 5 * time.Second},
		{"another broker", "nats", stoppable, 0},
		{"one that must be stopped", "danube", stoppable, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := base(row.driver)
			if row.change != nil {
				row.change(&c)
			}
			if got := c.Effective().RestartGrace; got != row.want || c.Effective().Effective().RestartGrace != row.want {
				t.Errorf("%v, want %v", got, row.want)
			}
		})
	}
	if _, err := config.Load(config.Sources{Flags: map[string][]string{"driver": {"nats"}, "restart-grace": {"-1s"}}}); err == nil || !strings.Contains(err.Error(), "at least 0s") {
		t.Errorf("%v: a negative one is refused", err)
	}
}

func natsDefaults() config.Config {
	c := config.Default()
	c.Driver = "nats"
	return c
}
