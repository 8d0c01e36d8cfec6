package agent

import (
	"fmt"
	"slices"
	"strings"
)

// live are the settings that a reload takes up. They are bounds, thresholds and rates, and
// what is logged: the next decision is made by the new value, and none was promised to
// anybody else. What is not here needs a restart: etcd, a peer or the guard has been told
// the lease's timing; listeners, the identity and the broker's process are held open; and
// policies were judged against the broker at start.
//
// The contents of files need no reload: certificates are read at each connection, etcd's
// password and the broker's token and credentials when they are shown, the web config file
// at each request. A reload tries them all.
var live = []string{
	"log-level",
	"health-interval", "health-timeout", "health-rise", "health-fall",
	"load-concurrency", "load-rate", "load-timeout", "audit-interval", "mass-change-share",
	"detachment-recover-window",
}

// Live reports whether a reload takes a change of the setting up.
func (s Setting) Live() bool { return slices.Contains(live, s.Name) }

// LiveSettings names the settings that a reload takes up.
func LiveSettings() []string { return slices.Clone(live) }

// reloadPlan is what differs between the settings that run and those that were read.
type reloadPlan struct {
	changed []string // "health-fall: 3 → 5"
	refused []string // "lease-ttl: 32s → 20s needs a restart"
}

// planReload compares effective settings.
func planReload(running, next Config) (p reloadPlan) {
	for _, s := range settings {
		from, to := format(s.field(&running)), format(s.field(&next))
		switch {
		case from == to:
		case s.Live():
			p.changed = append(p.changed, fmt.Sprintf("%s: %s → %s", s.Name, from, to))
		default:
			p.refused = append(p.refused, fmt.Sprintf("%s: %s → %s needs a restart", s.Name, orEmpty(from), orEmpty(to)))
		}
	}
	return p
}

func orEmpty(value string) string {
	if value == "" {
		return "empty"
	}
	return value
}

// err names everything that cannot be taken up; nil: all can.
func (p reloadPlan) err() error {
	if len(p.refused) == 0 {
		return nil
	}
	text := strings.Join(p.refused, "; ")
	if len(p.changed) > 0 {
		text += "; and so nothing was applied, not " + strings.Join(p.changed, ", ") + " either"
	}
	return refused(text + ": restart the sidecar, or take it back")
}
