package registration

import (
	"testing"

	"holdfast/agent/config"
)

// A restart or an upgrade of the sidecar must not accuse others of having written its key.
func TestWhatTheSidecarBeforeWroteIsNoForeignValue(t *testing.T) {
	value := func(url, incarnation, run, version string) []byte {
		c := config.Default()
		c.BrokerURL = url
		v, err := Value(c, incarnation, run, version)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	now := value("nats://a", "i", "2", "v2")
	for _, row := range []struct {
		name string
		old  []byte
		want bool
	}{
		{"another process", value("nats://a", "i", "1", "v2"), true},
		{"another process of another version", value("nats://a", "i", "1", "v1"), true},
		{"another address", value("nats://b", "i", "1", "v2"), false},
		{"another incarnation", value("nats://a", "j", "1", "v2"), false},
		{"no JSON", []byte("{"), false},
	} {
		if got := fromBefore(row.old, now); got != row.want {
			t.Errorf("%s: %v", row.name, got)
		}
	}
}
