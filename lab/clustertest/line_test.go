package clustertest

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"holdfast/cluster"
	"holdfast/standstill"
)

func host(t *testing.T, endpoint string) string {
	t.Helper()
	u, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func TestLineRenewsAtOnceAfterAStall(t *testing.T) {
	p := newProxy(t, host(t, shared.url))
	l := openLine(t, cluster.Config{Endpoints: []string{p.url()}})
	c := open(t, shared.config(t))
	id, granted, err := c.Grant(bounded(t), 10*time.Second)
	if err != nil || granted != 10*time.Second {
		t.Fatal(granted, err)
	}
	renew := func(timeout time.Duration, fresh bool) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		got, err := l.KeepAlive(ctx, id, fresh)
		if err == nil && (got.Granted != granted || got.Revision == 0 || got.Term == 0) {
			t.Errorf("renewed as %+v, want for %v", got, granted)
		}
		return err
	}
	if err := renew(wait, false); err != nil {
		t.Fatal(err)
	}
	p.hold()
	healed := make(chan time.Time, 1)
	time.AfterFunc(3*time.Second, func() {
		healed <- time.Now()
		p.heal()
	})
	fresh, failures := false, 0
	for {
		// As the renewal loop does: bounded attempts, a new connection after each that
		// was not answered.
		err := renew(time.Second, fresh)
		if err == nil {
			break
		}
		if cluster.Classify(err) != cluster.ClassTimeout {
			t.Errorf("while stalled: %v", err)
		}
		fresh = true
		if failures++; failures > 10 {
			t.Fatal(err)
		}
	}
	at := <-healed
	took := time.Since(at)
	t.Logf("renewed %v after the heal and %d failures", took, failures)
	if failures == 0 {
		t.Error("no attempt failed")
	}
	p.live(t, 1)
	standstill.Within(t, "renewed after the heal", at, took, 500*time.Millisecond)
}

func TestLineIsOneConnection(t *testing.T) {
	p := newProxy(t, host(t, shared.url))
	l := openLine(t, cluster.Config{Endpoints: []string{p.url()}, Prefix: prefix(t)})
	if p.accepted() != 0 {
		t.Error("opening a line touched the network")
	}
	c := l.Client()
	id := lease(t, c, time.Minute)
	for range 3 {
		if _, err := l.KeepAlive(bounded(t), id, true); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Snapshot(bounded(t), "b1"); err != nil { // the client moves along
			t.Fatal(err)
		}
	}
	p.live(t, 1)
	if n := p.accepted(); n != 4 {
		t.Errorf("%d connections for one line and three fresh attempts, want 4", n)
	}
	l.Close()
	p.live(t, 0)
	if _, err := l.KeepAlive(bounded(t), id, true); !errors.Is(err, cluster.ErrClosed) {
		t.Errorf("on a closed line: %v, want ErrClosed", err)
	}
	if err := l.AwaitReconnect(bounded(t)); !errors.Is(err, cluster.ErrClosed) {
		t.Errorf("waiting on a closed line: %v, want ErrClosed", err)
	}
	if _, err := c.Snapshot(bounded(t), "b1"); !errors.Is(err, cluster.ErrClosed) {
		t.Errorf("client of a closed line: %v, want ErrClosed", err)
	}
}

func TestAnsweredAttemptKeepsItsConnection(t *testing.T) {
	p := newProxy(t, host(t, shared.url))
	l := openLine(t, cluster.Config{Endpoints: []string{p.url()}})
	id := lease(t, l.Client(), time.Minute)
	p.hold()
	older := make(chan error, 1)
	go func() {
		_, err := l.KeepAlive(bounded(t), id, false)
		older <- err
	}()
	newer := make(chan error, 1)
	go func() {
		_, err := l.KeepAlive(bounded(t), id, true)
		newer <- err
	}()
	p.live(t, 2)
	p.heal()
	if err := errors.Join(<-older, <-newer); err != nil {
		t.Error(err)
	}
	p.live(t, 1)
}

func TestAwaitReconnectIsAnEdge(t *testing.T) {
	p := newProxy(t, host(t, shared.url))
	l := openLine(t, cluster.Config{Endpoints: []string{p.url()}})
	if err := l.AwaitReconnect(bounded(t)); err != nil {
		t.Fatalf("the first connection: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := l.AwaitReconnect(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while connected it returned %v, want it to wait", err)
	}
	again := make(chan error, 1)
	go func() { again <- l.AwaitReconnect(bounded(t)) }()
	for {
		p.live(t, 1)
		p.cut()
		select {
		case err := <-again:
			if err != nil {
				t.Errorf("after a cut: %v", err)
			}
			return
		case <-time.After(time.Second): // that cut may have come before the wait began: one more
		}
	}
}
