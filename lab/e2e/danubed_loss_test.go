package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// awaitSuccessor waits until the broker's next process is adopted, under its own number.
func (n *node) awaitSuccessor(former string, after int64) harness.Change {
	n.t.Helper()
	c := n.awaitRegistered(after)
	if c.Key == n.keys.Registration(former) {
		n.t.Fatalf(harness.Violation+"%s was registered again under the number of a process that has gone", n.id)
	}
	return c
}

// A broker of this release destroys its topics if it runs while its registration goes.
func TestDanubeCutOffPastTheTTLIsStoppedInTimeAndComesBackDrained(t *testing.T) {
	long(t)
	s := newStageOf(t, danubeChildKind)
	peer := s.supervise("n2", nodeOptions{})
	n := s.supervise("n1", nodeOptions{Cuttable: true})
	n.produces(3)
	former, pid, from, ended := n.name(), n.child(), s.revision(), n.ending()
	s.must(n.link.Cut())
	unready := n.awaitNotReady()
	n.endsInTime(ended, former, from)
	// The topics go to the peer, whose leader takes the broker for dead.
	peer.await("the topics", func(st harness.Status) bool { return st.Topics.Served == len(peer.topics)+len(n.topics) })
	s.waitOut(n.ttl / 2)
	s.must(n.link.Heal())
	n.withState(n.awaitSuccessor(former, from), "drained", "stale_restart")
	n.await("drained", func(st harness.Status) bool {
		return st.Mode == "drained" && st.Reason == "stale_restart" && st.Attachment == "attached" && st.Broker.Up == "up"
	})
	if now := n.child(); now == pid || !runs(now) {
		t.Errorf("process %d was %d, runs: %t", now, pid, runs(now))
	}
	n.neverReady(unready)
	n.onlyDrained(from)
	n.activate()
	n.topics = []string{"/default/again"}
	n.equip()
	n.publishes()
	contains(t, n.says("events"), "stale_restart", "fenced")
}

func TestDanubeWithEtcdAwayPastTheTTLServesAllAgainWhenItIsBack(t *testing.T) {
	long(t)
	s := newStageOf(t, danubeChildKind)
	nodes := []*node{s.supervise("n2", nodeOptions{}), s.supervise("n1", nodeOptions{})}
	var ended []<-chan time.Time
	var former []string
	for _, n := range nodes {
		n.produces(3)
		ended, former = append(ended, n.ending()), append(former, n.name())
	}
	from := s.revision()
	s.must(s.etcd.Freeze())
	t.Cleanup(func() { _ = s.etcd.Thaw() })
	frozen := time.Now()
	for i, n := range nodes {
		select {
		case at := <-ended[i]:
			t.Logf("%s ended %v after etcd froze", n.id, at.Sub(frozen).Round(time.Millisecond))
			within(t, n.id+" ended after etcd froze", frozen, at.Sub(frozen), n.ttl)
		case <-time.After(n.ttl + bound):
			t.Fatalf("%s was not stopped", n.id)
		}
	}
	select {
	case <-time.After(time.Until(frozen.Add(2 * ttl))): // as the scenario has it
	case <-s.ctx.Done():
	}
	s.must(s.etcd.Thaw())
	for i, n := range nodes {
		n.awaitSuccessor(former[i], from)
		n.awaitReady()
		n.await("active", func(st harness.Status) bool { return st.Mode == "active" })
	}
	s.must(harness.Await(s.ctx, ttl+bound, "all topics to be served", func(context.Context) (bool, string) {
		served, want := 0, 0
		for _, n := range nodes {
			st := n.await("a status", func(harness.Status) bool { return true })
			served, want = served+st.Topics.Served, want+len(n.topics)
		}
		return served == want, fmt.Sprintf("%d of %d", served, want)
	}))
	// The brokers' leader may see a registration go before the next process has what was
	// under it, and gives the topics anew. Holdfast gives none up, also not by what was asked
	// of etcd while it was away and is carried out now.
	s.never("Holdfast gave a topic up", from, func(c harness.Change) bool {
		return strings.HasPrefix(c.Key, "/cluster/unassigned/") && strings.Contains(c.Value, "unload")
	})
	for _, n := range nodes {
		n.keeps(slices.DeleteFunc(slices.Clone(n.topics), func(topic string) bool {
			return len(s.puts("/cluster/unassigned"+topic, from)) > 0
		}), 3)
	}
}

// With the sidecar stopped or killed, its guard is left.
func TestDanubeBesideASidecarThatIsGoneIsStoppedInTime(t *testing.T) {
	long(t)
	for name, lose := range map[string]func(n *node) error{
		"frozen": func(n *node) error { return n.sidecar.Freeze() },
		"killed": func(n *node) error { return n.sidecar.Kill() },
	} {
		for kindName, k := range map[string]kind{"with a pid file": danubeKind, "supervised": danubeChildKind} {
			t.Run(name+" "+kindName, func(t *testing.T) {
				t.Parallel()
				s := newStageOf(t, k)
				add := s.add
				if kindName == "supervised" {
					add = s.supervise
				}
				peer := add("n2", nodeOptions{})
				n := add("n1", nodeOptions{})
				former, from, ended := n.name(), s.revision(), n.ending()
				n.awaitGuard(0)
				s.must(lose(n))
				n.endsInTime(ended, former, from)
				peer.await("the topics", func(st harness.Status) bool { return st.Topics.Served == len(peer.topics)+len(n.topics) })
				if name == "frozen" {
					s.must(n.sidecar.Thaw())
				} else {
					s.must(n.sidecar.Start())
				}
				if kindName != "supervised" {
					s.must(n.broker.Launch())
				}
				n.withState(n.awaitSuccessor(former, from), "drained", "stale_restart")
				n.await("drained", func(st harness.Status) bool { return st.Mode == "drained" && st.Attachment == "attached" })
				n.activate()
				n.topics = []string{"/default/again"}
				n.equip()
				n.publishes()
			})
		}
	}
}

func TestDanubeACleanStopOfTheSidecarEndsTheBrokerBeforeItsRegistration(t *testing.T) {
	long(t)
	for kindName, k := range map[string]kind{"with a pid file": danubeKind, "supervised": danubeChildKind} {
		t.Run(kindName, func(t *testing.T) {
			t.Parallel()
			s := newStageOf(t, k)
			add := s.add
			if kindName == "supervised" {
				add = s.supervise
			}
			peer, n := add("n2", nodeOptions{}), add("n1", nodeOptions{})
			former, from, ended := n.name(), s.revision(), n.ending()
			ctx, cancel := context.WithTimeout(s.ctx, bound)
			defer cancel()
			s.must(n.sidecar.Stop(ctx))
			if code, err := n.sidecar.ExitCode(); err != nil || code != 0 {
				t.Errorf("exit code %d, %v", code, err)
			}
			n.endsInTime(ended, former, from) // it is never revoked
			peer.await("the topics", func(st harness.Status) bool { return st.Topics.Served == len(peer.topics)+len(n.topics) })
		})
	}
}

func TestDanubeARollingRestartOfThreeLosesNothing(t *testing.T) {
	long(t)
	s := newStageOf(t, danubeWith(nil))
	var nodes []*node
	for i := range 3 {
		n := s.add(fmt.Sprintf("n%d", i+1), nodeOptions{TTL: 20 * time.Second, Flags: []string{"--leave-registered"}})
		n.produces(3)
		nodes = append(nodes, n)
	}
	from := s.revision()
	for _, n := range nodes {
		ctx, cancel := context.WithTimeout(s.ctx, bound)
		defer cancel()
		s.must(n.sidecar.Stop(ctx))
		if !n.danubed().Running() {
			t.Errorf("%s: the broker was stopped with its sidecar", n.id)
		}
		if code, err := n.sidecar.ExitCode(); err != nil || code != 0 {
			t.Errorf("%s: exit code %d, %v", n.id, code, err)
		}
		s.must(n.broker.Kill())
		n.start()
		n.awaitReady()
		n.await("its topics", func(st harness.Status) bool { return st.Mode == "active" && st.Topics.Served == len(n.topics) })
		n.keeps(n.topics, 3)
	}
	for _, n := range nodes {
		n.keeps(n.topics, 3)
		n.publishes()
	}
	s.never("a topic was without a broker", from, func(c harness.Change) bool {
		return strings.HasPrefix(c.Key, "/cluster/unassigned/")
	})
}

// A watch of this broker that an interruption of etcd ended does not come back.
func TestDanubeAStaleViewIsShownEverywhereUntilTheBrokerIsRestarted(t *testing.T) {
	long(t)
	s := newStageOf(t, danubeKind)
	s.add("n2", nodeOptions{TTL: 20 * time.Second})
	n := s.add("n1", nodeOptions{TTL: 20 * time.Second, Flags: []string{"--audit-interval", "2s"}})
	s.must(s.etcd.Kill())
	s.must(s.etcd.Start(s.ctx))
	n.await("attached", func(st harness.Status) bool { return st.Attachment == "attached" && st.Lease.FailureStreak == 0 })
	s.must(harness.Await(s.ctx, bound, "the broker to be blind", func(ctx context.Context) (bool, string) {
		st, err := n.danubed().Status(ctx)
		return st.WatchesDied, fmt.Sprint(st, err)
	}))
	const series = `holdfast_broker_zombie{kind="stale_view"}`
	if v := n.series(series); v != 0 {
		t.Errorf("%s is %v before there is anything to see", series, v)
	}
	since := time.Now()
	n.assign("/default/unseen")
	e := n.awaitEventFor(bound, since, "broker", "stale_view")
	if v := n.series(series); v != 1 {
		t.Errorf("%s is %v", series, v)
	}
	contains(t, n.says("explain", fmt.Sprint(e.ID)), "restart")
	contains(t, n.says("status"), "serves 2 of 3 topics, but ", "/default/unseen: its watches have died: restart the broker.")
	contains(t, n.says("events"), "stale_view")

	s.must(n.broker.Kill())
	n.awaitNotReady()
	s.must(n.broker.Launch())
	n.awaitReady()
	n.await("all topics", func(st harness.Status) bool { return st.Topics.Served == 3 })
	s.must(harness.Await(s.ctx, bound, "the view to be right", func(context.Context) (bool, string) {
		return n.series(series) == 0, n.says("events")
	}))
	n.publishes()
}

// awaitEventFor is awaitEvent for what takes longer.
func (n *node) awaitEventFor(bound time.Duration, since time.Time, kind, to string) (event harness.Event) {
	n.t.Helper()
	n.must(harness.Await(n.ctx, bound, kind+" "+to, func(ctx context.Context) (bool, string) {
		events, err := n.sidecar.Events(ctx)
		for _, e := range events {
			if e.At.After(since) && e.Kind == kind && e.To == to {
				event = e
				return true, ""
			}
		}
		return false, fmt.Sprint(events, err)
	}))
	return event
}

func TestDanubeThatNothingCouldStopIsRefusedUnlessThatIsKnown(t *testing.T) {
	long(t)
	s := newStageOf(t, danubeKind)
	n := s.prepare("n1", nodeOptions{Topics: []string{}})
	s.must(n.broker.Start(s.ctx))
	bin, err := harness.Build(harness.Holdfast)
	s.must(err)
	unnamed := n.broker.(danubeEtcd).danubeBroker.Driver()
	unnamed = unnamed[:len(unnamed)-2] // without the pid file
	common := append(unnamed, "--etcd-endpoints", s.etcd.Endpoint(), "--state-dir", t.TempDir(),
		"--probe-listen", "127.0.0.1:0", "--web-listen", "127.0.0.1:0", "--log-format", "text")
	pid := []string{"--broker-pid-file", n.pidFile()}
	from := s.revision()
	for name, more := range map[string][]string{
		"no way to stop it": {},
		"no guard":          append(pid, "--guard", "off"),
		"no step stop":      append(pid, "--fence", "ready,quiesce"),
		"never detached":    append(pid, "--detach=false"),
	} {
		for _, verb := range []string{"check", "run"} {
			ctx, cancel := context.WithTimeout(s.ctx, bound)
			res, err := harness.RunHoldfast(ctx, bin, append(append([]string{verb}, common...), more...)...)
			cancel()
			if err != nil || res.Exit != 3 {
				t.Errorf("%s, %s: exit code %d, %v, want 3:\n%s%s", verb, name, res.Exit, err, res.Stdout, res.Stderr)
			}
			contains(t, res.Stderr, "destroys", "--i-know")
		}
	}
	s.never("a refused sidecar adopted it", from, func(c harness.Change) bool {
		_, is := s.keys.RegisteredName(c.Key)
		return is && c.Revision > c.CreateRevision
	})
	ctx, cancel := context.WithTimeout(s.ctx, bound)
	defer cancel()
	res, err := harness.RunHoldfast(ctx, bin, append(append([]string{"check"}, common...), "--i-know")...)
	if err != nil || res.Exit != 0 {
		t.Errorf("check --i-know: exit code %d, %v: %s", res.Exit, err, res.Stderr)
	}
	contains(t, res.Stdout, "DANGER (--i-know)")

	risky, err := s.NewSidecar(harness.SidecarOptions{Name: "risky", Endpoints: []string{s.etcd.Endpoint()}, Flags: append(unnamed, "--lease-ttl", ttl.String(), "--i-know")})
	s.must(err)
	s.must(risky.Start())
	s.must(risky.AwaitReady(s.ctx, bound))
	st, err := risky.Status(s.ctx)
	s.must(err)
	contains(t, st.Summary, "DANGER (--i-know)")
	contains(t, risky.LogTail(200), "DANGER")
}

// An etcd that restarts gives each lease its TTL anew, so nobody was declared dead.
func TestDanubeWithEtcdRestartedAfterTheTTLGoesOnWithItsTopics(t *testing.T) {
	long(t)
	s := newStageOf(t, danubeChildKind)
	nodes := []*node{s.supervise("n2", nodeOptions{}), s.supervise("n1", nodeOptions{})}
	var ended []<-chan time.Time
	for _, n := range nodes {
		n.produces(3)
		ended = append(ended, n.ending())
	}
	s.must(s.etcd.Kill())
	for i, n := range nodes {
		select {
		case <-ended[i]:
		case <-time.After(n.ttl + bound):
			t.Fatalf("%s was not stopped", n.id)
		}
	}
	s.must(s.etcd.Start(s.ctx))
	for _, n := range nodes {
		n.awaitReady()
		n.await("its topics", func(st harness.Status) bool { return st.Mode == "active" && st.Topics.Served == len(n.topics) })
		n.keeps(n.topics, 3)
	}
}
