package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"holdfast/lab/harness"
)

// processMistakes are those with verbs, settings, and the broker and its process.
var processMistakes = []mistake{
	{
		name:    "a verb that there is not",
		command: "chekc",
		exit:    2,
		message: `unknown verb "chekc": did you mean check?`,
	},
	{
		name:    "a flag that there is not",
		command: "check {settings} --data-dri /var/lib/nats",
		exit:    2,
		message: "check: unknown flag --data-dri: did you mean --data-dir?",
	},
	{
		name:    "a TTL without a unit",
		command: "check {settings} --lease-ttl 32",
		exit:    2,
		message: `--lease-ttl "32": not a duration: write a number with a unit, such as 32s`,
	},
	{
		name:    "a margin as long as the TTL",
		command: "check {settings} --lease-ttl 12s --lease-detach-margin 12s",
		exit:    2,
		message: "--lease-detach-margin 12s: must be less than --lease-ttl 12s: leave it out for a third of the TTL, 4s",
	},
	{
		name:    "a renew interval that cannot make it",
		command: "run {settings} --lease-ttl 12s --renew-interval 6s",
		exit:    2,
		message: "--renew-interval 6s: a second attempt would not be answered before the fence point, 8s after the last renewal: at most 5.75s works",
	},
	{
		name:    "a driver that there is not",
		command: "run {settings} --driver kafka",
		exit:    2,
		message: `--driver "kafka": unknown driver: known drivers: danube, http, nats, pulsar`,
	},
	{
		name:    "a password in a URL",
		command: "run {settings} --broker-admin nats://u:secret@127.0.0.1:4222",
		exit:    2,
		message: `--broker-admin "nats://u:xxxxx@127.0.0.1:4222": holds a user or password: secrets come only from files`,
	},
	{
		name:    "the scheme of another protocol",
		command: "check {settings} --broker-admin http://127.0.0.1:4222",
		exit:    2,
		message: `--broker-admin "http://127.0.0.1:4222": the scheme http does not work here: write nats://host:port`,
	},
	{
		name: "an address that is in use",
		given: func(w *world) {
			taken, err := net.Listen("tcp", "127.0.0.1:0")
			w.ok(err)
			w.Cleanup(func() { taken.Close() })
			w.set("taken", taken.Addr())
		},
		command: "run {settings} --probe-listen {taken}",
		exit:    2,
		message: "--probe-listen {taken}: bind: address already in use: free the address or set another",
	},
	{
		name: "a process name that several servers have",
		given: func(w *world) {
			w.broker("beside")
			n, err := sharedBroker()
			w.ok(err)
			w.set("pid", n.PID())
		},
		command: "check {settings} --broker-process nats-server",
		message: `process   ok      stopped by SIGTERM and SIGKILL to process "nats-server"; now process {pid}`,
	},
	{
		name:    "a TTL below zero",
		command: "check {settings} --lease-ttl -5s",
		exit:    2,
		message: "--lease-ttl -5s: too short: etcd grants no less than 2s",
	},
	{
		name:    "a TTL of an hour",
		command: "check {settings} --lease-ttl 1h",
		message: "settings  warning --lease-ttl 1h0m0s: for so long a broker that died stays registered, and nobody takes over: 15s to 2m is usual",
	},
	{
		name:    "another data directory than the broker's, checked",
		command: "check {settings} --data-dir {dir}",
		message: "data dir  warning --data-dir {dir}: the broker says that its data is in {data}: leave --data-dir out, or give that",
	},
	{
		name:    "another data directory than the broker's, run",
		command: "run {settings} --data-dir {dir} --shadow",
		lasts:   true,
		message: "--data-dir {dir}: the broker says that its data is in {data}: leave --data-dir out, or give that",
	},
	{
		name:    "a data directory that is not there, checked",
		command: "check {settings} --data-dir {dir}/none",
		message: "data dir  warning --data-dir {dir}/none: not there, and the broker says that its data is in {data}: leave --data-dir out, or give that",
	},
	{
		name:    "a data directory that is not there, run",
		command: "run {settings} --data-dir {dir}/none --shadow",
		lasts:   true,
		message: "--data-dir {dir}/none: not there, and the broker says that its data is in {data}: leave --data-dir out, or give that",
	},
	{
		name:    "a setting by a name of its environment's form",
		file:    "driver: nats\nlease_ttl: 32s\n",
		command: "check --config {file}",
		exit:    2,
		message: "{file}:2: lease_ttl: unknown setting: did you mean lease-ttl?",
	},
	{
		name:    "a state directory that cannot be made",
		file:    "a file where the directory is to be",
		command: "run {settings} --state-dir {file}/state",
		exit:    2,
		message: "--state-dir {file}/state: not a directory: create it writable for this user, or set --state-dir",
	},
	{
		name:    "an admin port that is not that of NATS",
		command: "check {settings} --broker-admin nats://{etcd-port}",
		exit:    1,
		message: "i/o timeout: the port is open, and no nats-server greets there: it hangs, or --broker-admin is another's",
	},
	{
		name:    "TLS for a NATS server that speaks none",
		given:   func(w *world) { w.set("address", strings.TrimPrefix(w.say("{admin}"), "nats://")) },
		command: "check {settings} --broker-admin tls://{address}",
		exit:    1,
		message: `--broker-admin tls://{address}: the server does not take us in: "nats: secure connection not available": no TLS is spoken there: write nats://`,
	},
	{
		name:    "no TLS for a NATS server that wants it",
		given:   wantsTLS,
		command: "check {settings} --broker-admin {secure}",
		exit:    1,
		message: `x509: certificate signed by unknown authority": set --broker-cacert to the authority that signed the broker's certificate`,
	},
	{
		name:    "a monitoring port that is closed",
		command: "check {settings} --nats-monitor http://127.0.0.1:1",
		exit:    1,
		message: "--nats-monitor http://127.0.0.1:1: ",
	},
	{
		name:    "the id of another broker",
		command: "check {settings} --broker-id n2",
		exit:    2,
		message: `--broker-admin {admin}: the broker there calls itself "n1", --broker-id says "n2": point --broker-admin at n2's own address, or set --broker-id to n1`,
	},
	{
		name:    "status where no sidecar runs",
		command: "status --state-dir {dir}",
		exit:    1,
		message: "no sidecar answers on {dir}/control.sock: is 'holdfast run' running here? give --control-socket or --state-dir",
	},
	{
		name: "status where a sidecar was killed",
		given: func(w *world) {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(w.dir, "control.sock"), Net: "unix"})
			w.ok(err)
			l.SetUnlinkOnClose(false)
			w.ok(l.Close())
		},
		command: "status --state-dir {dir}",
		exit:    1,
		message: "no sidecar answers on {dir}/control.sock",
	},
	{
		name: "status where a sidecar was killed that had done something",
		given: func(w *world) {
			journal := `{"id":1,"at":"2026-11-20T03:12:05Z","kind":"agent","to":"started"}` + "\n"
			w.ok(os.WriteFile(filepath.Join(w.dir, "journal.jsonl"), []byte(journal), 0o600))
		},
		command: "status --state-dir {dir}",
		exit:    1,
		message: "The sidecar that ran here ended without a stop: it was killed, it failed, or its host did. Its last events:",
	},
	{
		name:    "healthcheck at another port than the sidecar's",
		command: "healthcheck --probe-listen 127.0.0.1:1",
		exit:    1,
		message: "--probe-listen 127.0.0.1:1: no answer from http://127.0.0.1:1/ready: is 'holdfast run' running here, with this --probe-listen?",
	},
	{
		name: "a broker that has left, and is not stopped",
		given: func(w *world) {
			n := w.broker("left")
			w.watch()
			c := w.beside(n)
			c.run()
			w.ok(c.AwaitReady(w.ctx, bound))
			res, err := c.Verb(w.ctx, "leave")
			w.ok(err)
			if res.Exit != 0 {
				w.Errorf("leave: %+v", res)
			}
			c.await("the word that it has left", func(st harness.Status) bool {
				return strings.Contains(st.Summary, "it has left on purpose: stop it, or take it back with 'holdfast activate'; within 1h0m0s its next start is active again")
			})
			w.set("socket", c.ControlSocket)
		},
		command: "status --control-socket {socket}",
		message: "it has left; at its next start active (",
	},
	{
		name: "a drain of a broker that is dead",
		given: func(w *world) {
			n := w.broker("dead")
			w.watch()
			c := w.beside(n, "--broker-pid-file", n.PIDFile)
			c.run()
			w.ok(c.AwaitReady(w.ctx, bound))
			w.ok(n.Kill())
			c.await("the end of its process", func(st harness.Status) bool { return strings.Contains(st.Summary, "has ended") })
			w.set("socket", c.ControlSocket)
		},
		command: "drain --control-socket {socket}",
		message: "dead: mode drained (operator). The process of dead has ended: clients are kept away, and it is drained (operator); start it.",
	},
}

// wantsTLS starts a NATS server, at {secure}, that takes no client without TLS.
func wantsTLS(w *world) {
	w.Helper()
	secured(w)
	n, err := w.lab.StartNATS(w.ctx, harness.NATSOptions{Name: "secure",
		Extra: fmt.Sprintf("tls { cert_file: %q, key_file: %q }", w.say("{cert}"), w.say("{cert-key}"))})
	w.ok(err)
	w.set("secure", n.URL())
}
