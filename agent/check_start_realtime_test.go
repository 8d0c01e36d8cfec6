package agent

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"holdfast/agent/check"
	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/agent/registration"
	"holdfast/brokerapi"
	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
	"holdfast/recovery"
)

func TestAStartIsForetoldInWords(t *testing.T) {
	decided := func(step recovery.Step, mode recovery.Mode, by string) registration.Outcome {
		return registration.Outcome{Decision: recovery.Decision{Step: step, Row: recovery.ReasonStaleRestart, Detail: "others lived on",
			Mode: recovery.ModeRecord{Mode: mode, Reason: recovery.ReasonStaleRestart, By: by}}}
	}
	unread := decided(recovery.Keep, recovery.Active, recovery.ByHoldfast)
	unread.Unread = "era \"many\" at key /cluster/era"
	why := ", decided by stale_restart: others lived on (the process that was registered runs on); otherwise: " + recovery.Otherwise(recovery.ReasonStaleRestart)
	for _, row := range []struct {
		name string
		out  registration.Outcome
		err  error
		warn bool
		want string
	}{
		{"active", decided(recovery.Keep, recovery.Active, recovery.ByHoldfast), nil, false, "would be active (stale_restart)" + why},
		{"drained", decided(recovery.Register, recovery.Drained, recovery.ByHoldfast), nil, true, "would be drained (stale_restart)" + why},
		{"drained by an operator", decided(recovery.Register, recovery.Drained, recovery.ByOperator), nil, false, "would be drained (stale_restart)" + why},
		{"stopped", decided(recovery.Shutdown, "", ""), nil, true, "would stop the broker" + why},
		{"in conflict", decided(recovery.Conflict, "", ""), nil, true, "would wait, detached" + why},
		{"in conflict with a copy", registration.Outcome{}, fmt.Errorf("%w: a copy", lease.ErrConflict), true,
			"would wait, detached, decided by identity_conflict: a copy; otherwise: " + recovery.Otherwise(recovery.RowConflict)},
		{"not yet", registration.Outcome{}, fmt.Errorf("%w: recovery is paused", lease.ErrDeferred), true, "would wait: recovery is paused"},
		{"with a record that cannot be read", unread, nil, true,
			"would be active (stale_restart)" + why + ". Cannot be read: era \"many\" at key /cluster/era (" + registration.UnreadHint + ")"},
	} {
		if f := (start{}).worded(row.out, row.err); f.Err != nil || f.Warn != row.warn || f.Text != row.want {
			t.Errorf("%s: %+v\nwant %s", row.name, f, row.want)
		}
	}
}

func TestAStartBesideAProcessThatHasLeftIsForetold(t *testing.T) {
	client := cluster.Over(cluster.Config{}, etcd.New(etcd.Config{}).Conn(nil), slog.New(slog.DiscardHandler))
	for _, row := range []struct {
		instance string
		ago      time.Duration
		waits    bool
	}{{"process-1", time.Minute, true}, {"process-1", time.Hour, false}, {"process-2", time.Minute, false}} {
		s := start{cfg: natsDefaults().Effective(), name: "n1", memory: newMemory(), instance: row.instance, clock: lease.BootClock}
		s.memory.Left = &registration.LeftProcess{Instance: "process-1", At: time.Now().Add(-row.ago)}
		f := s.foretell(t.Context(), client, slog.New(slog.DiscardHandler))
		if waits := f.Warn && strings.Contains(f.Text, "registered again if it still runs in 4m0s"); f.Err != nil || waits != row.waits || !waits && !strings.HasPrefix(f.Text, "would be ") {
			t.Errorf("%+v: %+v", row, f)
		}
	}
}

func TestAPauseOfTheSidecarBeforeIsForetold(t *testing.T) {
	s := start{memory: newMemory()}
	s.memory.Pause = &recovery.Pause{Owner: "ops", Until: time.Now().Add(time.Hour)}
	if got := s.pauseEnds(); !got.Equal(s.memory.Pause.Until) {
		t.Errorf("it ends at %v", got)
	}
	s.memory.Pause.Until = time.Now().Add(-time.Second)
	if got := s.pauseEnds(); !got.IsZero() {
		t.Errorf("it is over, and ends at %v", got)
	}
}

func TestWhatABrokerThatIsDownCannotTellIsAssumed(t *testing.T) {
	etcd := serveSomeEtcd(t)
	settings := func() config.Config {
		c := natsDefaults()
		c.EtcdEndpoints, c.StateDir, c.DataDir = []string{etcd}, t.TempDir(), t.TempDir()
		return c.Effective()
	}
	check := func(c config.Config) check.Finding {
		t.Helper()
		f := checkStart(t.Context(), c, brokerapi.Report{}, false, slog.New(slog.DiscardHandler))
		if f.Err != nil {
			t.Error(f.Err)
		}
		return f
	}
	c := settings()
	if f := check(c); !strings.Contains(f.Text, "its id is not known: give --broker-id") {
		t.Errorf("nobody knows its id: %+v", f)
	}
	c.BrokerID = "n1"
	if f := check(c); !strings.Contains(f.Text, "would be active (boot)") || !strings.HasSuffix(f.Text, " Assumed: the broker does not answer, and is started now") {
		t.Errorf("without data: %+v", f)
	}
	mark := filepath.Join(c.DataDir, strings.ReplaceAll(c.DataMarkers[0], "*", "x"))
	if err := os.MkdirAll(filepath.Dir(mark), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f := check(c); !strings.Contains(f.Text, "(first_registration)") || !strings.HasSuffix(f.Text, "; it serves nothing that is assigned to others") {
		t.Errorf("with data: %+v", f)
	}
	torn := filepath.Join(c.StateDir, "state.json")
	if err := os.WriteFile(torn, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f := check(c); !f.Warn || !strings.Contains(f.Text, "drained (corrupt_state)") {
		t.Errorf("a torn state file: %+v", f)
	}
	if raw, err := os.ReadFile(torn); err != nil || string(raw) != "{" {
		t.Errorf("the state file is not as it was: %q, %v", raw, err)
	}
	c.DataDir = ""
	if f := check(c); !strings.Contains(f.Text, "it has no older data, because --data-dir is not given") {
		t.Errorf("no data directory: %+v", f)
	}
}

func TestWhatASidecarHoldsThatRunsIsToldInsteadOfAStart(t *testing.T) {
	c := natsDefaults()
	c.StateDir = t.TempDir()
	c = c.Effective()
	listener, err := net.Listen("unix", c.ControlSocket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"broker_id":"n1","mode":"drained","reason":"stale_restart","decided":{"row":"stale_restart","why":"others lived on","otherwise":"Back sooner."}}`))
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(listener) }()
	t.Cleanup(func() { srv.Close(); <-done })
	f := checkStart(t.Context(), c, brokerapi.Report{}, false, slog.New(slog.DiscardHandler))
	const want = "a sidecar runs: n1 is drained (stale_restart), decided by stale_restart: others lived on; otherwise: Back sooner."
	if f.Err != nil || f.Text != want {
		t.Errorf("%v\ngot  %s\nwant %s", f.Err, f.Text, want)
	}
}

// serveSomeEtcd puts an etcd behind a socket until the test ends.
func serveSomeEtcd(t *testing.T) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	services := grpc.NewServer()
	etcd.New(etcd.Config{}).Register(services)
	var serving sync.WaitGroup
	serving.Go(func() { _ = services.Serve(listener) })
	t.Cleanup(func() { services.Stop(); serving.Wait() })
	return "http://" + listener.Addr().String()
}
