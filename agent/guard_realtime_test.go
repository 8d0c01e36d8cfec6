package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"holdfast/agent/check"
	"holdfast/agent/config"
)

func TestCheckSaysWhatTheGuardWouldStop(t *testing.T) {
	broker := exec.Command("sleep", "1000")
	if err := broker.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		broker.Process.Kill()
		broker.Wait()
	}()
	there := filepath.Join(t.TempDir(), "pid")
	if err := os.WriteFile(there, []byte(strconv.Itoa(broker.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		change  func(*config.Config)
		text    string
		problem string
	}{
		{"by pid file", func(c *config.Config) { c.BrokerPIDFile = there }, fmt.Sprintf("; process %d now", broker.Process.Pid), ""},
		{"a broker that is down", func(c *config.Config) { c.BrokerPIDFile = there + ".none" }, "SIGTERM", ""},
		{"a command instead", func(c *config.Config) { c.BrokerPIDFile, c.StopCommand = there+".none", "true" }, "stop command true", ""},
		{"a command that is not there", func(c *config.Config) { c.StopCommand = "/no/such/program" }, "", "/no/such/program"},
		{"the child", func(c *config.Config) { c.Command = []string{"nats-server"} }, "child", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			set := natsDefaults()
			c.change(&set)
			f := check.Guard(set.Effective())
			if (f.Err != nil) != (c.problem != "") || f.Err != nil && !strings.Contains(f.Err.Error(), c.problem) {
				t.Errorf("error %v, want %q", f.Err, c.problem)
			}
			if f.Err == nil && !strings.Contains(f.Text, c.text) {
				t.Errorf("%q, want %q", f.Text, c.text)
			}
		})
	}
}
