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
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, topics, nil)
		o.after(2 * time.Second)
		o.wantOwned(topics...)
		o.l.onRelease = func(topic string) {
			if b.serves(topic) {
				t.Errorf("%s was released while it was served", topic)
			}
		}
		o.own.Yield(topics[:15]) // far more than the mass-change guard lets pass
		o.after(time.Second)
		o.wantOwned(topics[15:]...)
		o.wantServed(topics[15:]...)
		for i, topic := range topics {
			if o.own.Yielded(topic) != (i < 15) {
				t.Errorf("Yielded(%s) is %t", topic, i >= 15)
			}
		}
		select {
		case <-o.own.Yields():
		default:
			t.Error("nobody was told")
		}
		if o.Reconciler.Snapshot().GuardTripped || !o.own.progress().Settled {
			t.Errorf("%+v, %+v", o.Reconciler.Snapshot(), o.own.progress())
		}
		o.own.Yield(nil) // the plan changed: they stay
		o.after(2 * time.Second)
		o.wantOwned(topics...)
		o.wantServed(topics...)
	})
}

func TestADrainedBrokerYieldsWhatItReleased(t *testing.T) {
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, []string{"/n/a", "/n/b"}, nil)
		o.after(time.Second)
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
		select { // the lock is free, which is half of it
		case <-o.own.Yields():
		default:
		}
		o.after(4 * time.Second)
		select {
		case <-o.own.Yields():
		default:
			t.Error("nobody was told")
		}
		if !o.own.Yielded("/n/a") {
			t.Error("not yielded, though it is neither served nor locked")
		}
	})
}

func TestATopicWhoseLockIsAnothersIsYieldedAllTheSame(t *testing.T) {
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
		o.l.put("/n/a", "an earlier incarnation", Standing{Epoch: 9, LeaseID: 9})
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, []string{"/n/a"}, nil)
		o.after(time.Second)
		o.own.Yield([]string{"/n/a"})
		o.after(time.Second)
		if !o.own.Yielded("/n/a") {
			t.Error("not yielded, though it is neither served nor locked by us")
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
	for _, c := range []struct {
		name    string
		yielded bool
	}{{"given away by us", true}, {"deleted by somebody", false}} {
		t.Run(c.name, func(t *testing.T) {
			inOwners(t, testOwnership, newFakeBroker(), func(o *owners) {
				o.stand(firstStanding, recovery.Active, true)
				o.assign(true, topics, nil)
				o.after(time.Minute)
				if c.yielded {
					o.own.Yield(topics[:20])
				}
				o.after(time.Second)
				o.assign(false, nil, topics[:20])
				o.own.Yield(nil)
				o.after(time.Minute)
				if p := o.Reconciler.Snapshot(); p.GuardTripped == c.yielded {
					t.Errorf("guard: %t %s", p.GuardTripped, p.GuardDetail)
				}
				o.wantServed(append(topics[20:], map[bool][]string{false: topics[:20]}[c.yielded]...)...)
			})
		})
	}
}
