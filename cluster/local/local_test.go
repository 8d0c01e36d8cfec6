package local_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/cluster"
	"holdfast/cluster/local"
)

// host is a host whose clocks the test moves.
type host struct {
	mu        sync.Mutex
	born      time.Time
	suspended time.Duration
	moved     time.Duration // the wall clock, besides
	boot      string
}

func (h *host) clock() local.Reading {
	h.mu.Lock()
	defer h.mu.Unlock()
	mono := time.Hour + time.Since(h.born)
	return local.Reading{Boot: mono + h.suspended, Mono: mono, Wall: time.Now().Add(h.suspended + h.moved)}
}

func (h *host) change(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// reboot is as long as it takes.
func (h *host) reboot(d time.Duration) {
	time.Sleep(d)
	h.boot += "'"
	h.born, h.suspended = time.Now().Add(time.Hour-time.Second), 0 // up for a second
}

type world struct {
	*host
	t    *testing.T
	path string
}

// inWorld runs a claim in virtual time.
func inWorld(t *testing.T, claim func(w *world)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		claim(&world{host: &host{born: time.Now(), boot: "b"}, t: t, path: filepath.Join(dir, "store.json")})
	})
}

func (w *world) open() *local.Store {
	w.t.Helper()
	s, err := local.Open(local.Config{Path: w.path, Clock: w.clock, BootID: w.boot}, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// life is one process: its store is watched every second until the claim is over, and what
// it did is on the disk then.
func (w *world) life(claim func(s *local.Store, c *cluster.Client)) {
	w.t.Helper()
	s := w.open()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	c := cluster.Over(cluster.Config{}, s.Conn(), nil)
	claim(s, c)
	c.Close()
	stop()
	if err := <-done; err != nil {
		w.t.Error(err)
	}
	s.Close()
}

// watch lets time pass with somebody watching.
func watch(s *local.Store, d time.Duration) {
	for ; d > 0; d -= time.Second {
		time.Sleep(min(d, time.Second))
		s.Watched()
	}
}

const ttl = 30 * time.Second

// register grants a lease and registers b1 under it.
func (w *world) register(c *cluster.Client) {
	w.t.Helper()
	ctx := context.Background()
	seen, err := c.Snapshot(ctx, "b1")
	if err != nil {
		w.t.Fatal(err)
	}
	id, _, err := c.Grant(ctx, ttl)
	if err != nil {
		w.t.Fatal(err)
	}
	state := cluster.StateWrite{Mode: cluster.ModeActive, Reason: "boot", By: "holdfast", At: time.Now()}
	if _, err := c.Register(ctx, cluster.RegisterRequest{LeaseID: id, Value: []byte(`{"a":"<ü>"}`), Seen: seen, State: &state, Incarnation: "i", At: time.Now()}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) registered(c *cluster.Client) bool {
	w.t.Helper()
	seen, err := c.Snapshot(context.Background(), "b1")
	if err != nil {
		w.t.Fatal(err)
	}
	return seen.Registration != nil
}

func TestWhatWasWrittenIsThereInTheNextLife(t *testing.T) {
	inWorld(t, func(w *world) {
		var before cluster.Snapshot
		w.life(func(s *local.Store, c *cluster.Client) {
			if s.Found() {
				t.Error("a file was found where there is none")
			}
			w.register(c)
			before, _ = c.Snapshot(context.Background(), "b1")
		})
		w.life(func(s *local.Store, c *cluster.Client) {
			after, err := c.Snapshot(context.Background(), "b1")
			if err != nil || !s.Found() || s.Doubt() != "" {
				t.Fatal(err, s.Found(), s.Doubt())
			}
			if fmt.Sprintf("%+v %+v %+v", after.Registration, after.State, after.Member) != fmt.Sprintf("%+v %+v %+v", before.Registration, before.State, before.Member) ||
				after.Revision != before.Revision || after.Era != before.Era {
				t.Errorf("before %+v\nafter  %+v", before, after)
			}
			if _, err := c.PutState(context.Background(), "b1", cluster.StateWrite{Mode: cluster.ModeDrained}, after.StateRevision); err != nil {
				t.Error("a guard of the life before does not hold:", err)
			}
			id, _, _ := c.Grant(context.Background(), ttl)
			if id == before.Registration.LeaseID {
				t.Error("a lease's id was given twice")
			}
		})
	})
}

func TestTheRegistrationOutlivesTimeThatNobodyWatched(t *testing.T) {
	const long = 10 * time.Minute
	for _, c := range []struct {
		name  string
		after func(w *world) // after the life that registered
		// settle as the agent does; nil: nobody does
		settle func(w *world, s *local.Store)
		want   bool
	}{
		{"the broker ran on while the sidecar was away", func(*world) { time.Sleep(long) },
			func(_ *world, s *local.Store) { s.Settle(true, time.Time{}) }, true},
		{"another process, started within the TTL, and the sidecar long after", func(*world) { time.Sleep(long) },
			func(_ *world, s *local.Store) { s.Settle(false, time.Now().Add(-long+ttl/2)) }, true},
		{"another process, started after the TTL", func(*world) { time.Sleep(long) },
			func(_ *world, s *local.Store) { s.Settle(false, time.Now().Add(-long+ttl+time.Second)) }, false},
		{"another process, nobody knows since when", func(*world) { time.Sleep(long) },
			func(_ *world, s *local.Store) { s.Settle(false, time.Time{}) }, false},
		{"another process, and the sidecar was away for less than the TTL", func(*world) { time.Sleep(ttl / 2) },
			func(_ *world, s *local.Store) { s.Settle(false, time.Time{}) }, true},
		{"not settled yet", func(*world) { time.Sleep(long) }, nil, true},
		{"a reboot within the TTL", func(w *world) { w.reboot(ttl / 2) },
			func(_ *world, s *local.Store) { s.Settle(false, time.Time{}) }, true},
		{"a reboot that took longer", func(w *world) { w.reboot(ttl + time.Second) },
			func(_ *world, s *local.Store) { s.Settle(false, time.Now()) }, false},
		{"a reboot, and the wall clock was moved back", func(w *world) { w.reboot(ttl / 2); w.moved = -time.Hour },
			func(_ *world, s *local.Store) { s.Settle(false, time.Now()) }, false},
		{"a reboot, and the wall clock was moved forwards", func(w *world) { w.reboot(ttl / 2); w.moved = time.Hour },
			func(_ *world, s *local.Store) { s.Settle(false, time.Time{}) }, false},
		{"the wall clock was moved, without a reboot", func(w *world) { time.Sleep(ttl / 2); w.moved = time.Hour },
			func(w *world, s *local.Store) { s.Settle(false, time.Time{}) }, true},
		{"the wall clock was moved back, without a reboot", func(w *world) { time.Sleep(long); w.moved = -time.Hour },
			func(w *world, s *local.Store) { s.Settle(false, time.Time{}) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.life(func(_ *local.Store, cl *cluster.Client) { w.register(cl) })
				c.after(w)
				w.life(func(s *local.Store, cl *cluster.Client) {
					s.Watched()
					if _, open := s.Missed(); !open {
						t.Error("no time is said to have been missed")
					}
					if c.settle != nil {
						c.settle(w, s)
						if _, open := s.Missed(); open {
							t.Error("settled, and time is still missed")
						}
					}
					if got := w.registered(cl); got != c.want {
						t.Errorf("registered: %t, want %t", got, c.want)
					}
				})
			})
		})
	}
}

func TestALeaseAgesWhileSomebodyWatchesAndWhileTheHostIsSuspended(t *testing.T) {
	for _, c := range []struct {
		name string
		pass func(w *world, s *local.Store)
		want bool
	}{
		{"watched for less than the TTL", func(_ *world, s *local.Store) { watch(s, ttl-time.Second) }, true},
		{"watched for the TTL", func(_ *world, s *local.Store) { watch(s, ttl) }, false},
		{"frozen for longer", func(_ *world, s *local.Store) { time.Sleep(2 * ttl); s.Watched() }, true},
		{"frozen, and the broker was restarted meanwhile", func(_ *world, s *local.Store) {
			time.Sleep(2 * ttl)
			s.Watched()
			s.Settle(false, time.Time{})
		}, false},
		{"suspended", func(w *world, s *local.Store) {
			w.change(func() { w.suspended += 2 * ttl })
			s.Watched()
		}, false},
		{"the wall clock was moved", func(w *world, s *local.Store) {
			w.change(func() { w.moved = time.Hour })
			watch(s, ttl/2)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.life(func(s *local.Store, cl *cluster.Client) {
					w.register(cl)
					c.pass(w, s)
					if got := w.registered(cl); got != c.want {
						t.Errorf("registered: %t, want %t", got, c.want)
					}
				})
			})
		})
	}
}

func TestMissedTimeThatNobodySettledIsMissedInTheNextLifeToo(t *testing.T) {
	inWorld(t, func(w *world) {
		w.life(func(_ *local.Store, c *cluster.Client) { w.register(c) })
		time.Sleep(20 * time.Second)
		w.life(func(s *local.Store, _ *cluster.Client) { s.Watched(); s.Renewed() })
		time.Sleep(20 * time.Second)
		w.life(func(s *local.Store, c *cluster.Client) {
			s.Watched()
			s.Settle(false, time.Time{})
			if w.registered(c) {
				t.Error("20 s and 20 s are less than 30 s")
			}
		})
	})
}

func TestARenewalIsOnTheDisk(t *testing.T) {
	inWorld(t, func(w *world) {
		w.life(func(s *local.Store, c *cluster.Client) {
			w.register(c)
			seen, _ := c.Snapshot(context.Background(), "b1")
			watch(s, ttl-time.Second)
			if _, err := c.KeepAlive(context.Background(), seen.Registration.LeaseID); err != nil {
				t.Fatal(err)
			}
			s.Renewed()
		})
		time.Sleep(ttl - time.Second)
		w.life(func(s *local.Store, c *cluster.Client) {
			s.Watched()
			s.Settle(false, time.Time{})
			if !w.registered(c) {
				t.Error("the renewal is forgotten")
			}
		})
	})
}

func TestAFileThatIsNotWholeIsPutAsideAndToldOf(t *testing.T) {
	flip := func(raw []byte) []byte { raw[len(raw)/2] ^= 1; return raw }
	for _, c := range []struct {
		name  string
		spoil func([]byte) []byte
		want  string
	}{
		{"empty", func([]byte) []byte { return nil }, "unexpected end"},
		{"cut off", func(raw []byte) []byte { return raw[:len(raw)/2] }, "unexpected end"},
		{"a bit has flipped", flip, ""},
		{"another format", func(raw []byte) []byte { return []byte(strings.Replace(string(raw), `"format":1`, `"format":2`, 1)) }, "it has format 2"},
		{"a letter was changed", func(raw []byte) []byte { return []byte(strings.Replace(string(raw), "boot", "Boot", 1)) }, "checksum"},
		{"no store", func([]byte) []byte {
			return []byte(`{"format":1,"sha256":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","store":{}}`)
		}, "does not say of when"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.life(func(_ *local.Store, cl *cluster.Client) { w.register(cl) })
				raw, err := os.ReadFile(w.path)
				if err != nil {
					t.Fatal(err)
				}
				spoilt := c.spoil(raw)
				if err := os.WriteFile(w.path, spoilt, 0o600); err != nil {
					t.Fatal(err)
				}
				w.life(func(s *local.Store, cl *cluster.Client) {
					if !s.Found() || !strings.Contains(s.Doubt(), c.want) || !strings.Contains(s.Doubt(), ".corrupt") {
						t.Errorf("found %t, doubt %q, want %q", s.Found(), s.Doubt(), c.want)
					}
					if w.registered(cl) {
						t.Error("something of it was taken up")
					}
				})
				if kept, err := os.ReadFile(w.path + ".corrupt"); err != nil || string(kept) != string(spoilt) {
					t.Errorf("not kept: %v", err)
				}
			})
		})
	}
}

func TestASaveThatFailsSaysSoAndLeavesTheFile(t *testing.T) {
	inWorld(t, func(w *world) {
		w.life(func(_ *local.Store, c *cluster.Client) { w.register(c) })
		before, err := os.ReadFile(w.path)
		if err != nil {
			t.Fatal(err)
		}
		s := w.open()
		s.Renewed()
		w2 := *w
		w2.path = filepath.Join(filepath.Dir(w.path), "gone", "store.json")
		if err := os.Mkdir(filepath.Dir(w2.path), 0o700); err != nil {
			t.Fatal(err)
		}
		lost := w2.open()
		if err := os.Remove(filepath.Dir(w2.path)); err != nil {
			t.Fatal(err)
		}
		lost.Renewed()
		if err := lost.Save(); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), w2.path) {
			t.Errorf("saved where there is no directory: %v", err)
		}
		if after, _ := os.ReadFile(w.path); string(after) != string(before) {
			t.Error("the file of another store was changed")
		}
	})
}

func TestAStoreThatRunsForEverDoesNotGrow(t *testing.T) {
	inWorld(t, func(w *world) {
		w.life(func(s *local.Store, c *cluster.Client) {
			w.register(c)
			size := func() int64 {
				if err := s.Save(); err != nil {
					t.Fatal(err)
				}
				info, err := os.Stat(w.path)
				if err != nil {
					t.Fatal(err)
				}
				return info.Size()
			}
			small := size()
			for range 5000 {
				seen, err := c.Snapshot(context.Background(), "b1")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.PutState(context.Background(), "b1", cluster.StateWrite{Mode: cluster.ModeActive, Reason: "boot", By: "holdfast"}, seen.StateRevision); err != nil {
					t.Fatal(err)
				}
			}
			if big := size(); big > small+100 {
				t.Errorf("from %d to %d bytes", small, big)
			}
		})
	})
}

func FuzzOpenTakesAnyFile(f *testing.F) {
	f.Add([]byte(`{"format":1}`), false)
	f.Add([]byte(`{}`), true)
	f.Add([]byte(`{"at":{"now":"2000-01-01T00:00:00Z","wall":"2000-01-01T00:00:00Z","boot_ns":5,"boot_id":"b","missed_ns":-3},"content":{"Revision":3,`+
		`"Keys":[{"Key":"/a","Value":"v","Lease":1,"CreateRevision":2,"ModRevision":2,"Version":1}],"Leases":[{"ID":1,"TTL":5,"Deadline":"2000-01-01T00:00:05Z"}],"LastID":530000000000000}}`), true)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, raw []byte, summed bool) {
		if summed {
			raw = fmt.Appendf(nil, `{"format":1,"sha256":"%x","store":%s}`, sha256.Sum256(raw), raw)
		}
		path := filepath.Join(dir, "store.json")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		h := &host{born: time.Now(), boot: "b"}
		s, err := local.Open(local.Config{Path: path, Clock: h.clock, BootID: "b"}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		s.Watched()
		s.Settle(false, time.Time{})
		if err := s.Save(); err != nil {
			t.Fatal(err)
		}
	})
}
