package config

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// other is a config in which that one setting has another value than in c.
func other(c Config, s Setting) Config {
	switch p := s.field(&c).(type) {
	case *string:
		*p += "x"
	case *[]string:
		*p = append(slices.Clone(*p), "x")
	case *bool:
		*p = !*p
	case *int:
		*p++
	case *float64:
		*p += 0.25
	case *time.Duration:
		*p += time.Second
	}
	return c
}

func TestEverySettingIsTakenUpOrRefusedByName(t *testing.T) {
	running := Default()
	running.Driver = "nats"
	running = running.Effective()
	for _, s := range Settings() {
		live, fixed := running.Changes(other(running, s))
		changed, rest := live, fixed
		if !s.Live {
			changed, rest = fixed, live
		}
		if len(changed) != 1 || len(rest) != 0 || !strings.HasPrefix(changed[0], s.Name+": ") || strings.HasSuffix(changed[0], " needs a restart") == s.Live {
			t.Errorf("%s: %q, %q", s.Name, live, fixed)
		}
	}
	if live, fixed := running.Changes(running); len(live)+len(fixed) != 0 {
		t.Errorf("nothing changed, and it is %q, %q", live, fixed)
	}
}

func TestWhatOthersWereToldIsNotLive(t *testing.T) {
	for _, name := range []string{"lease-ttl", "renew-interval", "lease-detach-margin", "backoff-initial", "backoff-max", "restart-grace", "detach",
		"fence", "guard", "broker-id", "prefix", "registration", "assignment", "session-expired-policy", "state-dir", "shadow"} {
		if s, ok := lookup(name); !ok || s.Live {
			t.Errorf("%s: known %v, live %v", name, ok, s.Live)
		}
	}
	for _, name := range LiveSettings() {
		if _, ok := lookup(name); !ok {
			t.Errorf("%s is no setting", name)
		}
	}
}
