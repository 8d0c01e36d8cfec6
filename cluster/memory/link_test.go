package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

func TestFailuresOfTheLinkHaveTheClassesOfRealOnes(t *testing.T) {
	for _, c := range []struct {
		name    string
		fail    func(*memory.Server, *memory.Link)
		timeout time.Duration
		want    cluster.Class
		after   time.Duration
		written bool
	}{
		{"nobody listens", func(_ *memory.Server, l *memory.Link) { l.Refuse() }, time.Minute, cluster.ClassUnreachable, 0, false},
		{"requests are dropped, and the caller gives up", func(_ *memory.Server, l *memory.Link) { l.Cut(memory.Requests) }, time.Second, cluster.ClassTimeout, time.Second, false},
		{"requests are dropped, and the ping notices", func(_ *memory.Server, l *memory.Link) { l.Cut(memory.Requests) }, time.Minute, cluster.ClassUnreachable, memory.NoticedAfter, false},
		{"replies are dropped, and the ping notices", func(_ *memory.Server, l *memory.Link) { l.Cut(memory.Replies) }, time.Minute, cluster.ClassUnreachable, memory.NoticedAfter, true},
		{"the connection is reset under the call", func(_ *memory.Server, l *memory.Link) {
			l.Cut(memory.BothWays)
			time.AfterFunc(time.Second, l.Break)
		}, time.Minute, cluster.ClassUnreachable, time.Second, false},
		{"an old cut lets no connection come about", func(_ *memory.Server, l *memory.Link) {
			l.Cut(memory.Replies)
			time.Sleep(memory.NoticedAfter + time.Millisecond)
		}, time.Minute, cluster.ClassUnreachable, memory.DialedFor, false},
		{"a cut that heals in time only delays", func(_ *memory.Server, l *memory.Link) {
			l.Cut(memory.BothWays)
			time.AfterFunc(5*time.Second, l.Heal)
		}, time.Minute, cluster.ClassNone, 5 * time.Second, true},
		{"delays add up", func(_ *memory.Server, l *memory.Link) {
			l.SetDelay(func(d memory.Direction) time.Duration { return time.Duration(d) * time.Second })
		}, time.Minute, cluster.ClassNone, 3 * time.Second, true},
		{"the delay of the request outlasts the caller", func(_ *memory.Server, l *memory.Link) {
			l.SetDelay(func(d memory.Direction) time.Duration { return 2 * time.Second })
		}, time.Second, cluster.ClassTimeout, time.Second, false},
		{"no space", func(s *memory.Server, _ *memory.Link) {
			s.SetFault(func(string) error { return memory.ErrNoSpace })
		}, time.Minute, cluster.ClassNoSpace, 0, false},
		{"not allowed", func(s *memory.Server, _ *memory.Link) {
			s.SetFault(func(string) error { return memory.ErrPermissionDenied })
		}, time.Minute, cluster.ClassAuth, 0, false},
		{"no leader", func(s *memory.Server, _ *memory.Link) { s.LoseLeader() }, time.Minute, cluster.ClassNoLeader, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, link := memory.New(memory.Config{}), memory.NewLink()
				client := over(t, s, link)
				c.fail(s, link)
				ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
				defer cancel()
				start := time.Now()
				_, err := client.PutState(ctx, "b1", cluster.State{Mode: cluster.ModeActive}, 0)
				if cluster.Classify(err) != c.want || time.Since(start) != c.after {
					t.Errorf("%v of class %q after %v, want %q after %v", err, cluster.Classify(err), time.Since(start), c.want, c.after)
				}
				cancel()
				link.Heal()
				s.Wait()
				s.SetFault(nil)
				s.ChangeLeader(0)
				if written := len(content(s)) > 0; written != c.written {
					t.Errorf("written: %v, want %v", written, c.written)
				}
				link.SetDelay(nil)
				if _, err := client.PutState(t.Context(), "b2", cluster.State{Mode: cluster.ModeActive}, 0); err != nil {
					t.Errorf("after the failure: %v", err)
				}
			})
		})
	}
}

func TestFaultsAreAskedPerMethod(t *testing.T) {
	s := memory.New(memory.Config{})
	c := over(t, s, nil)
	id := lease(t, c, time.Minute)
	s.SetFault(func(method string) error {
		if method == "/etcdserverpb.KV/Txn" {
			return memory.ErrNoSpace
		}
		return nil
	})
	if _, err := c.PutState(t.Context(), "b2", cluster.State{Mode: cluster.ModeActive}, 0); cluster.Classify(err) != cluster.ClassNoSpace {
		t.Errorf("writing: %v", err)
	}
	if _, err := c.KeepAlive(t.Context(), id); err != nil {
		t.Errorf("a full etcd must still renew: %v", err)
	}
}

func TestRenewalsPassTheLinkBothWays(t *testing.T) {
	for _, c := range []struct {
		name    string
		cut     memory.Direction
		renewed bool
	}{
		{"request lost", memory.Requests, false},
		{"reply lost", memory.Replies, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, link := memory.New(memory.Config{}), memory.NewLink()
				client := over(t, s, link)
				id := lease(t, client, 10*time.Second)
				granted := time.Now()
				time.Sleep(time.Second)
				link.Cut(c.cut)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				if _, err := client.KeepAlive(ctx, id); cluster.Classify(err) != cluster.ClassTimeout {
					t.Errorf("got %v", err)
				}
				want := granted.Add(10 * time.Second)
				if c.renewed {
					want = want.Add(time.Second)
				}
				s.Inspect(func(v memory.View) {
					if l, _ := v.Lease(id); l.Deadline != want {
						t.Errorf("the deadline is %v from the wanted one", l.Deadline.Sub(want))
					}
				})
				s.Wait()
			})
		})
	}
}

func TestClosingTheClientEndsWhatIsUnderWay(t *testing.T) {
	for _, c := range []struct {
		name string
		via  func() memory.Path
	}{
		{"perfect network", func() memory.Path { return nil }},
		{"link", func() memory.Path { return memory.NewLink() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.New(memory.Config{})
				client := over(t, s, c.via())
				ended := make(chan error, 1)
				go func() {
					ended <- client.Follow(t.Context(), cluster.Target{Key: "/x"}, func(cluster.Update) {}, nil)
				}()
				synctest.Wait()
				client.Close()
				if err := <-ended; !errors.Is(err, cluster.ErrClosed) {
					t.Errorf("follow ended with %v", err)
				}
				if _, err := client.Snapshot(t.Context(), "b1"); !errors.Is(err, cluster.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
				if _, err := client.KeepAlive(t.Context(), 1); !errors.Is(err, cluster.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
			})
		})
	}
}

func TestTheCallersEndIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, link := memory.New(memory.Config{}), memory.NewLink()
		c := over(t, s, link)
		link.Cut(memory.BothWays)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := c.Snapshot(ctx, "b1"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if _, err := c.Snapshot(ctx, "b1"); !errors.Is(err, context.Canceled) {
			t.Errorf("begun after the end: %v", err)
		}
	})
}
