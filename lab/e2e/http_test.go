package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
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
	r, err := s.lab.StartReference(s.ctx, harness.ReferenceOptions{Name: name, Args: args, HTTPS: strings.Contains(strings.Join(args, " "), "-tls-cert")})
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

func (c *httpCouple) await(what string, ok func(harness.Status) bool) harness.Status {
	c.s.Helper()
	st, err := c.Await(c.s.ctx, bound, what, ok)
	c.s.ok(err)
	return st
}

// told is the mode that the broker was told, and why.
func (c *httpCouple) told() (mode, reason string) {
	text, err := os.ReadFile(filepath.Join(c.broker.DataDir, "mode.json"))
	var m struct{ Mode, Reason string }
	if err != nil || json.Unmarshal(text, &m) != nil {
		return "", ""
	}
	return m.Mode, m.Reason
}

func TestAnHTTPBrokerFollowsItsModeAndKeepsItsData(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	r := s.reference("n1")
	topics := []string{"/default/a", "/default/b"}
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", topics...))
	link, err := harness.NewProxyLink(s.lab, s.etcd)
	s.ok(err)
	c := s.nextTo(r, link.Endpoint(), "--audit-interval", "500ms").start()
	c.await("both topics", func(st harness.Status) bool { return st.Topics.Served == 2 })
	publish := func(want error) {
		t.Helper()
		for _, topic := range topics {
			if err := r.Publish(s.ctx, topic, "x"); !errors.Is(err, want) {
				t.Errorf("publish to %s: %v, want %v", topic, err, want)
			}
		}
	}
	publish(nil)

	res, err := c.Verb(s.ctx, "drain", "--reason", "upgrade")
	s.ok(err)
	if res.Exit != 0 {
		t.Fatalf("drain: %+v", res)
	}
	s.awaitThat("the broker to be told", func() bool { mode, reason := c.told(); return mode == "drained" && reason != "" })
	publish(harness.ErrNotServed)
	if c.Ready(s.ctx) {
		t.Error("ready while drained")
	}
	s.ok(c.Activate(s.ctx, "e2e"))
	s.ok(c.AwaitReady(s.ctx, bound))
	if mode, _ := c.told(); mode != "active" {
		t.Errorf("after it was activated the broker is %q", mode)
	}
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", topics...)) // a drain gave them up
	c.await("both topics", func(st harness.Status) bool { return st.Topics.Served == 2 && st.Topics.Quarantined == 0 })
	publish(nil)

	// Cut off past its fence point nothing is served; back before its deadline all is.
	s.ok(link.Cut())
	s.ok(c.AwaitNotReady(s.ctx, standTTL+bound))
	s.awaitThat("the topics to be quiesced", func() bool {
		return errors.Is(r.Publish(s.ctx, topics[0], "x"), harness.ErrNotServed) && errors.Is(r.Publish(s.ctx, topics[1], "x"), harness.ErrNotServed)
	})
	s.ok(link.Heal())
	st := c.await("attached", func(st harness.Status) bool { return st.Attachment == "attached" })
	if st.Mode == "drained" { // the machine was slower than the TTL
		s.ok(c.Activate(s.ctx, "e2e"))
	}
	s.ok(c.AwaitReady(s.ctx, bound))
	s.awaitThat("the topics to be served again", func() bool { return r.Publish(s.ctx, topics[0], "x") == nil && r.Publish(s.ctx, topics[1], "x") == nil })
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

func TestAnHTTPBrokersTokenAndCertificatesAreShownAndRenewed(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ours, err := s.lab.NewAuthority("ours")
	s.ok(err)
	server, serverKey, err := ours.Issue("n1")
	s.ok(err)
	cert, key, err := ours.Issue("holdfast")
	s.ok(err)
	wanted, held := s.file("wanted", "first-secret\n"), s.file("held", "first-secret\n")
	r := s.reference("n1", "-token-file", wanted, "-tls-cert", server, "-tls-key", serverKey, "-tls-client-ca", ours.CACert)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
	c := s.nextTo(r, s.etcd.Endpoint(), "--broker-cacert", ours.CACert, "--broker-cert", cert, "--broker-key", key,
		"--broker-token-file", held, "--lease-ttl", "30s", "--audit-interval", "500ms").start()
	c.await("the topic", func(st harness.Status) bool { return st.Topics.Served == 1 })

	s.renew(held, "next-secret\n")
	s.renew(wanted, "next-secret\n")
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/b"))
	c.await("a topic that only the next token could load", func(st harness.Status) bool { return st.Topics.Served == 2 && st.Ready.OK })

	s.renew(wanted, "last-secret\n")
	st := c.await("a token that is not taken any more", func(st harness.Status) bool { return strings.Contains(st.Broker.LastError, "--broker-token-file") })
	if !st.Ready.OK || st.Broker.Up != "up" {
		t.Errorf("a refusal says something of us, and the broker is %s, ready: %v", st.Broker.Up, st.Ready)
	}
	s.renew(held, "last-secret\n")
	c.await("the token that is taken", func(st harness.Status) bool { return st.Broker.LastError == "" && st.Ready.OK })
	log, err := os.ReadFile(c.LogPath())
	s.ok(err)
	if strings.Contains(string(log), "-secret") {
		t.Error("the log holds a token")
	}

	// A certificate that is renewed on disk is shown by the next connection.
	other, err := s.lab.NewAuthority("others")
	s.ok(err)
	strangeCert, strangeKey, err := other.Issue("stranger")
	s.ok(err)
	for _, tt := range []struct {
		name   string
		change []string
		want   []string
	}{
		{"another's authority", []string{"--broker-cacert", other.CACert}, []string{"--broker-cacert", other.CACert}},
		{"a certificate of another authority", []string{"--broker-cert", strangeCert, "--broker-key", strangeKey}, []string{"--broker-cert", strangeCert}},
		{"a wrong token", []string{"--broker-token-file", s.file("wrong", "guess\n")}, []string{"--broker-token-file"}},
	} {
		res := s.command(append([]string{"check", "--driver", "http", "--broker-admin", r.URL(), "--etcd-endpoints", s.etcd.Endpoint(), "--state-dir", s.TempDir(),
			"--log-level", "error", "--broker-cacert", ours.CACert, "--broker-cert", cert, "--broker-key", key, "--broker-token-file", held}, tt.change...)...)
		exit := 1
		if tt.name == "a wrong token" { // the broker says so: a setting is wrong
			exit = 2
		}
		if res.Exit != exit || strings.Count(res.Stderr, "\n") != 1 || strings.Contains(res.Stderr, "guess") {
			t.Errorf("%s: exit code %d: %s", tt.name, res.Exit, res.Stderr)
		}
		for _, part := range tt.want {
			if !strings.Contains(res.Stderr, part) {
				t.Errorf("%s: %q is missing in %s", tt.name, part, res.Stderr)
			}
		}
	}
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

func TestATopicStaysWhereOneHTTPBrokerCannotMoveIt(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	const there, here = "/default/orders", "/default/others"
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", there))
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n2", here))
	can := s.nextTo(s.reference("n1"), s.etcd.Endpoint()).start()
	cannot := s.nextTo(s.reference("n2", "-capabilities", "quiesce,unload,mode"), s.etcd.Endpoint()).start()
	for _, tt := range []struct {
		at, to *httpCouple
		topic  string
		exit   int
		says   []string
	}{
		{can, cannot, there, 1, []string{"accept " + there + ": the broker does not move topics: ", "; n1 serves " + there}},
		{cannot, can, here, 3, []string{"extent " + here + ": the broker does not move topics: "}},
	} {
		tt.at.await("its topic", func(st harness.Status) bool { return st.Topics.Served == 1 })
		res, err := tt.at.Verb(s.ctx, "unload", tt.topic, "--to", tt.to.broker.Name)
		s.ok(err)
		for _, part := range tt.says {
			if res.Exit != tt.exit || !strings.Contains(res.Stderr, part) || strings.Count(res.Stderr, "\n") != 1 {
				t.Errorf("exit code %d, want %d with %q in one line: %s", res.Exit, tt.exit, part, res.Stderr)
			}
		}
		s.ok(tt.at.broker.Publish(s.ctx, tt.topic, "x"))
	}
}
