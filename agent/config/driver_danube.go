package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

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
		Files:      c.adminFiles(),
		Logger:     log,
	}
	if store != nil {
		cfg.Store = store
	}
	return danube.New(cfg)
}

func deriveDanube(c *Config) {
	c.DanubeLookup = cmp.Or(c.DanubeLookup, c.besideAdmin("", "6650"))
	c.DanubeMetrics = cmp.Or(c.DanubeMetrics, c.besideAdmin("http", "9040"))
}

// minAdoptedTTL is longer than a Danube cluster with etcd can be without a leader after one died: 14 s of
// its lease and 10 s until the others look.
const minAdoptedTTL = 30 * time.Second

func (r *report) danube() {
	c := r.c
	adopted := c.Registration == "adopt"
	r.required(adopted && c.BrokerID == "", "broker-id",
		", because a Danube broker registers itself under an id that is another at each start: give it a name that stays, such as the host's", "registration", "driver")
	r.when(adopted && c.LeaseTTL >= minTTL && c.LeaseTTL < minAdoptedTTL && !c.IKnow, "lease-ttl",
		fmt.Sprintf("too short for a broker that registers itself: while the brokers elect a leader, %s at most, nobody sees a registration go: give %s or more; to run all the same: --i-know",
			FormatDuration(minAdoptedTTL), FormatDuration(minAdoptedTTL)))
	// The client port is asked with the token too.
	r.inTheOpen(c.BrokerTokenFile != "", "broker-token-file", "danube-lookup", c.DanubeLookup, "http", "https")
}
