package config

import (
	"log/slog"

	"holdfast/brokerapi"
	"holdfast/brokerapi/httpapi"
	"holdfast/cluster"
)

// httpSettings are those that only this driver has.
type httpSettings struct {
	HTTPCapabilities []string `name:"http-capabilities" arg:"NAME,…" derived:"local-data, unless --failover is move" help:"what a broker of the driver http is: {capabilities}"`
}

// newHTTP takes effective settings. Its errors are settings that cannot work.
func newHTTP(c Config, _ *cluster.Client, _ *slog.Logger) (brokerapi.Broker, error) {
	return httpapi.New(httpapi.Config{
		AdminURL:  c.BrokerAdmin,
		Files:     c.adminFiles(),
		Places:    httpapi.Traits(c.HTTPCapabilities).Places,
		BrokerID:  c.BrokerID,
		KeyPrefix: c.Prefix,
	})
}

func deriveHTTP(c *Config) {
	if len(c.HTTPCapabilities) == 0 && c.Failover != "move" {
		c.HTTPCapabilities = []string{"local-data"}
	}
}

// httpCapabilities checks what the broker is said to be.
func (r *report) httpCapabilities() {
	c := r.c
	if err := httpapi.CheckCapabilities(c.HTTPCapabilities); err != nil {
		r.add("http-capabilities", err.Error())
	}
}
