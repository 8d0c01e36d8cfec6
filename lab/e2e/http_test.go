package e2e

import (
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// httpCouple is one reference broker and its sidecar.
type httpCouple struct {
	*harness.Sidecar
	s      *stand
	broker *harness.Reference
}

func (s *stand) reference(name string, args ...string) *harness.Reference {
	s.Helper()
	r, err := s.lab.StartReference(s.ctx, harness.ReferenceOptions{Name: name, Args: args})
	s.ok(err)
	return r
}

// nextTo prepares a sidecar without starting it.
func (s *stand) nextTo(r *harness.Reference, endpoint string, flags ...string) *httpCouple {
	s.Helper()
	sc, err := s.lab.NewSidecar(harness.SidecarOptions{Name: r.Name + "-sidecar", Endpoints: []string{endpoint},
		Flags: append(append(quickFlags(), "--driver", "http", "--broker-admin", r.URL()), flags...)})
	s.ok(err)
	return &httpCouple{sc, s, r}
}

func (c *httpCouple) start() *httpCouple {
	c.s.Helper()
	c.s.ok(c.Start())
	c.s.ok(c.AwaitReady(c.s.ctx, bound))
	return c
}

func TestAnHTTPBrokerThatIsKilledIsNotReadyAtOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c := s.nextTo(s.reference("n1"), s.etcd.Endpoint(), "--lease-ttl", "30s", "--health-interval", "1s").start()
	killed := time.Now()
	s.ok(c.broker.Kill())
	within(t, "ready no more", killed, s.lastReady(c.Sidecar, killed), 700*time.Millisecond)
	s.ok(c.broker.Start(s.ctx))
	s.ok(c.AwaitReady(s.ctx, bound))
}

func TestWhatAnHTTPBrokerIsStandsInTheSettings(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	r := s.reference("n1", "-capabilities", "unload")
	check := func(more ...string) harness.Result {
		return s.command(append([]string{"check", "--driver", "http", "--broker-admin", r.URL(), "--etcd-endpoints", s.etcd.Endpoint(),
			"--state-dir", s.TempDir(), "--log-level", "error"}, more...)...)
	}
	for _, tt := range []struct {
		name string
		args []string
		exit int
		want string
	}{
		{"no such word", []string{"--http-capabilities", "quiece"}, 2, `--http-capabilities "quiece": no capability is called "quiece": known are `},
		{"a word of before", []string{"--http-capabilities", "local-data,end"}, 2, "give --broker-pid-file, --broker-process or --stop-command"},
		{"the end where there is none", []string{"--fence", "ready,quiesce,stop"}, 2, "the step stop needs a way to stop the broker"},
		{"another broker", []string{"--broker-id", "n2"}, 2, `calls itself "n1", --broker-id says "n2"`},
		{"another path", []string{"--broker-admin", r.URL() + "/admin"}, 1, "the contract has no such path: set --broker-admin to the URL below which it answers, without /holdfast/v1"},
		{"what it is", nil, 0, ""},
	} {
		res := check(tt.args...)
		if res.Exit != tt.exit || !strings.Contains(res.Stderr, tt.want) || tt.exit != 0 && strings.Count(res.Stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, want %d with %q in one line:\n%s", tt.name, res.Exit, tt.exit, tt.want, res.Stderr)
		}
		if tt.exit == 0 && !strings.Contains(res.Stdout, "can: steer; has: local-data") {
			t.Errorf("%s: does not print what the broker is:\n%s", tt.name, res.Stdout)
		}
	}
	s.nothingWritten()
}
