package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/agent/config"
	"holdfast/agent/control"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares got with testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; go test -update writes it anew. got\n%s", file, got)
	}
}

// holdfast runs the command in this process, without the caller's environment.
func holdfast(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "HOLDFAST_") {
			t.Setenv(name, "")
		}
	}
	return command(args...)
}

func TestTheGuardIsNoVerbForPeople(t *testing.T) {
	code, _, stderr := holdfast(t, "guard")
	if code != control.ExitFailed || !strings.Contains(stderr, "started by 'holdfast run'") {
		t.Errorf("code %d, %q", code, stderr)
	}
	if _, help, _ := holdfast(t, "--help"); strings.Contains(help, "guard") {
		t.Errorf("the list of verbs has it:\n%s", help)
	}
}

func command(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(append([]string{"holdfast"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func TestWrongUsageIsOneLineAndCodeTwo(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"no verb", nil, "no verb given: see 'holdfast --help'"},
		{"verb nearly right", []string{"stauts"}, `unknown verb "stauts": did you mean status?`},
		{"verb of nothing", []string{"frobnicate"}, `unknown verb "frobnicate": see 'holdfast --help'`},
		{"flag before the verb", []string{"--lease-ttl", "3s", "run"}, "unknown flag --lease-ttl: see 'holdfast --help'; flags of a verb stand after it"},
		{"flag nearly right", []string{"run", "--lese-ttl", "3s"}, "run: unknown flag --lese-ttl: did you mean --lease-ttl?"},
		{"flag of nothing", []string{"run", "--frobnicate"}, "run: unknown flag --frobnicate: see 'holdfast run --help'"},
		{"flag of a later version", []string{"run", "--tls-min-version"}, "run: unknown flag --tls-min-version: see 'holdfast run --help'"},
		{"flag without its value", []string{"run", "--lease-ttl"}, "run: --lease-ttl: no value given: write --lease-ttl DURATION"},
		{"argument that is not taken", []string{"status", "now"}, `status: unexpected argument "now": write 'holdfast status [FLAG…]'`},
		{"argument missing", []string{"explain"}, "explain: no EVENT given: write 'holdfast explain [FLAG…] EVENT'"},
		{"command without dashes", []string{"run", "nats-server", "-js"}, `run: unexpected argument "nats-server": write 'holdfast run [FLAG…] [-- CMD ARG…]'`},
		{"argument before the dashes", []string{"run", "now", "--", "nats-server"}, `run: unexpected argument "now": write 'holdfast run [FLAG…] [-- CMD ARG…]'`},
		{"dashes without a command", []string{"run", "--driver", "nats", "--"}, `run: no command after --: write 'holdfast run [FLAG…] [-- CMD ARG…]'`},
		{"argument too many", []string{"explain", "1", "2"}, `explain: unexpected argument "2": write 'holdfast explain [FLAG…] EVENT'`},
		{"flag after the argument", []string{"explain", "1", "-o", "yaml"}, `--output "yaml": unknown: write one of text, json`},
		{"event that is no number", []string{"explain", "last"}, `explain: event "last": not an event number: take one from 'holdfast events', such as 12`},
		{"form of output", []string{"status", "-o", "yaml"}, `--output "yaml": unknown: write one of table, json`},
		{"topic state", []string{"topics", "--state", "lost"}, `--state "lost": unknown: write one of served, missing, loading, orphan, quarantined, withdrawn, unreadable, held_elsewhere, foreign_owner, ignored`},
		{"drain timeout", []string{"drain", "--timeout", "5"}, `--timeout "5": not a duration: write a number with a unit, such as 30s`},
		{"pause without a length", []string{"pause", "--owner", "ops", "--reason", "disk"},
			"--for: required: give how long, such as 30m, at least 1s and at most 24h"},
		{"pause without an owner", []string{"pause", "--for", "30m", "--reason", "disk"},
			"--owner: required: give who answers for the pause, such as a name or a ticket"},
		{"pause without a reason", []string{"pause", "--for", "30m", "--owner", "ops", "--reason", " "},
			"--reason: required: give why, for those who find the broker paused"},
		{"pause for too long", []string{"pause", "--for", "25h", "--owner", "ops", "--reason", "disk"},
			"--for 25h0m0s: more than 24h: give at most 24h, and pause again if need be"},
		{"pause for ever", []string{"pause", "--for", "2000000h", "--owner", "ops", "--reason", "disk"},
			"--for 24000h0m0s: more than 24h: give at most 24h, and pause again if need be"},
		{"pause for too short a time", []string{"pause", "--for", "500ms", "--owner", "ops", "--reason", "disk"},
			"--for 500ms: must be at least 1s"},
		{"pause for no time", []string{"pause", "--for", "0s", "--owner", "ops", "--reason", "disk"},
			"--for 0s: must be at least 1s"},
		{"pause for a number", []string{"pause", "--for", "30", "--owner", "ops", "--reason", "disk"},
			`--for "30": not a duration: write a number with a unit, such as 30s`},
		{"pause with two lines of reason", []string{"pause", "--for", "30m", "--owner", "ops", "--reason", "disk\nswap"},
			"--reason: has a line break or another control character: write one line of text"},
		{"gate without a bound", []string{"gate"}, "--wait: required: give how long the broker's start may wait, such as 60s"},
		{"gate for a number", []string{"gate", "--wait", "60"}, `--wait "60": not a duration: write a number with a unit, such as 30s`},
		{"gate for no time", []string{"gate", "--wait", "0s"}, "--wait 0s: must be at least 1ms"},
		{"gate before nothing", []string{"gate", "--wait", "60s", "--"}, "gate: no command after --: write 'holdfast gate [FLAG…] [-- CMD ARG…]'"},
		{"gate before no program", []string{"gate", "--wait", "60s", "--", "/no/such"},
			`gate: start the broker: exec: "/no/such": stat /no/such: no such file or directory: give the path of an executable file after --`},
		{"resume what", []string{"resume", "n1"}, `resume: unexpected argument "n1": write 'holdfast resume [FLAG…]'`},
		{"shell", []string{"completion", "tcsh"}, `completion: shell "tcsh": unknown: write one of bash, zsh, fish`},
		{"setting of run", []string{"run", "--driver", "nats", "--lease-detach-margin", "40s"},
			"--lease-detach-margin 40s: must be less than --lease-ttl 32s: leave it out for a third of the TTL, 10.667s"},
		{"setting of check", []string{"check", "--driver", "kafka"}, `--driver "kafka": unknown driver: known drivers: ` + strings.Join(config.DriverNames(), ", ")},
		{"fleet without an etcd", []string{"fleet", "--registration", "none"}, "--registration none: there is no etcd that knows the brokers of this cluster: ask the broker's own admin tool, or 'holdfast status' beside each broker"},
		{"forget without an etcd", []string{"forget", "--driver", "danube", "--registration", "none", "n9"}, "--registration none: there is no etcd that knows this broker: nothing to forget"},
		{"forget nobody", []string{"forget", "--driver", "nats"}, "forget: no ID given: write 'holdfast forget [FLAG…] ID'"},
		{"forget of no kind", []string{"forget", "n9"}, "--driver: required: give the kind of broker; known drivers: danube, http, nats, pulsar"},
		{"setting of fleet", []string{"fleet", "--etcd-endpoints", "etcd:2379"}, `--etcd-endpoints "etcd:2379": not a URL with a scheme and a host: write http://host:port`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := holdfast(t, tt.args...)
			if code != 2 || stdout != "" || stderr != "holdfast: "+tt.want+"\n" {
				t.Errorf("code %d, stdout %q\ngot  %swant holdfast: %s", code, stdout, stderr, tt.want)
			}
		})
	}
}

func TestEverySettingErrorHasItsOwnLine(t *testing.T) {
	code, _, stderr := holdfast(t, "run", "--lease-ttl", "32", "--health-rise", "0")
	want := "holdfast: --lease-ttl \"32\": not a duration: write a number with a unit, such as 32s\n" +
		"holdfast: --driver: required: give the kind of broker; known drivers: " + strings.Join(config.DriverNames(), ", ") + "\n" +
		"holdfast: --health-rise 0: must be at least 1\n"
	if code != 2 || stderr != want {
		t.Errorf("code %d, got\n%s", code, stderr)
	}
}

func TestHelpIsGolden(t *testing.T) {
	for _, verb := range []string{"", "run", "status", "fleet", "forget", "topics", "events", "explain", "drain", "leave", "pause", "resume", "gate", "healthcheck", "install", "completion"} {
		args, name := []string{"--help"}, "help.txt"
		if verb != "" {
			args, name = []string{verb, "--help"}, "help-"+verb+".txt"
		}
		code, stdout, stderr := holdfast(t, args...)
		if code != 0 || stderr != "" {
			t.Errorf("%s: code %d, stderr %s", verb, code, stderr)
		}
		golden(t, name, stdout)
		for _, line := range strings.Split(stdout, "\n") {
			if n := len([]rune(line)); n > 100 {
				t.Errorf("%s: a line of %d characters: %s", name, n, line)
			}
		}
	}
}

func TestHelpOfRunNamesEverySettingOnce(t *testing.T) {
	_, stdout, _ := holdfast(t, "run", "--help")
	for _, s := range config.Settings() {
		if n := strings.Count(stdout, "\n  --"+s.Name+" ") + strings.Count(stdout, "\n  --"+s.Name+"\n"); n != 1 {
			t.Errorf("--%s stands there %d times", s.Name, n)
		}
	}
}

func TestVersionIsOneLine(t *testing.T) {
	old := buildVersion
	defer func() { buildVersion = old }()
	buildVersion = "v1.2.3"
	code, stdout, _ := holdfast(t, "--version")
	if code != 0 || !strings.HasPrefix(stdout, "holdfast version v1.2.3 (go1.") || strings.Count(stdout, "\n") != 1 {
		t.Errorf("code %d, %q", code, stdout)
	}
}

func TestCompletionScriptsParse(t *testing.T) {
	for shell, parser := range map[string][]string{"bash": {"bash", "-n"}, "zsh": {"zsh", "-n"}, "fish": {"fish", "--no-execute"}} {
		code, script, stderr := holdfast(t, "completion", shell)
		if code != 0 || !strings.Contains(script, "holdfast") {
			t.Fatalf("%s: code %d %s", shell, code, stderr)
		}
		if _, err := exec.LookPath(parser[0]); err != nil {
			t.Logf("%s is not here to parse its script", shell)
			continue
		}
		file := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(parser[0], append(parser[1:], file)...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
}

// Whoever completes what stands after "--" must not start it.
func TestBashCompletesVerbsAndFlagsAndRunsNothing(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("bash is not here")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(self, filepath.Join(bin, "holdfast")); err != nil {
		t.Fatal(err)
	}
	_, script, _ := holdfast(t, "completion", "bash")
	for line, want := range map[string]string{
		"holdfast sta":                                  "status",
		"holdfast run --lease-d":                        "--lease-detach-margin",
		"holdfast events --follow --outpu":              "--output",
		"holdfast gate --":                              "--control-socket",
		"holdfast completion f":                         "fish",
		"holdfast status -o j":                          "",
		"holdfast gate --wait 1s -- touch " + bin + "/": "",
		"holdfast install -- --":                        "",
	} {
		words := strings.Fields(line)
		cmd := exec.Command("bash", "--norc", "-c", fmt.Sprintf("%s\nCOMP_WORDS=(%s) COMP_CWORD=%d; _holdfast; echo \"${COMPREPLY[@]}\"", script, line, len(words)-1))
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), processVariable+"=1")
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want && (want == "" || !strings.Contains(" "+got+" ", " "+want+" ")) {
			t.Errorf("%s: %q %v, want %s", line, out, err, want)
		}
	}
	if files, err := os.ReadDir(bin); err != nil || len(files) != 1 {
		t.Errorf("it left %v (%v)", files, err)
	}
}

func TestAHelpThatCannotBePrintedFails(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, args := range [][]string{{"--help"}, {"run", "--help"}, {"--version"}, {"completion", "bash"}} {
		var stderr bytes.Buffer
		if code := run(append([]string{"holdfast"}, args...), full, &stderr); code != control.ExitFailed || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%v: code %d, %q", args, code, stderr.String())
		}
	}
}
