package recovery

import (
	"slices"
	"testing"
	"time"
)

// servedOwnership is of a broker whose own cluster assigns its topics by locks of its own.
var servedOwnership = OwnershipSettings{RetryInterval: 200 * time.Millisecond, RetryWindow: 2 * time.Second,
	AuditInterval: 30 * time.Second, Served: true}

// serve has the broker take topics by itself, each with its lock.
func (o *owners) serve(s Standing, topics ...string) {
	for _, topic := range topics {
		o.l.put(topic, o.l.id, s)
		o.b.set(func() { o.b.serving[topic] = true })
	}
}

func (o *owners) wantWrites(take, rebind, release int) {
	o.t.Helper()
	for step, want := range map[LockStep]int{LockTake: take, LockRebind: rebind, LockRelease: release} {
		if got := o.l.asked(step); got != want {
			o.t.Errorf("asked %d times to %s, want %d", got, step, want)
		}
	}
}

func TestLocksThatTheBrokerKeepsItselfAreLeftAlone(t *testing.T) {
	inOwners(t, servedOwnership, newFakeBroker(), func(o *owners) {
		o.serve(firstStanding, "/n/a", "/n/b")
		o.stand(firstStanding, Active, true)
		o.after(2 * time.Minute)
		o.serve(firstStanding, "/n/c") // between two listings
		o.own.mu.Lock()
		o.own.auditAt = time.Now() // and found by an audit first
		o.own.poke()
		o.own.mu.Unlock()
		o.after(time.Second)
		o.wantOwned("/n/a", "/n/b", "/n/c")
		o.b.set(func() { delete(o.b.serving, "/n/a") })
		o.l.remove("/n/a") // the broker gave it up
		o.after(2 * time.Minute)
		o.wantOwned("/n/b", "/n/c")
		o.stand(firstStanding, Drained, true)
		o.b.set(func() { delete(o.b.serving, "/n/b") }) // still under its lock: it is on its way out
		o.after(2 * time.Minute)
		o.wantWrites(0, 0, 0)
	})
}

func TestWhatTheBrokerServesIsOwnedAgainAfterALoss(t *testing.T) {
	inOwners(t, servedOwnership, newFakeBroker(), func(o *owners) {
		many := topicNames(250) // more than one transaction
		o.serve(firstStanding, many...)
		o.serve(firstStanding, "/n/free", "/n/old", "/n/taken")
		o.stand(firstStanding, Active, true)
		o.after(time.Second)
		o.stand(firstStanding, Active, false)
		o.l.expire(firstStanding.LeaseID)
		o.l.put("/n/old", "me", firstStanding) // of the old session, and not gone yet
		o.l.put("/n/taken", "other", Standing{Epoch: 9, LeaseID: 99})
		gaps := o.l.deletes["/n/old"]
		o.stand(nextStanding, Active, true)
		o.after(time.Second)
		o.wantWrites(0, 0, 0) // the broker is first
		o.after(2 * time.Second)
		all := append(slices.Clone(many), "/n/free", "/n/old")
		o.wantOwned(all...)
		if n := o.l.asked(LockRebind); n != 0 {
			t.Errorf("the lock of the old session was written %d times, want it left to the broker", n)
		}
		if n := o.l.deletes["/n/old"] - gaps; n != 0 {
			t.Errorf("the lock of the old session was deleted %d times, want it left to the broker", n)
		}
		if !o.b.serves("/n/taken") || o.l.owner("/n/taken") != "other" || o.own.Conflicts() != 1 {
			t.Errorf("the broker was told to unload what is another's, or it was not told: %d conflicts", o.own.Conflicts())
		}
		if !o.b.serves("/n/free") || !o.b.serves("/n/old") {
			t.Error("what is ours was unloaded")
		}
		o.wantWrites(251, 0, 0)
		o.l.expire(firstStanding.LeaseID) // the broker never took it
		o.after(time.Minute)
		o.wantOwned(all...)
		o.wantWrites(252, 0, 0)
	})
}

// TestAReleaseWhileALockIsTakenIsNotUndone: the broker gives a topic up in the very moment
// in which its lock is taken back for it.
func TestAReleaseWhileALockIsTakenIsNotUndone(t *testing.T) {
	inOwners(t, servedOwnership, newFakeBroker(), func(o *owners) {
		o.serve(firstStanding, "/n/a", "/n/b")
		o.stand(firstStanding, Active, true)
		o.after(time.Second)
		o.stand(firstStanding, Active, false)
		o.l.expire(firstStanding.LeaseID)
		o.l.onLock = func([]LockRequest) { o.b.set(func() { delete(o.b.serving, "/n/a") }) }
		o.stand(nextStanding, Active, true)
		o.after(brokerFirst + time.Second)
		o.wantOwned("/n/b")
	})
}

func TestALockIsTakenBackOnlyForWhatIsStillServed(t *testing.T) {
	inOwners(t, servedOwnership, newFakeBroker(), func(o *owners) {
		o.serve(firstStanding, "/n/a")
		o.stand(firstStanding, Active, true)
		o.after(time.Second)
		o.b.set(func() { delete(o.b.serving, "/n/a") })
		o.l.remove("/n/a")
		o.own.mu.Lock()
		o.own.auditAt = time.Now() // it is found to be gone before the broker is listed again
		o.own.poke()
		o.own.mu.Unlock()
		o.after(5 * time.Second)
		o.wantOwned()
		o.wantWrites(0, 0, 0)
	})
}
