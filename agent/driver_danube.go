package agent

import (
	"context"
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
		cfg.Store = danubeStore{store}
	}
	return danube.New(cfg)
}

// danubeStore is the store as the driver wants it.
type danubeStore struct{ *cluster.Client }

// Registrations implements danube.Store.
func (s danubeStore) Registrations(ctx context.Context) ([]danube.Registration, error) {
	all, err := s.Client.Registrations(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]danube.Registration, len(all))
	for i, r := range all {
		list[i] = danube.Registration{BrokerID: r.BrokerID, Value: r.Value, CreateRevision: r.CreateRevision}
	}
	return list, nil
}
