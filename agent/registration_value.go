package agent

import (
	"encoding/json"
	"fmt"
	"net/url"
	"reflect"

	"holdfast/cluster"
)

// registrationValue is what this sidecar registers of its broker.
func registrationValue(c Config, incarnation, run, version string) ([]byte, error) {
	about, err := json.Marshal(map[string]string{"version": version, "driver": c.Driver})
	if err != nil {
		return nil, fmt.Errorf("encode registration: %w", err)
	}
	v, err := json.Marshal(cluster.RegistrationValue{
		BrokerURL: c.BrokerURL, ConnectURL: c.ConnectURL, AdminAddr: withoutPassword(c.BrokerAdmin),
		Incarnation: incarnation, Run: run, Holdfast: about,
	})
	if err != nil {
		return nil, fmt.Errorf("encode registration: %w", err)
	}
	return v, nil
}

// fromBefore reports whether a registration is what the sidecar before this one wrote: only
// its process and its version are others.
func fromBefore(old, now []byte) bool {
	var a, b cluster.RegistrationValue
	if json.Unmarshal(old, &a) != nil || json.Unmarshal(now, &b) != nil {
		return false
	}
	a.Run, a.Holdfast = b.Run, b.Holdfast
	return reflect.DeepEqual(a, b)
}

func withoutPassword(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	u.User = nil
	return u.String()
}
