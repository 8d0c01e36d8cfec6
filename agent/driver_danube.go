package agent

import (
	"log/slog"

	"holdfast/brokerapi"
	"holdfast/brokerapi/danube"
	"holdfast/cluster"
)

// danubeSettings are those that only this driver has.
type danubeSettings struct {
	DanubeLookup  string `name:"danube-lookup" arg:"URL" derived:"http://host-of-broker-admin:6650" url:"http https" help:"URL of the Danube broker's client port"`
	DanubeMetrics string `name:"danube-metrics" arg:"URL" derived:"http://host-of-broker-admin:9040" url:"http https" help:"URL of the Danube broker's Prometheus metrics"`
}

// newDanube takes effective settings. A broker whose registration is adopted keeps it in
// etcd, with everything else; one that does not register there keeps its metadata by Raft.
// Its errors are settings that cannot work.
func newDanube(c Config, store *cluster.Client, log *slog.Logger) (brokerapi.Broker, error) {
	cfg := danube.Config{
		AdminURL:   c.BrokerAdmin,
		LookupURL:  c.DanubeLookup,
		MetricsURL: c.DanubeMetrics,
		Raft:       c.Registration != "adopt",
		DataDir:    c.DataDir,
		TokenFile:  c.BrokerTokenFile,
		CACert:     c.BrokerCACert,
		Cert:       c.BrokerCert,
		Key:        c.BrokerKey,
		Logger:     log,
	}
	if store != nil {
		cfg.Store = store
	}
	return danube.New(cfg)
}
