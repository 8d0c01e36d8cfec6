package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"holdfast/agent"
)

func TestTheGateEndsWithTheSidecarsWord(t *testing.T) {
	answer := agent.GateAnswer{MayStart: true}
	socket := control(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method+" "+r.URL.Path != "GET /v1/gate" {
			t.Errorf("asked %s %s", r.Method, r.URL.Path)
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
	if code, stdout, stderr := holdfast(t, "gate", "--wait", "1m", "--control-socket", socket); code != 0 || stdout+stderr != "" {
		t.Errorf("open: code %d, %q %q", code, stdout, stderr)
	}
	answer = agent.GateAnswer{Reason: "fenced", Detail: "its lease may be gone, and etcd does not answer: refused"}
	code, _, stderr := holdfast(t, "gate", "--wait", "100ms", "--control-socket", socket)
	why := fmt.Sprintf("the sidecar on %s holds the broker back (fenced): its lease may be gone, and etcd does not answer: refused: see 'holdfast status'\n", socket)
	if want := "holdfast: gate: waiting up to 100ms for a sidecar that lets the broker start: " + why +
		"holdfast: gate: no sidecar let the broker start within 100ms, so it is not started: " + why; code != 1 || stderr != want {
		t.Errorf("held back: code %d, got\n%swant\n%s", code, stderr, want)
	}
}

// gateVariable makes this test binary a gate in front of a command.
const gateVariable = "HOLDFAST_TEST_GATE"

func TestMain(m *testing.M) {
	if socket := os.Getenv(gateVariable); socket != "" {
		os.Exit(run([]string{"holdfast", "gate", "--wait", "1h", "--control-socket", socket, "--", "/bin/sh", "-c", "echo $$; exit 7"}, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestTheBrokerTakesThePlaceOfItsGate(t *testing.T) {
	socket := control(t, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(agent.GateAnswer{MayStart: true})
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), gateVariable+"="+socket)
	out, _ := cmd.Output()
	if code := cmd.ProcessState.ExitCode(); code != 7 || string(out) != fmt.Sprintln(cmd.Process.Pid) {
		t.Errorf("the broker has process %q and status %d, the gate was process %d", out, code, cmd.Process.Pid)
	}
}

func TestAGateThatIsInterruptedStartsNothing(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		waits := make(chan struct{})
		var once sync.Once
		socket := control(t, func(w http.ResponseWriter, _ *http.Request) {
			once.Do(func() { close(waits) })
			_ = json.NewEncoder(w).Encode(agent.GateAnswer{Reason: "fenced", Detail: "etcd does not answer"})
		})
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		var stdout, stderr strings.Builder
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), gateVariable+"="+socket), &stdout, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-waits
		_ = cmd.Process.Signal(sig)
		_ = cmd.Wait()
		const last = "holdfast: gate: interrupted before a sidecar let the broker start: the broker is not started\n"
		if code := cmd.ProcessState.ExitCode(); code != 1 || stdout.String() != "" || !strings.HasSuffix(stderr.String(), last) {
			t.Errorf("%s: code %d, %q, got\n%s", sig, code, stdout.String(), stderr.String())
		}
	}
}
