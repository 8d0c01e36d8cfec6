package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/harness"
)

// What is played here with a Danube broker alone. That nothing happened to a broker which
// must never happen to one, in none of its lives, is checked at the end of each.

// danubed is the node's broker.
func (n *node) danubed() *harness.Danube {
	n.t.Helper()
	switch b := n.broker.(type) {
	case danubeEtcd:
		return b.Danube
	case danubeChild:
		return b.Danube
	case raftNode:
		return b.Danube
	}
	n.t.Fatalf("the broker of %s is a %T", n.id, n.broker)
	return nil
}

// danubeChild is a broker that its sidecar starts: holdfast run -- danubed.
type danubeChild struct{ danubeEtcd }

var danubeChildKind = func() kind {
	k := danubeKind
	k.stops = "" // it is; but which process it is need not be found out
	k.prepare = func(s *stage, o brokerOptions) (broker, error) {
		d, err := s.NewDanube(harness.DanubeOptions{Name: o.ID, Place: o.Place, Etcd: o.Etcd, TTL: o.TTL})
		if err != nil {
			return nil, err
		}
		return danubeChild{danubeEtcd{danubeBroker{Danube: d}, s.keys, s.etcd.Client()}}, nil
	}
	return k
}()

func (danubeChild) Launch() error               { return nil }
func (danubeChild) Start(context.Context) error { return errors.New("its sidecar starts it") }
func (danubeChild) Kill() error                 { return errors.New("its sidecar has it") }

func (b danubeChild) Driver() []string {
	flags := b.danubeEtcd.Driver()
	return flags[:slices.Index(flags, "--broker-pid-file")]
}

// supervise makes a node whose sidecar starts the broker, and waits until it is ready.
func (s *stage) supervise(id string, o nodeOptions) *node {
	s.t.Helper()
	n := s.prepare(id, o)
	n.sidecar.SetFlags(append([]string{"--"}, n.danubed().Command()...)...)
	s.t.Cleanup(func() { // it survives a killed sidecar
		if pid := n.child(); pid > 1 {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		}
	})
	n.start()
	n.awaitReady()
	n.equip()
	return n
}

// child is the process of a broker that the sidecar started.
func (n *node) child() int { return runner(n.danubed().Command()) }

// process is the broker's, whoever started it.
func (n *node) process() int {
	if _, ok := n.broker.(danubeChild); ok {
		return n.child()
	}
	return n.danubed().PID()
}

// ending is when the broker's present process was seen to be gone.
func (n *node) ending() <-chan time.Time {
	at, pid := make(chan time.Time, 1), n.process()
	ctx := n.ctx
	go func() {
		for runs(pid) && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		at <- time.Now()
	}()
	return at
}

// produces stores messages in each of the node's topics.
func (n *node) produces(each int) {
	n.t.Helper()
	for _, topic := range n.topics {
		for i := range each {
			_, err := n.danubed().Produce(n.ctx, topic, fmt.Appendf(nil, "%s %d", topic, i))
			n.must(err)
		}
	}
}

// keeps checks that each of the topics is served by the node, with that many messages of
// which none is missing.
func (n *node) keeps(topics []string, each int) {
	n.t.Helper()
	sub := fmt.Sprint("check-", time.Now().UnixNano()) // a new one begins with the first message
	for _, topic := range topics {
		got, err := n.danubed().Consume(n.ctx, topic, sub, each+1)
		if err != nil || len(got) < each {
			n.t.Errorf("%s has %d messages of %s, %v; want %d", n.id, len(got), topic, err, each)
			continue
		}
		for i := range each {
			if want := fmt.Sprintf("%s %d", topic, i); string(got[i].Data) != want || got[i].Offset != uint64(i) {
				n.t.Errorf("message %d of %s at %s is %q at offset %d", i, topic, n.id, got[i].Data, got[i].Offset)
			}
		}
	}
}

// puts are the puts of a key after a revision.
func (s *stage) puts(key string, after int64) (found []harness.Change) {
	s.t.Helper()
	s.revisionSeen()
	for _, c := range s.history.Changes() {
		if c.Key == key && !c.Deleted && c.Revision > after {
			found = append(found, c)
		}
	}
	return found
}

// long leaves a slow test out with -short.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow")
	}
	t.Parallel()
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in\n%s", part, text)
		}
	}
}

// awaitSuccessor waits until the broker's next process is adopted, under its own number.
func (n *node) awaitSuccessor(former string, after int64) harness.Change {
	n.t.Helper()
	c := n.awaitRegistered(after)
	if c.Key == n.keys.Registration(former) {
		n.t.Fatalf(harness.Violation+"%s was registered again under the number of a process that has gone", n.id)
	}
	return c
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

// raftNode is a broker of release 0.8 whose topics a client creates. Its sidecar registers it in
// the etcd that Holdfast has for itself.
type raftNode struct {
	danubeBroker
}

// Assign is a client that creates the topics; the brokers' leader chooses.
func (b raftNode) Assign(ctx context.Context, _ string, topics ...string) error {
	for _, topic := range topics {
		_, err := b.Topics.CreateTopic(ctx, &danubepb.NewTopicRequest{Name: topic, DispatchStrategy: danubepb.DispatchStrategy_Reliable})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b raftNode) Driver() []string {
	return append(b.danubeBroker.Driver(), "--registration", "own")
}

// newRaftStage is a stage whose brokers are of that release. Their own registrations outlive those of
// Holdfast, so one that comes back late has its topics.
func newRaftStage(t *testing.T) *stage {
	t.Helper()
	long(t)
	s := newStage(t)
	m, err := s.StartEtcd(s.ctx, harness.EtcdOptions{Name: "metadata"}) // of the brokers alone
	s.must(err)
	s.kind = kind{name: "danube with Raft", prepare: func(s *stage, o brokerOptions) (broker, error) {
		d, err := s.NewDanube(harness.DanubeOptions{Name: o.ID, Etcd: m.Endpoint(), Raft: true, TTL: 30 * time.Second, Objects: filepath.Join(s.Dir, "objects"),
			Args: []string{"--report", "200ms"}}) // the leader gives a topic only to who reported since it started
		return raftNode{danubeBroker{d, filepath.Join(s.Dir, o.ID+".pid")}}, err
	}}
	return s
}

// alone makes a node and creates its topics while there is no other that could have them.
func (s *stage) alone(id string, o nodeOptions) *node {
	s.t.Helper()
	// Nothing in etcd tells when the brokers' cluster gives one a topic.
	o.Flags = append(o.Flags, "--audit-interval", "1s")
	n := s.prepare(id, o)
	n.start()
	n.awaitReady()
	n.equip()
	return n
}

// bare makes a node without topics.
func (s *stage) bare(id string) *node {
	s.t.Helper()
	return s.alone(id, nodeOptions{Topics: []string{}})
}

// statusOf is the mode of a broker as another one lists it.
func (n *node) statusOf(other *node) string {
	n.t.Helper()
	id, err := other.danubed().ID(n.ctx)
	n.must(err)
	list, err := n.danubed().Brokers.ListBrokers(n.ctx, &danubepb.Empty{})
	n.must(err)
	for _, b := range list.Brokers {
		if b.BrokerId == id {
			return b.BrokerStatus
		}
	}
	return "unknown"
}

// awaitStatusOf waits until the node lists the other in that mode.
func (n *node) awaitStatusOf(other *node, mode string) {
	n.t.Helper()
	n.must(harness.Await(n.ctx, bound, other.id+" to be listed as "+mode, func(context.Context) (bool, string) {
		now := n.statusOf(other)
		return now == mode, now
	}))
}

// awaitLoaded waits until the node's broker serves the topics.
func (n *node) awaitLoaded(topics ...string) {
	n.t.Helper()
	n.must(harness.Await(n.ctx, bound, fmt.Sprint(n.id, " to serve ", topics), func(ctx context.Context) (bool, string) {
		st, err := n.danubed().Status(ctx)
		for _, topic := range topics {
			if !slices.Contains(st.Loaded, topic) {
				return false, fmt.Sprint(st.Loaded, err)
			}
		}
		return true, ""
	}))
}

// A broker that comes back late calls itself active, and its cluster takes its word: its sidecar has it
// drained there. What an operator says is handed over, too.
func TestDanubeRaftIsDrainedThoughTheBrokerCallsItselfActive(t *testing.T) {
	s := newRaftStage(t)
	n := s.alone("n1", nodeOptions{})
	n.produces(3)
	peer := s.bare("n2")
	peer.awaitStatusOf(n, "active")
	from := s.revision()
	s.must(n.broker.Kill())
	unready := n.awaitNotReady()
	n.awaitExpiry(from)
	s.must(n.broker.Start(s.ctx)) // and serves, as it believes
	again, err := s.history.Await(s.ctx, bound, "the registration", from+1, harness.PutKey(s.keys.Registration(n.id)))
	s.must(err)
	n.withState(again, "drained", "stale_restart")
	peer.awaitStatusOf(n, "drained")
	n.await("drained", func(st harness.Status) bool {
		return st.Mode == "drained" && st.Reason == "stale_restart" && st.Attachment == "attached" && st.Topics.Served == 0
	})
	n.awaitEvent(unready, "steer", "drained")
	peer.awaitLoaded(n.topics...)
	peer.keeps(n.topics, 3)
	n.neverReady(unready)
	n.onlyDrained(from)
	peer.alwaysReady(unready)
	n.activate()
	if got := peer.statusOf(n); got != "active" {
		t.Errorf("the broker is %s when it is ready", got)
	}

	t.Log("by an operator, and over a restart")
	contains(t, n.verb("drain", "--reason", "new disks"), "mode drained (new disks)")
	if got := peer.statusOf(n); got != "drained" {
		t.Errorf("the broker is %s when drain returns", got)
	}
	unready = n.awaitNotReady()
	s.must(n.broker.Kill())
	s.must(n.broker.Start(s.ctx))
	n.awaitEvent(unready, "steer", "drained")
	peer.awaitStatusOf(n, "drained")
	n.neverReady(unready)
}
