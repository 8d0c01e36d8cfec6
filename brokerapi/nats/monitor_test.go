package nats

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
)

func TestTheMonitoringPortIsAskedOverOneConnectionThatIsReplacedWhenItBreaks(t *testing.T) {
	var opened atomic.Int64
	var last atomic.Bool
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/base/varz" || r.Host != r.Context().Value(http.LocalAddrContextKey).(net.Addr).String() {
			t.Errorf("asked for %s of %s", r.URL, r.Host)
		}
		if last.Load() {
			w.Header().Set("Connection", "close")
		}
		_, _ = w.Write([]byte("yes"))
	}))
	web.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	web.Start()
	defer web.Close()
	at, err := url.Parse(web.URL + "/base")
	if err != nil {
		t.Fatal(err)
	}
	m := newMonitor(at)
	ask := func(want int64) {
		t.Helper()
		a, err := m.get(bound(t), "/varz")
		if err != nil || string(a.body) != "yes" || opened.Load() != want {
			t.Errorf("%q, %v; %d connections, want %d", a.body, err, opened.Load(), want)
		}
	}
	ask(1)
	ask(1)
	web.CloseClientConnections()
	last.Store(true)
	ask(2)
	last.Store(false)
	ask(3)
	m.close()
	if m.conn != nil {
		t.Error("it is open")
	}
}

func TestTheMonitoringPortHasTheDefaultOfItsScheme(t *testing.T) {
	for at, want := range map[string]string{
		"http://a": "a:80", "https://[::1]/nats": "[::1]:443", "http://a:8222": "a:8222",
	} {
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		if got := newMonitor(u).addr; got != want {
			t.Errorf("%s: %s, want %s", at, got, want)
		}
	}
}
