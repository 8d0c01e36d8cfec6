package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// command runs the binary to its end, which must come within bound.
func (s *stand) command(args ...string) harness.Result {
	s.Helper()
	bin, err := harness.Build(harness.Holdfast)
	s.ok(err)
	ctx, cancel := context.WithTimeout(s.ctx, bound)
	defer cancel()
	res, err := harness.RunHoldfast(ctx, bin, args...)
	s.ok(err)
	return res
}

// settings are those of a sidecar that would work, with a new state directory;
// what follows wins.
func (s *stand) settings(n *harness.NATS, more ...string) []string {
	return append([]string{
		"--driver", "nats", "--broker-admin", n.URL(), "--nats-monitor", n.MonitorURL(),
		"--etcd-endpoints", s.etcd.Endpoint(), "--state-dir", filepath.Join(s.TempDir(), "state"),
		"--probe-listen", "127.0.0.1:0", "--web-listen", "127.0.0.1:0", "--log-level", "error",
	}, more...)
}

// nothingWritten checks that etcd has had no other change than the lab's own.
func (s *stand) nothingWritten() {
	s.Helper()
	s.caughtUp()
	for _, ch := range s.history.Changes() {
		if !strings.HasPrefix(ch.Key, "/lab/") {
			s.Errorf("written to etcd: %v", ch)
		}
	}
}

// refused checks exit code and message of both run and check.
func (s *stand) refused(args []string, exit int, message string) {
	s.Helper()
	for _, verb := range []string{"run", "check"} {
		res := s.command(append([]string{verb}, args...)...)
		if res.Exit != exit || res.Stderr != "holdfast: "+message+"\n" {
			s.Errorf("%s: exit code %d, said\n%swant %d and\nholdfast: %s", verb, res.Exit, res.Stderr, exit, message)
		}
	}
}

func TestWrongSettingsAreNamedWithValueAndRemedy(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	n := s.broker("n1")
	file := filepath.Join(t.TempDir(), "holdfast.yaml")
	for _, tt := range []struct {
		name string
		file string
		args []string
		want string
	}{
		{"unknown YAML key", "driver: nats\nlease_ttl: 32s\n", nil,
			file + ":2: lease_ttl: unknown setting: did you mean lease-ttl?"},
		{"unknown YAML key like no other", "zzz: 1\n", nil,
			file + ":1: zzz: unknown setting: see 'holdfast run --help' for all settings"},
		{"duration without a unit", "", []string{"--lease-ttl", "32"},
			`--lease-ttl "32": not a duration: write a number with a unit, such as 32s`},
		{"duration without a unit in the file", "lease-ttl: 32\n", nil,
			file + `:1: lease-ttl "32": not a duration: write a number with a unit, such as 32s`},
		{"margin as long as the TTL", "", []string{"--lease-ttl", "12s", "--lease-detach-margin", "12s"},
			"--lease-detach-margin 12s: must be less than --lease-ttl 12s: leave it out for a third of the TTL, 4s"},
		{"margin longer than the TTL", "", []string{"--lease-ttl", "12s", "--lease-detach-margin", "1m"},
			"--lease-detach-margin 1m0s: must be less than --lease-ttl 12s: leave it out for a third of the TTL, 4s"},
		{"renew interval that cannot make it", "", []string{"--lease-ttl", "12s", "--renew-interval", "6s"},
			"--renew-interval 6s: a second attempt would not be answered before the fence point, 8s after the last renewal: at most 5.75s works"},
		{"TTL below etcd's smallest", "", []string{"--lease-ttl", "1s"},
			"--lease-ttl 1s: too short: etcd grants no less than 2s"},
		{"unknown driver", "", []string{"--driver", "kafka"},
			`--driver "kafka": unknown driver: known drivers: danube, http, nats, pulsar`},
		{"password in a URL", "", []string{"--broker-admin", "nats://u:secret@127.0.0.1:4222"},
			`--broker-admin "nats://u:xxxxx@127.0.0.1:4222": holds a user or password: secrets come only from files`},
		{"scheme of another protocol", "", []string{"--broker-admin", "http://127.0.0.1:4222"},
			`--broker-admin "http://127.0.0.1:4222": the scheme http does not work here: write nats://host:port`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := *s
			s.T = t
			args := s.settings(n, tt.args...)
			if tt.file != "" {
				s.ok(os.WriteFile(file, []byte(tt.file), 0o600))
				args = append(args, "--config", file)
			}
			s.refused(args, 2, tt.want)
		})
	}
	s.nothingWritten()
}

func TestUnreachableEtcdFailsACheckAndIsWaitedForByRun(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	n := s.broker("n1")
	s.ok(s.etcd.Kill())
	res := s.command(append([]string{"check"}, s.settings(n)...)...)
	want := fmt.Sprintf("holdfast: --etcd-endpoints %q: etcd is out of reach: dial tcp %s: connect: connection refused: is it running there, and is the way open?\n",
		s.etcd.Endpoint(), strings.TrimPrefix(s.etcd.Endpoint(), "http://"))
	if res.Exit != 1 || res.Stderr != want {
		t.Errorf("check: exit code %d, said\n%swant 1 and\n%s", res.Exit, res.Stderr, want)
	}

	c := s.beside(n)
	c.run()
	c.awaitMetric(`holdfast_lease_keepalive_failures_total{class="unreachable"}`, 1, bound)
	if st := c.await("waiting", func(st harness.Status) bool { return st.Broker.Up == "up" }); st.Mode != "" || st.Boot.Kind != "unknown" || st.Ready.OK {
		t.Errorf("mode %q, boot %q, ready %v without etcd; nothing may be guessed", st.Mode, st.Boot.Kind, st.Ready.OK)
	}
	s.ok(s.etcd.Start(s.ctx))
	s.ok(c.AwaitReady(s.ctx, bound))
	c.stayedLive()
}

func TestAStateDirectoryOfAnotherSidecarIsRefused(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c, other := s.couple("n1"), s.broker("n2")
	reg, from := c.registration(), s.caughtUp()
	run := func(n *harness.NATS, dir string) harness.Result {
		return s.command(append([]string{"run"}, s.settings(n, "--state-dir", dir)...)...)
	}
	want := fmt.Sprintf("holdfast: --state-dir %s: another holdfast uses it (pid %d): give each sidecar a directory of its own\n", c.StateDir, c.PID())
	if res := run(other, c.StateDir); res.Exit != 2 || res.Stderr != want {
		t.Errorf("exit code %d, said\n%swant 2 and\n%s", res.Exit, res.Stderr, want)
	}
	c.stayedLive()
	s.ok(c.Kill())
	want = fmt.Sprintf("holdfast: --state-dir %s: it belongs to broker \"n1\", and the broker at %s is \"n2\" (not the expected broker): give each broker a state directory of its own, or point --broker-admin at the right one\n", c.StateDir, other.URL())
	if res := run(other, c.StateDir); res.Exit != 2 || res.Stderr != want {
		t.Errorf("exit code %d, said\n%swant 2 and\n%s", res.Exit, res.Stderr, want)
	}
	mark := s.caughtUp()
	for _, ch := range s.history.Changes() {
		if ch.Revision > from && ch.Revision < mark {
			t.Errorf("written to etcd: %v", ch)
		}
	}
	// And it took nothing from the one whose directory it is.
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	if after := c.registration(); after.OfAnyRun() != reg.OfAnyRun() {
		t.Errorf("registration %+v, want %+v", after, reg)
	}
}

func TestAnAddressInUseIsNamed(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	n := s.broker("n1")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	s.ok(err)
	defer taken.Close()
	for _, flag := range []string{"--probe-listen", "--web-listen"} {
		start := time.Now()
		res := s.command(append([]string{"run"}, s.settings(n, flag, taken.Addr().String())...)...)
		want := fmt.Sprintf("holdfast: %s %s: bind: address already in use: free the address or set another\n", flag, taken.Addr())
		if res.Exit != 2 || res.Stderr != want {
			t.Errorf("exit code %d after %v, said\n%swant 2 and\n%s", res.Exit, time.Since(start), res.Stderr, want)
		}
	}
	s.nothingWritten()
}
