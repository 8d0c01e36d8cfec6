package topics

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/testseed"
	"holdfast/recovery"
)

// Brokers that assign the same topics to themselves, detach, lose their leases and answers,
// and are drained: no topic may be served by a broker that does not hold its lock, from the
// moment at which it is loaded until the lock is released, however late an answer is. The fence is part of the test, as it is of the sidecar: what detaches stops serving.
func TestNoTopicIsServedByTwo(t *testing.T) {
	first := testseed.Value()
	for seed := first; seed < first+4; seed++ {
		t.Run(fmt.Sprintf("HOLDFAST_SEED=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomOwners(t, seed) })
		})
	}
}

func randomOwners(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	table := newLockTable()
	all := names("t", 12)
	type member struct {
		*owners
		standing Standing
		attached bool
	}
	var brokers []*member
	lease := int64(0)
	for _, id := range []string{"one", "two", "three"} {
		b := newFakeBroker()
		b.latency = 20 * time.Millisecond
		o, end := newOwners(t, id, testOwnership, b, table)
		defer end()
		b.onServe = func(topic string) {
			if owner := table.owner(topic); owner != id {
				t.Errorf("%s begins to serve %s, which is %q's", id, topic, owner)
			}
		}
		o.l.onRelease = func(topic string) { // also of one whose answer was lost, and that comes late
			if b.serves(topic) {
				t.Errorf("%s releases %s, and serves it", id, topic)
			}
		}
		lease++
		m := &member{o, Standing{Epoch: lease, LeaseID: lease}, true}
		brokers = append(brokers, m)
		o.stand(m.standing, recovery.Active, true)
		o.assign(true, all, nil)
	}
	check := func(what string) {
		t.Helper()
		for _, topic := range all {
			for _, m := range brokers {
				if m.b.serves(topic) && table.owner(topic) != m.l.id {
					t.Fatalf("%s: %s serves %s, which is %q's\n%s", what, m.l.id, topic, table.owner(topic), m.log)
				}
			}
		}
	}
	fence := func(m *member) {
		m.attached = false
		m.stand(m.standing, recovery.Active, false)
		if _, err := m.Fence(t.Context()); err != nil {
			t.Fatalf("fence: %v", err)
		}
	}
	for step := range 300 {
		m := brokers[rng.IntN(len(brokers))]
		what := ""
		switch rng.IntN(9) {
		case 0, 1:
			topic := all[rng.IntN(len(all))]
			what = "unassign " + topic
			m.assign(false, nil, []string{topic})
		case 2, 3:
			topic := all[rng.IntN(len(all))]
			what = "assign " + topic
			m.assign(false, []string{topic}, nil)
		case 4:
			what = "a short detachment"
			fence(m)
			m.stand(m.standing, recovery.Active, true)
			m.attached = true
		case 5:
			what = "a lost lease"
			fence(m)
			old := m.standing
			lease++
			m.standing = Standing{Epoch: lease, LeaseID: lease}
			if rng.IntN(2) == 0 {
				table.expire(old.LeaseID)
			} else {
				time.AfterFunc(time.Duration(rng.IntN(3000))*time.Millisecond, func() { table.expire(old.LeaseID) })
			}
			m.stand(m.standing, recovery.Active, true)
			m.attached = true
		case 6:
			what = "a drain and its end"
			m.stand(m.standing, recovery.Drained, true)
			m.after(time.Duration(rng.IntN(2000)) * time.Millisecond)
			m.stand(m.standing, recovery.Active, true)
		case 7:
			what = "answers lost"
			late := time.Duration(1+rng.IntN(6000)) * time.Millisecond
			m.l.set(func() { m.l.lost = late })
			m.after(time.Duration(rng.IntN(6000)) * time.Millisecond)
			m.l.set(func() { m.l.lost = 0 })
		case 8:
			what = "slow or failing"
			m.l.set(func() { m.l.err, m.l.partial = errStoreAway, rng.IntN(4) })
			m.after(time.Duration(rng.IntN(1000)) * time.Millisecond)
			m.l.set(func() { m.l.err, m.l.deaf = nil, time.Duration(rng.IntN(2))*time.Second })
			m.after(time.Duration(rng.IntN(2000)) * time.Millisecond)
			m.l.set(func() { m.l.deaf = 0 })
		}
		for range 1 + rng.IntN(20) {
			m.after(time.Duration(rng.IntN(60)) * time.Millisecond)
			check(fmt.Sprintf("step %d, %s at %s", step, what, m.l.id))
		}
	}
	for _, m := range brokers {
		m.assign(true, all, nil)
	}
	brokers[0].after(2 * time.Minute)
	check("at the end")
	for _, topic := range all {
		if owner := table.owner(topic); !slices.ContainsFunc(brokers, func(m *member) bool { return m.l.id == owner && m.b.serves(topic) }) {
			t.Errorf("at the end %s is %q's and not served there", topic, owner)
		}
	}
}
