package main

import "strings"

// step is one line of the table at the end.
type step struct {
	name  string
	needs []need
	must  bool // without its needs it is left out as a whole
	legs  []leg
}

// leg is one command, or one run of go test.
type leg struct {
	dir    string // below the root
	env    []string
	args   []string // of go test if test is set, with @names that expand replaces
	test   bool
	pkgs   string // packages to test; ./... are all of the module
	but    string // matches those left out
	repeat bool   // a command whose failure may be chance, and is run once more
}

func fields(s string) []string { return strings.Fields(s) }

func command(dir, line string) leg { return leg{dir: dir, args: fields(line)} }

// tests is a run of go test on the packages, but not those that match but.
func tests(dir, pkgs, but, flags string) leg {
	return leg{dir: dir, test: true, pkgs: pkgs, but: but, args: fields("-timeout 20m " + flags)}
}

func (l leg) with(env ...string) leg { l.env = append(l.env, env...); return l }
func (l leg) chance() leg            { l.repeat = true; return l }

const (
	race    = "CGO_ENABLED=1"
	shipped = "HOLDFAST_LAB_QUICK=" // builds what users get

	// Packages of the root that need real time, sockets or processes as a whole. Elsewhere
	// the tests that do are in files named *_realtime_test.go.
	realTimeRoot = `agent/guard|agent/process|probes|cluster|brokerapi(/.*)?|standstill`
	// Packages of the lab that are fast, and those of them that need none of it.
	fastLab          = `./alerttest ./dashboards ./deploy/image ./deploy/kubernetes ./deploy/systemd ./docs ./gate`
	deterministicLab = `alerttest|dashboards|docs|gate`
)

var (
	namespaces = []need{{"ip", "iproute2"}, {"iptables", "iptables"}}
	hungLeader = []need{{"strace", "strace"}, {"etcd", "etcd-server"}}
	compiler   = need{"gcc", "gcc libc6-dev"}
	browser    = need{"chromium", "chromium fonts-dejavu-core"}
	rules      = []need{{"promtool", "prometheus"}, {"amtool", "prometheus-alertmanager"}}
	docker     = []need{{"dockerd", "docker.io containerd runc libdevmapper1.02.1 libseccomp2 libsystemd0"}, {"systemd-analyze", "systemd"}}
	oldNATS    = need{"nats-server", "nats-server"}
)

// gateSteps go from what fails fast to what takes long. Nothing computes beside the tests of
// the steps realtime, acceptance, conformance and demo.
var gateSteps = []step{
	{name: "static", legs: []leg{command(".", "make lint")}},
	{name: "deterministic", legs: []leg{tests(".", "./...", realTimeRoot, "-short -p 2 -skip @realtime")}},
	{name: "realtime", legs: []leg{
		tests(".", "./agent/guard ./agent/process ./probes ./cluster ./brokerapi/... ./standstill", "", "-short -p 3"),
		tests(".", "@realtime", "", "-short -p 2 -run @realtime"),
	}},
	{name: "schedules", legs: []leg{tests(".", "./agent/simulation", "", "-run TestNamed|TestNothing -schedules 2000")}},
	{name: "lab", legs: []leg{
		tests("lab", fastLab, "", "-short -p 2"),
		tests("dashboards", "./...", "", ""),
		tests("lab", "./clustertest", "", "-short"),
	}},
	{name: "race", needs: []need{compiler}, must: true, legs: []leg{
		tests(".", "./agent/check ./agent/control ./agent/note ./agent/recognize ./agent/web/... ./cluster/memory ./brokerapi/...", "", "-race -short -p 2").with(race),
		// In virtual time on one thread: with two, the detector of Go 1.26.8 dies of timers now and then (runtime.(*timer).maybeRunChan).
		tests(".", "./agent ./agent/lease ./agent/moving ./agent/registration ./recovery/topics ./cluster", "", "-race -short -p 2 -cpu 1").with(race),
	}},
	{name: "acceptance", needs: append(namespaces, hungLeader...), legs: []leg{tests("lab", "./e2e", "", "-parallel 5 -run @acceptance")}},
	{name: "conformance", legs: []leg{tests("lab", "./conformance", "", "-short -parallel 4")}},
	{name: "demo", legs: []leg{command("lab", "go run ./demo").chance()}},
}

// proofSteps are what the gate leaves out, each alone. The drawn ones take another seed each time.
var proofSteps = []step{
	{name: "lint", legs: []leg{command(".", "make lint-all")}},
	{name: "race", needs: []need{compiler}, must: true, legs: []leg{
		tests(".", "./...", "", "-race -short -p 2").with(race),
		tests("lab", "./...", "e2e|deploy/image|pulsar", "-race -short -p 1").with(race),
	}},
	{name: "e2e", needs: append(append([]need{browser}, namespaces...), hungLeader...), legs: []leg{tests("lab", "./e2e ./dashboards", "", "-p 1 -parallel 4 -timeout 40m").with(shipped)}},
	{name: "conformance", needs: []need{oldNATS}, legs: []leg{tests("lab", "./conformance", "", "-parallel 4")}},
	{name: "lab", legs: []leg{tests("lab", "./...", "e2e|deploy/.*|pulsar|conformance|dashboards|alerttest", "-p 1")}},
	{name: "root", legs: []leg{tests(".", "./...", "agent/simulation", "-p 1")}},
	{name: "deploy", needs: docker, must: true, legs: []leg{tests("lab", "./deploy/...", "", "-p 1")}},
	{name: "rules", needs: rules, legs: []leg{tests("lab", "./alerttest", "", "")}},
	{name: "bench-heal", legs: []leg{command("lab", "go run ./bench heal").chance()}},
	{name: "bench-fence", legs: []leg{command("lab", "go run ./bench fence").chance()}},
	{name: "bench-idle", legs: []leg{command("lab", "go run ./bench idle -for 1m").chance()}},
	{name: "bench-load", legs: []leg{command("lab", "go run ./bench load").chance()}},
	{name: "bench-move", legs: []leg{command("lab", "go run ./bench move").chance()}},
	{name: "bench-etcd", legs: []leg{command("lab", "go run ./bench etcd").chance()}},
	{name: "bench-plan", legs: []leg{command(".", "make bench-plan")}},
	{name: "bench-scrape", legs: []leg{command(".", "make bench-scrape")}},
	{name: "bench-many", legs: []leg{command("lab", "go run ./bench neighbours").chance()}},
	{name: "guard-load", legs: []leg{command("lab", "go run ./bench guard").chance()}},
	{name: "schedules", legs: []leg{tests(".", "./agent/simulation", "", "-run TestNamed|TestNothing -timeout 40m -schedules 10000 -seed 1")}},
	{name: "fresh", legs: []leg{tests(".", "./agent/simulation", "", "-run TestNothing -timeout 40m -schedules 10000")}},
	{name: "mutate", legs: []leg{command("lab", "go run ./mutate")}},
	{name: "mutate-simulation", legs: []leg{tests(".", "./agent/simulation", "", "-run TestEveryMutant -timeout 40m -mutate .")}},
	{name: "fuzz", legs: []leg{command("lab", "go run ./fuzz -time 1m")}},
	{name: "pulsar", needs: []need{{"mvn", "maven"}}, must: true, legs: []leg{tests("lab", "./pulsar", "", "-tags pulsar -timeout 30m")}},
}
