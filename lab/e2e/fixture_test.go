package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"holdfast/lab/harness"
)

const (
	// ttl is the lease of the tests that do not name another. Its fence point is
	// 2/3 of it after the last renewal, and a cut of 1.4 s detaches nobody.
	ttl           = 5 * time.Second
	recoverWindow = 300 * time.Millisecond
	// bound is for what should take about a second. It is never a claim.
	bound = harness.Patience
)

// stage is one etcd, its history and the brokers beside it, all of one kind.
type stage struct {
	*harness.Lab
	kind    kind
	t       *testing.T
	ctx     context.Context
	etcd    *harness.Etcd
	keys    harness.Keys
	history *harness.History // of every key
	flags   []string         // of each sidecar, for this etcd
}

// node is one broker with its sidecar, and what watches them.
type node struct {
	*stage
	id      string
	topics  []string
	ttl     time.Duration
	link    harness.Link // nil: the path to etcd cannot be cut
	broker  broker
	nats    *harness.NATS // the broker, if it is one
	sidecar *harness.Sidecar
	probes  *harness.Recorder
}

// nodeOptions says how a node is made. The zero value is fine.
type nodeOptions struct {
	TTL      time.Duration // default ttl
	Cuttable bool          // with a link to etcd of its own
	Topics   []string      // assigned before the start; default /default/{id}-a and -b
	Flags    []string      // of the sidecar
	Conf     string        // added to the broker's configuration
	Etcd     string        // URL for the sidecar, if not etcd's own or the link's
	Binary   string        // of the sidecar, if not the one that the lab builds
}

// newStage is for the tests that are played with NATS alone.
func newStage(t *testing.T) *stage {
	t.Helper()
	return newStageOf(t, natsKind)
}

func newStageOf(t *testing.T, k kind) *stage {
	t.Helper()
	s := &stage{Lab: harness.ForTest(t), kind: k, t: t, ctx: t.Context()}
	var err error
	s.etcd, err = s.StartEtcd(s.ctx, harness.EtcdOptions{})
	s.must(err)
	s.watch()
	return s
}

// newSharedStage is for tests that do nothing to etcd but read and write keys, with
// brokers that write none.
func newSharedStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{Lab: harness.ForTest(t), kind: natsKind, t: t, ctx: t.Context()}
	var err error
	s.etcd, s.flags, err = shareEtcd(s.Lab)
	s.must(err)
	s.watch()
	return s
}

// newQuietStageOf is for scenarios that do nothing to etcd but read and write keys. It is
// shared by the brokers that write none.
func newQuietStageOf(t *testing.T, k kind) *stage {
	t.Helper()
	if k.name == natsKind.name {
		return newSharedStage(t)
	}
	return newStageOf(t, k)
}

// watch starts the history, anew if there is one.
func (s *stage) watch() {
	s.t.Helper()
	var err error
	s.history, err = s.Watch(s.ctx, s.etcd, "/")
	s.must(err)
}

// must ends the test on an error.
func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// should notes an error and goes on.
func (s *stage) should(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Error(err)
	}
}

// prepare makes a node of which nothing runs yet.
func (s *stage) prepare(id string, o nodeOptions) *node {
	s.t.Helper()
	if o.TTL == 0 {
		o.TTL = ttl
	}
	if o.Topics == nil {
		o.Topics = []string{"/default/" + id + "-a", "/default/" + id + "-b"}
	}
	n := &node{stage: s, id: id, topics: o.Topics, ttl: o.TTL}
	endpoint, place := s.etcd.Endpoint(), harness.Place{}
	var err error
	if o.Cuttable {
		n.link, err = harness.NewLink(s.Lab, s.etcd)
		s.must(err)
		endpoint, place = n.link.Endpoint(), n.link.Place()
	}
	n.broker, err = s.kind.prepare(s, brokerOptions{ID: id, Place: place, Etcd: endpoint, TTL: o.TTL, Conf: o.Conf})
	s.must(err)
	if b, ok := n.broker.(natsBroker); ok {
		n.nats = b.NATS
	}
	s.t.Cleanup(func() { s.noDisaster(n) })
	if _, late := n.broker.(assigner); !late {
		n.assign(o.Topics...)
	}
	if o.Etcd != "" {
		endpoint = o.Etcd
	}
	n.sidecar, err = s.NewSidecar(harness.SidecarOptions{
		Name: id + "-sidecar", Place: place, Endpoints: []string{endpoint}, Binary: o.Binary,
		Flags: slices.Concat(n.broker.Driver(), []string{
			"--lease-ttl", o.TTL.String(),
			"--detachment-recover-window", recoverWindow.String(),
			"--health-interval", "200ms",
		}, s.flags, o.Flags),
	})
	s.must(err)
	return n
}

// noDisaster checks that nothing happened to the broker that must never happen to one.
func (s *stage) noDisaster(n *node) {
	all, err := n.broker.Disasters()
	s.should(err)
	for _, d := range all {
		s.t.Errorf(harness.Violation+"%s: %s", n.id, d)
	}
}

// add makes a node, starts it and waits until it is ready.
func (s *stage) add(id string, o nodeOptions) *node {
	s.t.Helper()
	n := s.prepare(id, o)
	n.start()
	n.awaitReady()
	n.equip()
	return n
}

// peer adds a node that lives on while others have their troubles. It comes first:
// beside a broker that registers itself, a sidecar knows for sure only of peers that are
// older than its last note, so with one that just came it takes a restart for everybody's.
func (s *stage) peer(id string) *node { s.t.Helper(); return s.add(id, nodeOptions{}) }

// assign has the broker serve the topics too, in the way of its cluster.
func (n *node) assign(topics ...string) {
	n.t.Helper()
	for _, topic := range topics {
		if !slices.Contains(n.topics, topic) {
			n.topics = append(n.topics, topic)
		}
	}
	if b, ok := n.broker.(assigner); ok {
		n.must(b.Assign(n.ctx, n.name(), topics...))
		return
	}
	n.must(n.keys.Assign(n.ctx, n.etcd.Client(), n.id, topics...))
}

// equip returns when a broker that was just made ready for the first time serves its
// topics.
func (n *node) equip() {
	n.t.Helper()
	if _, late := n.broker.(assigner); late {
		n.assign(n.topics...)
	}
	n.await("its topics", func(st harness.Status) bool { return st.Topics.Served >= len(n.topics) })
	n.awaitRecognized()
}

// awaitRecognized returns when the sidecar has renewed beside a guarded process of the broker.
// One that ends before it was recognized, and its sidecar with it, cannot be proven to have
// ended, so the fence would look for it, and find the next. A child of the sidecar is known as such.
func (n *node) awaitRecognized() {
	n.t.Helper()
	if _, child := n.broker.(danubeChild); child || n.kind.stops == "" {
		return
	}
	n.must(n.sidecar.AwaitGuarded(n.ctx, bound))
	n.renews()
}

// isGivenTopics returns when a broker that was activated serves again.
func (n *node) isGivenTopics(publishers *traffic, activated time.Time) {
	n.t.Helper()
	if n.kind.moves == "" {
		publishers.await(served, activated)
		return
	}
	n.t.Log(n.kind.moves)
	n.topics = []string{"/default/" + n.id + "-again"}
	n.equip() // or it serves another one, which it was given meanwhile
	n.publishAlways().await(served, activated)
}

// start starts the sidecar and then the broker, as a native sidecar container is,
// and waits for neither.
func (n *node) start() {
	n.t.Helper()
	since, former := time.Now(), n.sidecar.Guard()
	n.must(n.sidecar.Start())
	if former != 0 { // it would stop the broker until it is taken over, or lets go
		n.must(harness.Await(n.ctx, bound, "what becomes of the guard of before", func(ctx context.Context) (bool, string) {
			events, err := n.sidecar.Events(ctx)
			return n.sidecar.Guard() != former || slices.ContainsFunc(events, func(e harness.Event) bool {
				return e.Kind == "guard" && e.At.After(since)
			}), fmt.Sprint(events, err)
		}))
	}
	n.must(n.broker.Launch())
	if n.probes == nil {
		n.probes = n.Record(n.sidecar)
	}
}

// kill kills broker and sidecar with SIGKILL.
func (n *node) kill() {
	n.t.Helper()
	n.must(errors.Join(n.sidecar.Kill(), n.broker.Kill()))
}

// awaitReady returns when the broker is ready, and the recorder knows.
func (n *node) awaitReady() {
	n.t.Helper()
	n.must(n.sidecar.AwaitReady(n.ctx, bound))
	n.recorded("ready", func(s harness.ProbeSample) bool { return s.Ready == http.StatusOK })
}

// awaitNotReady returns a moment from which on it is known not to be ready.
func (n *node) awaitNotReady() time.Time {
	n.t.Helper()
	n.must(n.sidecar.AwaitNotReady(n.ctx, n.ttl+bound))
	n.recorded("not ready", func(s harness.ProbeSample) bool { return s.Ready != http.StatusOK })
	return time.Now()
}

// recorded waits until the last answers of the probes are such.
func (n *node) recorded(what string, ok func(harness.ProbeSample) bool) {
	n.t.Helper()
	n.must(harness.Await(n.ctx, bound, n.id+" to be recorded as "+what, func(context.Context) (bool, string) {
		runs := n.probes.Timeline()
		return len(runs) > 0 && ok(runs[len(runs)-1]), n.probes.String()
	}))
}

func (n *node) await(what string, ok func(harness.Status) bool) harness.Status {
	n.t.Helper()
	st, err := n.sidecar.Await(n.ctx, n.ttl+bound, what, ok)
	n.must(err)
	return st
}

// activate is the operator's word; it returns when the broker is ready.
func (n *node) activate() {
	n.t.Helper()
	n.must(n.sidecar.Activate(n.ctx, "e2e"))
	n.awaitReady()
}

// publishes checks that each topic takes a message now.
func (n *node) publishes() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.ctx, bound)
	defer cancel()
	c, err := n.broker.Connect()
	n.must(err)
	defer c.Close()
	for _, topic := range n.topics {
		n.must(c.Publish(ctx, topic))
	}
}

// cutFor keeps the node from etcd for a time that the scenario names.
func (n *node) cutFor(d time.Duration) (cut, healed time.Time) {
	n.t.Helper()
	cut = time.Now()
	n.must(n.link.Cut())
	select {
	case <-time.After(time.Until(cut.Add(d))):
	case <-n.ctx.Done():
	}
	healed = time.Now()
	n.must(n.link.Heal())
	return cut, healed
}

// loseStateDir empties the sidecar's state directory.
func (n *node) loseStateDir() {
	n.t.Helper()
	entries, err := os.ReadDir(n.sidecar.StateDir)
	n.must(err)
	for _, e := range entries {
		n.must(os.RemoveAll(filepath.Join(n.sidecar.StateDir, e.Name())))
	}
}
