package check

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/guard"
	"holdfast/recovery"
)

// Unleased says what it means that there is no etcd.
func Unleased(c config.Config) Finding {
	return Finding{What: "lease", Text: fmt.Sprintf("none, and no etcd (--registration none): the broker's own cluster keeps its registration. "+
		"Nothing has a deadline, no lease fences the broker, and the guard is off. A broker that was away for longer than --lease-ttl %s comes back drained if others are active: "+
		"give the time after which its own cluster declares it dead", config.FormatDuration(c.LeaseTTL))}
}

// StateDir tries what 'run' needs, and leaves nothing behind.
func StateDir(c config.Config) Finding {
	f := Finding{What: "state dir", Text: c.StateDir}
	if pid := control.LockHolder(c.StateDir); pid != 0 {
		f.Text += fmt.Sprintf("; in use by process %d now", pid)
	} else if left, ok := guard.StandingOf(c.StateDir); ok {
		f.Warn = true
		f.Text += fmt.Sprintf("; no sidecar runs, and %s: 'holdfast run' takes it over; %s", left, left.Hint())
	}
	dir := c.StateDir
	for {
		if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) || filepath.Dir(dir) == dir {
			break
		}
		dir = filepath.Dir(dir)
	}
	if dir != c.StateDir {
		f.Text += "; to be created"
	}
	if err := tryWrite(dir); err != nil {
		f.Err = control.UsageError(fmt.Errorf("--state-dir %s: %s: free space there, or make it writable for this user, or set --state-dir", c.StateDir, config.Cause(err)))
	}
	return f
}

// tryWrite writes as much as a state file is, since a disk may have room for a name and for
// nothing else, and removes it.
func tryWrite(dir string) error {
	probe, err := os.CreateTemp(dir, ".holdfast-check-")
	if err != nil {
		return err
	}
	_, err = probe.Write(make([]byte, 8<<10))
	return cmp.Or(err, probe.Sync(), probe.Close(), os.Remove(probe.Name()))
}

// Web says what the file asks for; ok is false when there is none to tell of.
func Web(c config.Config) (f Finding, ok bool) {
	if c.WebConfigFile == "" {
		return Finding{}, false
	}
	f = Finding{What: "web"}
	access, err := config.ReadWebAccess(c.WebConfigFile)
	if err != nil { // valid a moment ago
		f.Err = control.UsageError(fmt.Errorf("--web-config-file %q: %w", c.WebConfigFile, err))
		return f, true
	}
	asked := []string{"no TLS"}
	if access.TLS {
		asked[0] = "TLS"
	}
	if n := len(access.Users); n > 0 {
		asked = append(asked, control.Plural(n, "user"))
		if f.Warn = !access.TLS; f.Warn {
			asked = append(asked, "whose passwords pass over the network for all to read: set tls_server_config too")
		}
	}
	if access.Certificates {
		asked = append(asked, "client certificates")
	}
	f.Text = c.WebListen + ": " + strings.Join(asked, ", ")
	return f, true
}

// FencesItself says what the settings choose for such a broker.
func FencesItself(c config.Config) (Finding, bool) {
	if !c.FencesItself() {
		return Finding{}, false
	}
	f := Finding{What: "fence"}
	steps := strings.Join(c.Fence, ",")
	if f.Text = "at the end of its lease the broker loses readiness and nothing else: its storage fences writers that were replaced"; steps != "ready" {
		f.Text = "at the end of its lease the broker is fenced (--fence " + steps + "), though its storage fences writers that were replaced: an outage of etcd for longer than the TTL costs its service; --fence ready keeps it"
	}
	if !c.CanStop() {
		f.Text += "; one that hangs beside a peer that is well goes on hanging: give --broker-pid-file, or another way to stop it"
	} else if !slices.Contains(c.Fence, string(recovery.StepStop)) {
		f.Text += "; one that hangs beside a peer that is well is stopped"
	}
	switch recovery.Policy(c.SessionExpiredPolicy) {
	case recovery.PolicyReconnect:
		f.Text += "; once it is registered again it is active again by itself (--session-expired-policy reconnect)"
	case recovery.PolicyShutdown:
		f.Text += "; when its registration was lost it is stopped, and this sidecar ends (--session-expired-policy shutdown)"
	default:
		f.Text += "; once it is registered again it is drained and waits for 'holdfast activate' (--session-expired-policy drain)"
	}
	return f, true
}

// Unguarded says what the lack of a guard means.
func Unguarded(c config.Config) Finding {
	f := Finding{What: "guard", Warn: true, Text: "off: nothing stops the broker if this sidecar hangs"}
	switch {
	case c.FencesItself() && len(c.Fence) == 1:
		f.Warn, f.Text = false, "off: nothing need stop the broker at the end of its lease"
	case !c.CanStop():
		f.Text += ": give --broker-pid-file"
	case !c.Detach:
		f.Text += ": leave out --detach=false"
	}
	return f
}
