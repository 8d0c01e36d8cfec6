package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/agent"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares got with testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; go test -update writes it anew. got\n%s", file, got)
	}
}

// holdfast runs the command in this process, without the caller's environment.
func holdfast(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "HOLDFAST_") {
			t.Setenv(name, "")
		}
	}
	return command(args...)
}

func TestTheGuardIsNoVerbForPeople(t *testing.T) {
	code, _, stderr := holdfast(t, "guard")
	if code != agent.ExitFailed || !strings.Contains(stderr, "started by 'holdfast run'") {
		t.Errorf("code %d, %q", code, stderr)
	}
	if _, help, _ := holdfast(t, "--help"); strings.Contains(help, "guard") {
		t.Errorf("the list of verbs has it:\n%s", help)
	}
}

func command(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(append([]string{"holdfast"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

// control serves a sidecar's answers on a socket and returns its path.
func control(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "control.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
	return socket
}

func TestWrongUsageIsOneLineAndCodeTwo(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"no verb", nil, "no verb given: see 'holdfast --help'"},
		{"verb nearly right", []string{"stauts"}, `unknown verb "stauts": did you mean status?`},
		{"verb of nothing", []string{"frobnicate"}, `unknown verb "frobnicate": see 'holdfast --help'`},
		{"flag before the verb", []string{"--lease-ttl", "3s", "run"}, "unknown flag --lease-ttl: see 'holdfast --help'; flags of a verb stand after it"},
		{"flag nearly right", []string{"run", "--lese-ttl", "3s"}, "run: unknown flag --lese-ttl: did you mean --lease-ttl?"},
		{"flag of nothing", []string{"run", "--frobnicate"}, "run: unknown flag --frobnicate: see 'holdfast run --help'"},
		{"flag of a later version", []string{"run", "--tls-min-version"}, "run: unknown flag --tls-min-version: see 'holdfast run --help'"},
		{"flag without its value", []string{"run", "--lease-ttl"}, "run: --lease-ttl: no value given: write --lease-ttl DURATION"},
		{"argument that is not taken", []string{"status", "now"}, `status: unexpected argument "now": it takes flags only, see 'holdfast status --help'`},
		{"argument missing", []string{"explain"}, "explain: no EVENT given: write 'holdfast explain EVENT'"},
		{"command without dashes", []string{"run", "nats-server", "-js"}, `run: unexpected argument "nats-server": to start the broker, write -- before its command; see 'holdfast run --help'`},
		{"argument before the dashes", []string{"run", "now", "--", "nats-server"}, `run: unexpected argument "now": to start the broker, write -- before its command; see 'holdfast run --help'`},
		{"dashes without a command", []string{"run", "--driver", "nats", "--"}, `run: no command after --: write 'holdfast run … -- CMD ARG…', or leave the dashes out`},
		{"argument too many", []string{"explain", "1", "2"}, `explain: unexpected argument "2": it takes one EVENT`},
		{"flag after the argument", []string{"explain", "1", "-o", "json"}, "explain: -o after an argument: write 'holdfast explain -o json 1'"},
		{"event that is no number", []string{"explain", "last"}, `explain: event "last": not an event number: take one from 'holdfast events', such as 12`},
		{"form of output", []string{"status", "-o", "yaml"}, `--output "yaml": unknown: write one of table, json`},
		{"topic state", []string{"topics", "--state", "lost"}, `--state "lost": unknown: write one of served, missing, loading, orphan, quarantined, unreadable, held_elsewhere, foreign_owner`},
		{"drain timeout", []string{"drain", "--timeout", "5"}, `--timeout "5": not a duration: write a number with a unit, such as 30s`},
		{"pause without a length", []string{"pause", "--owner", "ops", "--reason", "disk"},
			"--for: required: give how long, such as 30m, at least 1s and at most 24h"},
		{"pause without an owner", []string{"pause", "--for", "30m", "--reason", "disk"},
			"--owner: required: give who answers for the pause, such as a name or a ticket"},
		{"pause without a reason", []string{"pause", "--for", "30m", "--owner", "ops", "--reason", " "},
			"--reason: required: give why, for those who find the broker paused"},
		{"pause for too long", []string{"pause", "--for", "25h", "--owner", "ops", "--reason", "disk"},
			"--for 25h0m0s: more than 24h: give at most 24h, and pause again if need be"},
		{"pause for ever", []string{"pause", "--for", "2000000h", "--owner", "ops", "--reason", "disk"},
			"--for 24000h0m0s: more than 24h: give at most 24h, and pause again if need be"},
		{"pause for too short a time", []string{"pause", "--for", "500ms", "--owner", "ops", "--reason", "disk"},
			"--for 500ms: less than 1s: give at least that"},
		{"pause for no time", []string{"pause", "--for", "0s", "--owner", "ops", "--reason", "disk"},
			"--for 0s: no time at all: give at least 1s and at most 24h"},
		{"pause for a number", []string{"pause", "--for", "30", "--owner", "ops", "--reason", "disk"},
			`--for "30": not a duration: write a number with a unit, such as 30m`},
		{"pause with two lines of reason", []string{"pause", "--for", "30m", "--owner", "ops", "--reason", "disk\nswap"},
			"--reason: has a line break or another control character: write one line of text"},
		{"gate without a bound", []string{"gate"}, "--wait: required: give how long the broker's start may wait, such as 60s"},
		{"gate for a number", []string{"gate", "--wait", "60"}, `--wait "60": not a duration: write a number with a unit, such as 60s`},
		{"gate for no time", []string{"gate", "--wait", "0s"}, "--wait 0s: no time at all: give more than 0s, such as 60s"},
		{"gate before nothing", []string{"gate", "--wait", "60s", "--"}, "gate: no command after --: write 'holdfast gate … -- CMD ARG…', or leave the dashes out"},
		{"gate before no program", []string{"gate", "--wait", "60s", "--", "/no/such"},
			`gate: start the broker: exec: "/no/such": stat /no/such: no such file or directory: give the path of an executable file after --`},
		{"resume what", []string{"resume", "n1"}, `resume: unexpected argument "n1": it takes flags only, see 'holdfast resume --help'`},
		{"events since", []string{"events", "--since", "noon"}, `--since "noon": not a number: write digits only`},
		{"shell", []string{"completion", "tcsh"}, `completion: shell "tcsh": unknown: write one of bash, zsh, fish`},
		{"setting of run", []string{"run", "--driver", "nats", "--lease-detach-margin", "40s"},
			"--lease-detach-margin 40s: must be less than --lease-ttl 32s: leave it out for a third of the TTL, 10.667s"},
		{"setting of check", []string{"check", "--driver", "kafka"}, `--driver "kafka": unknown driver: known drivers: ` + strings.Join(agent.DriverNames(), ", ")},
		{"fleet without an etcd", []string{"fleet", "--registration", "none"}, "--registration none: there is no etcd that knows the brokers of this cluster: ask the broker's own admin tool, or 'holdfast status' beside each broker"},
		{"forget without an etcd", []string{"forget", "--driver", "nats", "--registration", "none", "n9"}, "--registration none: there is no etcd that knows this broker: nothing to forget"},
		{"forget nobody", []string{"forget", "--driver", "nats"}, "forget: no ID given: write 'holdfast forget ID'"},
		{"forget of no kind", []string{"forget", "n9"}, "--driver: required: give the kind of broker; known drivers: danube, http, nats, pulsar"},
		{"setting of fleet", []string{"fleet", "--etcd-endpoints", "etcd:2379"}, `--etcd-endpoints "etcd:2379": not a URL with a scheme and a host: write http://host:port`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := holdfast(t, tt.args...)
			if code != 2 || stdout != "" || stderr != "holdfast: "+tt.want+"\n" {
				t.Errorf("code %d, stdout %q\ngot  %swant holdfast: %s", code, stdout, stderr, tt.want)
			}
		})
	}
}

func TestEverySettingErrorHasItsOwnLine(t *testing.T) {
	code, _, stderr := holdfast(t, "run", "--lease-ttl", "32", "--health-rise", "0")
	want := "holdfast: --lease-ttl \"32\": not a duration: write a number with a unit, such as 32s\n" +
		"holdfast: --driver: required: give the kind of broker; known drivers: " + strings.Join(agent.DriverNames(), ", ") + "\n" +
		"holdfast: --health-rise 0: must be at least 1\n"
	if code != 2 || stderr != want {
		t.Errorf("code %d, got\n%s", code, stderr)
	}
}

func TestSettingsFileComesFromFlagOrEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "holdfast.yaml")
	if err := os.WriteFile(file, []byte("state-dir: /nowhere/here\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "holdfast: no sidecar answers on /nowhere/here/control.sock: is 'holdfast run' running here? give --control-socket or --state-dir\n"
	if code, _, stderr := holdfast(t, "status", "--config", file); code != 1 || stderr != want {
		t.Errorf("flag: code %d, %s", code, stderr)
	}
	t.Setenv("HOLDFAST_CONFIG", file)
	if code, _, stderr := command("status"); code != 1 || stderr != want {
		t.Errorf("environment: code %d, %s", code, stderr)
	}
}

func TestHelpIsGolden(t *testing.T) {
	for _, verb := range []string{"", "run", "status", "fleet", "forget", "topics", "events", "explain", "drain", "leave", "pause", "resume", "gate", "healthcheck", "install", "completion"} {
		args, name := []string{"--help"}, "help.txt"
		if verb != "" {
			args, name = []string{verb, "--help"}, "help-"+verb+".txt"
		}
		code, stdout, stderr := holdfast(t, args...)
		if code != 0 || stderr != "" {
			t.Errorf("%s: code %d, stderr %s", verb, code, stderr)
		}
		golden(t, name, stdout)
		for _, line := range strings.Split(stdout, "\n") {
			if n := len([]rune(line)); n > 100 {
				t.Errorf("%s: a line of %d characters: %s", name, n, line)
			}
		}
	}
}

func TestHelpOfRunNamesEverySettingOnce(t *testing.T) {
	_, stdout, _ := holdfast(t, "run", "--help")
	for _, s := range agent.Settings() {
		if n := strings.Count(stdout, "\n  --"+s.Name+" ") + strings.Count(stdout, "\n  --"+s.Name+"\n"); n != 1 {
			t.Errorf("--%s stands there %d times", s.Name, n)
		}
	}
}

func TestVersionIsOneLine(t *testing.T) {
	old := buildVersion
	defer func() { buildVersion = old }()
	buildVersion = "v1.2.3"
	code, stdout, _ := holdfast(t, "--version")
	if code != 0 || !strings.HasPrefix(stdout, "holdfast version v1.2.3 (go1.") || strings.Count(stdout, "\n") != 1 {
		t.Errorf("code %d, %q", code, stdout)
	}
}

func TestStatusPrintsTheSidecarsJSONUnchanged(t *testing.T) {
	const answer = `{"broker_id":"n1","of_a_later_version":[1,2]}`
	socket := control(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, answer) })
	for _, args := range [][]string{{"-o", "json"}, {"--output", "json"}, {"-o=json"}} {
		code, stdout, stderr := holdfast(t, append([]string{"status", "--control-socket", socket}, args...)...)
		if code != 0 || stdout != answer+"\n" {
			t.Errorf("%v: code %d, %q %s", args, code, stdout, stderr)
		}
	}
}

func TestStatusTakesTheStateDirectory(t *testing.T) {
	socket := control(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"summary":"All is well."}`) })
	code, stdout, stderr := holdfast(t, "status", "--state-dir", filepath.Dir(socket))
	if code != 0 || !strings.HasPrefix(stdout, "All is well.\n") {
		t.Errorf("code %d, %q %s", code, stdout, stderr)
	}
}

func TestTopicsFiltersByState(t *testing.T) {
	topics := []agent.TopicStatus{{Topic: "/a/one", State: "served"}, {Topic: "/a/two", State: "missing", Error: "no space"}}
	socket := control(t, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(topics) })
	code, stdout, _ := holdfast(t, "topics", "--control-socket", socket, "--state", "missing", "-o", "json")
	if want := `[{"topic":"/a/two","state":"missing","error":"no space"}]` + "\n"; code != 0 || stdout != want {
		t.Errorf("code %d, %q", code, stdout)
	}
	code, stdout, _ = holdfast(t, "topics", "--control-socket", socket, "--state", "orphan", "-o", "json")
	if code != 0 || stdout != "[]\n" {
		t.Errorf("none: code %d, %q", code, stdout)
	}
}

func TestSteeringPrintsModeAndSummary(t *testing.T) {
	var bodies []string
	socket := control(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies = append(bodies, r.URL.Path+" "+string(b))
		fmt.Fprint(w, `{"broker_id":"n1","mode":"drained","reason":"operator","summary":"Drained by an operator."}`)
	})
	code, stdout, stderr := holdfast(t, "drain", "--control-socket", socket, "--reason", "new disk", "--timeout", "1m")
	if want := "n1: mode drained (operator). Drained by an operator.\n"; code != 0 || stdout != want {
		t.Errorf("code %d, %q %s", code, stdout, stderr)
	}
	if code, _, _ := holdfast(t, "activate", "--control-socket", socket); code != 0 {
		t.Errorf("activate: code %d", code)
	}
	if code, _, _ := holdfast(t, "confirm", "--control-socket", socket); code != 0 {
		t.Errorf("confirm: code %d", code)
	}
	if code, _, _ := holdfast(t, "leave", "--control-socket", socket, "--timeout", "1m", "--wait"); code != 0 {
		t.Errorf("leave: code %d", code)
	}
	want := []string{`/v1/drain {"reason":"new disk","timeout_seconds":60}`, `/v1/activate {"reason":"operator"}`, `/v1/confirm {}`,
		`/v1/status `, `/v1/leave {"timeout_seconds":60,"wait":true,"with_sidecar":false}`}
	if fmt.Sprint(bodies) != fmt.Sprint(want) {
		t.Errorf("asked %q", bodies)
	}
}

func TestPausingAndResumingSayWhatBecameOfThePause(t *testing.T) {
	until := time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)
	mine := &agent.PauseStatus{Owner: "ops", Reason: "disk swap", Until: until, RemainingSeconds: 1800}
	other := &agent.PauseStatus{Owner: "dba", Reason: "tests", RemainingSeconds: 61}
	pause := []string{"pause", "--for", "30m", "--owner", "ops", "--reason", "disk swap"}
	const paused = "n1: recovery is paused for 30m0s, until 2026-03-01 12:30:00Z, by ops: disk swap. The lease and the fencing go on; 'holdfast resume' ends it."
	for _, c := range []struct {
		name    string
		args    []string
		answer  agent.PauseAnswer
		request string
		want    string
	}{
		{"paused", pause, agent.PauseAnswer{BrokerID: "n1", Pause: mine},
			`/v1/pause {"owner":"ops","reason":"disk swap","for_seconds":1800}`, paused},
		{"paused again", pause, agent.PauseAnswer{BrokerID: "n1", Pause: mine, Before: other},
			`/v1/pause {"owner":"ops","reason":"disk swap","for_seconds":1800}`,
			paused + " It replaces the pause by dba (tests), which had 1m1s left."},
		{"resumed", []string{"resume"}, agent.PauseAnswer{BrokerID: "n1", Before: other}, "/v1/resume {}",
			"n1: recovery goes on: the pause by dba (tests) is over, 1m1s early."},
		{"resumed when not paused", []string{"resume"}, agent.PauseAnswer{}, "/v1/resume {}",
			"the broker: recovery was not paused: nothing to resume."},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := ""
			socket := control(t, func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				asked = r.URL.Path + " " + string(b)
				_ = json.NewEncoder(w).Encode(c.answer)
			})
			code, stdout, stderr := holdfast(t, append(c.args, "--control-socket", socket)...)
			if code != 0 || stdout != c.want+"\n" || asked != c.request {
				t.Errorf("code %d, asked %s, got\n%s%s", code, asked, stdout, stderr)
			}
		})
	}
}

func TestTheJournalOfASidecarThatEndedCanBeRead(t *testing.T) {
	dir := t.TempDir()
	journal := `{"id":3,"at":"2026-11-20T03:12:05Z","kind":"agent","to":"started"}` + "\n" +
		`{"id":4,"at":"2026-11-20T03:12:09Z","kind":"agent","to":"stopped","reason":"broker_stopped","detail":"SIGTERM"}` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "journal.jsonl.1"), []byte(`{"id":2,"at":"2026-11-20T03:12:01Z","kind":"mode","to":"active"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "journal.jsonl"), []byte(journal), 0o600); err != nil {
		t.Fatal(err)
	}
	const note = "no sidecar runs here: this is its journal up to 2026-11-20 03:12:09Z\n"
	code, stdout, stderr := holdfast(t, "events", "--state-dir", dir)
	if code != 0 || stderr != note || strings.Count(stdout, "\n") != 3 || !strings.HasSuffix(stdout, "#4 agent stopped (broker_stopped) SIGTERM\n") {
		t.Errorf("events: code %d, %q, %q", code, stdout, stderr)
	}
	code, stdout, stderr = holdfast(t, "events", "--state-dir", dir, "--since", "2", "-o", "json")
	if code != 0 || stdout != journal || stderr != note {
		t.Errorf("events in JSON: code %d, %q, %q", code, stdout, stderr)
	}
	code, stdout, stderr = holdfast(t, "explain", "--state-dir", dir, "4")
	const defaults = "times in the explanation are those of the default settings: what it had is not known\n"
	if code != 0 || stderr != note+defaults || !strings.Contains(stdout, "The session policy ended") {
		t.Errorf("explain: code %d, %q, %q", code, stdout, stderr)
	}
	if code, _, stderr = holdfast(t, "explain", "--state-dir", dir, "9"); code != 2 || !strings.Contains(stderr, "event 9: not in the journal") {
		t.Errorf("explain of another: code %d, %q", code, stderr)
	}
	if code, _, stderr = holdfast(t, "events", "--state-dir", dir, "--follow"); code != 1 || !strings.Contains(stderr, "nothing to follow") {
		t.Errorf("--follow: code %d, %q", code, stderr)
	}
	if code, _, stderr = holdfast(t, "events", "--state-dir", t.TempDir()); code != 1 || !strings.Contains(stderr, "no sidecar answers") {
		t.Errorf("nothing was left: code %d, %q", code, stderr)
	}
}

func TestTopicsOfABrokerThatDoesNotAnswerAreSaidToBeOld(t *testing.T) {
	for up, note := range map[string]bool{"up": false, "down": true, "unknown": true} {
		socket := control(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/topics" {
				fmt.Fprint(w, `[{"topic":"/a/one","state":"served"}]`)
				return
			}
			fmt.Fprintf(w, `{"broker":{"up":%q}}`, up)
		})
		code, stdout, stderr := holdfast(t, "topics", "--control-socket", socket)
		if code != 0 || strings.Contains(stdout, "The broker does not answer") != note {
			t.Errorf("%s: code %d, %q %s", up, code, stdout, stderr)
		}
	}
}

func TestNoTopicsAtAllIsExplained(t *testing.T) {
	socket := control(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/topics" {
			fmt.Fprint(w, "[]")
			return
		}
		fmt.Fprint(w, `{"summary":"n1 is attached and active, and no topic is placed here."}`)
	})
	code, stdout, stderr := holdfast(t, "topics", "--control-socket", socket)
	if code != 0 || !strings.HasSuffix(stdout, "\n\nn1 is attached and active, and no topic is placed here.\n") {
		t.Errorf("code %d, %q %s", code, stdout, stderr)
	}
	if code, stdout, _ = holdfast(t, "topics", "--control-socket", socket, "-o", "json"); code != 0 || stdout != "[]\n" {
		t.Errorf("JSON: code %d, %q", code, stdout)
	}
}

func TestTheSidecarsRefusalDecidesTheExitCode(t *testing.T) {
	for _, want := range []int{1, 2, 3} {
		socket := control(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusConflict)
			fmt.Fprintf(w, `{"error":"activate: detached: wait","exit_code":%d}`, want)
		})
		code, _, stderr := holdfast(t, "activate", "--control-socket", socket)
		if code != want || stderr != "holdfast: activate: detached: wait\n" {
			t.Errorf("code %d, want %d: %s", code, want, stderr)
		}
	}
}

func TestHealthcheckFollowsReady(t *testing.T) {
	ready := http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ready" {
			t.Errorf("asked %s", r.URL.Path)
		}
		w.WriteHeader(ready)
	}))
	defer srv.Close()
	addr := srv.Listener.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	if code, _, stderr := holdfast(t, "healthcheck", "--probe-listen", ":"+port); code != 0 {
		t.Errorf("ready: code %d %s", code, stderr)
	}
	ready = http.StatusServiceUnavailable
	code, _, stderr := holdfast(t, "healthcheck", "--probe-listen", addr)
	if want := "holdfast: healthcheck: not ready: http://" + addr + "/ready answered 503 Service Unavailable: see 'holdfast status'\n"; code != 1 || stderr != want {
		t.Errorf("not ready: code %d %s", code, stderr)
	}
	srv.Close()
	code, _, stderr = holdfast(t, "healthcheck", "--probe-listen", addr)
	if want := "holdfast: healthcheck: no answer from http://" + addr + "/ready: is 'holdfast run' running here? give --probe-listen\n"; code != 1 || stderr != want {
		t.Errorf("nobody: code %d %s", code, stderr)
	}
}

func TestListenAddressesBecomeReachableOnes(t *testing.T) {
	for listen, want := range map[string]string{
		":9808": "127.0.0.1:9808", "0.0.0.0:1": "127.0.0.1:1", "[::]:1": "[::1]:1", "10.0.0.1:2": "10.0.0.1:2", "localhost:3": "localhost:3",
	} {
		if got := reachable(listen); got != want {
			t.Errorf("%s: %s, want %s", listen, got, want)
		}
	}
}

func TestCheckOfUnsafeSettingsPrintsTheTimelineAndRefuses(t *testing.T) {
	code, stdout, stderr := holdfast(t, "check", "--driver", "nats", "--detach=false",
		"--etcd-endpoints", "http://127.0.0.1:1", "--broker-admin", "nats://127.0.0.1:1", "--nats-monitor", "http://127.0.0.1:1")
	if code != 3 || !strings.Contains(stdout, "When etcd goes away\n") ||
		!strings.Contains(stderr, "holdfast: --detach=false: a broker that is cut off from etcd goes on serving after its registration is gone: leave it out\n") {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
}

func TestFleetSaysWhereEtcdWasLookedFor(t *testing.T) {
	code, _, stderr := holdfast(t, "fleet", "--etcd-endpoints", "http://127.0.0.1:1")
	const want = `holdfast: --etcd-endpoints "http://127.0.0.1:1": etcd is out of reach: dial tcp 127.0.0.1:1: connect: connection refused: is it running there, and is the way open?` + "\n"
	if code != 1 || stderr != want {
		t.Errorf("code %d\ngot  %swant %s", code, stderr, want)
	}
}

func TestCompletionScriptsParseAndKnowEveryVerbAndFlag(t *testing.T) {
	check := map[string][]string{"bash": {"bash", "-n"}, "zsh": {"zsh", "-n"}, "fish": {"fish", "--no-execute"}}
	for shell, parser := range check {
		code, script, stderr := holdfast(t, "completion", shell)
		if code != 0 {
			t.Fatalf("%s: code %d %s", shell, code, stderr)
		}
		for _, v := range verbs() {
			if !strings.Contains(script, v.name) {
				t.Errorf("%s: no word of %s", shell, v.name)
			}
			for _, o := range v.flags {
				if !strings.Contains(script, "--"+o.name) && !strings.Contains(script, " -l "+o.name+" ") {
					t.Errorf("%s: no word of --%s", shell, o.name)
				}
			}
		}
		if _, err := exec.LookPath(parser[0]); err != nil {
			t.Logf("%s is not here to parse its script", shell)
			continue
		}
		file := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(parser[0], append(parser[1:], file)...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
}

func TestBashCompletesVerbsFlagsAndChoices(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("bash is not here")
	}
	_, script, _ := holdfast(t, "completion", "bash")
	for line, want := range map[string]string{
		"holdfast sta":                     "status",
		"holdfast run --lease-d":           "--lease-detach-margin",
		"holdfast status -o j":             "json",
		"holdfast run --log-level w":       "warn",
		"holdfast completion f":            "fish",
		"holdfast topics --state q":        "quarantined",
		"holdfast events --follow --outpu": "--output",
	} {
		words := strings.Fields(line)
		text := script + fmt.Sprintf("\nCOMP_WORDS=(%s) COMP_CWORD=%d; _holdfast; echo \"${COMPREPLY[@]}\"", line, len(words)-1)
		out, err := exec.Command("bash", "--norc", "-c", text).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s: %q %v, want %s", line, out, err, want)
		}
	}
}
