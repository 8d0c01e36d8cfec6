package cluster

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
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

func TestRaceConnectsWithinOneStepOfTheHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, heal := time.Now(), 2*time.Second
		var dials atomic.Int64
		_, err := race(t.Context(), 250*time.Millisecond, time.Second, func(ctx context.Context, _ int) (net.Conn, error) {
			dials.Add(1)
			if time.Since(start) < heal { // this SYN is lost
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return fakeConn{closed: new(atomic.Int64)}, nil
		})
		if err != nil || time.Since(start) > heal+250*time.Millisecond {
			t.Errorf("connected %v after the start, %v; want at most 250ms after the heal at %v", time.Since(start), err, heal)
		}
		if n := dials.Load(); n > 12 {
			t.Errorf("%d dials in %v", n, heal)
		}
		synctest.Wait()
	})
}

func TestRaceEndsAtOnceWhenRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, refused := time.Now(), errors.New("refused")
		_, err := race(t.Context(), 250*time.Millisecond, time.Second, func(context.Context, int) (net.Conn, error) { return nil, refused })
		if !errors.Is(err, refused) || time.Since(start) != 0 {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
	})
}

func TestRaceClosesTheLosers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed, dials atomic.Int64
		conn, err := race(t.Context(), 100*time.Millisecond, time.Second, func(context.Context, int) (net.Conn, error) {
			if dials.Add(1) == 1 {
				time.Sleep(300 * time.Millisecond) // answers late, and in spite of the end
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

func TestRaceReportsTheTimeoutOfItsDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		lost := os.ErrDeadlineExceeded
		_, err := race(ctx, 250*time.Millisecond, time.Second, func(ctx context.Context, _ int) (net.Conn, error) {
			<-ctx.Done()
			return nil, lost
		})
		if !errors.Is(err, lost) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
	})
}

func TestANameIsReachedThoughItsFirstAddressIsDeaf(t *testing.T) {
	const deaf, refuses, well = "10.0.0.1", "10.0.0.2", "10.0.0.3"
	refused, unknown := errors.New("refused"), errors.New("no such host")
	for name, row := range map[string]struct {
		stands []string // for these
		steps  time.Duration
		err    error
	}{
		"the first is well":                     {[]string{well, deaf}, 0, nil},
		"the first is deaf":                     {[]string{deaf, well}, 1, nil},
		"two are deaf":                          {[]string{deaf, deaf, well}, 2, nil},
		"the first refuses":                     {[]string{refuses, well}, 0, nil},
		"the first is deaf, the second refuses": {[]string{deaf, refuses, well}, 1, nil},
		"all refuse":                            {[]string{refuses, refuses}, 0, refused},
		"all are deaf":                          {[]string{deaf, deaf}, dialRound / dialEvery, os.ErrDeadlineExceeded},
		"nobody knows the name":                 {nil, 0, unknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // which waits for every connect to end
				ctx, cancel := context.WithTimeout(t.Context(), dialRound)
				defer cancel()
				began := time.Now()
				conn, err := dialName(ctx, "etcd.test:2379", func(_ context.Context, host string) (all []net.IPAddr, err error) {
					if host != "etcd.test" || row.stands == nil {
						return nil, unknown
					}
					for _, ip := range row.stands {
						all = append(all, net.IPAddr{IP: net.ParseIP(ip)})
					}
					return all, nil
				}, func(ctx context.Context, network, addr string) (net.Conn, error) {
					switch network + " " + addr {
					case "tcp " + well + ":2379":
						return fakeConn{closed: new(atomic.Int64)}, nil
					case "tcp " + deaf + ":2379":
						<-ctx.Done()
						return nil, os.ErrDeadlineExceeded
					}
					return nil, refused
				})
				if !errors.Is(err, row.err) || (conn == nil) != (row.err != nil) {
					t.Errorf("%v, %v; want %v", conn, err, row.err)
				}
				if took := time.Since(began); took > row.steps*dialEvery {
					t.Errorf("took %v, want %v at most", took, row.steps*dialEvery)
				}
			})
		})
	}
}
