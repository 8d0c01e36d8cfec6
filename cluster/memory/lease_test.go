package memory_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

func registered(s *memory.Server, c *cluster.Client, id string) (kv memory.KV, ok bool) {
	s.Inspect(func(v memory.View) { kv, ok = v.Get(c.Keys().Registration(id)) })
	return kv, ok
}

func TestARevokedLeaseLeavesAReboundKeyAlone(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    func(s *memory.Server, c *cluster.Client, old int64) error
		rebind bool
		stays  bool
	}{
		{"bound, revoked", func(_ *memory.Server, c *cluster.Client, old int64) error { return c.Revoke(context.Background(), old) }, false, false},
		{"rebound, revoked", func(_ *memory.Server, c *cluster.Client, old int64) error { return c.Revoke(context.Background(), old) }, true, true},
		{"bound, run out", func(*memory.Server, *cluster.Client, int64) error { time.Sleep(10 * time.Second); return nil }, false, false},
		{"rebound, run out", func(*memory.Server, *cluster.Client, int64) error { time.Sleep(10 * time.Second); return nil }, true, true},
		{"bound, revoked by a stale leader", func(s *memory.Server, _ *cluster.Client, old int64) error { s.Revoke(old); return nil }, false, false},
		{"rebound, revoked by a stale leader", func(s *memory.Server, _ *cluster.Client, old int64) error { s.Revoke(old); return nil }, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.New(memory.Config{})
				client := over(t, s, nil)
				old, done := register(t, client, "b1", 10*time.Second)
				if c.rebind {
					seen, err := client.Snapshot(t.Context(), "b1")
					if err != nil {
						t.Fatal(err)
					}
					if _, err := client.Keep(t.Context(), cluster.RegisterRequest{Seen: seen, LeaseID: lease(t, client, time.Minute)}); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.end(s, client, old); err != nil {
					t.Fatal(err)
				}
				kv, ok := registered(s, client, "b1")
				if ok != c.stays || ok && kv.CreateRevision != done.Revision {
					t.Errorf("there: %v, %+v", ok, kv)
				}
				if _, err := client.KeepAlive(t.Context(), old); !errors.Is(err, cluster.ErrLeaseNotFound) {
					t.Errorf("renewing what has ended: %v", err)
				}
			})
		})
	}
}

func TestANewLeaderRefreshesEveryLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Config{})
		background(t, func(ctx context.Context) { s.Run(ctx) })
		c := over(t, s, nil)
		id, _ := register(t, c, "b1", 8*time.Second)
		var watchErr error
		background(t, func(ctx context.Context) {
			c.Follow(ctx, cluster.Target{Key: "/x"}, func(cluster.Update) {}, func(err error) { watchErr = errors.Join(watchErr, err) })
		})
		synctest.Wait()
		s.LoseLeader()
		time.Sleep(14 * time.Second) // past the deadline
		synctest.Wait()
		if cluster.Classify(watchErr) != cluster.ClassNoLeader {
			t.Errorf("the watch says %v", watchErr)
		}
		if _, err := c.KeepAlive(t.Context(), id); cluster.Classify(err) != cluster.ClassNoLeader {
			t.Errorf("renewing without a leader: %v", err)
		}
		s.ChangeLeader(time.Second)
		time.Sleep(9*time.Second - time.Nanosecond)
		if _, ok := registered(s, c, "b1"); !ok {
			t.Error("gone before its whole TTL and the extension were over")
		}
		time.Sleep(time.Nanosecond)
		if _, ok := registered(s, c, "b1"); ok {
			t.Error("still there")
		}
	})
}

func TestRenewingAnOverdueLeaseWaitsForItsEnd(t *testing.T) {
	for _, c := range []struct {
		name  string
		event func(*memory.Server)
		want  cluster.Class
		after time.Duration
	}{
		{"it ends", func(*memory.Server) {}, cluster.ClassLeaseNotFound, 500 * time.Millisecond},
		{"a new leader refreshes it", func(s *memory.Server) { s.ChangeLeader(0) }, cluster.ClassNone, 200 * time.Millisecond},
		{"the leader is lost", func(s *memory.Server) { s.LoseLeader() }, cluster.ClassNoLeader, 200 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.New(memory.Config{ExpiryDelay: 500 * time.Millisecond})
				client := over(t, s, nil)
				id := lease(t, client, 5*time.Second)
				time.Sleep(5 * time.Second)
				time.AfterFunc(200*time.Millisecond, func() { c.event(s) })
				start := time.Now()
				renewal, err := client.KeepAlive(t.Context(), id)
				if took := time.Since(start); took != c.after {
					t.Errorf("answered after %v, want %v", took, c.after)
				}
				if cluster.Classify(err) != c.want || err == nil && renewal.Granted != 5*time.Second {
					t.Errorf("got %v, %v; want %q", renewal.Granted, err, c.want)
				}
				s.ChangeLeader(0) // lets the bubble end
			})
		})
	}
}

func TestAnOverdueLeaseIsGivenUpWithTheCallersTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Config{ExpiryDelay: time.Hour})
		c := over(t, s, nil)
		id := lease(t, c, 5*time.Second)
		time.Sleep(6 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.KeepAlive(ctx, id); cluster.Classify(err) != cluster.ClassTimeout {
			t.Errorf("got %v", err)
		}
		s.Wait()
	})
}

func TestLeasesEndInTheOrderOfTheirDeadlinesEachInItsOwnRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Config{})
		c := over(t, s, nil)
		var order []string
		s.Observe(func(_ memory.View, change memory.Change) {
			for _, e := range change.Events {
				if e.Deleted {
					order = append(order, fmt.Sprintf("%d:%s was %s", change.Revision, e.KV.Key, e.Prev.Value))
				}
			}
		})
		register(t, c, "b1", 30*time.Second)
		register(t, c, "b2", 10*time.Second)
		register(t, c, "b3", 20*time.Second)
		var leases []memory.Lease
		s.Inspect(func(v memory.View) { leases = v.Leases() })
		if len(leases) != 3 || leases[0].Keys[0] != c.Keys().Registration("b2") || leases[0].TTL != 10*time.Second {
			t.Errorf("leases %+v", leases)
		}
		time.Sleep(time.Minute) // nobody looks meanwhile
		if n := s.Expire(); n != 3 {
			t.Errorf("%d leases ended, want 3", n)
		}
		want := "[5:/cluster/register/b2 was {} 6:/cluster/register/b3 was {} 7:/cluster/register/b1 was {}]"
		if got := fmt.Sprint(order); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}
func TestSmallTTLsAreRaisedAndIDsRepeatable(t *testing.T) {
	a, b := over(t, memory.New(memory.Config{}), nil), over(t, memory.New(memory.Config{MinTTL: 5 * time.Second}), nil)
	idA, grantedA, errA := a.Grant(t.Context(), time.Second)
	idB, grantedB, errB := b.Grant(t.Context(), time.Second)
	if errA != nil || errB != nil || grantedA != 2*time.Second || grantedB != 5*time.Second {
		t.Errorf("granted %v, %v and %v, %v", grantedA, errA, grantedB, errB)
	}
	if idA != idB || idA <= 0 {
		t.Errorf("ids %d and %d, want the same first one", idA, idB)
	}
}
