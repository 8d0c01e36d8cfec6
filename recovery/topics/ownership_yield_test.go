package topics

import (
	"testing"
	"time"

	"holdfast/recovery"
)

func TestAYieldedTopicIsUnloadedAndReleasedWithoutTheGuard(t *testing.T) {
	b := newFakeBroker()
	topics := topicNames(20)
	inOwners(t, testOwnership, b, func(o *owners) {
		o.begin(500*time.Millisecond, topics...) // the broker was not listed since
		o.wantOwned(topics...)
		o.l.onRelease = func(topic string) {
			if b.serves(topic) || o.own.Yielded(topic) {
				t.Errorf("%s was released while it was served, or is gone before", topic)
			}
		}
		o.own.Yield(topics[:15]) // far more than the mass-change guard lets pass
		before, _, _ := b.totals()
		o.after(100 * time.Millisecond)
		if after, _, _ := b.totals(); after != before {
			t.Error("the broker was listed, though each call had its answer")
		}
		o.wantOwned(topics[15:]...)
		o.wantServed(topics[15:]...)
		for i, topic := range topics {
			if o.own.Yielded(topic) != (i < 15) {
				t.Errorf("Yielded(%s) is %t", topic, i >= 15)
			}
		}
		if len(o.own.Yields()) != 1 || o.own.Yielded("/n/never-heard-of") {
			t.Error("nobody was told, or of what is not known")
		}
		o.want("20 assigned, 5 served, 15 missing, complete")
		o.own.Yield(nil) // the plan changed: they stay
		o.after(2 * time.Second)
		o.wantOwned(topics...)
		o.wantServed(topics...)
	})
}

func TestADrainedBrokerYieldsWhatItReleased(t *testing.T) {
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
		o.begin(time.Second, "/n/a", "/n/b")
		o.stand(firstStanding, recovery.Drained, true)
		o.after(2 * time.Second)
		o.own.Yield([]string{"/n/a"})
		o.after(2 * time.Second)
		if !o.own.Yielded("/n/a") || o.own.Yielded("/n/b") {
			t.Errorf("yielded: a %v, b %v", o.own.Yielded("/n/a"), o.own.Yielded("/n/b"))
		}
	})
}

func TestATopicIsToldToBeYieldedWhenTheBrokerIsListedAtLast(t *testing.T) {
	b := newFakeBroker()
	b.set(func() { b.listDeaf = 3 * time.Second })
	inOwners(t, testOwnership, b, func(o *owners) {
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, []string{"/n/a"}, nil)
		o.own.Yield([]string{"/n/a"})
		o.after(time.Second)
		if o.own.Yielded("/n/a") {
			t.Error("yielded, and the broker has not said that it does not serve it")
		}
		if len(o.own.Yields()) > 0 { // the lock is free, which is half of it
			<-o.own.Yields()
		}
		o.after(4 * time.Second)
		if told := len(o.own.Yields()); told != 1 || !o.own.Yielded("/n/a") {
			t.Errorf("%d times told that it is neither served nor locked", told)
		}
	})
}

func TestATopicWhoseLockIsAnothersIsYieldedAllTheSame(t *testing.T) {
	inOwners(t, testOwnership, newFakeBroker(), func(o *owners) {
		o.l.put("/n/a", "an earlier incarnation", Standing{Epoch: 9, LeaseID: 9})
		o.begin(time.Second, "/n/a")
		if o.own.Yielded("/n/a") {
			t.Error("yielded, and nobody asked for that")
		}
		o.own.Yield([]string{"/n/a"})
		o.after(time.Second)
		if s := o.state("/n/a"); !o.own.Yielded("/n/a") || s.State != TopicElsewhere {
			t.Error("not yielded, though it is neither served nor locked by us:", s)
		}
		o.l.remove("/n/a") // nobody here hears of it
		o.after(10 * time.Minute)
		if !o.own.Yielded("/n/a") {
			t.Error("never yielded: its place stays here, and nobody serves it")
		}
		o.wantOwned()
	})
}

func TestWhatWasGivenAwayIsNoMassLoss(t *testing.T) {
	topics := topicNames(30)
	inOwners(t, testOwnership, newFakeBroker(), func(o *owners) {
		o.begin(time.Minute, topics...)
		o.own.Yield(topics[:20])
		o.after(time.Second)
		o.assign(false, nil, topics[:20])
		o.own.Yield(nil)
		o.after(time.Minute)
		o.want("10 assigned, 10 served, 20 quarantined, complete")
	})
}
