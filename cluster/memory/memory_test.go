package memory_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// over is the real typed client over a path to the server.
func over(t *testing.T, s *memory.Server, via memory.Path) *cluster.Client {
	t.Helper()
	c := cluster.Over(cluster.Config{}, s.Conn(via), slog.New(slog.DiscardHandler))
	t.Cleanup(func() { c.Close() })
	return c
}

func lease(t *testing.T, c *cluster.Client, ttl time.Duration) int64 {
	t.Helper()
	id, _, err := c.Grant(t.Context(), ttl)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// register registers the broker under a lease of its own.
func register(t *testing.T, c *cluster.Client, id string, ttl time.Duration) (leaseID int64, done cluster.Registered) {
	t.Helper()
	seen, err := c.Snapshot(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	leaseID = lease(t, c, ttl)
	done, err = c.Register(t.Context(), cluster.RegisterRequest{LeaseID: leaseID, Value: []byte("{}"), Seen: seen, Member: cluster.Member{Incarnation: "i", At: time.Now()}})
	if err != nil {
		t.Fatal(err)
	}
	return leaseID, done
}

// background runs f until the test is over, and waits for its end.
func background(t *testing.T, f func(context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { f(ctx); close(done) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func TestALeaseEndsAtItsDeadlineToTheNanosecond(t *testing.T) {
	for _, c := range []struct {
		name  string
		delay time.Duration
		run   bool
	}{
		{"at the deadline", 0, true},
		{"half a second later", 500 * time.Millisecond, true},
		{"without Run, when somebody looks", 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.New(memory.Config{ExpiryDelay: c.delay})
				if c.run {
					background(t, func(ctx context.Context) { s.Run(ctx) })
				}
				var ended []memory.Change
				s.Observe(func(v memory.View, change memory.Change) {
					if change.Cause == memory.ByExpiry {
						if _, there := v.Lease(change.Lease); there {
							t.Error("the observer still sees the lease")
						}
						ended = append(ended, change)
					}
				})
				client := over(t, s, nil)
				start := time.Now()
				id, _ := register(t, client, "b1", 10*time.Second)
				time.Sleep(4 * time.Second)
				if _, err := client.KeepAlive(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10*time.Second + c.delay - time.Nanosecond)
				if snapshot, err := client.Snapshot(t.Context(), "b1"); err != nil || snapshot.Registration == nil {
					t.Fatalf("a nanosecond early: %+v, %v", snapshot.Registration, err)
				}
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				if snapshot, err := client.Snapshot(t.Context(), "b1"); err != nil || snapshot.Registration != nil {
					t.Fatalf("at its time: %+v, %v", snapshot.Registration, err)
				}
				if len(ended) != 1 || ended[0].Lease != id || len(ended[0].Events) != 1 || ended[0].At != start.Add(14*time.Second+c.delay) || ended[0].Deadline != start.Add(14*time.Second) {
					t.Errorf("told %+v", ended)
				}
			})
		})
	}
}

func TestFollowSeesAnExpiryThroughRunAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Config{})
		background(t, func(ctx context.Context) { s.Run(ctx) })
		c := over(t, s, nil)
		register(t, c, "b1", 5*time.Second)
		start := time.Now()
		var gone time.Duration
		background(t, func(ctx context.Context) {
			c.Follow(ctx, cluster.Target{Key: c.Keys().Registrations(), Prefix: true}, func(u cluster.Update) {
				if len(u.Deletes) == 1 {
					gone = time.Since(start)
				}
			}, func(err error) { t.Error(err) })
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if gone != 5*time.Second {
			t.Errorf("gone after %v, want 5s", gone)
		}
	})
}

func TestAWatchGoesOnAfterACut(t *testing.T) {
	for _, c := range []struct {
		name string
		cut  time.Duration
	}{
		{"short", memory.NoticedAfter - time.Nanosecond},
		{"lasting", memory.NoticedAfter + time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, link := memory.New(memory.Config{}), memory.NewLink()
				local, remote := over(t, s, nil), over(t, s, link)
				heard := map[string]bool{}
				background(t, func(ctx context.Context) {
					remote.Follow(ctx, cluster.Target{Key: remote.Keys().Registrations(), Prefix: true}, func(u cluster.Update) {
						for _, kv := range u.Puts {
							heard[kv.Key] = true
						}
					}, nil)
				})
				synctest.Wait()
				link.Cut(memory.BothWays)
				register(t, local, "b1", time.Minute)
				time.Sleep(c.cut)
				synctest.Wait()
				if len(heard) > 0 {
					t.Error("heard through the cut")
				}
				link.Heal()
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if !heard[local.Keys().Registration("b1")] {
					t.Error("not heard after the heal")
				}
			})
		})
	}
}

func TestALateRequestIsDeliveredAfterTheCallerHasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, link := memory.New(memory.Config{}), memory.NewLink()
		c := over(t, s, link)
		link.SetLate(true)
		link.Cut(memory.BothWays)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.PutState(ctx, "b1", cluster.State{Mode: cluster.ModeActive}, 0); cluster.Classify(err) != cluster.ClassTimeout {
			t.Errorf("got %v", err)
		}
		written := func() (ok bool) {
			s.Inspect(func(v memory.View) { _, ok = v.Get(c.Keys().State("b1")) })
			return ok
		}
		if written() {
			t.Error("written through the cut")
		}
		link.Heal()
		s.Wait()
		if !written() {
			t.Error("not delivered after the heal")
		}
	})
}
