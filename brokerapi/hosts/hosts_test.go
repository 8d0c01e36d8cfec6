package hosts

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// fakeConn counts how often it was closed.
type fakeConn struct {
	net.Conn
	closed *atomic.Int64
}

func (c fakeConn) Close() error { c.closed.Add(1); return nil }

func TestAConnectStandsWithinOneStepOfTheHeal(t *testing.T) {
	for _, addresses := range []int{1, 2, 3} {
		synctest.Test(t, func(t *testing.T) {
			start, heal := time.Now(), 2*time.Second
			var dials atomic.Int64
			_, err := race(t.Context(), addresses, func(ctx context.Context, _ int) (net.Conn, error) {
				dials.Add(1)
				if time.Since(start) < heal { // this SYN is lost
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return fakeConn{closed: new(atomic.Int64)}, nil
			})
			if err != nil || time.Since(start) > heal+dialEvery {
				t.Errorf("connected %v after the start, %v; want at most %v after the heal at %v", time.Since(start), err, dialEvery, heal)
			}
			if n := dials.Load(); n > 14 {
				t.Errorf("%d dials in %v", n, heal)
			}
			synctest.Wait()
		})
	}
}

func TestEachAddressOfANameIsTried(t *testing.T) {
	refused := syscall.ECONNREFUSED
	for _, c := range []struct {
		name string
		of   []string // what each address does
		took time.Duration
		err  error
	}{
		{"all refuse", []string{"refuses", "refuses"}, 0, refused},
		{"one refuses", []string{"refuses", "answers"}, 0, nil},
		{"the first is deaf", []string{"deaf", "answers"}, dialEvery, nil},
		{"deaf, refusing and slow", []string{"deaf", "refuses", "slow"}, dialEvery + 400*time.Millisecond, nil},
		{"deaf and refusing", []string{"deaf", "refuses"}, dialRound, context.DeadlineExceeded},
		{"refusing and deaf", []string{"refuses", "deaf"}, dialRound, context.DeadlineExceeded},
		{"refusing and cut off", []string{"refuses", "cut off"}, 0, syscall.EHOSTUNREACH},
		{"cut off and refusing", []string{"cut off", "refuses"}, 0, syscall.EHOSTUNREACH},
		{"refusing, and of a kind without a way", []string{"refuses", "no way"}, 0, refused},
		{"of a kind without a way, and refusing", []string{"no way", "refuses"}, 0, refused},
		{"deaf", []string{"deaf"}, dialRound, context.DeadlineExceeded},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				_, err := race(t.Context(), len(c.of), func(ctx context.Context, address int) (net.Conn, error) {
					switch c.of[address] {
					case "refuses":
						return nil, refused
					case "cut off":
						return nil, syscall.EHOSTUNREACH
					case "no way":
						return nil, syscall.EADDRNOTAVAIL
					case "deaf":
						<-ctx.Done()
						return nil, ctx.Err()
					case "slow":
						time.Sleep(400 * time.Millisecond)
					}
					return fakeConn{closed: new(atomic.Int64)}, nil
				})
				if took := time.Since(start); !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || took > c.took {
					t.Errorf("%v after %v, want %v after %v at most", err, took, c.err, c.took)
				}
				time.Sleep(time.Second) // what is slow ends, too
			})
		})
	}
}

func TestARaceClosesTheLosers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed, dials atomic.Int64
		conn, err := race(t.Context(), 1, func(context.Context, int) (net.Conn, error) {
			if dials.Add(1) == 1 {
				time.Sleep(500 * time.Millisecond) // answers late, and in spite of the end
			} else {
				time.Sleep(50 * time.Millisecond)
			}
			return fakeConn{closed: &closed}, nil
		})
		if err != nil || conn == nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if closed.Load() != dials.Load()-1 {
			t.Errorf("%d of %d connections closed, want all but the winner", closed.Load(), dials.Load())
		}
	})
}

// The first of two nameservers is dead: its five seconds are longer than a connect has.
func TestALookupHasItsOwnTimeAndItsLastAnswerIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		var asked atomic.Int64
		n := &names{good: map[string][]string{}, errs: map[string]error{}, resolve: func(_ context.Context, host string) ([]string, error) {
			asked.Add(1)
			time.Sleep(5 * time.Second)
			if broken.Load() {
				return nil, &net.DNSError{Err: "no such host", Name: host, Server: "192.0.2.1:53"}
			}
			return []string{"192.0.2.7", "192.0.2.8"}, nil
		}}
		within := func(d time.Duration) ([]string, error) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			return n.lookup(ctx, "etcd.example")
		}
		if !unresolved(n.unknown("etcd.example")) || n.unknown("192.0.2.1") != nil {
			t.Error("before the lookup begins a name is known, or an address is not")
		}
		_, err := within(3 * time.Second)
		if !unresolved(err) || err.Error() != "lookup etcd.example: the nameservers have not answered yet; the name was not resolved" {
			t.Errorf("before the lookup ends: %v", err)
		}
		if !unresolved(n.unknown("etcd.example")) {
			t.Error("a name is known while it is looked up for the first time")
		}
		began := time.Now()
		ips, err := within(3 * time.Second)
		if err != nil || !slices.Equal(ips, []string{"192.0.2.7", "192.0.2.8"}) || time.Since(began) != 2*time.Second || asked.Load() != 1 {
			t.Errorf("the next connect waits for the same lookup: %v, %v after %v and %d lookups", ips, err, time.Since(began), asked.Load())
		}
		broken.Store(true)
		for range 3 {
			began = time.Now()
			if ips, err = within(3 * time.Second); err != nil || len(ips) != 2 || n.unknown("etcd.example") != nil || time.Since(began) > rememberedAfter {
				t.Errorf("what was good is remembered: %v, %v after %v", ips, err, time.Since(began))
			}
			time.Sleep(10 * time.Second)
		}
		if ctx := context.Background(); !unresolved(second(n.lookup(ctx, "other.example"))) ||
			second(n.lookup(ctx, "192.0.2.1")) != nil || second(n.lookup(ctx, "::1")) != nil {
			t.Error("a name that is wrong resolves, or an address does not")
		}
		if err := second(n.lookup(t.Context(), "other.example")); err.Error() != "lookup other.example on 192.0.2.1:53: no such host; the name was not resolved" {
			t.Error(err)
		}
	})
}

func unresolved(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns) && strings.Contains(err.Error(), NotResolved)
}

func second[A any](_ A, err error) error { return err }
