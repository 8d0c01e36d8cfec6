package agent

import (
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/agent/config"
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

func TestAStateThatIsOlderThanItWasIsARestoredBackup(t *testing.T) {
	for name, row := range map[string]struct {
		known int64 // of the state key, beyond the store's revision
		row   recovery.Reason
	}{
		"the store has passed what is known": {0, recovery.ReasonRestoredBackup},
		"it was read before that":            {1, recovery.RowSurvived},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutage(t, "drain")
			s := o.snapshot()
			o.past.modeRev = s.Revision + row.known
			if s.StateRevision >= s.Revision {
				t.Fatalf("the state is at %d, etcd at %d", s.StateRevision, s.Revision)
			}
			o.establish(o.first.LeaseID)
			out := o.outcomes[len(o.outcomes)-1]
			if out.decision.Row != row.row || out.restored != (row.row == recovery.ReasonRestoredBackup) {
				t.Errorf("%s by %s: %s", out.decision, out.decision.Row, out.decision.Detail)
			}
		})
	}
}

func TestARevokeThatIsUndoneIsARestoredBackup(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(o *outage)
		want   recovery.Reason
	}{
		{"the registration stands that was given up", func(*outage) {}, recovery.ReasonRestoredBackup},
		{"one from before it stands", func(o *outage) { o.past.memory.Epoch += 7 }, recovery.ReasonRestoredBackup},
		{"it was not given up", func(o *outage) { o.past.memory.Released = false }, recovery.ReasonFastRestart},
		{"it was registered since, and that was not saved", func(o *outage) { o.past.memory.Epoch-- }, recovery.ReasonFastRestart},
		{"it is gone", func(o *outage) { o.lose() }, recovery.ReasonStaleRestart},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			o.run, o.stood = "after", false
			o.past.value, o.past.instance = valueOfRun("after"), "process-2"
			o.past.mode = recovery.ModeRecord{}
			m := &o.past.memory
			m.Released, m.Mode, m.Reason = true, string(recovery.Active), string(recovery.ReasonBoot)
			c.change(o)
			if _, err := o.Establish(t.Context(), 0, false); err != nil {
				t.Fatal(err)
			}
			if d := o.outcomes[len(o.outcomes)-1].decision; d.Mode.Reason != c.want || (d.Mode.Mode == recovery.Active) != (c.want == recovery.ReasonFastRestart) {
				t.Errorf("%s: %s; want %s", d, d.Detail, c.want)
			}
		})
	}
}

// A renewal saw a revision that nobody wrote for this broker.
func TestARenewalsRevisionIsRemembered(t *testing.T) {
	o := newOutage(t, "drain")
	o.past.memory.ConfirmedAt = o.snapshot().Revision + 1
	o.past.instance, o.past.memory.Mode = "process-2", string(recovery.Active)
	o.establish(0)
	if d := o.outcomes[len(o.outcomes)-1].decision; d.Mode.Reason != recovery.ReasonRestoredBackup {
		t.Errorf("%s: %s", d, d.Detail)
	}
	o.takeUp()
	o.past.instance = "process-3"
	if _, err := o.store.Put(t.Context(), &etcdserverpb.PutRequest{Key: []byte("life")}); err != nil {
		t.Fatal(err)
	}
	o.establish(0)
	if out := o.outcomes[len(o.outcomes)-1]; out.restored {
		t.Errorf("%s: a restored etcd is one only until it was looked at", out.decision)
	}
}

// The Keeper publishes what it has from a restored etcd only after that was taken up.
func TestARestoredEtcdIsNotJudgedByTheRevisionOfBefore(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.until(l.age() + 2*confirmedEvery)
		l.inLoop(func() {
			g := l.grant
			g.Revision = 3
			l.takeUp(outcome{restored: true, decision: recovery.Decision{Step: recovery.Keep, Mode: l.mode}, grant: g, instance: l.memory.Instance, stateRevision: 3})
		})
		l.inLoop(func() {
			if l.memory.highest() != 3 {
				t.Errorf("revision %d is remembered, of an etcd that is at 3", l.memory.highest())
			}
		})
	})
}
