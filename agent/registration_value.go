package agent

import (
	"encoding/json"
	"fmt"
	"net/url"

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

func withoutPassword(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	u.User = nil
	return u.String()
}
