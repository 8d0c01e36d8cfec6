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
	"holdfast/agent/lease"
	"holdfast/agent/process"
	"holdfast/brokerapi"
	"holdfast/probes"
	"holdfast/recovery"
)

func TestAProcessIsRecognizedByItsStartAndTheAdminSocket(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	near, far, none := at.Add(-startTolerance), at.Add(-startTolerance-1), time.Time{}
	for _, tt := range []struct {
		name    string
		started time.Time
		stated  time.Time
		holding probes.Holding
		holder  time.Time
		twins   bool
		want    recognition
	}{
		{"it holds the socket", near, at, probes.HoldingYes, none, false, isBroker},
		{"it holds the socket, the clock was set", far, at, probes.HoldingYes, none, false, isBroker},
		{"it holds the socket, the broker states no start", near, none, probes.HoldingYes, none, false, isBroker},
		{"starts agree, socket hidden", near, at, probes.HoldingUnknown, none, false, isBroker},
		{"starts agree, another start is later", at.Add(startTolerance), at, probes.HoldingUnknown, none, false, isBroker},
		{"starts differ, socket hidden", far, at, probes.HoldingUnknown, none, false, isForeign},
		{"starts differ, it does not hold the socket", far, at, probes.HoldingNo, none, false, isForeign},
		{"starts differ, another holds the socket", far, at, probes.HoldingAnother, at, false, isForeign},
		{"starts agree, the broker next to it holds the socket", at, at, probes.HoldingAnother, near, true, isForeign},
		{"no start stated, the broker next to it holds the socket", near, none, probes.HoldingAnother, near, true, isForeign},
		{"starts agree, the holder's fits better", near, at, probes.HoldingAnother, at.Add(-time.Second), false, isForeign},
		{"starts agree, the holder is a proxy that is older", near, at, probes.HoldingAnother, far, false, unrecognized},
		{"starts agree, it does not hold the socket, who does is hidden", at, at, probes.HoldingNo, none, false, unrecognized},
		{"no start stated, socket hidden", near, none, probes.HoldingUnknown, none, false, unrecognized},
		{"no start stated, another holds the socket", near, none, probes.HoldingAnother, at, false, unrecognized},
		{"nothing is known", none, none, probes.HoldingUnknown, none, false, unrecognized},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := recognize(recognitionFacts{Started: tt.started, Stated: tt.stated, Holding: tt.holding, Holder: tt.holder, Twins: tt.twins})
			if got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func TestNobodyIsHitBeforeHeIsJudgedWhileTheBrokerAnswers(t *testing.T) {
	var r recognizer
	first, second := process.Target{Pid: 7, StartTicks: 1}, process.Target{Pid: 8, StartTicks: 2}
	if err := r.refuses(first); err != nil {
		t.Errorf("the broker never answered: %v", err)
	}
	r.begin(first, "", time.Time{}, false)
	if err := r.refuses(first); err != nil {
		t.Errorf("the broker does not answer: %v", err)
	}
	if ask, _ := r.begin(first, "a", time.Now().Add(-time.Minute), true); ask {
		t.Error("judged by an answer from before it was seen")
	}
	if r.refuses(first) == nil || errors.Is(r.refuses(first), process.ErrNotFound) {
		t.Errorf("not judged yet: %v", r.refuses(first))
	}
	if ask, _ := r.begin(first, "a", time.Now().Add(time.Minute), true); !ask {
		t.Fatal("not judged")
	}
	if ask, _ := r.begin(first, "a", time.Now().Add(time.Minute), true); ask {
		t.Error("judged twice at once")
	}
	if !r.end(first, "a", isBroker, "") || r.refuses(first) != nil {
		t.Errorf("the broker is refused: %v", r.refuses(first))
	}
	// The file names another one.
	if _, isNew := r.begin(second, "a", time.Now(), true); !isNew || r.refuses(second) == nil {
		t.Error("believed without a judgement")
	}
	if ask, _ := r.begin(second, "a", time.Now().Add(time.Minute), true); !ask || !r.end(second, "a", isForeign, "no") {
		t.Error("not judged")
	}
	for _, up := range []bool{true, false} { // also when the broker hangs or ends
		r.begin(second, "a", time.Now().Add(time.Minute), up)
		if !errors.Is(r.refuses(second), process.ErrNotFound) || r.foreign() != "no" {
			t.Errorf("up %t: %v", up, r.refuses(second))
		}
	}
	// It turns out to be the broker that came up.
	if ask, _ := r.begin(second, "b", time.Now().Add(time.Minute), true); !ask || !r.end(second, "b", isBroker, "") || r.refuses(second) != nil {
		t.Errorf("another broker answers: %v", r.refuses(second))
	}
}

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
	f := recognizeFinding(t.Context(), c, check.Finding{What: "process"}, brokerapi.Report{Instance: "a", StartedAt: us.StartedAt})
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
	if _, why := judgeProcess(t.Context(), c, seen, brokerapi.Report{Instance: "a", StartedAt: seen.StartedAt}); strings.Contains(why, "started") {
		t.Errorf("equal times are shown as a difference: %s", why)
	}
}

func TestCheckRefusesProcess1(t *testing.T) {
	c := natsDefaults()
	c.BrokerPIDFile = filepath.Join(t.TempDir(), "one.pid")
	if err := os.WriteFile(c.BrokerPIDFile, []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := checkProcess(c.Effective(), slog.New(slog.DiscardHandler))
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
			a.recognizer.begin(broker, "a", time.Now().Add(time.Minute), true)
			a.recognizer.end(broker, "a", isBroker, "")
			if a.setGate(verdict); !a.gate {
				t.Fatal("closed while the broker lives")
			}
			_ = c.Process.Kill()
			_ = c.Wait()
			if a.setGate(verdict); a.gate {
				t.Error("open for a broker that has ended")
			}
			r := &registrar{gone: a.brokerGone, up: func(string) bool { return true }}
			if err := r.doubtful(outcome{boot: "restart", decision: recovery.Decision{Step: recovery.Register}}); !errors.Is(err, lease.ErrDeferred) {
				t.Errorf("it would be registered: %v", err)
			}
			// It answers as the same one afterwards: it was not that process.
			a.identity.askedAt = time.Now().Add(time.Second)
			if a.setGate(probes.Up); !a.gate {
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
			if f := recognizeFinding(t.Context(), a.cfg, check.Finding{What: "process", Text: "ok"}, brokerapi.Report{}); tt.err == nil && (!f.Warn || f.Err != nil || !strings.Contains(f.Text, want)) {
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
