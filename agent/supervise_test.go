package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/agent/check"
	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/process"
	"holdfast/recovery"
)

func TestCheckSaysHowTheBrokerIsStopped(t *testing.T) {
	own := filepath.Join(t.TempDir(), "test.pid")
	if err := os.WriteFile(own, []byte(fmt.Sprint(os.Getppid())), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		change func(c *config.Config)
		code   int // of the finding; 0: it is well
		says   string
	}{
		{"pid file", func(c *config.Config) { c.BrokerPIDFile = own }, 0,
			fmt.Sprintf("stopped by SIGTERM and SIGKILL to the process in pid file %s; now process %d", own, os.Getppid())},
		{"pid file not there now", func(c *config.Config) { c.BrokerPIDFile = own + ".none" }, control.ExitFailed, "no such file"},
		{"stop command", func(c *config.Config) { c.StopCommand = "true --now" }, 0, "stopped by stop command true"},
		{"stop command not there", func(c *config.Config) { c.StopCommand = "/no/such stop" }, control.ExitUsage, "--stop-command: /no/such: "},
		{"stop command torn", func(c *config.Config) { c.StopCommand = "a 'b" }, control.ExitUsage, "--stop-command \"a 'b\": Unterminated single-quoted string"},
		{"child", func(c *config.Config) { c.Command = []string{"true"} }, 0, "stopped by SIGTERM and SIGKILL to the child process group"},
		{"child not there", func(c *config.Config) { c.Command = []string{"/no/such"} }, control.ExitUsage, "start the broker /no/such: no such file or directory: give the path"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := natsDefaults()
			c.StateDir = t.TempDir()
			tt.change(&c)
			f := check.Process(c.Effective(), slog.New(slog.DiscardHandler))
			got, code := f.Text, 0
			if f.Err != nil {
				got, code = f.Err.Error(), control.ExitFailed
				var exit *control.ExitError
				if errors.As(f.Err, &exit) {
					code = exit.Code
				}
			}
			if code != tt.code || !strings.Contains(got, tt.says) {
				t.Errorf("%d, %s", code, got)
			}
		})
	}
}

func TestWithoutAWayToStopThereIsNoStopper(t *testing.T) {
	if s, err := openStopper(natsDefaults().Effective(), slog.New(slog.DiscardHandler)); s != nil || err != nil {
		t.Errorf("%v, %v", s, err)
	}
}

func TestABrokerMayStartWithoutEtcdOnlyIfNothingWasPromised(t *testing.T) {
	a := built(t)
	if ok, why := a.mayStartChild(false); !ok {
		t.Errorf("never registered: %s", why)
	}
	a.cfg.Detach = false
	if ok, why := a.mayStartChild(true); !ok {
		t.Errorf("detachment is off: %s", why)
	}
	inLife(t, nil, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.until(l.fencePoint() - 1)
		if ok, why := l.mayStartChild(true); !ok || l.childIsFenced(process.Target{Pid: 1}) {
			t.Errorf("while the lease is held: %s, fenced %t", why, l.childIsFenced(process.Target{Pid: 1}))
		}
		l.until(l.fencePoint())
		if !l.childIsFenced(process.Target{Pid: 1}) {
			t.Error("not taken for fenced at the fence point")
		}
	})
}

func TestAPauseHoldsBackTheRestartAndNotTheFirstStart(t *testing.T) {
	a := built(t)
	may := a.childGate(false)
	pause := recovery.NewPause("ann", "upgrade", time.Hour, time.Now(), a.bootID, time.Duration(a.clock()))
	a.pausing.Store(&pause)
	if ok, _, why := may(); !ok {
		t.Errorf("the first start: %s", why)
	}
	a.childRan.Store(true)
	if ok, word, _ := may(); ok || word != "paused" {
		t.Errorf("a restart: %t, %s", ok, word)
	}
	a.pausing.Store(nil)
	if ok, _, why := may(); !ok {
		t.Errorf("after the pause: %s", why)
	}
}

// A sidecar that was frozen renews its lease when it runs again, and may do so before it
// sees that the guard has stopped the broker meanwhile.
func TestAChildThatTheGuardStoppedIsFencedThoughTheLeaseHolds(t *testing.T) {
	hit := process.Target{Pid: 7, StartTicks: 1}
	a := built(t)
	a.guard = slowGuard{fired: hit}
	if !a.childIsFenced(hit) || a.childIsFenced(process.Target{Pid: 7, StartTicks: 2}) {
		t.Error("not by the guard's word")
	}
}
