package rest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
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
	_, held := c.Hold(bound(t), Request{Path: "/x"})
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
		{"held", held, context.DeadlineExceeded, "no answer within 100ms: context deadline exceeded"},
		{"the caller's", callers, context.DeadlineExceeded, "context deadline exceeded"},
		{"over before", never, context.Canceled, "not asked: context canceled"},
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

func TestCloseEndsCallsAndHeldAnswers(t *testing.T) {
	c := opened(t, Config{URL: stuck(t), Timeout: time.Hour})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "first")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer web.Close()
	other := opened(t, Config{URL: web.URL, Timeout: time.Hour})
	h, err := other.Hold(context.Background(), Request{Path: "/x"})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := h.Line(); err != nil || string(first) != "first" {
		t.Fatalf("%q, %v", first, err)
	}
	ended := make(chan error, 3)
	go func() { _, err := c.Do(context.Background(), Request{Path: "/x"}); ended <- err }()
	go func() { _, err := c.Hold(context.Background(), Request{Path: "/x"}); ended <- err }()
	go func() { _, err := h.Line(); h.Close(); h.Close(); ended <- err }()
	for range 3 {
		c.Close()
		other.Close()
		select {
		case err := <-ended:
			if !errors.Is(err, ErrClosed) {
				t.Errorf("got %v, want %v", err, ErrClosed)
			}
		case <-bound(t).Done():
			t.Fatal("a call outlived the client")
		}
	}
	if _, err := c.Do(context.Background(), Request{Path: "/x"}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestAfterAFailureNoKeptConnectionIsUsed(t *testing.T) {
	var connections atomic.Int64
	var mute atomic.Bool
	release := make(chan struct{})
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if mute.Load() && r.URL.Path == "/old" {
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
	mute.Store(true)
	if err := ask("/old", 50*time.Millisecond); err == nil {
		t.Fatal("answered")
	}
	if err := ask("/x", time.Minute); err != nil || connections.Load() != 2 {
		t.Errorf("%v, over %d connections, want a second one", err, connections.Load())
	}
}

func TestWhatMayBeRepeatedIsWhenAKeptConnectionHasEnded(t *testing.T) {
	for _, once := range []bool{false, true} {
		t.Run(fmt.Sprint("once ", once), func(t *testing.T) {
			var asked atomic.Int64
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() { // each connection answers one request and ends at the second, unanswered
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer conn.Close()
						for range 2 {
							if _, err := conn.Read(make([]byte, 4096)); err != nil {
								return
							}
							if asked.Add(1)%2 == 0 && !once {
								return
							}
							_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
						}
					}()
				}
			}()
			c := opened(t, Config{URL: "http://" + l.Addr().String()})
			for range 2 {
				if _, err := c.Do(bound(t), Request{Method: "POST", Path: "/x", Body: 1, Once: once}); err != nil {
					t.Fatal(err)
				}
			}
			if want := map[bool]int64{false: 3, true: 2}[once]; asked.Load() != want {
				t.Errorf("asked %d times, want %d", asked.Load(), want)
			}
		})
	}
}

func TestARedirectIsGivenBackAndTheTokenStays(t *testing.T) {
	var visited atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { visited.Store(true) }))
	defer other.Close()
	web := httptest.NewServer(http.RedirectHandler(other.URL+"/y", http.StatusTemporaryRedirect))
	defer web.Close()
	a, err := opened(t, Config{URL: web.URL, TokenFile: write(t, "token", "secret")}).Do(bound(t), Request{Path: "/x"})
	if err != nil || a.Status != 307 || a.Location() != other.URL+"/y" {
		t.Errorf("%+v, %v", a, err)
	}
	if visited.Load() {
		t.Error("the redirect was followed")
	}
}

// issue makes a certificate of its own authority and returns the files of both.
func issue(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, "cert", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))),
		write(t, "key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text})))
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
	cert, key := issue(t)
	otherCert, otherKey := issue(t)
	url, strict := secure(t, cert, key, ""), secure(t, cert, key, cert)
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	alert := talker(t, "\x15\x03\x01\x00\x02\x02\x50") // as servers do that are not Go's
	for _, tt := range []struct {
		name string
		cfg  Config
		want string // empty: answered
	}{
		{"right authority", Config{URL: url, CACert: cert}, ""},
		{"the system's authorities", Config{URL: url}, "certificate signed by unknown authority: set --broker-cacert to the authority that signed the broker's certificate"},
		{"another authority", Config{URL: url, CACert: otherCert}, `set --broker-cacert (now "` + otherCert + `") to the authority that signed the broker's certificate`},
		{"another host", Config{URL: strings.Replace(url, "127.0.0.1", "localhost", 1), CACert: cert}, ": write a host in --broker-admin that the broker's certificate is made out to"},
		{"client certificate", Config{URL: strict, CACert: cert, Cert: cert, Key: key}, ""},
		{"no client certificate", Config{URL: strict, CACert: cert}, "the broker refuses the handshake: set --broker-cert and --broker-key to a certificate that it accepts"},
		{"another client certificate", Config{URL: strict, CACert: cert, Cert: otherCert, Key: otherKey}, `the broker refuses the handshake: set --broker-cert (now "` + otherCert + `") and --broker-key to a certificate that it accepts`},
		{"TLS there", Config{URL: "http" + strings.TrimPrefix(url, "https")}, ": TLS is spoken there: write https:// in --broker-admin"},
		{"TLS there, and nothing else", Config{URL: alert}, ": TLS is spoken there: write https:// in --broker-admin"},
		{"no TLS there", Config{URL: strings.Replace(plain.URL, "http", "https", 1), CACert: cert}, "no TLS is spoken there: write http:// in --broker-admin"},
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
	c := opened(t, Config{URL: url, CACert: file})
	if _, err := c.Do(bound(t), Request{Path: "/x"}); err == nil {
		t.Fatal("another authority was accepted")
	}
	replace(cert)
	if _, err := c.Do(bound(t), Request{Path: "/x"}); err != nil {
		t.Errorf("after the file was renewed: %v", err)
	}
}
