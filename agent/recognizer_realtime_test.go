package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/agent/check"
	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/agent/registration"
	"holdfast/brokerapi"
	"holdfast/probes"
)

// besides starts a process that is no broker, and returns its pid file.
func besides(t *testing.T) (pid int, file string) {
	t.Helper()
	c := exec.Command("sleep", "300")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	file = filepath.Join(t.TempDir(), "wrong.pid")
	if err := os.WriteFile(file, fmt.Append(nil, c.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	return c.Process.Pid, file
}

// watchThatSaw has seen a process live, and looks no more.
func watchThatSaw(t *testing.T) *probes.Process {
	t.Helper()
	_, file := besides(t)
	watch := probes.NewProcess(&probes.Finder{PIDFile: file}, discard)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- watch.Run(ctx) }()
	for watch.Snapshot().Pid == 0 {
		<-watch.Changes()
	}
	cancel()
	<-ended
	return watch
}

func TestCheckRefusesTheProcessOfAnother(t *testing.T) {
	pid, file := besides(t)
	socket, err := net.Listen("tcp", "127.0.0.1:0") // ours, as the broker's
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	us, err := probes.ReadProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	c := natsDefaults()
	c.BrokerAdmin, c.BrokerPIDFile = "nats://"+socket.Addr().String(), file
	f := check.Recognized(t.Context(), c, check.Finding{What: "process"}, brokerapi.Report{Instance: "a", StartedAt: us.StartedAt})
	var exit *control.ExitError
	if !errors.As(f.Err, &exit) || exit.Code != control.ExitRefused {
		t.Fatalf("%v", f.Err)
	}
	for _, part := range []string{"--broker-pid-file " + file, fmt.Sprintf("process %d (sleep)", pid), "is not the broker that answers at nats://127.0.0.1:",
		fmt.Sprintf("held by process %d", os.Getpid()), "give the pid file that this broker writes"} {
		if !strings.Contains(f.Err.Error(), part) {
			t.Errorf("%q lacks %q", f.Err, part)
		}
	}
	seen, err := probes.ReadProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if _, why := recognize.Process(t.Context(), c, seen, brokerapi.Report{Instance: "a", StartedAt: seen.StartedAt}); strings.Contains(why, "started") {
		t.Errorf("equal times are shown as a difference: %s", why)
	}
}

func TestCheckRefusesProcess1(t *testing.T) {
	c := natsDefaults()
	c.BrokerPIDFile = filepath.Join(t.TempDir(), "one.pid")
	if err := os.WriteFile(c.BrokerPIDFile, []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := check.Process(c.Effective(), slog.New(slog.DiscardHandler))
	var exit *control.ExitError
	if !errors.As(f.Err, &exit) || exit.Code != control.ExitRefused || !strings.Contains(f.Err.Error(), "leads to process 1 (") {
		t.Errorf("%v", f.Err)
	}
}

// A sidecar that was frozen wakes with the last answer of a broker that has ended.
func TestTheGateClosesForABrokerThatHasEndedWhateverItLastAnswered(t *testing.T) {
	for _, verdict := range []probes.Verdict{probes.Up, probes.Unknown} {
		t.Run(verdict.String(), func(t *testing.T) {
			c := exec.Command("sleep", "300")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
			broker, err := process.TargetOf(c.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			a := built(t)
			a.brokerID, a.gate = "n1", true
			a.identity.known, a.identity.askedAt = brokerapi.Report{Instance: "a"}, time.Now()
			a.recognizer.Begin(broker, "a", time.Now().Add(time.Minute), true)
			a.recognizer.End(broker, "a", recognize.IsBroker, "")
			if a.orderLease(verdict); !a.gate {
				t.Fatal("closed while the broker lives")
			}
			_ = c.Process.Kill()
			_ = c.Wait()
			if a.orderLease(verdict); a.gate {
				t.Error("open for a broker that has ended")
			}
			if a.life.Store(&registration.Life{}); !a.lifeNow().Gone {
				t.Error("it would be registered")
			}
			// It answers as the same one afterwards: it was not that process.
			a.identity.askedAt = time.Now().Add(time.Second)
			if a.orderLease(probes.Up); !a.gate {
				t.Error("closed for a broker that answers")
			}
		})
	}
}

// answering is a broker that answers, or a stranger.
type answering struct {
	stillBroker
	err  error
	late bool // as late as it is waited for
}

func (b answering) Probe(ctx context.Context) (brokerapi.Report, error) {
	if b.late {
		<-ctx.Done()
	}
	if b.err != nil {
		return brokerapi.Report{}, b.err
	}
	return brokerapi.Report{Name: "n1", Instance: "a"}, nil
}

func TestNoChildIsStartedBesideABrokerThatAnswers(t *testing.T) {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	admin := "nats://" + socket.Addr().String()
	want := fmt.Sprintf("a broker that is not our child already answers at %s (process %d, ", admin, os.Getpid())
	for _, tt := range []struct {
		name string
		answering
		says string // empty: it is started
	}{
		{"a broker", answering{}, want},
		{"a broker that takes its time", answering{late: true}, want},
		{"something else", answering{err: fmt.Errorf("a web server answers: %w", brokerapi.ErrIdentity)}, "a web server answers"},
		{"nobody", answering{err: errors.New("connection refused")}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := built(t)
			a.cfg.Command, a.cfg.StateDir, a.cfg.BrokerAdmin = []string{"nats-server"}, t.TempDir(), admin
			a.child, a.broker = process.NewChild(process.ChildSettings{Command: a.cfg.Command}), tt.answering
			err := a.refuseStranger(t.Context())
			var exit *control.ExitError
			if tt.says == "" && err != nil || tt.says != "" && (!errors.As(err, &exit) || exit.Code != control.ExitUsage || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("%v", err)
			}
			if f := check.Recognized(t.Context(), a.cfg, check.Finding{What: "process", Text: "ok"}, brokerapi.Report{}); tt.err == nil && (!f.Warn || f.Err != nil || !strings.Contains(f.Text, want)) {
				t.Errorf("check: %+v", f)
			}
		})
	}
}

func TestCheckSaysThatThereIsNoGuard(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*config.Config)
		want   string
	}{
		{"no way to stop", func(*config.Config) {}, "off: nothing stops the broker if this sidecar hangs: give --broker-pid-file"},
		{"no detachment", func(c *config.Config) { c.BrokerProcess, c.Detach = "nats-server", false }, "off: nothing stops the broker if this sidecar hangs: leave out --detach=false"},
		{"as asked for", func(c *config.Config) { c.BrokerProcess, c.Guard = "nats-server", "off" }, "off: nothing stops the broker if this sidecar hangs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := natsDefaults()
			c.EtcdEndpoints, c.BrokerAdmin, c.NATSMonitor = []string{"http://" + deadPort}, "nats://"+deadPort, "http://"+deadPort
			tt.change(&c)
			f := find(t, Check(t.Context(), c, slog.New(slog.DiscardHandler)), "guard")
			if f.Text != tt.want || !f.Warn || f.Err != nil {
				t.Errorf("%+v", f)
			}
		})
	}
}
