// Command comparedanube does the same harm to a Danube cluster of release 0.7 without and with
// Holdfast, and stands what clients and operators see of both side by side: how long a topic was
// not served, messages lost and duplicated, topics destroyed, brokers that serve at the end, and
// what an operator must do.
//
// Each fault is one row, on two new clusters at the same time, one for each side: etcd, three
// brokers, six or more reliable topics with 20 publishes a second each. Brokers that end are
// started again, as systemd does. Package compare has what rows and runs are, and how they are
// kept. A topic is not served while it takes no message, and also while it gives none: Danube may
// confirm all that is published and deliver nothing (0.7.3, 2026-11-22).
//
// -danube, or HOLDFAST_LAB_DANUBE, names a directory with danube-broker.
//
// Exit code 1: a row is worse; 2: a run could not be made.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"holdfast/lab/compare"
)

// realVariable names a directory with danube-broker.
const realVariable = "HOLDFAST_LAB_DANUBE"

func main() {
	p := compare.Plan{Command: "compare-danube", KindIs: "brokers, placement", Kind: "0.7", Placement: "adopt"}
	real, err := parse(&p)
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare-danube:", err)
		os.Exit(2)
	}
	for _, f := range faults {
		p.Faults = append(p.Faults, compare.Fault{Name: f.name, Cuts: f.cuts, SetUp: f.setUp(real)})
	}
	p.Main(func(context.Context) error { return nil })
}

// parse returns the directory of the broker.
func parse(p *compare.Plan) (real string, err error) {
	if err := p.Flags(45 * time.Second); err != nil { // a registration lives 32 s
		return "", err
	}
	flag.StringVar(&real, "danube", os.Getenv(realVariable), "directory with danube-broker of release 0.7; default $"+realVariable)
	if err := p.Parse(); err != nil {
		return "", err
	}
	if real == "" {
		return "", fmt.Errorf("-danube, or %s, is required", realVariable)
	}
	if real, err = filepath.Abs(real); err != nil {
		return "", err
	}
	if _, err := exec.LookPath(filepath.Join(real, "danube-broker")); err != nil {
		return "", fmt.Errorf("-danube: %w", err)
	}
	return real, nil
}
