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

	"holdfast/lab/harness"
)

// What is played here with a Danube broker alone. That nothing happened to a broker which
// must never happen to one, in none of its lives, is checked at the end of each.

func newDanubed(s *stage, o brokerOptions, change func(*harness.DanubeOptions)) (*harness.Danube, error) {
	options := harness.DanubeOptions{Name: o.ID, Place: o.Place, Etcd: o.Etcd, TTL: o.TTL, Objects: filepath.Join(s.Dir, "objects")}
	if change != nil {
		change(&options)
	}
	return s.NewDanube(options)
}

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
		d, err := newDanubed(s, o, nil)
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

// endsInTime checks that the process ended before its registration was gone.
func (n *node) endsInTime(ended <-chan time.Time, name string, after int64) (gone harness.Change) {
	n.t.Helper()
	gone, err := n.history.Await(n.ctx, n.ttl+bound, "the end of the registration of "+n.id, after+1, harness.DeletedKey(n.keys.Registration(name)))
	n.must(err)
	select {
	case at := <-ended:
		n.t.Logf("ended %v before the registration was gone", gone.At.Sub(at).Round(time.Millisecond))
		inOrder(n.t, "the broker ended", at, "its registration was gone", gone.At)
	default:
		n.t.Error(harness.Violation + "the broker runs, and its registration is gone")
	}
	return gone
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

// says runs a verb against the node's sidecar, which must succeed.
func (n *node) says(verb string, args ...string) string {
	n.t.Helper()
	res, err := n.sidecar.Verb(n.ctx, verb, args...)
	n.must(err)
	if res.Exit != 0 {
		n.t.Fatalf("%s: exit code %d: %s", verb, res.Exit, res.Stderr)
	}
	return res.Stdout
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
