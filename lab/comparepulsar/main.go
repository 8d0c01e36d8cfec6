//go:build pulsar

// Command comparepulsar does the same harm to a real Pulsar cluster without and with Holdfast,
// and stands what clients and operators see of both side by side: the longest gap, messages
// lost and duplicated, brokers that serve at the end, and what an operator must do.
//
// Each fault is one row, on two new clusters at the same time, one for each side: etcd, a bookie,
// three brokers, eight topics in four bundles with 50 publishes a second each. The first broker
// has two of the bundles, and the fault. Brokers that end are started again, as a supervisor does,
// unless the row says otherwise. Bundles move for the fault alone: Pulsar's own shedding is off, since it goes by
// how busy the machine is.
//
// Package compare has what rows and runs are, and how they are kept. Exit code 1: a row is worse;
// 2: a run could not be made. Gaps on a busy machine say little, so its load stands beside them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"holdfast/lab/compare"
	"holdfast/lab/harness"
)

var managers = map[string]string{"Modular": harness.ModularLoadManager, "Extensible": harness.ExtensibleLoadManager}

// beside are the sidecar's flags, as the page about Pulsar has them.
var beside = []string{"--registration", "own", "--lease-ttl", "60s"}

func main() {
	p := compare.Plan{Command: "compare-pulsar", KindIs: "manager, placement", Placement: "own"}
	for _, f := range faults {
		p.Faults = append(p.Faults, compare.Fault{Name: f.name, Cuts: f.cuts, SetUp: f.setUp})
	}
	if err := parse(&p); err != nil {
		fmt.Fprintln(os.Stderr, "compare-pulsar:", err)
		os.Exit(2)
	}
	p.Main(func(ctx context.Context) error { return harness.PulsarParts(ctx) })
}

func parse(p *compare.Plan) error {
	if err := p.Flags(45 * time.Second); err != nil { // a session is 30 s
		return err
	}
	flag.StringVar(&p.Kind, "manager", "Modular", "load manager of the brokers: Modular or Extensible")
	if err := p.Parse(); err != nil {
		return err
	}
	if managers[p.Kind] == "" {
		return fmt.Errorf("-manager is Modular or Extensible")
	}
	return nil
}
