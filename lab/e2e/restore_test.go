package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// An etcd that was restored from a backup says what was true then, and by its
// revisions nobody could tell, but for those who remember later ones.
func TestARestoredBackupDrainsWhoRemembersMore(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		young bool // the registration is younger than the backup
		away  func(*couple) error
		back  func(*couple) error
	}{
		{name: "the registration is there and the sidecar ran on"},
		{name: "the sidecar was away", young: true, away: (*couple).killSidecar, back: (*couple).startSidecar},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			const kept, moved = "/default/kept", "/default/moved"
			s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", kept, moved))
			c := s.beside(s.broker("n1"))
			register := func() {
				c.run()
				s.ok(c.AwaitReady(s.ctx, bound))
			}
			if !tt.young {
				register()
			}
			backup, err := s.etcd.Backup(s.ctx)
			s.ok(err)
			// Life goes on: a topic moves away, and more is written than those who come
			// back write.
			s.goesOn(50)
			if tt.young {
				register()
			}
			_, err = s.etcd.Client().Delete(s.ctx, s.keys.Assignment("n1", moved))
			s.ok(err)
			s.notServed(c, moved)
			stored := c.storedFrom(moved)
			c.awaitMetric(confirmed, c.metric(confirmed)+2, bound) // renewals tell how far etcd is
			if tt.away != nil {
				s.ok(tt.away(c))
			}
			reg := c.registration()
			restored := time.Now()
			s.history.Stop()
			away, err := s.etcd.Restore(s.ctx, backup)
			s.ok(err)
			t.Logf("etcd away for %v, back at revision %d, the registration was of %d", away.Round(time.Millisecond), backup.Revision, reg.CreateRevision)
			s.watch()
			if tt.back != nil {
				s.ok(tt.back(c))
			}

			st := c.await("drained", func(st harness.Status) bool { return st.Mode == "drained" && st.Registration.Present })
			t.Logf("drained %v after etcd was stopped", time.Since(restored).Round(time.Millisecond))
			if st.Reason != "restored_backup" {
				t.Errorf("drained with reason %s, want restored_backup", st.Reason)
			}
			unready := c.awaitUnreadySeen(restored)
			s.notServed(c, kept)
			s.notServed(c, moved)
			c.renewsOn()
			if got := c.state(); got.Mode != "drained" || got.Reason != "restored_backup" || got.By == "operator" {
				t.Errorf("state in etcd %+v, want drained, restored_backup", got)
			}
			c.neverReady(unready)
			s.caughtUp()
			for _, ch := range s.changesOf(s.keys.State("n1"), 0) {
				if isMode(ch, "active") {
					t.Errorf("active by itself: %v", ch)
				}
			}
			s.goesOn(1)
			// Who looked at the assignments may let it serve again, and it does what they say.
			_, err = s.etcd.Client().Delete(s.ctx, s.keys.Assignment("n1", moved))
			s.ok(err)
			c.activate()
			c.serves(kept)
			c.awaitMetric(confirmed, c.metric(confirmed)+2, bound)
			if n := stored(); n != 0 {
				t.Errorf("%d messages were stored in a topic that had moved away", n)
			}
			if got := c.state(); got.Mode != "active" || got.By != "operator" {
				t.Errorf("state %+v after activate", got)
			}
		})
	}
}

// goesOn writes what has nothing to do with anybody here.
func (s *stand) goesOn(n int) {
	s.Helper()
	for i := range n {
		_, err := s.etcd.Client().Put(s.ctx, "/lab/life", fmt.Sprint(i))
		s.ok(err)
	}
}

// storedFrom publishes to a topic all the time, from now on. The result ends it and
// returns how many messages were stored.
func (c *couple) storedFrom(topic string) (stop func() int) {
	c.s.Helper()
	nc, err := c.nats.Connect()
	c.s.ok(err)
	ctx, cancel := context.WithCancel(c.s.ctx)
	count := make(chan int, 1)
	go func() {
		n := 0
		for ctx.Err() == nil {
			pctx, done := context.WithTimeout(ctx, time.Second)
			if _, err := harness.Publish(pctx, nc, topic, []byte("x")); err == nil {
				n++
			}
			done()
			select {
			case <-ctx.Done():
			case <-time.After(harness.PollEvery):
			}
		}
		nc.Close()
		count <- n
	}()
	stop = sync.OnceValue(func() int { cancel(); return <-count })
	c.s.Cleanup(func() { stop() })
	return stop
}

func (c *couple) killSidecar() error { return c.Kill() }

func (c *couple) startSidecar() error { return c.Start() }

func (c *couple) killBoth() error {
	if err := c.Kill(); err != nil {
		return err
	}
	return c.nats.Kill()
}

func (c *couple) startBoth() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.nats.Launch()
}
