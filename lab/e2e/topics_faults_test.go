package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

// What may be wrong with topics, or with what etcd says of them.

// served returns how many of the topics take a message now.
func (c *couple) served(topics []string) (n int) {
	c.s.Helper()
	nc, err := c.nats.Connect()
	c.s.ok(err)
	defer nc.Close()
	for _, topic := range topics {
		ctx, cancel := context.WithTimeout(c.s.ctx, 5*time.Second)
		if _, err := harness.Publish(ctx, nc, topic, []byte("x")); err == nil {
			n++
		}
		cancel()
	}
	return n
}

func TestAMassDeletionOfAssignmentsWaitsForAWord(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	all := topics(30)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", all...))
	c := s.couple("n1", steady...)
	ready, reg := c.readyNow(), c.registration()
	tripped := func(yes bool) {
		t.Helper()
		s.ok(harness.Await(s.ctx, bound, fmt.Sprintf("the guard to have tripped: %v", yes), func(ctx context.Context) (bool, string) {
			events, err := c.Events(ctx)
			if err != nil {
				return false, err.Error()
			}
			is := false
			for _, e := range events {
				if e.Kind == "topics" && (e.To == "guard_tripped" || e.To == "guard_cleared") {
					is = e.To == "guard_tripped"
				}
			}
			return is == yes, fmt.Sprintf("%+v", events)
		}))
	}
	deleteAll := func() {
		t.Helper()
		_, err := s.etcd.Client().Delete(s.ctx, s.keys.Assignment("n1", "/default/"), clientv3.WithPrefix())
		s.ok(err)
		tripped(true)
	}
	deleteAll()
	s.pause(time.Second)
	if n := c.served(all); n != len(all) {
		t.Errorf("%d of %d topics are served before anybody said a word", n, len(all))
	}
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", all...))
	tripped(false)
	if n := c.served(all); n != len(all) {
		t.Errorf("%d of %d topics are served after the assignments came back", n, len(all))
	}
	deleteAll()
	c.says("confirm")
	s.ok(harness.Await(s.ctx, bound, "every topic to be quiesced", func(context.Context) (bool, string) {
		n := c.served(all)
		return n == 0, fmt.Sprint(n)
	}))
	c.alwaysReady(ready)
	if after := c.registration(); after != reg {
		t.Errorf("registration %+v, want %+v", after, reg)
	}
	c.stayedLive()
}

func TestATopicThatCannotBeLoadedHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	all := topics(300)
	bad, good := all[100], append(append([]string{}, all[:100]...), all[101:]...)
	n := s.broker("n1")
	// Somebody else's stream has the subject.
	nc, err := n.Connect()
	s.ok(err)
	defer nc.Close()
	js, err := nc.JetStream()
	s.ok(err)
	_, err = js.AddStream(&nats.StreamConfig{Name: "theirs", Subjects: []string{harness.Subject(bad)}})
	s.ok(err)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", all...))
	c := s.beside(n, append([]string{"--load-timeout", "2s"}, steady...)...)
	c.run()
	c.await("all but one", func(st harness.Status) bool {
		return st.Topics.Served == len(good) && st.Topics.Missing == 1
	})
	s.ok(c.AwaitReady(s.ctx, bound)) // after the load timeout, with an alert
	if got := c.served(good); got != len(good) {
		t.Errorf("%d of %d topics are served", got, len(good))
	}
	states, err := c.Topics(s.ctx)
	s.ok(err)
	for _, topic := range states {
		if (topic.Error != "") != (topic.Topic == bad) {
			t.Errorf("%+v", topic)
		}
		if topic.Topic == bad && !strings.Contains(topic.Error, "overlap") {
			t.Errorf("the reason is %q, want the overlap of subjects", topic.Error)
		}
	}
	if info, err := js.StreamInfo("theirs"); err != nil || len(info.Config.Subjects) != 1 {
		t.Errorf("the stream of somebody else was touched: %+v %v", info, err)
	}
	s.ok(js.DeleteStream("theirs"))
	c.await("the last one", func(st harness.Status) bool { return st.Topics.Served == len(all) && st.Topics.Missing == 0 })
	if got := c.served([]string{bad}); got != 1 {
		t.Error("the last one is not served")
	}
	c.stayedLive()
}

// A stream whose folder is gone comes back empty, and its consumers do not: that must be said.
func TestAStreamThatTheBrokerHasLostIsToldWhenItIsMadeAnew(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	for _, topic := range []string{"/default/kept", "/default/lost"} {
		s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", topic))
	}
	c := s.couple("n1")
	c.await("both topics", func(st harness.Status) bool { return st.Topics.Served == 2 })
	const anew = "holdfast_topics_made_anew_total"
	if n := c.metric(anew); n != 0 {
		t.Errorf("%v topics made anew at the first start", n)
	}
	folders, err := filepath.Glob(filepath.Join(c.nats.StoreDir, "jetstream", "$G", "streams", "*lost*"))
	s.ok(err)
	if len(folders) != 1 {
		t.Fatalf("folders of the stream: %v", folders)
	}
	s.ok(c.nats.Kill())
	s.ok(os.RemoveAll(folders[0]))
	s.ok(c.nats.Start(s.ctx))
	c.awaitMetric(anew, 1, bound)
	c.told(1, "topics", "made_anew")
	events, err := c.Events(s.ctx)
	s.ok(err)
	for _, e := range events {
		if e.To == "made_anew" && (!strings.Contains(e.Detail, "/default/lost") || strings.Contains(e.Detail, "/default/kept")) {
			t.Errorf("told of %s", e.Detail)
		}
	}

	// The next sidecar remembers what was served.
	c.stayedLive()
	s.ok(c.Kill())
	conn, err := c.nats.Connect()
	s.ok(err)
	defer conn.Close()
	js, err := conn.JetStream()
	s.ok(err)
	s.ok(js.DeleteStream(streamOf("/default/kept")))
	c.run()
	c.awaitMetric(anew, 1, bound)
	c.await("both topics", func(st harness.Status) bool { return st.Topics.Served == 2 })
	c.stayedLive()
}
