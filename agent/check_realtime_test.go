package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/agent/check"
	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/brokerapi"
	"holdfast/cluster"
)

func find(t *testing.T, fs []check.Finding, what string) check.Finding {
	t.Helper()
	for _, f := range fs {
		if f.What == what {
			return f
		}
	}
	t.Fatalf("no finding about %s in %v", what, fs)
	return check.Finding{}
}

// deadPort is an address on which nothing listens.
const deadPort = "127.0.0.1:1"

func TestCheckNamesWhatIsOutOfReach(t *testing.T) {
	c := natsDefaults()
	c.EtcdEndpoints = []string{"http://" + deadPort}
	c.BrokerAdmin, c.NATSMonitor = "nats://"+deadPort, "http://"+deadPort
	fs := Check(t.Context(), c, slog.New(slog.DiscardHandler))
	want := `--etcd-endpoints "http://127.0.0.1:1": etcd is out of reach: dial tcp 127.0.0.1:1: connect: connection refused: is it running there, and is the way open?`
	if err := find(t, fs, "etcd").Err; err == nil || err.Error() != want {
		t.Errorf("etcd: %v\nwant  %s", err, want)
	}
	if err := find(t, fs, "broker").Err; err == nil || !strings.HasPrefix(err.Error(), "broker: --broker-admin nats://127.0.0.1:1: ") {
		t.Errorf("broker: %v", err)
	}
	var exit *control.ExitError
	if err := check.Verdict(fs); !errors.As(err, &exit) || exit.Code != control.ExitFailed {
		t.Errorf("verdict: %v", err)
	}
}

func TestTheGuardIsNotBlamedForWhatTheProcessIs(t *testing.T) {
	c := natsDefaults()
	c.EtcdEndpoints = []string{"http://" + deadPort}
	c.BrokerAdmin, c.NATSMonitor = "nats://"+deadPort, "http://"+deadPort
	c.BrokerPIDFile = filepath.Join(t.TempDir(), "none.pid")
	fs := Check(t.Context(), c, slog.New(slog.DiscardHandler))
	if err := find(t, fs, "process").Err; err == nil || !strings.Contains(err.Error(), "no such file or directory: start the broker") {
		t.Errorf("process: %v", err)
	}
	if f := find(t, fs, "guard"); f.Err != nil || f.Warn { // nobody answers: there is nothing to stop yet
		t.Errorf("guard: %+v", f)
	}
}

func TestCheckWarnsOfADataDirectoryThatIsNotThere(t *testing.T) {
	c := config.Default()
	c.DataDir = t.TempDir()
	if f := checkDataDir(c, ""); f.Err != nil || f.Warn {
		t.Errorf("%+v", f)
	}
	c.DataDir += "/nope"
	if f := checkDataDir(c, ""); f.Err != nil || !f.Warn || !strings.Contains(f.Text, "not there") {
		t.Errorf("%+v", f)
	}
}

func TestCheckWarnsOfAnotherDataDirectoryThanTheBrokerStates(t *testing.T) {
	given, stated := t.TempDir(), t.TempDir()
	link := filepath.Join(given, "link")
	if err := os.Symlink(stated, link); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, given, stated string
		warns               bool
	}{
		{"another", given, stated, true},
		{"the same", given, given, false},
		{"the same, by a link", link, stated, false},
		{"one in it", link, given, false},
		{"that around it", given, filepath.Join(given, "link"), true},
		{"it states none", given, "", false},
		{"it is in another container", given, filepath.Join(given, "unseen"), false},
	} {
		c := config.Default()
		c.DataDir = tt.given
		want := fmt.Sprintf("--data-dir %s: the broker says that its data is in %s: leave --data-dir out, or give that", tt.given, tt.stated)
		if f := checkDataDir(c, tt.stated); f.Err != nil || f.Warn != tt.warns || tt.warns && f.Text != want {
			t.Errorf("%s: %+v", tt.name, f)
		}
	}
}

func TestCheckCallsADataDirectoryThatIsAFileAWrongSetting(t *testing.T) {
	c := natsDefaults()
	c.DataDir = filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(c.DataDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := checkDataDir(c, "")
	want := "--data-dir " + c.DataDir + ": not a directory: give the directory in which the broker keeps its data, as a user that may read it"
	var exit *control.ExitError
	if !errors.As(f.Err, &exit) || exit.Code != control.ExitUsage || f.Err.Error() != want {
		t.Errorf("got  %v\nwant %s", f.Err, want)
	}
}

func TestCheckWarnsOfTopicsThatMoveWithoutTheirData(t *testing.T) {
	c := natsDefaults()
	c.EtcdEndpoints, c.BrokerAdmin, c.NATSMonitor = []string{"http://" + deadPort}, "nats://"+deadPort, "http://"+deadPort
	c.Assignment, c.Failover, c.StateDir = "rendezvous", "move", t.TempDir()
	f := find(t, Check(t.Context(), c, slog.New(slog.DiscardHandler)), "failover")
	if f.Err != nil || !f.Warn || !strings.Contains(f.Text, "without their data") {
		t.Errorf("%+v", f)
	}
}

// noting is a broker that is well, and says something for operators.
type noting struct{ stillBroker }

func (noting) Probe(context.Context) (brokerapi.Report, error) {
	return brokerapi.Report{Name: "n1", Instance: "a", Notes: []brokerapi.Note{{Kind: "instance", Text: "open its metrics"}}}, nil
}
func (noting) Close() error { return nil }

func TestCheckWarnsOfWhatTheBrokerNotes(t *testing.T) {
	withDriver(t, "noting", config.Driver{Registration: "own", Failover: "move",
		New: func(config.Config, *cluster.Client, *slog.Logger) (brokerapi.Broker, error) { return noting{}, nil }})
	c := config.Default()
	c.Driver, c.EtcdEndpoints, c.BrokerAdmin, c.StateDir = "noting", []string{"http://" + deadPort}, "http://"+deadPort, t.TempDir()
	if f := find(t, Check(t.Context(), c, slog.New(slog.DiscardHandler)), "instance"); f.Err != nil || !f.Warn || f.Text != "open its metrics" {
		t.Errorf("%+v", f)
	}
}
