// Command demo shows the main job on one machine: a real etcd, three real NATS
// servers and a sidecar for each, all of them processes, six ways in which
// things go wrong, and a drain that moves topics. It says what happens as it happens, and ends in a table of what
// was expected and what was seen. Exit code 1: something differed. A Prometheus with the
// rules of alerts/ watches, and what an operator would be told is told.
//
// What it reports is read from the outside: keys in etcd with their revisions,
// the probes, and messages published as a client would. The times are real, but
// the TTL is 8 s instead of the default 32 s so that nobody has to wait. It needs
// Go and nothing else: no root, no installed server.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stay := flag.Bool("stay", false, "leave everything running at the end, and print the addresses")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	same, err := run(ctx, os.Stdout, *stay)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	if err != nil || !same {
		os.Exit(1)
	}
}
