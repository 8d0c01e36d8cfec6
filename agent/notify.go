package agent

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"holdfast/probes"
)

const (
	// statusEvery is the shortest pause between two STATUS lines.
	statusEvery = 2 * time.Second
	// statusBound is how long such a line may be.
	statusBound = 500
)

// Systemd is the service manager that started this process (Type=notify).
type Systemd struct {
	// Notify sends one state, such as "READY=1".
	Notify func(state string) error
	// Watchdog is WatchdogSec of the unit; 0: off.
	Watchdog time.Duration
}

// systemd is nil unless a service manager waits for us. It reads the environment and
// leaves it: what we start gets one without these variables (process.Environment).
func systemd(log *slog.Logger) *Systemd {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil
	}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("systemd watchdog not fed", "err", err)
	}
	return &Systemd{Watchdog: watchdog, Notify: func(state string) error {
		_, err := daemon.SdNotify(false, state)
		return err
	}}
}

// notify tells the service manager that the listeners are open, how things are, and
// at the end that we stop. READY=1 does not wait for the broker, which may be ordered
// after this unit.
func (a *agent) notify(ctx context.Context) error {
	said := ""
	a.say("READY=1")
	for {
		if now := a.oneLine(); now != said {
			said = now
			a.say("STATUS=" + now)
		}
		if probes.Sleep(ctx, statusEvery); ctx.Err() != nil {
			a.say("STOPPING=1\nSTATUS=stopping")
			return nil
		}
	}
}

// oneLine is the summary of the status as one line of bounded length.
func (a *agent) oneLine() string {
	line := strings.Join(strings.Fields(a.status().Summary), " ")
	if len(line) > statusBound {
		line = strings.ToValidUTF8(line[:statusBound], "") + "…"
	}
	return line
}

// feedWatchdog pings only from inside the loop: each ping is a pass of the loop that
// began after the one before. A loop that hangs gets systemd to restart us. The
// pause is a quarter of the bound, so a ping is never older than half of it.
func (a *agent) feedWatchdog(ctx context.Context) error {
	for a.inLoop(ctx, func() {}) == nil {
		a.say("WATCHDOG=1")
		probes.Sleep(ctx, max(a.systemd.Watchdog/4, time.Millisecond))
	}
	return nil
}

// say sends a state. That nobody takes it is logged on change only.
func (a *agent) say(state string) {
	err := a.systemd.Notify(state)
	if failed := err != nil; a.notifyFailed.Swap(failed) != failed && failed {
		a.log.Warn("systemd not notified: is NotifyAccess= set to main?", "err", err)
	}
}
