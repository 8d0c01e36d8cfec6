package clustertest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
)

// revisionOf is the key's mod revision; 0: there is none.
func revisionOf(t *testing.T, e *server, key string) (revision int64) {
	t.Helper()
	for _, kv := range must[*clientv3.GetResponse](t)(e.raw.Get(bounded(t), key)).Kvs {
		revision = kv.ModRevision
	}
	return revision
}

// assigned is the mod revision of the topic's assignment to the broker; 0: there is none.
func assigned(t *testing.T, e *server, c *cluster.Client, broker, topic string) int64 {
	t.Helper()
	return revisionOf(t, e, c.Keys().Assignment(broker, topic))
}

func TestTakingATopicAssignsAndLocksItInOneRevision(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		a, b := claimant(t, c, "a"), claimant(t, c, "b")
		for _, topic := range []string{"/n/new", "/n/locked"} {
			e.put(t, c.Keys().TopicRecord(topic), "null")
		}
		e.put(t, c.Keys().Unassigned("/n/new"), "null")
		e.put(t, c.Keys().Owner("/n/locked"), "whose?")
		got := must[[]string](t)(c.Take(bounded(t), a, []cluster.TakeTopic{{Topic: "/n/new"}, {Topic: "/n/locked"}}))
		if !slices.Equal(got, []string{"/n/new"}) {
			t.Errorf("took %v", got)
		}
		owner := must[map[string]cluster.Owner](t)(c.Owners(bounded(t), []string{"/n/new"}))["/n/new"]
		if !owner.Current(a) || owner.ModRevision != assigned(t, e, c, "a", "/n/new") {
			t.Errorf("lock %+v, assignment of revision %d", owner, assigned(t, e, c, "a", "/n/new"))
		}
		if revisionOf(t, e, c.Keys().Unassigned("/n/new")) != 0 || assigned(t, e, c, "a", "/n/locked") != 0 {
			t.Error("the marker stayed, or a locked topic was assigned")
		}
		if got := must[[]string](t)(c.Take(bounded(t), b, []cluster.TakeTopic{{Topic: "/n/new"}})); len(got) != 0 {
			t.Errorf("the other took %v too", got)
		}
	})
}

func TestATopicWithoutARecordIsNotTaken(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		a := claimant(t, c, "a")
		if got := must[[]string](t)(c.Take(bounded(t), a, []cluster.TakeTopic{{Topic: "/n/deleted"}})); len(got) != 0 {
			t.Errorf("took %v, which is gone", got)
		}
	})
}

func TestNobodyTakesFromTheLiving(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		a, b := claimant(t, c, "a"), claimant(t, c, "b")
		e.put(t, c.Keys().TopicRecord("/n/t"), "null")
		must[[]string](t)(c.Take(bounded(t), a, []cluster.TakeTopic{{Topic: "/n/t"}}))
		revision := assigned(t, e, c, "a", "/n/t")
		from := []cluster.TakeTopic{{Topic: "/n/t", From: "a", FromRevision: revision}}
		// Without its lock, but registered.
		e.remove(t, c.Keys().Owner("/n/t"))
		if got := must[[]string](t)(c.Take(bounded(t), b, from)); len(got) != 0 {
			t.Errorf("took %v from a registered broker", got)
		}
		if err := c.Revoke(bounded(t), a.LeaseID); err != nil {
			t.Fatal(err)
		}
		stale := []cluster.TakeTopic{{Topic: "/n/t", From: "a", FromRevision: revision - 1}, {Topic: "/n/other", From: "a"}}
		if got := must[[]string](t)(c.Take(bounded(t), b, stale)); len(got) != 0 {
			t.Errorf("took %v by an older view", got)
		}
		if got := must[[]string](t)(c.Take(bounded(t), b, from)); len(got) != 1 {
			t.Errorf("took %v from the dead", got)
		}
		if assigned(t, e, c, "a", "/n/t") != 0 || assigned(t, e, c, "b", "/n/t") == 0 {
			t.Error("the dead broker's assignment stayed")
		}
	})
}

func TestGivingATopicNeedsItsLockReleasedAndALivingTaker(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		a, b := claimant(t, c, "a"), claimant(t, c, "b")
		e.put(t, c.Keys().TopicRecord("/n/t"), "null")
		must[[]string](t)(c.Take(bounded(t), a, []cluster.TakeTopic{{Topic: "/n/t"}}))
		revision := assigned(t, e, c, "a", "/n/t")
		give := func(to string) []string {
			t.Helper()
			return must[[]string](t)(c.Give(bounded(t), a, []cluster.GiveTopic{{Topic: "/n/t", Revision: revision, To: to}}))
		}
		if got := give("b"); len(got) != 0 {
			t.Errorf("gave %v away with the lock still held", got)
		}
		lock := must[map[string]cluster.Owner](t)(c.Owners(bounded(t), []string{"/n/t"}))["/n/t"]
		must[[]cluster.Owner](t)(c.Lock(bounded(t), a, []cluster.LockRequest{{Act: cluster.Release, Topic: "/n/t", Seen: lock}}))
		if got := give("nobody"); len(got) != 0 {
			t.Errorf("gave %v to a broker that is not registered", got)
		}
		if got := give("b"); len(got) != 1 || assigned(t, e, c, "b", "/n/t") == 0 || assigned(t, e, c, "a", "/n/t") != 0 {
			t.Errorf("gave %v", got)
		}
		// Who has seen no assignment gives none.
		if got := must[[]string](t)(c.Give(bounded(t), a, []cluster.GiveTopic{{Topic: "/n/never", To: b.BrokerID}})); len(got) != 0 {
			t.Errorf("gave %v without having it", got)
		}
	})
}

func TestATopicIsGivenToNobodyOnlyWhileAnotherHasIt(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		a := claimant(t, c, "a")
		e.put(t, c.Keys().TopicRecord("/n/t"), "null")
		must[[]string](t)(c.Take(bounded(t), a, []cluster.TakeTopic{{Topic: "/n/t"}}))
		give := func() []string {
			t.Helper()
			return must[[]string](t)(c.Give(bounded(t), a, []cluster.GiveTopic{{Topic: "/n/t", Revision: assigned(t, e, c, "a", "/n/t"), Has: "b"}}))
		}
		if got := give(); len(got) != 0 || assigned(t, e, c, "a", "/n/t") == 0 {
			t.Errorf("gave %v, and now nobody has it", got)
		}
		e.put(t, c.Keys().Assignment("b", "/n/t"), "null")
		if got := give(); len(got) != 1 || assigned(t, e, c, "a", "/n/t") != 0 || assigned(t, e, c, "b", "/n/t") == 0 {
			t.Errorf("gave %v", got)
		}
		if _, err := c.Give(bounded(t), a, []cluster.GiveTopic{{Topic: "/n/t", Revision: 1}}); err == nil {
			t.Error("gave a topic to nobody without a word of who has it")
		}
	})
}

func TestPlacingNeedsTheClaimantsOwnEpoch(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		old := claimant(t, c, "a")
		now := again(t, e, c, old)
		if _, err := c.Take(bounded(t), old, []cluster.TakeTopic{{Topic: "/n/t"}}); !errors.Is(err, cluster.ErrChanged) {
			t.Errorf("under an older epoch: %v", err)
		}
		for _, bad := range []cluster.TakeTopic{{Topic: "/n/t", From: "a", FromRevision: 1}, {Topic: "t"}, {Topic: "/n/t", From: "a/b"}} {
			if _, err := c.Take(bounded(t), now, []cluster.TakeTopic{bad}); err == nil {
				t.Errorf("%+v was taken", bad)
			}
		}
	})
}

func TestTwoThatTakeTheSameTopicsShareThemOut(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		topics := topicNames(300)
		var takes []cluster.TakeTopic
		for _, topic := range topics {
			e.put(t, c.Keys().TopicRecord(topic), "null")
			takes = append(takes, cluster.TakeTopic{Topic: topic})
		}
		var mu sync.Mutex
		owner := map[string]string{}
		var brokers sync.WaitGroup
		for i := range 4 {
			id := fmt.Sprintf("b%d", i)
			who := claimant(t, c, id)
			brokers.Go(func() {
				got, err := c.Take(bounded(t), who, takes)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, topic := range got {
					if owner[topic] != "" {
						t.Errorf("%s went to %s and to %s", topic, owner[topic], id)
					}
					owner[topic] = id
				}
			})
		}
		brokers.Wait()
		if len(owner) != len(topics) {
			t.Errorf("%d of %d topics have an owner", len(owner), len(topics))
		}
	})
}

func TestOnlyItsOwnLockOfADrainIsGivenBack(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		a, b := claimant(t, c, "a"), claimant(t, c, "b")
		must[[]string](t)(c.LockDrain(bounded(t), a, 1))
		for _, who := range []cluster.Claimant{b, a} {
			if err := c.UnlockDrain(bounded(t), who, 1); err != nil {
				t.Fatal(err)
			}
			if got := must[[]string](t)(c.Draining(bounded(t), 1)); len(got) == 1 != (who == b) {
				t.Errorf("after %s gave its lock back: %v", who.BrokerID, got)
			}
		}
	})
}
