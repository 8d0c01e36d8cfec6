package agent

import (
	"fmt"
	"strings"
)

// reloadPlan is what differs between the settings that run and those that were read.
type reloadPlan struct {
	changed []string // "health-fall: 3 → 5"
	refused []string // "lease-ttl: 32s → 20s needs a restart"
}

// planReload compares effective settings.
func planReload(running, next Config) (p reloadPlan) {
	for _, s := range settings {
		from, to := s.value(&running), s.value(&next)
		switch {
		case from == to:
		case s.Live:
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
