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

	"holdfast/agent/control"
)

func TestTheGateEndsWithTheSidecarsWord(t *testing.T) {
	answer := control.GateAnswer{MayStart: true}
	socket := sidecar(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method+" "+r.URL.Path != "GET /v1/gate" {
			t.Errorf("asked %s %s", r.Method, r.URL.Path)
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
	if code, stdout, stderr := holdfast(t, "gate", "--wait", "1m", "--control-socket", socket); code != 0 || stdout+stderr != "" {
		t.Errorf("open: code %d, %q %q", code, stdout, stderr)
	}
	answer = control.GateAnswer{Reason: "fenced", Detail: "its lease may be gone, and etcd does not answer: refused"}
	code, _, stderr := holdfast(t, "gate", "--wait", "100ms", "--control-socket", socket)
	why := fmt.Sprintf("the sidecar on %s holds the broker back (fenced): its lease may be gone, and etcd does not answer: refused: see 'holdfast status'\n", socket)
	if want := "holdfast: gate: waiting up to 100ms for a sidecar that lets the broker start: " + why +
		"holdfast: gate: no sidecar let the broker start within 100ms, so it is not started: " + why; code != 1 || stderr != want {
		t.Errorf("held back: code %d, got\n%swant\n%s", code, stderr, want)
	}
}

// asProcess is the command as a process of its own, which this test binary becomes: see TestMain.
func asProcess(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Args[0] = "holdfast"
	cmd.Env = append(os.Environ(), processVariable+"=1")
	return cmd
}

const processVariable = "HOLDFAST_TEST_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(processVariable) != "" {
		os.Exit(run(os.Args, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// gated is a gate in front of a command.
func gated(t *testing.T, socket string) *exec.Cmd {
	t.Helper()
	return asProcess(t, "gate", "--wait", "1h", "--control-socket", socket, "--", "/bin/sh", "-c", "echo $$; exit 7")
}

func TestTheBrokerTakesThePlaceOfItsGate(t *testing.T) {
	socket := sidecar(t, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(control.GateAnswer{MayStart: true})
	})
	cmd := gated(t, socket)
	out, _ := cmd.Output()
	if code := cmd.ProcessState.ExitCode(); code != 7 || string(out) != fmt.Sprintln(cmd.Process.Pid) {
		t.Errorf("the broker has process %q and status %d, the gate was process %d", out, code, cmd.Process.Pid)
	}
}

func TestAGateThatIsInterruptedStartsNothing(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		waits := make(chan struct{})
		var once sync.Once
		socket := sidecar(t, func(w http.ResponseWriter, _ *http.Request) {
			once.Do(func() { close(waits) })
			_ = json.NewEncoder(w).Encode(control.GateAnswer{Reason: "fenced", Detail: "etcd does not answer"})
		})
		var stdout, stderr strings.Builder
		cmd := gated(t, socket)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
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
