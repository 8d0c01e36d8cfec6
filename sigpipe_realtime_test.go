package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast/agent/control"
)

// unread is a pipe that nobody reads any more.
func unread(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	t.Cleanup(func() { w.Close() })
	return w
}

// ended waits for the process, and tells how it ended.
func ended(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	stuck := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	_ = cmd.Wait()
	return cmd.ProcessState.String()
}

// wantNoPipeIgnored wants that a process of a broker, as /proc/PID/status shows it, does not
// have SIGPIPE ignored.
func wantNoPipeIgnored(t *testing.T, status string) {
	t.Helper()
	for line := range strings.Lines(status) {
		if mask, ok := strings.CutPrefix(line, "SigIgn:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			if n>>(syscall.SIGPIPE-1)&1 != 0 {
				t.Errorf("the broker has SIGPIPE ignored: %s", line)
			}
			return
		}
	}
	t.Errorf("no word of ignored signals in %q", status)
}

func TestASidecarWhoseLogNobodyReadsGoesOn(t *testing.T) {
	dir := t.TempDir()
	says, broker, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer says.Close()
	stays, over, err := os.Pipe() // no broker outlives this test
	if err != nil {
		t.Fatal(err)
	}
	defer over.Close()
	cmd := asProcess(t, "run", "--driver", "danube", "--registration", "none", "--broker-admin", "http://127.0.0.1:1", "--probe-listen", "127.0.0.1:0",
		"--web-listen", "127.0.0.1:0", "--state-dir", dir, "--control-socket", filepath.Join(dir, "control.sock"), "--log-level", "debug",
		"--", "/bin/sh", "-c", "cat /proc/self/status; echo; exec cat")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stays, broker, unread(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	broker.Close()
	stays.Close()
	var status strings.Builder
	for lines := bufio.NewScanner(says); lines.Scan() && lines.Text() != ""; {
		status.WriteString(lines.Text() + "\n")
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if got := ended(t, cmd); got != "exit status 0" {
		t.Errorf("%s", got)
	}
	wantNoPipeIgnored(t, status.String())
}

func TestAGateThatNobodyReadsGoesOn(t *testing.T) {
	var asked atomic.Int32
	socket := sidecar(t, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(control.GateAnswer{MayStart: asked.Add(1) > 1, Reason: "fenced", Detail: "etcd does not answer"})
	})
	cmd := asProcess(t, "gate", "--wait", "1h", "--control-socket", socket, "--", "/bin/cat", "/proc/self/status")
	var status strings.Builder
	cmd.Stdout, cmd.Stderr = &status, unread(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if got := ended(t, cmd); got != "exit status 0" {
		t.Errorf("%s", got)
	}
	wantNoPipeIgnored(t, status.String())
}

func TestTheExitCodeIsTheSameWhenNobodyReads(t *testing.T) {
	attached, err := json.Marshal(attachedStatus())
	if err != nil {
		t.Fatal(err)
	}
	socket := sidecar(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/leave":
			w.WriteHeader(http.StatusConflict)
			_, _ = w.Write([]byte(`{"error":"it is drained","exit_code":3}`))
		case "/v1/events":
			_, _ = w.Write([]byte("{}\n"))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			_, _ = w.Write(attached)
		}
	})
	for _, row := range []struct {
		name, want string
		args       []string
	}{
		{"what was asked for is done", "exit status 0", []string{"drain", "--control-socket", socket}},
		{"the answer is not wanted", "exit status 0", []string{"status", "--control-socket", socket}},
		{"no more events are wanted", "exit status 0", []string{"events", "--follow", "--control-socket", socket}},
		{"help", "exit status 0", []string{"--help"}},
		{"refused", "exit status 3", []string{"leave", "--control-socket", socket}},
		{"what a check found", "exit status 1", []string{"check", "--driver", "danube", "--registration", "none", "--broker-admin", "http://127.0.0.1:1", "--state-dir", t.TempDir()}},
		{"a wrong setting", "exit status 2", []string{"check"}},
	} {
		cmd := asProcess(t, row.args...)
		var stderr strings.Builder
		cmd.Stdout, cmd.Stderr = unread(t), &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if got := ended(t, cmd); got != row.want || strings.Contains(stderr.String(), "pipe") {
			t.Errorf("%s: %s, %q", row.name, got, stderr.String())
		}
		cmd = asProcess(t, row.args...)
		cmd.Stdout, cmd.Stderr = unread(t), unread(t)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if got := ended(t, cmd); got != row.want {
			t.Errorf("%s, and nobody reads its errors: %s", row.name, got)
		}
	}
}
