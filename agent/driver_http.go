package agent

import (
	"log/slog"
	"slices"

	"holdfast/brokerapi"
	"holdfast/brokerapi/httpapi"
	"holdfast/cluster"
)

// httpSettings are those that only this driver has.
type httpSettings struct {
	HTTPCapabilities []string `name:"http-capabilities" arg:"NAME,…" derived:"with http all but must-stop" help:"what a broker of the driver http can do: {capabilities}"`
}

// newHTTP takes effective settings. Its errors are settings that cannot work.
func newHTTP(c Config, _ *cluster.Client, log *slog.Logger) (brokerapi.Broker, error) {
	b, err := httpapi.New(httpapi.Config{
		AdminURL:     c.BrokerAdmin,
		TokenFile:    c.BrokerTokenFile,
		CACert:       c.BrokerCACert,
		Cert:         c.BrokerCert,
		Key:          c.BrokerKey,
		Capabilities: c.HTTPCapabilities,
		BrokerID:     c.BrokerID,
		KeyPrefix:    c.Prefix,
		Logger:       log,
	})
	if err != nil {
		return nil, err // it names the flag, the value and the remedy
	}
	return b, nil
}

func deriveHTTP(c *Config) {
	if len(c.HTTPCapabilities) == 0 {
		c.HTTPCapabilities = httpapi.DefaultCapabilities()
	}
}

// httpCapabilities checks what the broker is said to be able to do.
func (r *report) httpCapabilities() {
	c := r.c
	if err := httpapi.CheckCapabilities(c.HTTPCapabilities); err != nil {
		r.add("http-capabilities", err.Error())
		return
	}
	r.required(c.BrokerID == "" && !slices.Contains(c.HTTPCapabilities, "stable-name"), "broker-id", ": "+r.show("http-capabilities")+" says that the broker has no name that survives restarts", "http-capabilities")
}
