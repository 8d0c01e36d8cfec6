package clustertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
	"holdfast/lab/harness"
)

// mirror is what a follower knows, kept from updates alone.
type mirror struct {
	mu      sync.Mutex
	moved   *sync.Cond
	content map[string]string
	fulls   int
	empties int // full updates without content
	parts   int // updates that are not the end of a list
	errs    []error
	atFull  func(n int) // called within the nth full update
	stop    func()
}

// follow keeps a mirror until the test ends.
func follow(t *testing.T, c *cluster.Client, target cluster.Target, atFull func(n int)) *mirror {
	t.Helper()
	m := &mirror{content: map[string]string{}, atFull: atFull}
	m.moved = sync.NewCond(&m.mu)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Follow(ctx, target, m.take, m.fail) }()
	m.stop = sync.OnceFunc(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("follow ended with %v, want the context's error", err)
		}
	})
	t.Cleanup(m.stop)
	return m
}

func (m *mirror) take(u cluster.Update) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u.Full {
		m.fulls++
		m.content = map[string]string{}
		if len(u.Puts) == 0 {
			m.empties++
		}
	}
	if u.More {
		m.parts++
	}
	for _, kv := range u.Puts {
		m.content[kv.Key] = string(kv.Value)
		if kv.ModRevision > u.Revision || kv.CreateRevision > kv.ModRevision {
			m.errs = append(m.errs, fmt.Errorf("%+v in an update of revision %d", kv, u.Revision))
		}
	}
	for _, key := range u.Deletes {
		delete(m.content, key)
	}
	if u.Full && m.atFull != nil {
		m.atFull(m.fulls)
	}
	m.moved.Broadcast()
}

func (m *mirror) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.errs = append(m.errs, err)
	m.moved.Broadcast()
}

// until waits for a state of the mirror.
func (m *mirror) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	late := false
	alarm := time.AfterFunc(wait, func() {
		m.mu.Lock()
		late = true
		m.moved.Broadcast()
		m.mu.Unlock()
	})
	defer alarm.Stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	for !holds() {
		if late {
			t.Fatalf("never came: %s; content %v, %d fulls, errors %v", what, m.content, m.fulls, m.errs)
		}
		m.moved.Wait()
	}
}

func (m *mirror) untilContent(t *testing.T, want map[string]string) {
	t.Helper()
	m.until(t, fmt.Sprint(want), func() bool { return maps.Equal(m.content, want) })
}

func TestFollowTellsTheContentThenTheChanges(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		at := prefix(t) + "/dir/"
		e.put(t, at+"a", "1")
		e.put(t, prefix(t)+"/dirt", "no") // beside the prefix
		whole := follow(t, c, cluster.Target{Key: at, Prefix: true}, nil)
		single := follow(t, c, cluster.Target{Key: at + "b"}, nil)
		whole.untilContent(t, map[string]string{at + "a": "1"})
		single.until(t, "a full update of an absent key", func() bool { return single.fulls == 1 && len(single.content) == 0 })
		e.put(t, at+"b", "2")
		whole.untilContent(t, map[string]string{at + "a": "1", at + "b": "2"})
		single.untilContent(t, map[string]string{at + "b": "2"})
		e.remove(t, at+"b")
		e.put(t, at+"a", "3")
		whole.untilContent(t, map[string]string{at + "a": "3"})
		single.untilContent(t, map[string]string{})
		if whole.fulls != 1 || len(whole.errs) > 0 {
			t.Errorf("%d full updates and errors %v, want one and none", whole.fulls, whole.errs)
		}
	})
}

func TestFollowListsInPagesAtOneRevision(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		topics := topicNames(2500)
		e.assign(t, c, "b1", topics)
		target := cluster.Target{Key: c.Keys().Assignments("b1"), Prefix: true, KeysOnly: true}
		m := follow(t, c, target, nil)
		m.until(t, "2500 keys", func() bool { return len(m.content) == len(topics) })
		if m.fulls != 1 || m.parts != 0 || len(m.errs) > 0 {
			t.Errorf("%d full updates, %d parts and errors %v, want one and none", m.fulls, m.parts, m.errs)
		}
		target.InParts = true
		m = follow(t, c, target, nil)
		m.until(t, "2500 keys in three parts", func() bool { return len(m.content) == len(topics) })
		if m.fulls != 1 || m.parts != 2 || len(m.errs) > 0 {
			t.Errorf("%d full updates, %d parts before the last and errors %v, want one, two and none", m.fulls, m.parts, m.errs)
		}
	})
}

func TestAListInPartsThatFailsBeginsAnew(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		topics := topicNames(1500)
		e.assign(t, c, "b1", topics)
		first := c.Keys().Assignment("b1", topics[0])
		m := follow(t, c, cluster.Target{Key: c.Keys().Assignments("b1"), Prefix: true, KeysOnly: true, InParts: true}, func(n int) {
			if n > 1 {
				return
			}
			e.remove(t, first) // it is in the part that was told
			last := must[*clientv3.PutResponse](t)(e.raw.Put(bounded(t), prefix(t)+"/another", "1"))
			if _, err := e.raw.Compact(bounded(t), last.Header.Revision); err != nil {
				t.Error(err)
			}
		})
		m.until(t, "1499 keys", func() bool { return m.fulls == 2 && len(m.content) == len(topics)-1 })
		if _, there := m.content[first]; there || len(m.errs) != 1 || !contains(m.errs[0], "compacted") {
			t.Errorf("the one that was removed is there: %v; errors %v, want the compaction", there, m.errs)
		}
	})
}

func TestFollowSurvivesCompaction(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		at := prefix(t) + "/"
		e.put(t, at+"a", "1")
		e.put(t, at+"b", "1")
		// Between the list and the watch: what happened is forgotten before it can be told.
		m := follow(t, c, cluster.Target{Key: at, Prefix: true}, func(n int) {
			if n > 1 {
				return
			}
			e.remove(t, at+"a")
			e.put(t, at+"c", "1")
			last := must[*clientv3.PutResponse](t)(e.raw.Put(bounded(t), at+"c", "2"))
			if _, err := e.raw.Compact(bounded(t), last.Header.Revision); err != nil {
				t.Error(err)
			}
		})
		m.untilContent(t, map[string]string{at + "b": "1", at + "c": "2"})
		if m.fulls != 2 || m.empties != 0 || len(m.errs) != 1 || !contains(m.errs[0], "compacted") {
			t.Errorf("%d full updates, %d empty, errors %v; want two, none and the compaction", m.fulls, m.empties, m.errs)
		}
		e.put(t, at+"d", "1")
		m.untilContent(t, map[string]string{at + "b": "1", at + "c": "2", at + "d": "1"})
	})
}

func TestFollowSurvivesARestartOfEtcd(t *testing.T) {
	cfg, stop := ownEtcd(t, nil)
	target := cfg.AdvertiseClientUrls[0].Host
	p := newProxy(t, target)
	c := open(t, cluster.Config{Endpoints: []string{p.url()}})
	l := openLine(t, cluster.Config{Endpoints: []string{p.url()}})
	id := lease(t, c, time.Minute)
	if _, err := l.KeepAlive(bounded(t), id, false); err != nil {
		t.Fatal(err)
	}
	one := must[string](t)(note(bounded(t), c, "b1"))
	m := follow(t, c, cluster.Target{Key: c.Keys().Brokers(), Prefix: true}, nil)
	m.untilContent(t, map[string]string{c.Keys().State("b1"): one})
	reconnected := make(chan error, 1)
	go func() {
		reconnected <- l.AwaitReconnect(bounded(t))
	}()

	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	untilRefused(t, target) // etcd waits seconds for its streams to end: end them
	p.cut()
	<-stopped
	if _, err := c.Assignments(bounded(t), "b1"); cluster.Classify(err) != cluster.ClassUnreachable {
		t.Errorf("reading a stopped etcd: %v of class %q, want unreachable", err, cluster.Classify(err))
	}
	if _, err := c.Snapshot(bounded(t), "b1"); err == nil {
		t.Error("a snapshot of a stopped etcd is no error")
	}
	if _, err := l.KeepAlive(bounded(t), id, false); cluster.Classify(err) != cluster.ClassUnreachable {
		t.Errorf("renewing at a stopped etcd: %v of class %q, want unreachable", err, cluster.Classify(err))
	}
	server, err := start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	if err := <-reconnected; err != nil {
		t.Errorf("the line did not come back by itself: %v", err)
	}
	// The connection that came up may be the last one of the etcd that stopped.
	err = harness.Await(t.Context(), wait, "a renewal after the reconnection", func(context.Context) (bool, string) {
		_, err := l.KeepAlive(bounded(t), id, false)
		return err == nil, fmt.Sprint(err)
	})
	if err != nil {
		t.Error(err)
	}
	// A write goes out once, and may meet the last connection of the etcd that stopped.
	other := ""
	err = harness.Await(t.Context(), wait, "a write after the restart", func(context.Context) (bool, string) {
		var err error
		other, err = note(bounded(t), c, "b2")
		return err == nil, fmt.Sprint(err)
	})
	if err != nil {
		t.Fatal(err)
	}
	m.untilContent(t, map[string]string{c.Keys().State("b1"): one, c.Keys().State("b2"): other})
	m.stop()
	c.Close()
	l.Close()
	if m.empties != 0 {
		t.Errorf("%d empty full updates", m.empties)
	}
}

// untilRefused waits until nobody listens any more.
func untilRefused(t *testing.T, addr string) {
	t.Helper()
	for ctx := bounded(t); ; {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		conn.Close()
		if ctx.Err() != nil {
			t.Fatalf("%s still listens", addr)
		}
	}
}

func TestTopicsInBatches(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		topics := topicNames(300)
		e.assign(t, c, "b1", topics)
		e.assign(t, c, "b10", topics[:1])                   // shares the text of the id
		e.put(t, c.Keys().State("b1"), `{"mode":"active"}`) // lies among them
		e.assign(t, c, "b1", []string{"/ns/state"})
		got := must[[]string](t)(c.Assignments(bounded(t), "b1"))
		if want := append([]string{"/ns/state"}, topics...); !slices.Equal(got, want) {
			t.Errorf("%d assignments, want %d: %v", len(got), len(want), got[:min(3, len(got))])
		}
		for _, topic := range topics[50:280] {
			e.put(t, c.Keys().TopicRecord(topic), "record of "+topic)
		}
		records := must[map[string][]byte](t)(c.Records(bounded(t), topics))
		if len(records) != 230 || string(records[topics[279]]) != "record of "+topics[279] || records[topics[0]] != nil {
			t.Errorf("%d records, the last %q", len(records), records[topics[279]])
		}
	})
}

func TestFleetShowsEveryTrace(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		if fleet := must[[]cluster.FleetBroker](t)(c.Fleet(bounded(t))); len(fleet) != 0 {
			t.Fatalf("an empty cluster has %+v", fleet)
		}
		req := request(t, c, "b1")
		req.Value = []byte(`{"broker_url":"nats://b1","incarnation":"i","more":1}`)
		req.State = &cluster.State{Mode: cluster.ModeActive, Reason: "boot", At: at}
		done := must[cluster.Registered](t)(c.Register(bounded(t), req))
		e.assign(t, c, "b1", topicNames(120))
		e.put(t, c.Keys().State("b2"), "asleep")
		e.assign(t, c, "b2", topicNames(1))
		e.assign(t, c, "b3", topicNames(1))
		e.put(t, c.Keys().Member("b3"), `{"era":1,"revision":2}`)
		e.put(t, c.Keys().Registration("b4"), "not json")
		fleet := must[[]cluster.FleetBroker](t)(c.Fleet(bounded(t)))
		if len(fleet) != 4 {
			t.Fatalf("got %+v", fleet)
		}
		b1, b2, b3, b4 := fleet[0], fleet[1], fleet[2], fleet[3]
		if !b1.Registered || b1.Epoch != done.Revision || b1.BrokerURL != "nats://b1" || b1.Mode != "active" || b1.Reason != "boot" || b1.Since == nil || b1.Topics != 120 {
			t.Errorf("b1 is %+v", b1)
		}
		if b2.Registered || b2.Mode != "" || b2.StateMalformed != "asleep" {
			t.Errorf("b2 is %+v", b2)
		}
		if !slices.Equal(b1.Shared, topicNames(1)) || !slices.Equal(b2.Shared, topicNames(1)) || !slices.Equal(b3.Shared, topicNames(1)) {
			t.Errorf("shared are %v, %v and %v", b1.Shared, b2.Shared, b3.Shared)
		}
		if b3.MemberMalformed != "" || b3.Registered {
			t.Errorf("b3 is %+v", b3)
		}
		if !b4.Registered || b4.BrokerURL != "" {
			t.Errorf("b4 is %+v", b4)
		}
	})
}
