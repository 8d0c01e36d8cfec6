package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/brokerapi"
)

// env makes an environment of pairs.
func env(vars map[string]string) (list []string) {
	for name, value := range vars {
		list = append(list, name+"="+value)
	}
	return list
}

// file makes the reader of a settings file with that content.
func file(content string) func(string) ([]byte, error) {
	return func(string) ([]byte, error) { return []byte(content), nil }
}

func TestBadSettingsNameFieldValueAndRemedy(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	full := filepath.Join(dir, "full")
	if err := os.WriteFile(full, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := func(pairs ...string) map[string][]string {
		m := map[string][]string{"driver": {"nats"}}
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i+1] == "" {
				delete(m, pairs[i])
				continue
			}
			m[pairs[i]] = append(m[pairs[i]], pairs[i+1])
		}
		return m
	}
	yaml := func(content string) Sources {
		return Sources{Flags: flags(), File: "holdfast.yaml", Read: file(content)}
	}
	with := func(pairs ...string) Sources { return Sources{Flags: flags(pairs...)} }
	pulsar := func(pairs ...string) Sources {
		m := flags(append([]string{"driver", "", "pulsar-cluster", "c1"}, pairs...)...)
		m["driver"] = []string{"pulsar"}
		return Sources{Flags: m}
	}

	for _, tt := range []struct {
		name string
		src  Sources
		want string
	}{
		{"unknown YAML key", yaml("driver: nats\nlease-tll: 32s\n"),
			"holdfast.yaml:2: lease-tll: unknown setting: did you mean lease-ttl?"},
		{"unknown YAML key that is near nothing", yaml("colour: blue\n"),
			"holdfast.yaml:1: colour: unknown setting: see 'holdfast run --help' for all settings"},
		{"YAML key in the wrong case", yaml("leaseTTL: 32s\n"),
			"holdfast.yaml:1: leaseTTL: unknown setting: did you mean lease-ttl?"},
		{"YAML key twice", yaml("lease-ttl: 32s\nlease-ttl: 33s\n"),
			"holdfast.yaml:2: lease-ttl: given twice: keep one"},
		{"YAML list for one value", yaml("lease-ttl: [32s]\n"),
			"holdfast.yaml:1: lease-ttl: not a value: write 'lease-ttl: 32s'"},
		{"YAML mapping for a list", yaml("etcd-endpoints: {a: b}\n"),
			"holdfast.yaml:1: etcd-endpoints: not a value: write 'etcd-endpoints: http://127.0.0.1:2379'"},
		{"YAML key without a value", yaml("renew-interval:\n"),
			"holdfast.yaml:1: renew-interval: not a value: write 'renew-interval: 4s'"},
		{"YAML that is a list", yaml("- a\n"),
			"holdfast.yaml:1: not a mapping: write one 'name: value' a line"},
		{"YAML that does not parse", yaml("a: [\n"),
			"holdfast.yaml: not YAML: line 1: did not find expected node content: write one 'name: value' a line, without indentation"},
		{"a tab that is not at fault", yaml("a: [\n\t# b\n"),
			"holdfast.yaml: not YAML: line 2: did not find expected node content: write one 'name: value' a line, without indentation"},
		{"a line that begins with a tab", yaml("join: true\nlease-ttl: 5s\n\tbroker-id: n1\n"),
			"holdfast.yaml: not YAML: line 3: begins with a tab: write one 'name: value' a line, without indentation"},
		{"a first line that is indented", yaml("  join: true\nlease-ttl: 5s\n"),
			"holdfast.yaml: not YAML: line 1: did not find expected <document start>: write one 'name: value' a line, without indentation"},
		{"two YAML documents", yaml("join: true\n---\njoin: false\n"),
			"holdfast.yaml: more than one YAML document: keep one"},
		{"settings file missing", Sources{Flags: flags(), File: filepath.Join(dir, "none.yaml")},
			`--config "` + filepath.Join(dir, "none.yaml") + `": cannot be read: no such file or directory: give the path of a YAML file`},

		{"duration without a unit, by flag", with("lease-ttl", "32"),
			`--lease-ttl "32": not a duration: write a number with a unit, such as 32s`},
		{"duration without a unit, by environment", Sources{Flags: flags(), Env: env(map[string]string{"HOLDFAST_LEASE_TTL": "32"})},
			`HOLDFAST_LEASE_TTL "32": not a duration: write a number with a unit, such as 32s`},
		{"duration without a unit, by file", yaml("\nlease-ttl: 32\n"),
			`holdfast.yaml:2: lease-ttl "32": not a duration: write a number with a unit, such as 32s`},
		{"derived duration without a unit", with("renew-interval", "soon"),
			`--renew-interval "soon": not a duration: write a number with a unit, such as 4s`},
		{"not a switch", with("join", "maybe"), `--join "maybe": not a switch: write true or false`},
		{"not a whole number", with("health-fall", "3.5"), `--health-fall "3.5": not a whole number: write digits only, such as 3`},
		{"not a number", with("load-rate", "fast"), `--load-rate "fast": not a number: write digits, such as 0.5 or 100`},

		{"TTL below what etcd grants", with("lease-ttl", "1s"), "--lease-ttl 1s: too short: etcd grants no less than 2s"},
		{"TTL below zero complains of nothing that follows from it", with("lease-ttl", "-5s"), "--lease-ttl -5s: too short: etcd grants no less than 2s"},
		{"TTL in parts of a second", with("lease-ttl", "2600ms"), "--lease-ttl 2.6s: not whole seconds, which is all that etcd knows: write 3s"},
		{"margin above the TTL", with("lease-detach-margin", "40s"),
			"--lease-detach-margin 40s: must be less than --lease-ttl 32s: leave it out for a third of the TTL, 10.667s"},
		{"margin equal to the TTL", with("lease-detach-margin", "32s"),
			"--lease-detach-margin 32s: must be less than --lease-ttl 32s: leave it out for a third of the TTL, 10.667s"},
		{"margin against a TTL from the file", Sources{Flags: flags("lease-detach-margin", "9s"), File: "holdfast.yaml", Read: file("lease-ttl: 8s\n")},
			"--lease-detach-margin 9s: must be less than holdfast.yaml:1: lease-ttl 8s: leave it out for a third of the TTL, 2.667s"},
		{"margin of zero", with("lease-detach-margin", "0s"), "--lease-detach-margin 0s: must be more than 0: leave it out for a third of the TTL"},
		{"margin below zero", with("lease-detach-margin", "-1s"), "--lease-detach-margin -1s: must be more than 0: leave it out for a third of the TTL"},
		{"renew interval that cannot make it", with("renew-interval", "20s"),
			"--renew-interval 20s: a second attempt would not be answered before the fence point, 21.333s after the last renewal: at most 16.583s works"},
		{"no renew interval can make it", with("lease-ttl", "2s", "lease-detach-margin", "1900ms"),
			"--lease-ttl 2s: too short: a second renewal would not be answered before the fence point, 100ms after the last one: give 4s or more, or lower --lease-detach-margin 1.9s"},
		{"a TTL that bears no second renewal", with("lease-ttl", "2s"),
			"--lease-ttl 2s: too short: a second renewal would not be answered before the fence point, 1.333s after the last one: give 3s or more"},
		{"a Danube broker without a name that stays", with("driver", "", "driver", "danube"),
			"--broker-id: required, because a Danube broker registers itself under an id that is another at each start: give it a name that stays, such as the host's"},
		{"a setting of another driver", with("danube-lookup", "http://127.0.0.1:6650"),
			`--danube-lookup "http://127.0.0.1:6650": only the driver danube has a use for it: leave it out`},
		{"a file of another driver", Sources{Flags: map[string][]string{"driver": {"http"}, "broker-admin": {"http://h:1"}, "nats-creds-file": {full}}},
			"--nats-creds-file \"" + full + "\": only the driver nats has a use for it: leave it out"},
		{"renew interval of zero", with("renew-interval", "0s"), "--renew-interval 0s: must be more than 0: leave it out for an eighth of the TTL"},
		{"first pause of zero", with("backoff-initial", "0s"), "--backoff-initial 0s: must be at least 1ms"},
		{"longest pause below the first", with("backoff-max", "100ms"), "--backoff-max 100ms: less than --backoff-initial 250ms: give a longer one"},
		{"recover window below zero", with("detachment-recover-window", "-1s"), "--detachment-recover-window -1s: must be at least 0s"},
		{"state directory empty", yaml("state-dir: ''\n"),
			`holdfast.yaml:1: state-dir "": empty: give a directory that survives restarts, such as /var/lib/holdfast`},
		{"state directory is a file", with("state-dir", full), `--state-dir "` + full + `": not a directory: give a directory that survives restarts`},

		{"driver missing", with("driver", ""), "--driver: required: give the kind of broker; known drivers: " + strings.Join(DriverNames(), ", ")},
		{"driver unknown", Sources{Flags: map[string][]string{"driver": {"kafka"}}}, `--driver "kafka": unknown driver: known drivers: ` + strings.Join(DriverNames(), ", ")},
		{"a NATS user without a password", with("nats-user", "holdfast"),
			`--nats-user "holdfast": not without --nats-password-file: give that too`},
		{"a NATS password without a user", with("nats-password-file", full),
			`--nats-password-file "` + full + `": not without --nats-user: give that too`},
		{"two logins to NATS", with("nats-user", "holdfast", "nats-password-file", full, "nats-creds-file", full),
			`--nats-user "holdfast": NATS takes one login: leave out --nats-creds-file, or the user`},
		{"a NATS token over the network", with("broker-token-file", full, "broker-admin", "nats://b:1"),
			`--broker-token-file "` + full + `": --broker-admin "nats://b:1" would send it over the network for all to read: write tls://b:1, or leave it out`},
		{"broker id with a slash", with("broker-id", "a/b"), `--broker-id "a/b": holds a slash, which separates keys in etcd: use another name`},
		{"broker id with a space at its end", with("broker-id", "a "), `--broker-id "a ": starts or ends with a space: use another name`},
		{"broker id with a control character", with("broker-id", "a\x1b[31m"), `--broker-id "a\x1b[31m": holds a character that cannot be shown: use another name`},
		{"admin URL of the wrong kind", with("broker-admin", "http://127.0.0.1:4222"),
			`--broker-admin "http://127.0.0.1:4222": the scheme http does not work here: write nats://host:port`},
		{"admin URL without a scheme", with("broker-admin", "127.0.0.1:4222", "nats-monitor", "http://127.0.0.1:8222"),
			`--broker-admin "127.0.0.1:4222": not a URL with a scheme and a host: write nats://host:port`},
		{"password in a URL", with("broker-admin", "nats://me:secret@127.0.0.1:4222"),
			`--broker-admin "nats://me:xxxxx@127.0.0.1:4222": holds a user or password: secrets come only from files`},
		{"password in something like a URL", with("broker-admin", "me:secret@127.0.0.1", "nats-monitor", "http://127.0.0.1:8222"),
			`--broker-admin "…": not a URL, or one that holds a user or password: write nats://host:port`},
		{"port out of range", with("nats-monitor", "http://127.0.0.1:82220"), `--nats-monitor "http://127.0.0.1:82220": port out of range: write one from 1 to 65535`},
		{"advertised URL without a host", with("broker-url", "nats://"), `--broker-url "nats://": not a URL with a scheme and a host: write scheme://host:port`},
		{"Pulsar setting for another broker", with("pulsar-cluster", "c1"),
			`--pulsar-cluster "c1": only the driver pulsar has a use for it: leave it out`},
		{"Pulsar's status file for another broker", with("pulsar-status-file", "/srv/status"),
			`--pulsar-status-file "/srv/status": only the driver pulsar has a use for it: leave it out`},
		{"Pulsar without its cluster", pulsar("pulsar-cluster", ""),
			"--pulsar-cluster: required with --driver pulsar: write the clusterName of the broker's broker.conf"},
		{"Pulsar's cluster empty in the file", Sources{Flags: pulsar("pulsar-cluster", "").Flags, File: "holdfast.yaml", Read: file("pulsar-cluster: ''\n")},
			"--pulsar-cluster: required with --driver pulsar: write the clusterName of the broker's broker.conf"},
		{"Pulsar's name without a port", pulsar("pulsar-advertised", "broker-1"),
			`--pulsar-advertised "broker-1": not host:port: write it as GET /admin/v2/brokers/CLUSTER lists this broker`},
		{"Pulsar's name as a URL", pulsar("pulsar-advertised", "http://broker-1:8080"),
			`--pulsar-advertised "http://broker-1:8080": not host:port: write it as GET /admin/v2/brokers/CLUSTER lists this broker`},
		{"Pulsar's status file by a relative path", pulsar("pulsar-status-file", "conf/status"),
			`--pulsar-status-file "conf/status": not an absolute path: write the statusFilePath of the broker's broker.conf`},
		{"Pulsar adopted", pulsar("registration", "adopt"),
			`--registration "adopt": a Pulsar broker's session is the broker's own, and is not renewed from here: write own, or leave it out`},
		{"Pulsar's binary port for the admin API", pulsar("broker-admin", "pulsar://127.0.0.1:6650"),
			`--broker-admin "pulsar://127.0.0.1:6650": the scheme pulsar does not work here: write http://host:port`},
		{"registration unknown", with("registration", "lend"), `--registration "lend": unknown: write one of own, adopt, none`},

		{"endpoint without a scheme", with("etcd-endpoints", "etcd-1:2379"), `--etcd-endpoints "etcd-1:2379": not a URL with a scheme and a host: write http://host:port`},
		{"no endpoint", yaml("etcd-endpoints: ' , '\n"), `holdfast.yaml:1: etcd-endpoints "": empty: give at least one URL, such as http://127.0.0.1:2379`},
		{"endpoints with and without TLS", with("etcd-endpoints", "http://a:2379,https://b:2379"),
			`--etcd-endpoints "http://a:2379,https://b:2379": some use TLS and others do not: write https:// for all or for none`},
		{"TLS files for http", with("etcd-cacert", full),
			`--etcd-endpoints "http://127.0.0.1:2379": http with TLS files set: write https://, or leave out the etcd-cacert, etcd-cert and etcd-key settings`},
		{"certificate without a key", with("etcd-endpoints", "https://a:2379", "etcd-cert", full), `--etcd-cert "` + full + `": not without --etcd-key: give that too`},
		{"key without a certificate", with("etcd-endpoints", "https://a:2379", "etcd-key", full), `--etcd-key "` + full + `": not without --etcd-cert: give that too`},
		{"certificate file missing", with("etcd-endpoints", "https://a:2379", "etcd-cacert", "/nowhere/ca.pem"),
			`--etcd-cacert "/nowhere/ca.pem": cannot be read: no such file or directory: check the path and its permissions`},
		{"user without a password", with("etcd-user", "root"), `--etcd-user "root": not without --etcd-password-file: give that too`},
		{"password without a user", with("etcd-password-file", full), `--etcd-password-file "` + full + `": not without --etcd-user: give that too`},
		{"password file missing", with("etcd-user", "root", "etcd-password-file", "/nowhere/pw"),
			`--etcd-password-file "/nowhere/pw": cannot be read: no such file or directory: check the path and its permissions`},
		{"password file empty", with("etcd-user", "root", "etcd-password-file", empty),
			`--etcd-password-file "` + empty + `": is empty: check what should have written it`},
		{"password file is a directory", with("etcd-user", "root", "etcd-password-file", dir),
			`--etcd-password-file "` + dir + `": is a directory: give a file`},
		{"prefix without a slash", with("prefix", "prod"), `--prefix "prod": does not start with a slash: write /prod`},

		{"shutdown of a broker that cannot be stopped", with("session-expired-policy", "shutdown"),
			`--session-expired-policy "shutdown": it stops the broker, and there is no way to: ` + WaysToStop},
		{"policy unknown", with("session-expired-policy", "pray"), `--session-expired-policy "pray": unknown: write one of drain, reconnect, shutdown`},
		{"retries below zero", with("session-expired-policy", "reconnect", "session-retries", "-1"), "--session-retries -1: must be at least 0"},
		{"retries of a policy that has none", with("session-retries", "3"),
			"--session-retries 3: works only with reconnect: leave it out, or write --session-expired-policy reconnect"},
		{"retries and no way to stop", with("session-expired-policy", "reconnect", "session-retries", "3"),
			"--session-retries 3: the broker is stopped after that many, and there is no way to: " + WaysToStop},
		{"a planned stop that excuses nothing as long as it is waited for", with("return-within", "4m"),
			"--return-within 4m0s: less than --leave-timeout 5m0s, for which the broker's end is waited for: give at least as much, or lower that"},
		{"grace no shorter than the TTL", with("restart-grace", "32s"),
			"--restart-grace 32s: no less than --lease-ttl 32s, after which the registration is gone anyway: give a shorter one or raise the TTL"},
		{"grace where nothing tells whether the broker has ended", with("restart-grace", "5s"),
			"--restart-grace 5s: no process of the broker is watched, so one that only hangs would lose its registration and might serve on: " +
				"give --broker-pid-file or --broker-process, start the broker with 'holdfast run -- CMD', or leave it out"},
		{"the same, and only a command could stop it", with("restart-grace", "5s", "stop-command", "true"),
			"--restart-grace 5s: no process of the broker is watched, so one that only hangs would lose its registration and might serve on: " +
				"give --broker-pid-file or --broker-process, start the broker with 'holdfast run -- CMD', or leave it out"},
		{"fence step stop without a way", with("fence", "ready,quiesce,stop"), `--fence "ready,quiesce,stop": the step stop needs a way to stop the broker: ` + WaysToStop},
		{"fence in the wrong order", with("fence", "quiesce,ready"), `--fence "quiesce,ready": unknown steps or order: write ready,quiesce or ready,quiesce,stop`},
		{"guard without a way to stop", with("guard", "on"), `--guard "on": it needs a way to stop the broker: ` + WaysToStop},
		{"guard without the step stop", with("guard", "on", "broker-process", "nats-server", "fence", "ready,quiesce"),
			`--guard "on": it needs the fence step stop: write --fence ready,quiesce,stop`},
		{"guard without detachment", with("guard", "on", "broker-process", "nats-server", "detach", "false"),
			`--guard "on": nothing is fenced without detaching, so there is nothing to guard: leave out --detach=false`},
		{"pid file of a child", Sources{Flags: flags("driver", "nats", "broker-pid-file", "/run/n.pid"), Command: []string{"nats-server"}},
			`--broker-pid-file "/run/n.pid": the process of '-- CMD' is known without it: leave it out, or start the broker some other way and leave out '-- CMD'`},
		{"name of a child", Sources{Flags: flags("driver", "nats", "broker-process", "nats-server"), Command: []string{"nats-server"}},
			`--broker-process "nats-server": the process of '-- CMD' is known without it: leave it out, or start the broker some other way and leave out '-- CMD'`},
		{"guard neither on nor off", with("guard", "maybe"), `--guard "maybe": unknown: write one of on, off`},

		{"failover without assignment", with("failover", "move"), `--failover "move": whoever assigns the topics moves them: leave it out, or write --assignment rendezvous`},
		{"rendezvous without locks", with("assignment", "rendezvous", "ownership-locks", "off"),
			`--ownership-locks "off": rendezvous needs them, so that no topic has two brokers: leave it out`},
		{"assignment unknown", with("assignment", "random"), `--assignment "random": unknown: write one of external, rendezvous`},
		{"acquire window below zero", with("acquire-retry-window", "-1s"), "--acquire-retry-window -1s: must be at least 0s"},
		{"restart of the broker unknown", with("broker-restart", "sometimes"), `--broker-restart "sometimes": unknown: write one of always, on-failure, never`},
		{"no load at a time", with("load-concurrency", "0"), "--load-concurrency 0: must be at least 1"},
		{"load rate below zero", with("load-rate", "-1"), "--load-rate -1: must be at least 0"},
		{"share of the fleet above one", with("fleet-loss-share", "2"), "--fleet-loss-share 2: not between 0 and 1: write a share such as 0.5, or 0 to switch it off"},
		{"share above one", with("mass-change-share", "50"), "--mass-change-share 50: not between 0 and 1: write a share such as 0.5, or 0 to switch it off"},
		{"health interval of zero", with("health-interval", "0s"), "--health-interval 0s: must be at least 10ms"},
		{"health interval without its unit's letter", with("health-interval", "1ms"), "--health-interval 1ms: must be at least 10ms"},
		{"audit interval of nothing much", with("audit-interval", "1ns"), "--audit-interval 1ns: must be at least 10ms"},
		{"health rise of zero", with("health-rise", "0"), "--health-rise 0: must be at least 1"},
		{"address without a port", with("probe-listen", "localhost"),
			`--probe-listen "localhost": not an address to listen on: write :port or host:port, with a port from 0 to 65535`},
		{"both listeners on one address", with("probe-listen", ":9809"), `--web-listen ":9809": the same as --probe-listen ":9809": give each its own port`},
		{"socket path too long", with("control-socket", "/"+strings.Repeat("s", 107)),
			`--control-socket "/` + strings.Repeat("s", 107) + `": 108 bytes, and a unix socket has room for 107: give a shorter path`},
		{"log level unknown", with("log-level", "loud"), `--log-level "loud": unknown: write one of debug, info, warn, error`},
		{"log format unknown", with("log-format", "xml"), `--log-format "xml": unknown: write one of text, json`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load(tt.src)
			if err == nil {
				t.Fatalf("no error, want %s", tt.want)
			}
			if err.Error() != tt.want {
				t.Errorf("got\n%s\nwant\n%s", err, tt.want)
			}
		})
	}
}

func TestEveryProblemIsReportedAtOnce(t *testing.T) {
	_, err := Load(Sources{
		Flags: map[string][]string{"lease-ttl": {"32"}, "health-fall": {"0"}, "lease-detach-margin": {"40s"}},
		Env:   env(map[string]string{"HOLDFAST_JOIN": "si"}),
		File:  "f.yaml", Read: file("nope-at-all: 1\nfence: [ready]\n"),
	})
	// No word about the margin: the TTL it must be less than is not known.
	want := strings.Join([]string{
		"f.yaml:1: nope-at-all: unknown setting: see 'holdfast run --help' for all settings",
		`--lease-ttl "32": not a duration: write a number with a unit, such as 32s`,
		`HOLDFAST_JOIN "si": not a switch: write true or false`,
		"--driver: required: give the kind of broker; known drivers: " + strings.Join(DriverNames(), ", "),
		`f.yaml:2: fence "ready": unknown steps or order: write ready,quiesce or ready,quiesce,stop`,
		"--health-fall 0: must be at least 1",
	}, "\n")
	if err == nil || !sameLines(err.Error(), want) {
		t.Errorf("got\n%v\nwant, in any order\n%s", err, want)
	}
}

func sameLines(a, b string) bool {
	count := map[string]int{}
	for _, l := range strings.Split(a, "\n") {
		count[l]++
	}
	for _, l := range strings.Split(b, "\n") {
		count[l]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

func TestFlagWinsOverEnvironmentOverFileOverDefault(t *testing.T) {
	src := Sources{Flags: map[string][]string{"driver": {"nats"}}}
	ttl := func() time.Duration {
		t.Helper()
		c, err := Load(src)
		if err != nil {
			t.Fatal(err)
		}
		return c.LeaseTTL
	}
	if got := ttl(); got != 32*time.Second {
		t.Errorf("default: %v", got)
	}
	src.File, src.Read = "f.yaml", file("lease-ttl: 20s\n")
	if got := ttl(); got != 20*time.Second {
		t.Errorf("file: %v", got)
	}
	src.Env = env(map[string]string{"HOLDFAST_LEASE_TTL": "21s"})
	if got := ttl(); got != 21*time.Second {
		t.Errorf("environment: %v", got)
	}
	src.Flags["lease-ttl"] = []string{"22s"}
	if got := ttl(); got != 22*time.Second {
		t.Errorf("flag: %v", got)
	}
}

func TestAGoodValueReplacesABadOneOfLowerRank(t *testing.T) {
	c, err := Load(Sources{
		Flags: map[string][]string{"driver": {"nats"}, "lease-detach-margin": {"5s"}},
		File:  "f.yaml", Read: file("lease-detach-margin: 40s\n"),
	})
	if err != nil || c.LeaseDetachMargin != 5*time.Second {
		t.Errorf("margin %v, error %v", c.LeaseDetachMargin, err)
	}
}

func TestEmptyEnvironmentVariableIsAbsent(t *testing.T) {
	c, err := Load(Sources{Flags: map[string][]string{"driver": {"nats"}}, Env: env(map[string]string{"HOLDFAST_LEASE_TTL": "", "HOLDFAST_PORT": "tcp://10.0.0.1:9808"})})
	if err != nil || c.LeaseTTL != 32*time.Second {
		t.Errorf("TTL %v, error %v", c.LeaseTTL, err)
	}
}

func TestListsComeFromCommasRepetitionAndYAML(t *testing.T) {
	want := []string{"http://a:1", "http://b:2"}
	for name, src := range map[string]Sources{
		"commas":     {Flags: map[string][]string{"etcd-endpoints": {"http://a:1, http://b:2"}}},
		"repetition": {Flags: map[string][]string{"etcd-endpoints": {"http://a:1", "http://b:2"}}},
		"yaml":       {File: "f", Read: file("etcd-endpoints:\n  - http://a:1\n  - http://b:2\n")},
		"env":        {Env: env(map[string]string{"HOLDFAST_ETCD_ENDPOINTS": "http://a:1,http://b:2"})},
	} {
		src.Only = []string{"etcd-endpoints"}
		if c, err := Load(src); err != nil || !reflect.DeepEqual(c.EtcdEndpoints, want) {
			t.Errorf("%s: %q, %v", name, c.EtcdEndpoints, err)
		}
	}
}

func TestEmptyFileAndFileOfCommentsAreNoSettings(t *testing.T) {
	for _, content := range []string{"", "# nothing yet\n", "---\n", "null\n"} {
		if _, err := Load(Sources{Flags: map[string][]string{"driver": {"nats"}}, File: "f", Read: file(content)}); err != nil {
			t.Errorf("%q: %v", content, err)
		}
	}
}

func TestOnlyTheSettingsOfAVerbCanFailIt(t *testing.T) {
	src := Sources{
		Env:  env(map[string]string{"HOLDFAST_LEASE_TTL": "32"}),
		File: "f.yaml", Read: file("health-fall: none\n"),
		Only: []string{"state-dir", "control-socket"},
	}
	if _, err := Load(src); err != nil {
		t.Errorf("settings of others: %v", err)
	}
	src.Read = file("health-fal: 3\n")
	if _, err := Load(src); err == nil {
		t.Error("an unknown key is everybody's problem: no error")
	}
}

func TestDerivedDefaults(t *testing.T) {
	c, err := Load(Sources{Flags: map[string][]string{"driver": {"nats"}, "lease-ttl": {"24s"}, "state-dir": {"/s"}, "broker-admin": {"nats://[::1]:4333"}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string][2]any{
		"renew-interval":      {c.RenewInterval, 3 * time.Second},
		"lease-detach-margin": {c.LeaseDetachMargin, 8 * time.Second},
		"control-socket":      {c.ControlSocket, "/s/control.sock"},
		"nats-monitor":        {c.NATSMonitor, "http://[::1]:8222"},
		"registration":        {c.Registration, "own"},
		"failover":            {c.Failover, "hold"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %v, want %v", name, pair[0], pair[1])
		}
	}
	if len(c.DataMarkers) == 0 {
		t.Error("data-marker: none")
	}
	if !reflect.DeepEqual(c, c.Effective()) {
		t.Error("Effective is not idempotent")
	}
}

func TestDerivedDefaultsOfDanube(t *testing.T) {
	c, err := Load(Sources{Flags: map[string][]string{"driver": {"danube"}, "broker-id": {"b1"}, "broker-admin": {"https://[::1]:50052"}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string][2]any{
		"danube-lookup":  {c.DanubeLookup, "https://[::1]:6650"},
		"danube-metrics": {c.DanubeMetrics, "http://[::1]:9040"},
		"registration":   {c.Registration, "adopt"},
		"failover":       {c.Failover, "move"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %v, want %v", name, pair[0], pair[1])
		}
	}
	if err := c.Validate(); err != nil {
		t.Errorf("what was derived is refused: %v", err)
	}
	if !reflect.DeepEqual(c, c.Effective()) {
		t.Error("Effective is not idempotent")
	}
}

func TestEveryFieldIsDeclaredAsASetting(t *testing.T) {
	var c Config
	names := map[string]bool{}
	for _, s := range Settings() {
		if names[s.Name] || s.Group == "" || s.Help == "" || (s.kind.Kind() == reflect.Bool) != (s.Arg == "") {
			t.Errorf("%s stands there twice, has no group or help, or is a switch with a placeholder, or none without: %+v", s.Name, s)
		}
		names[s.Name] = true
		if s.least != "" && s.number(Default().Effective()) < s.lowest() {
			t.Errorf("%s: the default is below %s", s.Name, s.least)
		}
		if _, ok := Drivers[s.Driver]; s.Driver != "" && !ok {
			t.Errorf("%s: no driver is called %s", s.Name, s.Driver)
		}
		s.field(&c)
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if f.IsExported() && !f.Anonymous && f.Name != "Command" && !names[f.Tag.Get("name")] {
			t.Errorf("field %s is no setting", f.Name)
		}
	}
}

func TestDefaultsAreValidOnceADriverIsNamed(t *testing.T) {
	c := Default()
	c.Driver = "nats"
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestShortTTLsOfADemoAreValid(t *testing.T) {
	for _, ttl := range []time.Duration{3 * time.Second, 4 * time.Second, 5 * time.Second, 15 * time.Second} {
		c := Default()
		c.Driver, c.LeaseTTL = "nats", ttl
		if err := c.Validate(); err != nil {
			t.Errorf("%v: %v", ttl, err)
		}
	}
}

func TestTheNamedRenewIntervalWorks(t *testing.T) {
	for ttl := 3; ttl <= 120; ttl++ {
		c := Default()
		c.Driver, c.LeaseTTL = "nats", time.Duration(ttl)*time.Second
		c.RenewInterval = c.Timing().LongestRenewInterval().Truncate(time.Millisecond)
		if err := c.Validate(); err != nil {
			t.Errorf("TTL %ds: %v", ttl, err)
		}
		c.RenewInterval += 2 * time.Millisecond
		if err := c.Validate(); err == nil {
			t.Errorf("TTL %ds: %v is accepted and cannot make it", ttl, c.RenewInterval)
		}
	}
}

func TestWhatADriverDerivesIsNotRefusedAsIfSomebodyHadWrittenIt(t *testing.T) {
	for _, name := range DriverNames() {
		flags := map[string][]string{"driver": {name}, "broker-admin": {Drivers[name].AdminSchemes[0] + "://127.0.0.1:1"}}
		if name == "pulsar" {
			flags["pulsar-cluster"] = []string{"c1"} // required
		}
		if name == "danube" {
			flags["broker-id"] = []string{"b1"} // required
		}
		c, err := Load(Sources{Flags: flags})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if err := c.Validate(); err != nil { // as run does
			t.Errorf("%s, once more: %v", name, err)
		}
	}
}

func TestVariablesThatAreNoSettingsAreNamedAndTheirValuesAreNot(t *testing.T) {
	c, err := Load(Sources{Flags: map[string][]string{"driver": {"nats"}}, Env: []string{"HOLDFAST_LEASE_TLL=9s", "HOLDFAST_LEASE_TTL=32s", "HOLDFAST_CONFIG=x", "HOLDFAST_COLOUR_OF_IT=secret", "HOME=/root",
		"HOLDFAST_SERVICE_HOST=10.0.0.1", "HOLDFAST_SERVICE_PORT_WEB=1", "HOLDFAST_PORT=tcp://10.0.0.1:1", "HOLDFAST_PORT_9808_TCP_ADDR=10.0.0.1",
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := "HOLDFAST_COLOUR_OF_IT: no such setting, so this variable does nothing: see 'holdfast run --help' for all settings\n" +
		"HOLDFAST_LEASE_TLL: no such setting, so this variable does nothing: did you mean HOLDFAST_LEASE_TTL?"
	if got := strings.Join(c.Warnings(), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestATTLThatNobodySleepsThroughIsWarnedOf(t *testing.T) {
	for ttl, want := range map[time.Duration]string{
		10 * time.Minute: "",
		time.Hour:        "--lease-ttl 1h0m0s: for so long a broker that died stays registered, and nobody takes over: 15s to 2m is usual",
	} {
		c := Default()
		c.Driver, c.LeaseTTL = "nats", ttl
		if got := strings.Join(c.Warnings(), "\n"); got != want {
			t.Errorf("%v: %q", ttl, got)
		}
	}
}

func TestAdoptingFromABrokerThatRegistersNowhereIsWarnedAbout(t *testing.T) {
	for _, tt := range []struct {
		driver, registration string
		want                 int
	}{{"nats", "adopt", 1}, {"nats", "own", 0}, {"nats", "", 0}, {"danube", "", 0}} {
		c := Default()
		c.Driver, c.Registration = tt.driver, tt.registration
		if got := c.Warnings(); len(got) != tt.want {
			t.Errorf("%s, %q: %q", tt.driver, tt.registration, got)
		}
	}
}

func TestAReloadKnowsWhichValueAnotherOverrides(t *testing.T) {
	c, err := Load(Sources{
		Flags: map[string][]string{"driver": {"nats"}, "health-fall": {"5"}}, Env: []string{"HOLDFAST_AUDIT_INTERVAL=20s", "HOLDFAST_HEALTH_FALL=4"},
		File: "holdfast.yaml", Read: func(string) ([]byte, error) { return []byte("audit-interval: 30s\nlog-level: warn\n"), nil },
	})
	want := []string{"HOLDFAST_AUDIT_INTERVAL wins over holdfast.yaml:1: audit-interval", "--health-fall wins over HOLDFAST_HEALTH_FALL"}
	if err != nil || !slices.Equal(c.overridden, want) {
		t.Errorf("%v, %q", err, c.overridden)
	}
}

func TestTheDefaultsOfABrokerThatFencesItself(t *testing.T) {
	for name, d := range Drivers {
		c := Config{Driver: name, BrokerAdmin: d.Admin, BrokerPIDFile: "/run/broker.pid", LeaseTTL: 30 * time.Second}
		c.PulsarCluster = "lab"
		c.Detach = true
		c = c.Effective()
		fence, policy, guard := "ready,quiesce,stop", "drain", "on"
		if d.Traits != nil && d.Traits(Default()).AtDeadline == brokerapi.Nothing {
			fence, policy, guard = "ready", "reconnect", "off"
		}
		if got := strings.Join(c.Fence, ","); got != fence || c.SessionExpiredPolicy != policy || c.Guard != guard {
			t.Errorf("%s: --fence %s, --session-expired-policy %s, --guard %s; want %s, %s, %s", name, got, c.SessionExpiredPolicy, c.Guard, fence, policy, guard)
		}
		c.Fence, c.Guard, c.SessionExpiredPolicy = []string{"ready", "quiesce", "stop"}, "", "drain"
		if c = c.Effective(); len(c.Fence) != 3 || c.Guard != "on" || c.SessionExpiredPolicy != "drain" {
			t.Errorf("%s: %v, %s, guard %s; want what was asked for", name, c.Fence, c.SessionExpiredPolicy, c.Guard)
		}
	}
}
