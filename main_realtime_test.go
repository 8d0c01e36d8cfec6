package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/agent/control"
)

// sidecar serves a sidecar's answers on a socket and returns its path.
func sidecar(t *testing.T, h http.HandlerFunc) string {
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

func TestStatusPrintsTheSidecarsJSONUnchanged(t *testing.T) {
	const answer = `{"broker_id":"n1","of_a_later_version":[1,2]}`
	socket := sidecar(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, answer) })
	for _, args := range [][]string{{"-o", "json"}, {"--output", "json"}, {"-o=json"}} {
		code, stdout, stderr := holdfast(t, append([]string{"status", "--control-socket", socket}, args...)...)
		if code != 0 || stdout != answer+"\n" {
			t.Errorf("%v: code %d, %q %s", args, code, stdout, stderr)
		}
	}
}

func TestStatusTakesTheStateDirectory(t *testing.T) {
	socket := sidecar(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"summary":"All is well."}`) })
	code, stdout, stderr := holdfast(t, "status", "--state-dir", filepath.Dir(socket))
	if code != 0 || !strings.HasPrefix(stdout, "All is well.\n") {
		t.Errorf("code %d, %q %s", code, stdout, stderr)
	}
}

func TestTopicsFiltersByState(t *testing.T) {
	topics := []control.TopicStatus{{Topic: "/a/one", State: "served"}, {Topic: "/a/two", State: "missing", Error: "no space"}}
	socket := sidecar(t, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(topics) })
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
	socket := sidecar(t, func(w http.ResponseWriter, r *http.Request) {
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
	want := []string{`/v1/drain {"reason":"new disk","timeout_seconds":60}`, `/v1/activate {"reason":""}`, `/v1/confirm {}`,
		`/v1/status `, `/v1/leave {"timeout_seconds":60,"wait":true,"with_sidecar":false}`}
	if fmt.Sprint(bodies) != fmt.Sprint(want) {
		t.Errorf("asked %q", bodies)
	}
}

func TestPausingAndResumingSayWhatBecameOfThePause(t *testing.T) {
	until := time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)
	mine := &control.PauseStatus{Owner: "ops", Reason: "disk swap", Until: until, RemainingSeconds: 1800}
	other := &control.PauseStatus{Owner: "dba", Reason: "tests", RemainingSeconds: 61}
	pause := []string{"pause", "--for", "30m", "--owner", "ops", "--reason", "disk swap"}
	const paused = "n1: recovery is paused for 30m0s, until 2026-03-01 12:30:00Z, by ops: disk swap. The lease and the fencing go on; 'holdfast resume' ends it."
	for _, c := range []struct {
		name    string
		args    []string
		answer  control.PauseAnswer
		request string
		want    string
	}{
		{"paused", pause, control.PauseAnswer{BrokerID: "n1", Pause: mine},
			`/v1/pause {"owner":"ops","reason":"disk swap","for_seconds":1800}`, paused},
		{"paused again", pause, control.PauseAnswer{BrokerID: "n1", Pause: mine, Before: other},
			`/v1/pause {"owner":"ops","reason":"disk swap","for_seconds":1800}`,
			paused + " It replaces the pause by dba (tests), which had 1m1s left."},
		{"resumed", []string{"resume"}, control.PauseAnswer{BrokerID: "n1", Before: other}, "/v1/resume {}",
			"n1: recovery goes on: the pause by dba (tests) is over, 1m1s early."},
		{"resumed when not paused", []string{"resume"}, control.PauseAnswer{}, "/v1/resume {}",
			"the broker: recovery was not paused: nothing to resume."},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := ""
			socket := sidecar(t, func(w http.ResponseWriter, r *http.Request) {
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
	code, stdout, stderr = holdfast(t, "status", "--state-dir", dir)
	if code != 1 || !strings.HasPrefix(stdout, "The sidecar that ran here was stopped. Its last events:\n2026-11-20 03:12:01Z  #2 ") || !strings.Contains(stderr, "no sidecar answers") {
		t.Errorf("status: code %d, %q, %q", code, stdout, stderr)
	}
	if code, stdout, stderr = holdfast(t, "status", "--state-dir", dir, "-o", "json"); code != 1 || stdout != "" {
		t.Errorf("status in JSON: code %d, %q, %q", code, stdout, stderr)
	}
	for kind, how := range map[string]string{
		`"started"`: "ended without a stop: it was killed, it failed, or its host did",
		`"shutdown","detail":"--etcd-user \"n1\": etcd refuses us"`: `ended by itself: --etcd-user "n1": etcd refuses us`,
	} {
		left := t.TempDir()
		write := `{"id":1,"at":"2026-11-20T03:12:05Z","kind":"agent","to":"stopped"}` + "\n" + `{"id":2,"at":"2026-11-20T03:12:09Z","kind":"agent","to":` + kind + "}\n"
		if err := os.WriteFile(filepath.Join(left, "journal.jsonl"), []byte(write), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, stdout, _ = holdfast(t, "status", "--state-dir", left); !strings.HasPrefix(stdout, "The sidecar that ran here "+how+". Its last events:\n") {
			t.Errorf("status after %s: %q", kind, stdout)
		}
	}
	code, stdout, stderr = holdfast(t, "events", "--state-dir", dir, "-o", "json")
	if code != 0 || !strings.HasSuffix(stdout, journal) || stderr != note {
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
		socket := sidecar(t, func(w http.ResponseWriter, r *http.Request) {
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
	socket := sidecar(t, func(w http.ResponseWriter, r *http.Request) {
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
		socket := sidecar(t, func(w http.ResponseWriter, _ *http.Request) {
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
	if want := "holdfast: healthcheck: --probe-listen " + addr + ": no answer from http://" + addr + "/ready: is 'holdfast run' running here, with this --probe-listen?\n"; code != 1 || stderr != want {
		t.Errorf("nobody: code %d %s", code, stderr)
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
