package process

import (
	"os"
	"slices"
	"strings"
)

// ours are the variables of systemd's talk with this process. A broker that
// inherited them would announce itself in our name, or be stopped for a watchdog it
// does not feed.
var ours = []string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}

// Environment is what a program that we start inherits: all but systemd's talk with
// us.
func Environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(ours, name)
	})
}
