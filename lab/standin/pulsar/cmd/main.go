// Command pulsar is one stand-in broker as a process of its own, so that it can be frozen
// and killed. Its flags are the settings of pulsar.Config.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"holdfast/lab/standin/pulsar"
)

func main() {
	var cfg pulsar.Config
	etcd := flag.String("etcd", "http://127.0.0.1:2379", "endpoints of etcd, separated by commas")
	flag.StringVar(&cfg.Cluster, "cluster", "standalone", "name of the cluster")
	flag.StringVar(&cfg.Listen, "listen", "127.0.0.1:8080", "host:port of the web service")
	flag.StringVar(&cfg.Advertised, "advertised", "", "host:port that the broker calls itself; empty: listen")
	flag.DurationVar(&cfg.SessionTimeout, "session-timeout", 0, "TTL of the lease; 0: 30s")
	flag.StringVar(&cfg.StatusFile, "status-file", "", "file that status.html depends on")
	flag.IntVar(&cfg.Bundles, "bundles", 0, "bundles of each namespace; 0: 4")
	flag.StringVar(&cfg.Data, "data", "", "directory with the messages, shared by the cluster")
	flag.Parse()
	cfg.Etcd = strings.Split(*etcd, ",")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	b, err := pulsar.New(cfg, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err == nil {
		err = b.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pulsar stand-in:", err)
		os.Exit(1)
	}
}
