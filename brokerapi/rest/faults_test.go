package rest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/internal/fakenet"
)

// stuck answers nothing until the test ends.
func stuck(t *testing.T) string {
	t.Helper()
	release := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(func() { close(release); web.Close() })
	return web.URL
}

func TestSlowAnswersEndWithTheirBound(t *testing.T) {
	url := stuck(t)
	c := opened(t, Config{URL: url, Timeout: 100 * time.Millisecond})
	_, own := c.Do(bound(t), Request{Path: "/x"})
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, callers := c.Do(short, Request{Path: "/x"})
	ended, end := context.WithCancel(context.Background())
	end()
	_, never := c.Do(ended, Request{Path: "/x"})
	for _, tt := range []struct {
		name string
		err  error
		is   error
		want string
	}{
		{"its own", own, context.DeadlineExceeded, "no answer within 100ms: context deadline exceeded"},
		{"the caller's", callers, context.DeadlineExceeded, "context deadline exceeded"},
		{"over before", never, context.Canceled, "context canceled"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if want := "--broker-admin " + url + ": GET /x: " + tt.want; tt.err == nil || tt.err.Error() != want || !errors.Is(tt.err, tt.is) {
				t.Errorf("got  %v\nwant %s", tt.err, want)
			}
		})
	}
}

func TestABodyThatComesDropByDropEndsWithTheBound(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			fmt.Fprint(w, " ")
			w.(http.Flusher).Flush()
			time.Sleep(time.Millisecond)
		}
	}))
	defer web.Close()
	_, err := opened(t, Config{URL: web.URL, Timeout: 100 * time.Millisecond}).Do(bound(t), Request{Path: "/x"})
	if err == nil || !strings.HasSuffix(err.Error(), "no answer within 100ms: context deadline exceeded") {
		t.Errorf("got %v", err)
	}
}

func TestCloseEndsCalls(t *testing.T) {
	c := opened(t, Config{URL: stuck(t), Timeout: time.Hour})
	ended := make(chan error, 1)
	go func() { _, err := c.Do(context.Background(), Request{Path: "/x"}); ended <- err }()
	c.Close()
	select {
	case err := <-ended:
		if !errors.Is(err, brokerapi.ErrClosed) {
			t.Errorf("got %v, want %v", err, brokerapi.ErrClosed)
		}
	case <-bound(t).Done():
		t.Fatal("a call outlived the client")
	}
	if _, err := c.Do(context.Background(), Request{Path: "/x"}); !errors.Is(err, brokerapi.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestWhatSaysSomethingOfUsIsUnseen(t *testing.T) {
	cert, key := fakenet.Certificate(t)
	otherCert, otherKey := fakenet.Certificate(t)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		w.WriteHeader(status)
	}))
	defer web.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, c := range []struct {
		name, path string
		cfg        Config
		unseen     bool
	}{
		{"unauthorized", "/401", Config{URL: web.URL}, true},
		{"forbidden", "/403", Config{URL: web.URL}, true},
		{"too many requests", "/429", Config{URL: web.URL}, true},
		{"no room", "/503", Config{URL: web.URL}, true},
		{"an error of its own", "/500", Config{URL: web.URL}, false},
		{"not there", "/404", Config{URL: web.URL}, false},
		{"nothing listens", "/200", Config{URL: gone.URL}, false},
		{"silence", "/200", Config{URL: stuck(t), Timeout: 50 * time.Millisecond}, false},
		{"another authority", "/200", Config{URL: secure(t, cert, key, ""), Files: access.Files{CACert: otherCert}}, true},
		{"another client certificate", "/200", Config{URL: secure(t, cert, key, cert), Files: access.Files{CACert: cert, Cert: otherCert, Key: otherKey}}, true},
		{"no TLS there", "/200", Config{URL: strings.Replace(web.URL, "http", "https", 1)}, true},
		{"a name that nobody knows", "/200", Config{URL: "http://broker.invalid"}, true},
		{"a name that is looked up yet", "/200", Config{URL: "http://late.invalid", Timeout: time.Nanosecond}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := opened(t, c.cfg).Do(bound(t), Request{Path: c.path})
			if err == nil {
				err = a.Want(http.StatusOK)
			}
			if err == nil || errors.Is(err, brokerapi.ErrUnseen) != c.unseen {
				t.Errorf("%v: unseen %v, want %v", err, !c.unseen, c.unseen)
			}
		})
	}
}

func TestAfterAFailureNoKeptConnectionIsUsed(t *testing.T) {
	var connections atomic.Int64
	var mute atomic.Bool
	release, both := make(chan struct{}), make(chan bool)
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/both":
			select { // one is not answered before the other is asked
			case both <- true:
			case <-both:
			}
		case mute.Load() && r.URL.Path == "/old":
			<-release
		}
		fmt.Fprint(w, "{}")
	}))
	web.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	web.Start()
	defer web.Close()
	defer close(release)
	c := opened(t, Config{URL: web.URL})
	ask := func(path string, patience time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := c.Do(ctx, Request{Path: path})
		return err
	}
	for range 5 {
		if err := ask("/x", time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Fatalf("%d connections for calls one after the other", n)
	}
	var two sync.WaitGroup
	for range 2 {
		two.Go(func() { _ = ask("/both", time.Minute) })
	}
	two.Wait()
	if n := connections.Load(); n != 2 {
		t.Fatalf("%d connections for two calls at a time", n)
	}
	mute.Store(true)
	if err := ask("/old", 50*time.Millisecond); err == nil {
		t.Fatal("answered")
	}
	if err := ask("/x", time.Minute); err != nil || connections.Load() != 3 {
		t.Errorf("%v, over %d connections, want a third one", err, connections.Load())
	}
}

func TestARedirectIsGivenBackAndTheTokenStays(t *testing.T) {
	var visited atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { visited.Store(true) }))
	defer other.Close()
	web := httptest.NewServer(http.RedirectHandler(other.URL+"/y", http.StatusTemporaryRedirect))
	defer web.Close()
	a, err := opened(t, Config{URL: web.URL, Files: access.Files{TokenFile: fakenet.File(t, "token", "secret")}}).Do(bound(t), Request{Path: "/x"})
	if err != nil || a.Status != 307 || a.Location() != other.URL+"/y" {
		t.Errorf("%+v, %v", a, err)
	}
	if visited.Load() {
		t.Error("the redirect was followed")
	}
}

// secure is a server with TLS that asks for a client certificate if there is an authority for it.
func secure(t *testing.T, cert, key, clients string) string {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	web.Config.ErrorLog = log.New(io.Discard, "", 0)
	web.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	if clients != "" {
		text, err := os.ReadFile(clients)
		if err != nil {
			t.Fatal(err)
		}
		web.TLS.ClientCAs, web.TLS.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		web.TLS.ClientCAs.AppendCertsFromPEM(text)
	}
	web.StartTLS()
	t.Cleanup(web.Close)
	return web.URL
}

func TestTLSIsVerifiedBothWaysAndFilesAreReadAnew(t *testing.T) {
	cert, key := fakenet.Certificate(t)
	otherCert, otherKey := fakenet.Certificate(t)
	url, strict := secure(t, cert, key, ""), secure(t, cert, key, cert)
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for _, tt := range []struct {
		name string
		cfg  Config
		want string // empty: answered
	}{
		{"right authority", Config{URL: url, Files: access.Files{CACert: cert}}, ""},
		{"the system's authorities", Config{URL: url}, "certificate signed by unknown authority: set --broker-cacert to the authority that signed the broker's certificate"},
		{"another authority", Config{URL: url, Files: access.Files{CACert: otherCert}}, "set --broker-cacert to the authority that signed the broker's certificate"},
		{"another host", Config{URL: strings.Replace(url, "127.0.0.1", "localhost", 1), Files: access.Files{CACert: cert}}, "certificate is not valid for any names"},
		{"client certificate", Config{URL: strict, Files: access.Files{CACert: cert, Cert: cert, Key: key}}, ""},
		{"no client certificate", Config{URL: strict, Files: access.Files{CACert: cert}}, "remote error: tls: "},
		{"another client certificate", Config{URL: strict, Files: access.Files{CACert: cert, Cert: otherCert, Key: otherKey}}, "remote error: tls: "},
		{"TLS there", Config{URL: "http" + strings.TrimPrefix(url, "https")}, "Client sent an HTTP request to an HTTPS server"},
		{"no TLS there", Config{URL: strings.Replace(plain.URL, "http", "https", 1), Files: access.Files{CACert: cert}}, "server gave HTTP response to HTTPS client"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, err := opened(t, tt.cfg).Do(bound(t), Request{Path: "/x"})
			if err == nil {
				err = a.Want(http.StatusOK)
			}
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}

	file := filepath.Join(t.TempDir(), "ca")
	replace := func(with string) {
		t.Helper()
		text, err := os.ReadFile(with)
		if err == nil {
			err = os.WriteFile(file, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	replace(otherCert)
	c := opened(t, Config{URL: url, Files: access.Files{CACert: file}})
	if _, err := c.Do(bound(t), Request{Path: "/x"}); err == nil {
		t.Fatal("another authority was accepted")
	}
	replace(cert)
	if _, err := c.Do(bound(t), Request{Path: "/x"}); err != nil {
		t.Errorf("after the file was renewed: %v", err)
	}
}
