package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

var units = []string{"holdfast.service", "holdfast-broker.service"}

// broker is Debian's unit, and gateFile what makes it wait for its sidecar.
const (
	broker   = "nats-server.service"
	gateFile = "broker-gate.conf"
)

func source(t *testing.T, name string) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "deploy", "systemd", name)
}

func content(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(source(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// values are those of one key of a unit, in order.
func values(unit, key string) (all []string) {
	for line := range strings.Lines(unit) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			all = append(all, v)
		}
	}
	return all
}

func one(t *testing.T, unit, key string) string {
	t.Helper()
	all := values(unit, key)
	if len(all) != 1 {
		t.Fatalf("%s= stands there %d times", key, len(all))
	}
	return all[0]
}

// The sidecar takes what the unit, the settings file and the environment files give it;
// that nobody answers is another exit code than that a setting is wrong.
func TestTheSettingsOfEachUnitAreValid(t *testing.T) {
	for _, name := range units {
		t.Run(name, func(t *testing.T) {
			flags, command := commandLine(t, content(t, name))
			dir := t.TempDir()
			var env []string
			for _, from := range []string{"holdfast.env", "etcd-credentials.conf", "web-credentials.conf"} {
				for line := range strings.Lines(content(t, from)) {
					line = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(line), "#"), "Environment=")
					if strings.HasPrefix(line, "HOLDFAST_") && !strings.HasPrefix(line, "HOLDFAST_ETCD_C") && !strings.HasPrefix(line, "HOLDFAST_ETCD_KEY") {
						env = append(env, strings.ReplaceAll(line, "%d", dir))
					}
				}
			}
			if len(env) < 6 {
				t.Fatalf("only %q", env)
			}
			write(t, filepath.Join(dir, "etcd-password"), "secret\n", 0o600)
			webCredentials(t, dir)
			args := []string{"check", "--config", source(t, "holdfast.yaml")}
			for _, f := range flags {
				if f[0] == "--state-dir" {
					f[1] = dir
				}
				args = append(args, f...)
			}
			args = append(args, "--etcd-endpoints", "http://127.0.0.1:1", "--broker-admin", "nats://127.0.0.1:1", "--nats-monitor", "http://127.0.0.1:1")
			if len(command) > 0 {
				args = append(append(args, "--"), "/bin/sh")
			}
			out := check(t, env, args...)
			if strings.Contains(out, "unsafe") {
				t.Error(out)
			}
			if strings.Contains(out, "guard     warning") {
				t.Errorf("nothing stops the broker:\n%s", out)
			}
		})
	}
}

// The runbooks have a person ask by the file alone: what a unit adds would be missing then.
func TestTheSettingsFileAloneSaysHowTheBrokerIsStopped(t *testing.T) {
	out := check(t, nil, "check", "--config", source(t, "holdfast.yaml"), "--state-dir", t.TempDir(),
		"--etcd-endpoints", "http://127.0.0.1:1", "--broker-admin", "nats://127.0.0.1:1", "--nats-monitor", "http://127.0.0.1:1")
	if !strings.Contains(out, "the broker's process is stopped") || strings.Contains(out, "guard     warning") {
		t.Error(out)
	}
}

// check runs `holdfast check` where nothing answers, and ends the test if a setting is wrong.
func check(t *testing.T, env []string, args ...string) string {
	t.Helper()
	binary, err := harness.Build(harness.Holdfast)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Fatalf("holdfast %q ends with %d, want 1 because nobody answers: %v\n%s", args, code, err, out)
	}
	return string(out)
}

// commandLine takes ExecStart= apart: flags of run, and the broker's command.
func commandLine(t *testing.T, unit string) (flags [][]string, command []string) {
	t.Helper()
	words := strings.Fields(one(t, unit, "ExecStart"))
	if words[0] != "/usr/bin/holdfast" || words[1] != "run" {
		t.Fatalf("it starts %q", words)
	}
	for words = words[2:]; len(words) > 0; words = words[2:] {
		if words[0] == "--" {
			return flags, words[1:]
		}
		if name, value, ok := strings.Cut(words[0], "="); ok {
			words = append([]string{name, value}, words[1:]...)
		}
		if words[0] != "--config" {
			flags = append(flags, []string{words[0], words[1]})
		}
	}
	return flags, nil
}

// What safety hangs on, and systemd-analyze does not ask for.
func TestTheUnitsKeepTheGuardAndAreNotBoundToTheBroker(t *testing.T) {
	for _, name := range units {
		t.Run(name, func(t *testing.T) {
			unit := content(t, name)
			for key, want := range map[string]string{
				"Type": "notify", "KillMode": "process", "Restart": "always", "User": "nats", "CapabilityBoundingSet": "",
				"NoNewPrivileges": "yes", "ProtectSystem": "strict", "SystemCallErrorNumber": "EPERM", "OOMPolicy": "continue",
			} {
				if got := one(t, unit, key); got != want {
					t.Errorf("%s=%s, want %s", key, got, want)
				}
			}
			one(t, unit, "WatchdogSec")
			for _, key := range []string{"BindsTo", "Requires", "PartOf", "Requisite", "ProcSubset", "DynamicUser", "PrivateUsers", "RestartPreventExitStatus"} {
				if got := values(unit, key); len(got) > 0 {
					t.Errorf("%s=%q", key, got)
				}
			}
		})
	}
	companion := content(t, "holdfast.service")
	for key, want := range map[string]bool{"Before": true, "Wants": true, "After": false} {
		if got := one(t, companion, key); strings.Contains(got, "nats-server.service") != want {
			t.Errorf("%s=%s", key, got)
		}
	}
	if got := values(companion, "RemoveIPC"); len(got) > 0 {
		t.Errorf("RemoveIPC=%q removes the broker's", got)
	}
}

// The broker waits for its sidecar, and the sidecar not for it: else each would for the other.
func TestTheBrokerWaitsAtTheGateForLessThanItsStartMayTake(t *testing.T) {
	gate := content(t, gateFile)
	for key, want := range map[string]string{"After": "holdfast.service", "Wants": "holdfast.service", "Restart": "always"} {
		if got := one(t, gate, key); got != want {
			t.Errorf("%s=%s, want %s", key, got, want)
		}
	}
	for _, key := range []string{"BindsTo", "Requires", "PartOf"} {
		if got := values(gate, key); len(got) > 0 {
			t.Errorf("%s=%q", key, got)
		}
	}
	words := strings.Fields(one(t, gate, "ExecStartPre"))
	const startTimeout = 90 * time.Second // of systemd
	if !slices.Equal(words[:3], []string{"/usr/bin/holdfast", "gate", "--wait"}) {
		t.Fatalf("it waits at %q", words)
	}
	if wait, err := time.ParseDuration(words[3]); err != nil || wait > startTimeout-15*time.Second {
		t.Errorf("--wait %s: %v", words[3], err)
	}
	flags, _ := commandLine(t, content(t, "holdfast.service"))
	if !slices.ContainsFunc(flags, func(f []string) bool { return slices.Equal(f, words[4:]) }) {
		t.Errorf("the gate has %q, the sidecar %q", words[4:], flags)
	}
}

// Debian's unit stops the broker by an ExecStop= of its own, and those of a drop-in come after it.
func TestTheBrokerLeavesBeforeItIsStopped(t *testing.T) {
	gate := content(t, gateFile)
	stops := values(gate, "ExecStop")
	if len(stops) != 2 || stops[0] != "" {
		t.Fatalf("ExecStop= %q: the unit's own is not taken away", stops)
	}
	command, ok := strings.CutPrefix(stops[1], `-/bin/sh -c 'test -z "$MAINPID" || exec /usr/bin/holdfast leave `)
	if !ok {
		t.Fatalf("it is stopped by %q", stops[1])
	}
	words := strings.Fields(strings.TrimSuffix(command, "'"))
	const stopTimeout = 90 * time.Second // of systemd, for each command
	if bound, err := time.ParseDuration(words[1]); words[0] != "--timeout" || err != nil || bound+10*time.Second > stopTimeout {
		t.Errorf("%q: %v", words, err)
	}
	flags, _ := commandLine(t, content(t, "holdfast.service"))
	if !slices.ContainsFunc(flags, func(f []string) bool { return slices.Equal(f, words[2:]) }) {
		t.Errorf("leave has %q, the sidecar %q", words[2:], flags)
	}
	one(t, gate, "KillSignal")
	for _, name := range units {
		// By SIGTERM a sidecar leaves, too; by the verb the process that it finds next would be kept away.
		if got := values(content(t, name), "ExecStop"); len(got) > 0 {
			t.Errorf("%s: ExecStop= %q", name, got)
		}
	}
}

// A unit that is stopped as a whole, guard and all, is ended by the watchdog. The next sidecar
// renews while the lease may still be alive.
func TestTheWatchdogEndsAStoppedUnitBeforeTheLeaseCanBeGone(t *testing.T) {
	unit := content(t, "holdfast.service")
	var all time.Duration
	for _, key := range []string{"WatchdogSec", "TimeoutAbortSec", "RestartSec"} {
		d, err := time.ParseDuration(one(t, unit, key))
		if err != nil {
			t.Fatal(err)
		}
		all += d
	}
	const ttl = 32 * time.Second // the default, of which an eighth has passed at most
	if left := ttl - ttl/8; all > left-time.Second {
		t.Errorf("%v until the next sidecar starts, %v of the lease", all, left)
	}
}

// analyze is the program and a root directory that the units are installed in.
func analyze(t *testing.T) (program, root string) {
	t.Helper()
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze on PATH: Debian has it in systemd")
	}
	root = t.TempDir()
	for _, file := range []string{"usr/bin/holdfast", "usr/sbin/nats-server", "bin/sh", "usr/bin/sh", "bin/kill", "usr/bin/kill"} {
		write(t, filepath.Join(root, file), "#!/bin/sh\n", 0o755)
	}
	for _, name := range units {
		write(t, filepath.Join(root, "etc/systemd/system", name), content(t, name), 0o644)
		for _, dropIn := range []string{"etcd-credentials.conf", "web-credentials.conf"} {
			write(t, filepath.Join(root, "etc/systemd/system", name+".d", dropIn), content(t, dropIn), 0o644)
		}
	}
	write(t, filepath.Join(root, "etc/systemd/system", broker), "[Service]\nExecStart=/usr/sbin/nats-server\nExecStop=/bin/kill -s SIGINT $MAINPID\n", 0o644)
	write(t, filepath.Join(root, "etc/systemd/system", broker+".d", gateFile), content(t, gateFile), 0o644)
	for _, name := range []string{"network-online.target", "multi-user.target", "basic.target", "sysinit.target", "shutdown.target", "sockets.target", "timers.target", "paths.target", "slices.target"} {
		write(t, filepath.Join(root, "usr/lib/systemd/system", name), "[Unit]\nDefaultDependencies=no\n", 0o644)
	}
	return program, root
}

// webCredentials are the files of web-credentials.conf, with the settings that the page about security shows.
func webCredentials(t *testing.T, dir string) {
	t.Helper()
	page, err := os.ReadFile(source(t, "../../docs/security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, yaml, _ := strings.Cut(string(page), "```yaml\ntls_server_config:")
	yaml, _, _ = strings.Cut(yaml, "```")
	write(t, filepath.Join(dir, "web.yaml"), "tls_server_config:"+yaml, 0o600)
	ours, err := harness.ForTest(t).NewAuthority("ours")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ours.Issue("n1")
	if err != nil {
		t.Fatal(err)
	}
	for _, credential := range values(content(t, "web-credentials.conf"), "LoadCredential") {
		name, _, _ := strings.Cut(credential, ":")
		from, known := map[string]string{"web.pem": cert, "web-key.pem": key}[name]
		if !known {
			continue
		}
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), string(text), 0o600)
	}
}

func write(t *testing.T, file, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func TestSystemdFindsNothingWrongWithTheUnits(t *testing.T) {
	program, root := analyze(t)
	for _, name := range append([]string{broker}, units...) {
		cmd := exec.CommandContext(t.Context(), program, "verify", "--root="+root, "--man=no", name)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestTheUnitsAreHardlyExposed(t *testing.T) {
	program, _ := analyze(t)
	for _, name := range units {
		out, err := exec.CommandContext(t.Context(), program, "security", "--offline=true", "--threshold=15", source(t, name)).CombinedOutput()
		if err != nil {
			t.Errorf("%s: exposed more than 1.5 of 10: %v\n%s", name, err, out)
		}
	}
}
