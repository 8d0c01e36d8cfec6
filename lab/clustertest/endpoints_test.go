package clustertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"holdfast/cluster"
	"holdfast/lab/harness"
	"holdfast/standstill"
)

// ways are proxies to one server: to a client they are endpoints.
func ways(t *testing.T, n int) (proxies []*proxy, urls []string) {
	for range n {
		p := newProxy(t, host(t, shared.url))
		proxies, urls = append(proxies, p), append(urls, p.url())
	}
	return proxies, urls
}

// behind returns the proxy whose URL it is.
func behind(t *testing.T, proxies []*proxy, url string) *proxy {
	t.Helper()
	for _, p := range proxies {
		if p.url() == url {
			return p
		}
	}
	t.Fatalf("no endpoint %s", url)
	return nil
}

// awaitUp waits until exactly these endpoints are not up.
func awaitUp(t *testing.T, l *cluster.Line, down ...string) {
	t.Helper()
	err := harness.Await(t.Context(), wait, fmt.Sprintf("all endpoints to be up but %q", down), func(context.Context) (bool, string) {
		list := l.Endpoints()
		for _, e := range list {
			want := true
			for _, d := range down {
				want = want && d != e.URL
			}
			if e.Up != want {
				return false, fmt.Sprintf("%+v", list)
			}
		}
		return true, ""
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAHedgeGoesToAnotherEndpointAndTheLineStaysThere(t *testing.T) {
	proxies, urls := ways(t, 3)
	l := openLine(t, cluster.Config{Endpoints: urls})
	id := lease(t, open(t, shared.config(t)), time.Minute)
	renew := func(ctx context.Context, fresh bool) error {
		_, err := l.KeepAlive(ctx, id, fresh)
		return err
	}
	if err := renew(bounded(t), false); err != nil {
		t.Fatal(err)
	}
	for _, p := range proxies {
		n := 0
		if p.url() == inUse(l) {
			n = 1
		}
		if got := p.accepted(); got != n {
			t.Errorf("%d connections to %s, want %d: what is not in use is left alone", got, p.url(), n)
		}
	}

	silent := behind(t, proxies, inUse(l))
	silent.hold()
	ctx, overtaken := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- renew(ctx, false) }()
	began := time.Now()
	// Until the first request is under way the second is not another one.
	if err := harness.Await(t.Context(), wait, "a hedge over another endpoint", func(ctx context.Context) (bool, string) {
		ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		err := renew(ctx, false)
		return err == nil, fmt.Sprint(err)
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("hedged in %v", time.Since(began))
	overtaken()
	<-first
	if inUse(l) == silent.url() {
		t.Fatal("the line stays with the endpoint that was overtaken")
	}
	now := inUse(l)
	for range 20 {
		began := time.Now()
		if err := renew(bounded(t), false); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		if inUse(l) != now {
			t.Errorf("renewed in %v over %s, want over %s", took, inUse(l), now)
		}
		standstill.Within(t, "renewed", began, took, 300*time.Millisecond)
	}
	awaitUp(t, l, silent.url())
	silent.heal()
	if err := renew(bounded(t), false); err != nil || inUse(l) != now {
		t.Errorf("the line went back to %s (%v)", inUse(l), err)
	}
	behind(t, proxies, now).live(t, 1)
	silent.live(t, 0)
}

func TestAnEndpointThatRefusesCostsNoAttempt(t *testing.T) {
	var dead []string
	for range 2 {
		addr, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		dead = append(dead, "http://"+addr)
	}
	for range 6 { // the first choice is random
		l := openLine(t, cluster.Config{Endpoints: []string{dead[0], dead[1], shared.url}})
		id := lease(t, open(t, shared.config(t)), time.Minute)
		began := time.Now()
		if _, err := l.KeepAlive(bounded(t), id, false); err != nil {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		took := time.Since(began)
		if inUse(l) != shared.url {
			t.Errorf("over %s, want %s", inUse(l), shared.url)
		}
		standstill.Within(t, "renewed", began, took, time.Second)
	}
}

func TestAReadIsAnsweredThoughTheEndpointInUseIsSilent(t *testing.T) {
	proxies, urls := ways(t, 3)
	c := open(t, cluster.Config{Endpoints: urls, Prefix: prefix(t)})
	if _, err := c.Snapshot(bounded(t), "b1"); err != nil {
		t.Fatal(err)
	}
	for _, p := range proxies {
		if p.accepted() > 0 {
			p.hold()
		}
	}
	// A second of patience once, and none on the next endpoint.
	for i := range 12 {
		began := time.Now()
		if _, err := c.Snapshot(bounded(t), "b1"); err != nil {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		standstill.Within(t, "read", began, time.Since(began), []time.Duration{3 * time.Second, time.Second}[min(i, 1)])
	}
}
