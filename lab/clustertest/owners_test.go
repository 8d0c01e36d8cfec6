package clustertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
)

// claimant registers a broker and returns it as a taker of locks.
func claimant(t *testing.T, c *cluster.Client, id string) cluster.Claimant {
	t.Helper()
	req := request(t, c, id)
	done := must[cluster.Registered](t)(c.Register(bounded(t), req))
	return cluster.Claimant{BrokerID: id, Incarnation: req.Incarnation, Epoch: done.Revision, LeaseID: req.LeaseID}
}

func take(topics ...string) []cluster.LockRequest {
	requests := make([]cluster.LockRequest, len(topics))
	for i, topic := range topics {
		requests[i] = cluster.LockRequest{Act: cluster.Take, Topic: topic}
	}
	return requests
}

func lock(t *testing.T, c *cluster.Client, who cluster.Claimant, requests ...cluster.LockRequest) []cluster.Owner {
	t.Helper()
	return must[[]cluster.Owner](t)(c.Lock(bounded(t), who, requests))
}

// again is the claimant after its broker registered anew under another lease.
func again(t *testing.T, e *server, c *cluster.Client, who cluster.Claimant) cluster.Claimant {
	t.Helper()
	e.remove(t, c.Keys().Registration(who.BrokerID))
	return claimant(t, c, who.BrokerID)
}

func TestLocksAreDecidedTopicByTopic(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		a, b := claimant(t, c, "a"), claimant(t, c, "b")
		if r := lock(t, c, b, take("/n/theirs")...); !r[0].Current(b) {
			t.Fatalf("taking a free lock: %+v", r)
		}
		e.put(t, c.Keys().Owner("/n/garbled"), "mine!")
		r := lock(t, c, a, take("/n/free", "/n/theirs", "/n/garbled", "/n/free2")...)
		if !r[0].Current(a) || !r[3].Current(a) {
			t.Errorf("free locks: %+v and %+v, want both taken", r[0], r[3])
		}
		if r[1].BrokerID != "b" || !r[1].Current(b) || r[1].Of(a) {
			t.Errorf("the other's lock: %+v", r[1])
		}
		if r[2].Malformed != "mine!" || r[2].Of(a) || r[2].Free() {
			t.Errorf("the garbled lock: %+v", r[2])
		}
		kv := e.get(t, c.Keys().Owner("/n/free")).Kvs[0]
		if want := fmt.Sprintf(`{"broker_id":"a","incarnation":"i-a","epoch":%d}`, a.Epoch); string(kv.Value) != want || kv.Lease != a.LeaseID || kv.ModRevision != r[0].ModRevision {
			t.Errorf("the lock is %s under lease %x, want %s", kv.Value, kv.Lease, want)
		}
		if r := lock(t, c, a, take("/n/free")...); !r[0].Current(a) || r[0].ModRevision != kv.ModRevision {
			t.Errorf("taken again: %+v, want it kept as it is", r[0])
		}
		owners := must[map[string]cluster.Owner](t)(c.Owners(bounded(t), []string{"/n/free", "/n/theirs", "/n/none"}))
		if !owners["/n/free"].Current(a) || !owners["/n/theirs"].Current(b) || !owners["/n/none"].Free() || len(owners) != 3 {
			t.Errorf("owners are %+v", owners)
		}
	})
}

func TestARebindLeavesNoMomentWithoutTheKey(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		old := claimant(t, c, "a")
		topics := topicNames(250)
		first := lock(t, c, old, take(topics...)...)
		now := again(t, e, c, old)
		if now.Incarnation != old.Incarnation || now.Epoch == old.Epoch || now.LeaseID == old.LeaseID {
			t.Fatalf("registered again as %+v, before %+v", now, old)
		}
		seen := lock(t, c, now, take(topics...)...)
		rebinds := make([]cluster.LockRequest, len(topics))
		for i, r := range seen {
			if !r.Of(now) || r.Current(now) || r != first[i] {
				t.Fatalf("ours under the old lease was told as %+v", r)
			}
			rebinds[i] = cluster.LockRequest{Act: cluster.Rebind, Topic: topics[i], Seen: r}
		}
		for _, r := range lock(t, c, now, rebinds...) {
			if !r.Current(now) {
				t.Fatalf("rebind: %+v", r)
			}
		}
		if err := c.Revoke(bounded(t), old.LeaseID); err != nil { // takes nothing along
			t.Fatal(err)
		}
		e.put(t, c.Keys().Owner("/z/end"), "") // the watch has seen everything when it sees this
		watch := e.raw.Watch(bounded(t), c.Keys().Owner("/"), clientv3.WithPrefix(), clientv3.WithRev(first[0].ModRevision))
		for ended := false; !ended; {
			answer, ok := <-watch
			if !ok || answer.Err() != nil {
				t.Fatalf("watch ended: %v", answer.Err())
			}
			for _, e := range answer.Events {
				if e.Type == clientv3.EventTypeDelete {
					t.Fatalf("%s was deleted", e.Kv.Key)
				}
				ended = ended || string(e.Kv.Key) == c.Keys().Owner("/z/end")
			}
		}
		for topic, o := range must[map[string]cluster.Owner](t)(c.Owners(bounded(t), topics)) {
			if !o.Current(now) {
				t.Fatalf("%s is %+v after the old lease ended", topic, o)
			}
		}
	})
}

func TestARebindIsOfWhatWasSeen(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		for _, test := range []struct {
			name   string
			change func(t *testing.T, c *cluster.Client, key string)
			owner  string
		}{
			{"a lock that was released stays gone", func(t *testing.T, c *cluster.Client, key string) { e.remove(t, key) }, ""},
			{"a lock that another took stays the other's", func(t *testing.T, c *cluster.Client, key string) {
				e.remove(t, key)
				e.put(t, key, `{"broker_id":"b","incarnation":"i-b","epoch":1}`)
			}, "b"},
			{"a lock that was released and taken anew is another one", func(t *testing.T, c *cluster.Client, key string) {
				e.remove(t, key)
				e.put(t, key, `{"broker_id":"a","incarnation":"i-a","epoch":1}`)
			}, "a"},
		} {
			t.Run(test.name, func(t *testing.T) {
				c := open(t, e.config(t))
				old := claimant(t, c, "a")
				seen := lock(t, c, old, take("/n/t")...)[0]
				now := again(t, e, c, old)
				test.change(t, c, c.Keys().Owner("/n/t"))
				for _, act := range []cluster.LockAct{cluster.Rebind, cluster.Release} {
					r := lock(t, c, now, cluster.LockRequest{Act: act, Topic: "/n/t", Seen: seen})[0]
					if r.BrokerID != test.owner || r.Current(now) {
						t.Errorf("%s: %+v, want nothing done and owner %q", act, r, test.owner)
					}
				}
			})
		}
	})
}

func TestAReleaseDeletesOwnLocksOnly(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		a, b := claimant(t, c, "a"), claimant(t, c, "b")
		seen := lock(t, c, a, take("/n/t")...)[0]
		for _, act := range []cluster.LockAct{cluster.Rebind, cluster.Release} {
			if _, err := c.Lock(bounded(t), b, []cluster.LockRequest{{Act: act, Topic: "/n/t", Seen: seen}}); !contains(err, "not broker b's") {
				t.Errorf("%s of another's lock: %v, want a refusal", act, err)
			}
			if _, err := c.Lock(bounded(t), a, []cluster.LockRequest{{Act: act, Topic: "/n/t"}}); !contains(err, "refused") {
				t.Errorf("%s of what was not seen: %v, want a refusal", act, err)
			}
		}
		if r := lock(t, c, a, cluster.LockRequest{Act: cluster.Release, Topic: "/n/t", Seen: seen})[0]; !r.Free() {
			t.Errorf("release: %+v", r)
		}
		if r := lock(t, c, b, take("/n/t")...)[0]; !r.Current(b) {
			t.Errorf("taken after the release: %+v", r)
		}
	})
}

// Identity is id and incarnation: what is advertised says nothing.
func TestBrokersThatAdvertiseTheSameAddressDoNotStealFromEachOther(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		for _, test := range []struct{ name, first, second string }{
			{"two broker ids", "a", "b"},
			{"two incarnations of one id", "a", "a"},
		} {
			t.Run(test.name, func(t *testing.T) {
				c := open(t, e.config(t))
				register := func(id, incarnation string) cluster.Claimant {
					req := request(t, c, id)
					req.Incarnation, req.Value = incarnation, []byte(`{"broker_url":"http://same:1","incarnation":"`+incarnation+`"}`)
					done := must[cluster.Registered](t)(c.Register(bounded(t), req))
					return cluster.Claimant{BrokerID: id, Incarnation: incarnation, Epoch: done.Revision, LeaseID: req.LeaseID}
				}
				first := register(test.first, "one")
				lock(t, c, first, take("/n/t")...)
				if test.first == test.second {
					e.remove(t, c.Keys().Registration(test.first))
				}
				second := register(test.second, "two")
				r := lock(t, c, second, take("/n/t")...)[0]
				if r.Of(second) || !r.Current(first) {
					t.Errorf("the second saw %+v", r)
				}
				if _, err := c.Lock(bounded(t), second, []cluster.LockRequest{{Act: cluster.Rebind, Topic: "/n/t", Seen: r}}); !contains(err, "refused") {
					t.Errorf("rebind of the first's lock: %v, want a refusal", err)
				}
			})
		}
	})
}

// That the registration must be of its epoch and under its lease, package guardtest shows.
func TestLocksNeedAWholeClaimant(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		whole := cluster.Claimant{BrokerID: "a", Incarnation: "i", Epoch: 1, LeaseID: 1}
		for name, cut := range map[string]func(*cluster.Claimant){
			"id":          func(w *cluster.Claimant) { w.BrokerID = "" },
			"incarnation": func(w *cluster.Claimant) { w.Incarnation = "" },
			"epoch":       func(w *cluster.Claimant) { w.Epoch = 0 }, // an absent registration has it
			"lease":       func(w *cluster.Claimant) { w.LeaseID = 0 },
		} {
			who := whole
			cut(&who)
			if _, err := c.Lock(bounded(t), who, take("/n/t")); err == nil || errors.Is(err, cluster.ErrChanged) {
				t.Errorf("without %s: %v, want a refusal", name, err)
			}
		}
	})
}

func TestTenThousandLocksInBatches(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		a, b := claimant(t, c, "a"), claimant(t, c, "b")
		topics := topicNames(10_000)
		var theirs []string
		for i := 0; i < len(topics); i += 97 {
			theirs = append(theirs, topics[i])
		}
		lock(t, c, b, take(theirs...)...)
		results := lock(t, c, a, take(topics...)...)
		if len(results) != len(topics) {
			t.Fatalf("%d results", len(results))
		}
		for i, r := range results {
			if r.Current(a) == slices.Contains(theirs, topics[i]) || r.Topic != topics[i] {
				t.Fatalf("%s: %+v", topics[i], r)
			}
		}
		mine := must[[]string](t)(c.OwnedTopics(bounded(t), a.LeaseID))
		if len(mine) != len(topics)-len(theirs) || !slices.IsSorted(mine) {
			t.Errorf("%d topics under the lease, want %d in order", len(mine), len(topics)-len(theirs))
		}
		releases := make([]cluster.LockRequest, 0, len(mine))
		for _, r := range results {
			if r.Current(a) {
				releases = append(releases, cluster.LockRequest{Act: cluster.Release, Topic: r.Topic, Seen: r})
			}
		}
		for _, r := range lock(t, c, a, releases...) {
			if !r.Free() {
				t.Fatalf("release: %+v", r)
			}
		}
		if mine := must[[]string](t)(c.OwnedTopics(bounded(t), a.LeaseID)); len(mine) != 0 {
			t.Errorf("%d topics under the lease after the release", len(mine))
		}
		if gone := must[[]string](t)(c.OwnedTopics(bounded(t), rand.Int64())); gone != nil {
			t.Errorf("an unknown lease has %v", gone)
		}
	})
}

func TestResultsBeforeAnErrorCount(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		a := claimant(t, c, "a")
		results, err := c.Lock(bounded(t), a, append(take(topicNames(100)...), take("/n/twice", "/n/twice")...))
		if err == nil || len(results) != 100 || !results[99].Current(a) {
			t.Errorf("%d results and %v, want those of the first transaction and an error", len(results), err)
		}
	})
}

// told collects what FollowFree tells.
func told(t *testing.T, c *cluster.Client, topics []string) (next func() []string) {
	t.Helper()
	got := make(chan []string, 16)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.FollowFree(ctx, topics, func(free []string) { got <- free }, nil) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("FollowFree ended with %v, want the context's error", err)
		}
	})
	return func() []string {
		t.Helper()
		select {
		case free := <-got:
			return free
		case <-time.After(wait):
			t.Fatal("nothing told")
			return nil
		}
	}
}

func TestALockThatGoesIsToldAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		for _, test := range []struct {
			name string
			n    int
		}{{"of few", 2}, {"of many", 300}} {
			t.Run(test.name, func(t *testing.T) {
				c := open(t, e.config(t))
				b := claimant(t, c, "b")
				topics := topicNames(test.n)
				held := lock(t, c, b, take(topics[1:]...)...)
				next := told(t, c, topics)
				if free := next(); !slices.Equal(free, topics[:1]) {
					t.Fatalf("told first of %v, want what was free already", free)
				}
				lock(t, c, b, take("/n/foreign")...) // a lock that nobody waits for
				e.remove(t, c.Keys().Owner("/n/foreign"))
				lock(t, c, b, cluster.LockRequest{Act: cluster.Rebind, Topic: topics[1], Seen: held[0]}) // not a deletion
				last := topics[test.n-1]
				e.remove(t, c.Keys().Owner(last))
				if free := next(); !slices.Equal(free, []string{last}) {
					t.Errorf("told of %v, want %s", free, last)
				}
				if test.n > 2 {
					return
				}
				lock(t, c, b, take(last)...)
				if err := c.Revoke(bounded(t), b.LeaseID); err != nil {
					t.Fatal(err)
				}
				if free := next(); !slices.Equal(free, []string{last}) {
					t.Errorf("told of %v when the lease ended, want %s", free, last)
				}
			})
		}
	})
}
