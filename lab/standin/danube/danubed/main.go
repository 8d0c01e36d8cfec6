// Command danubed is the stand-in for a Danube broker as a process, so that it can be
// frozen and killed. It ends by itself only if it cannot start, with exit code 1.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"holdfast/lab/standin/danube"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "danubed:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	cfg := danube.Config{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	f := flag.NewFlagSet("danubed", flag.ContinueOnError)
	release := f.String("release", "0.7", "0.7 (metadata in etcd) or 0.8 (Raft)")
	serveMetadata := f.String("serve-metadata", "", "host:port: be the metadata of brokers with Raft, and no broker")
	ttl := f.Duration("ttl", 32*time.Second, "TTL of the registration; all periods keep their proportion to it")
	report := f.Duration("report", 0, "between load reports; default TTL*30/32")
	namespaces := f.String("namespaces", "", "beside default and system, comma-separated")
	f.StringVar(&cfg.DataDir, "data-dir", "", "required")
	f.StringVar(&cfg.ClientAddr, "client", "127.0.0.1:6650", "host:port for clients")
	f.StringVar(&cfg.AdminAddr, "admin", "127.0.0.1:50051", "host:port of the admin API")
	f.StringVar(&cfg.MetricsAddr, "metrics", "127.0.0.1:9040", "host:port for Prometheus")
	f.StringVar(&cfg.Advertise, "advertise", "", "host:port that clients are told; default: --client")
	f.StringVar(&cfg.Etcd, "etcd", "http://127.0.0.1:2379", "endpoint, with release 0.7")
	f.BoolVar(&cfg.Resumes, "resumes", false, "take watches and renewals up again after an interruption of etcd")
	f.StringVar(&cfg.Metadata, "metadata", "", "host:port, with release 0.8")
	f.BoolVar(&cfg.Join, "join", false, "start drained, with release 0.8")
	f.DurationVar(&cfg.JoinDelay, "join-delay", 0, "from the admin port to the joined cluster, with release 0.8")
	f.StringVar(&cfg.Objects, "objects", "", "directory that brokers share, for sealed logs")
	f.StringVar(&cfg.StorageRoot, "storage-root", "", "prefix of the storage metadata; default /danube-data")
	f.StringVar(&cfg.Cert, "tls-cert", "", "PEM file: clients' port and admin API speak TLS with it")
	f.StringVar(&cfg.Key, "tls-key", "", "PEM file, with --tls-cert")
	f.StringVar(&cfg.Token, "token", "", "that each call to these ports must bear")
	register := f.Duration("register-delay", 0, "from the start to the registration")
	react := f.Duration("react-delay", 0, "from a change of an assignment to the look at it")
	assign := f.Duration("assign-delay", 0, "of the leader, from an unassigned topic to its assignment")
	if err := f.Parse(args); err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if *serveMetadata != "" {
		m, err := danube.StartMetadata(*serveMetadata)
		if err != nil {
			return err
		}
		<-signals
		m.Close()
		return nil
	}
	cfg.Times = danube.TimesFor(*ttl)
	cfg.Times.Register, cfg.Times.React, cfg.Times.Assign = *register, *react, *assign
	if *report > 0 {
		cfg.Times.Report = *report
	}
	if *namespaces != "" {
		cfg.Namespaces = strings.Split(*namespaces, ",")
	}
	var b *danube.Broker
	var err error
	switch *release {
	case "0.7":
		b, err = danube.LaunchEtcd(cfg)
	case "0.8":
		b, err = danube.LaunchRaft(cfg)
	default:
		err = fmt.Errorf("--release %q: want 0.7 or 0.8", *release)
	}
	if err != nil {
		return err
	}
	select {
	case <-signals:
	case <-b.Done():
	}
	return end(b)
}

// end closes the broker and says why it ended if it did so by itself.
func end(b *danube.Broker) error {
	err := b.Close()
	return errors.Join(b.Err(), err)
}
