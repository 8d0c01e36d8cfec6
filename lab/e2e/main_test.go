// Package e2e plays the scenarios of SCENARIOS.md with the built binary and real
// etcd and NATS processes. Each test is a claim; it checks the outcome, and that
// the wrong outcome was absent all the while: by etcd's history of every change,
// by what the probes answered, and by what publishers heard.
//
// What a broker of another kind shows in no other way is not played again: that each driver does to its
// broker what the sidecar asks for is shown by lab/conformance; what is decided by the tables of recovery
// and by agent/simulation, which plays whole sidecars in virtual time, also what takes minutes; that etcd's
// endpoints are hedged by lab/clustertest; that a supervised process is found, stopped and started by
// agent/process and agent/guard; and what a setting or an answer may not be by the tests of its package.
//
// Slow tests (over 20 s) are left out with -short.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"holdfast/lab/harness"
	"holdfast/standstill"
)

// These tests wait much more than they compute, so more of them run at a time
// than there are processors. With eight at a time two processors are never idle, and what
// is late is the machine. An explicit -parallel wins.
const parallel = "5"

func TestMain(m *testing.M) {
	flag.Parse()
	explicit := false
	flag.Visit(func(f *flag.Flag) { explicit = explicit || f.Name == "test.parallel" })
	if !explicit {
		if err := flag.Set("test.parallel", parallel); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	for _, p := range []harness.Program{harness.Holdfast, harness.EtcdServer, harness.NATSServer, harness.ReferenceBroker, harness.DanubeServer, harness.PulsarBroker} {
		if _, err := harness.Build(p); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	stop := standstill.Watch()
	code := m.Run()
	stop()
	if err := endShared(code != 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}
