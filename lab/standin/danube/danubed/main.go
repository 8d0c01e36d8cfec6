// Command danubed is the stand-in for a Danube broker as a process, so that it can be
// frozen and killed. It ends by itself only if it cannot start, with exit code 1.
package main

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"holdfast/lab/standin/danube"
)

func main() {
	var cfg danube.Config
	flag.BoolVar(&cfg.Raft, "raft", false, "be of a release after 0.7")
	flag.StringVar(&cfg.Etcd, "etcd", "", "endpoint of the etcd with the metadata")
	ttl := flag.Duration("ttl", danube.RealTTL, "of the registration; all periods keep their proportion to it")
	report := flag.Duration("report", 0, "between load reports; 0: in proportion")
	flag.StringVar(&cfg.DataDir, "data-dir", "", "")
	flag.StringVar(&cfg.ClientAddr, "client", "", "host:port for clients")
	flag.StringVar(&cfg.AdminAddr, "admin", "", "host:port of the admin API")
	flag.StringVar(&cfg.MetricsAddr, "metrics", "", "host:port for Prometheus")
	flag.StringVar(&cfg.Objects, "objects", "", "directory that brokers share, for sealed logs")
	react := flag.Duration("react-delay", 0, "from a change of an assignment to the look at it")
	assign := flag.Duration("assign-delay", 0, "of the leader, from an unassigned topic to its assignment")
	flag.Parse()
	cfg.Times = danube.TimesFor(*ttl)
	cfg.Times.React, cfg.Times.Assign = *react, *assign
	if *report > 0 {
		cfg.Times.Report = *report
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := danube.Start(ctx, cfg, log); err != nil && ctx.Err() == nil {
		log.Error("cannot start", "err", err)
		os.Exit(1)
	}
	<-ctx.Done()
}
