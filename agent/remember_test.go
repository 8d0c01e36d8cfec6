package agent

import (
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/registration"
	"holdfast/recovery"
)

// The store's revision grows all the time.
func TestTheLastConfirmedRevisionIsOnDisk(t *testing.T) {
	for registration, every := range map[string]time.Duration{"own": confirmedEvery, "adopt": confirmedAdoptedEvery} {
		t.Run(registration, func(t *testing.T) {
			inLife(t, func(c *config.Config) { c.Registration = registration }, func(l *sidecarLife) {
				onDisk := func() int64 {
					m, err := l.dir.load()
					if err != nil {
						t.Fatal(err)
					}
					return m.ConfirmedAt
				}
				began, writes, last := l.age(), 0, onDisk()
				for l.age() < began+5*time.Minute {
					l.set(func() { l.revision = 1000 + int64(l.age()/time.Second) })
					l.until(l.age() + time.Second)
					if now := onDisk(); now != last {
						writes, last = writes+1, now
					}
					if old := 1000 + int64((l.age()-every-10*time.Second)/time.Second); l.age() > began+every && last < old {
						t.Fatalf("after %v revision %d is on disk, want one of the last %v", l.age(), last, every)
					}
				}
				if most := int(5*time.Minute/every) + 1; writes > most {
					t.Errorf("%d writes in 5 min, want at most one each %v", writes, every)
				}
			})
		})
	}
}

// The Keeper publishes what it has from a restored etcd only after that was taken up.
func TestARestoredEtcdIsNotJudgedByTheRevisionOfBefore(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.until(l.age() + 2*confirmedEvery)
		l.inLoop(func() {
			g := l.grant
			g.Revision = 3
			l.takeUp(registration.Outcome{Restored: true, Decision: recovery.Decision{Step: recovery.Keep, Mode: l.mode}, Grant: g, Instance: l.memory.Instance, StateRevision: 3})
		})
		l.inLoop(func() {
			if l.memory.ConfirmedAt != 3 {
				t.Errorf("revision %d is remembered, of an etcd that is at 3", l.memory.ConfirmedAt)
			}
		})
	})
}
