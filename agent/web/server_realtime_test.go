package web

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/fakenet"
)

// The hashes of one password, which takes a millisecond, or about a second, to try.
const (
	password   = "open sesame"
	cheapHash  = "$2a$04$QGPg9.e8aaijE.G3DXwFXuhdyXkclIOFuq.KeKLctwB5G8iyjfKMC"
	costlyHash = "$2a$14$hFSDFcj8BU5DCc0Q9jjFh..3DPuhGCnXEB3HyvQ4GfySCY2ry.N3q"
)

// served opens a listener, serves it until the test ends, and returns its address.
func served(t *testing.T, l Listener) string {
	t.Helper()
	if l.Network == "" {
		l.Network, l.Addr = "tcp", "127.0.0.1:0"
	}
	if l.Log == nil {
		l.Log = slog.New(slog.DiscardHandler)
	}
	l.Base = t.Context()
	s, err := Open(l)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve() }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s.Addr()
}

// patience bounds the wait for an answer on a machine that is busy; it is no claim.
const patience = 60 * time.Second

// webConfigFile writes a web config file into dir.
func webConfigFile(t *testing.T, dir, text string) string {
	t.Helper()
	path := filepath.Join(dir, "web.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func saying(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}

// fetch returns the status and the body; an error is the body of status 0.
func fetch(c *http.Client, method, url, user, pass string) (int, string) {
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	if user != "" {
		req.SetBasicAuth(user, pass)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

var plain = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}

func TestTheWebListenerAsksForWhatItsFileDemands(t *testing.T) {
	dir := t.TempDir()
	ca := fakenet.NewAuthority(t, dir)
	ca.Server("server")
	ca.Write("scraper", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	const users = "basic_auth_users:\n  prometheus: " + cheapHash + "\n"
	const withTLS = "tls_server_config:\n  cert_file: server.pem\n  key_file: server-key.pem\n"
	for _, tt := range []struct {
		name, file string
		with       func(address string) (int, string)
		want       int
	}{
		{"users, with the password", users, func(a string) (int, string) { return fetch(plain, "GET", "http://"+a, "prometheus", password) }, 200},
		{"users, with a wrong one", users, func(a string) (int, string) { return fetch(plain, "GET", "http://"+a, "prometheus", "guess") }, 401},
		{"users, with another's name", users, func(a string) (int, string) { return fetch(plain, "GET", "http://"+a, "root", password) }, 401},
		{"users, with none", users, func(a string) (int, string) { return fetch(plain, "GET", "http://"+a, "", "") }, 401},
		{"TLS", withTLS, func(a string) (int, string) { return fetch(ca.Client(""), "GET", "https://"+a, "", "") }, 200},
		{"TLS, spoken to without", withTLS, func(a string) (int, string) { return fetch(plain, "GET", "http://"+a, "", "") }, 400},
		{"client certificates, with one", withTLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n",
			func(a string) (int, string) { return fetch(ca.Client("scraper"), "GET", "https://"+a, "", "") }, 200},
		{"client certificates, with none", withTLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n",
			func(a string) (int, string) { return fetch(ca.Client(""), "GET", "https://"+a, "", "") }, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			address := served(t, Listener{Setting: "--web-listen", Handler: saying("metrics"), WebConfig: webConfigFile(t, dir, tt.file)})
			code, body := tt.with(address)
			if code != tt.want || (body == "metrics") != (tt.want == 200) {
				t.Errorf("%d %q, want %d", code, body, tt.want)
			}
		})
	}
}

func TestACertificateThatIsRenewedIsServedWithoutARestart(t *testing.T) {
	dir := t.TempDir()
	ca := fakenet.NewAuthority(t, dir)
	ca.Server("server")
	address := served(t, Listener{Handler: saying("metrics"),
		WebConfig: webConfigFile(t, dir, "tls_server_config:\n  cert_file: server.pem\n  key_file: server-key.pem\n")})
	serial := func() string {
		c, err := tls.Dial("tcp", address, ca.Client("").Transport.(*http.Transport).TLSClientConfig)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	ca.Server("server")
	if after := serial(); after == before {
		t.Error("the certificate is the one from before")
	}
}

// Passwords are tried one at a time, and each of these takes about a second of a processor:
// that the probes answer while one still waits is an order of events, not a duration.
func TestTheProbesDoNotWaitForThePasswordsOfTheWebListener(t *testing.T) {
	web := served(t, Listener{Handler: saying("metrics"), WebConfig: webConfigFile(t, t.TempDir(), "basic_auth_users:\n  prometheus: "+costlyHash+"\n")})
	probe := served(t, Listener{Handler: saying("ok")})
	ctx, giveUp := context.WithCancel(t.Context())
	var guesses sync.WaitGroup
	var judged atomic.Int64
	for i := range 3 {
		guesses.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, "GET", "http://"+web, nil)
			req.SetBasicAuth("prometheus", fmt.Sprint("guess ", i))
			if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
				judged.Add(1)
				resp.Body.Close()
			}
		})
	}
	for range 5 {
		if code, body := fetch(plain, "GET", "http://"+probe, "", ""); code != http.StatusOK {
			t.Errorf("%d %s", code, body)
		}
	}
	if judged.Load() == 3 {
		t.Error("the probes answered after all guesses were judged")
	}
	giveUp()
	guesses.Wait()
}

// A probe that is not answered has its broker restarted, so nobody may keep it out by
// opening connections.
func TestWhoHoldsConnectionsLocksNobodyOut(t *testing.T) {
	address := served(t, Listener{Handler: saying("ok")})
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range 2 * maxConnections {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	if code, body := fetch(plain, "GET", "http://"+address, "", ""); code != http.StatusOK {
		t.Errorf("one more: %d %s", code, body)
	}
	_ = open[0].SetReadDeadline(time.Now().Add(patience))
	if _, err := open[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first: %v", err)
	}
}

// Each request of HTTP/2 holds memory. How many a connection may bring stands in the first
// frame that it is sent; see RFC 9113, section 6.5.
func TestOneConnectionBringsSoManyRequestsAtATime(t *testing.T) {
	dir := t.TempDir()
	ca := fakenet.NewAuthority(t, dir)
	ca.Server("server")
	address := served(t, Listener{Handler: saying("ok"), WebConfig: webConfigFile(t, dir, "tls_server_config:\n  cert_file: server.pem\n  key_file: server-key.pem\n")})
	settings := ca.Client("").Transport.(*http.Transport).TLSClientConfig
	settings.NextProtos = []string{"h2"}
	c, err := tls.Dial("tcp", address, settings)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 9)
	if _, err := io.ReadFull(c, head); err != nil || head[3] != 4 {
		t.Fatalf("the first frame is %x, %v", head, err)
	}
	body := make([]byte, int(head[1])<<8|int(head[2]))
	if _, err := io.ReadFull(c, body); err != nil {
		t.Fatal(err)
	}
	for ; len(body) >= 6; body = body[6:] {
		if id, n := binary.BigEndian.Uint16(body), binary.BigEndian.Uint32(body[2:]); id == 3 {
			if n != maxStreams {
				t.Errorf("%d requests, want %d", n, maxStreams)
			}
			return
		}
	}
	t.Error("as many as they like")
}

func TestWhoComesWhileManyAreAnsweredIsToldToComeAgain(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	h := few(2, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { entered <- struct{}{}; <-leave }))
	ask := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w
	}
	var two sync.WaitGroup
	for range 2 {
		two.Go(func() { ask() })
		<-entered
	}
	if w := ask(); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("the third: %d %v", w.Code, w.Header())
	}
	close(leave)
	two.Wait()
	go func() { <-entered }()
	if w := ask(); w.Code != http.StatusOK {
		t.Errorf("after they left: %d", w.Code)
	}
}

// A password that waits to be judged holds memory, also when its connection is gone.
func TestPasswordsAreJudgedOnlyOfSoMany(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	address := served(t, Listener{WebConfig: webConfigFile(t, t.TempDir(), "basic_auth_users:\n  prometheus: "+cheapHash+"\n"),
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { entered <- struct{}{}; <-leave })})
	var all sync.WaitGroup
	defer all.Wait()
	defer close(leave)
	for range maxRequests {
		all.Go(func() { fetch(plain, "GET", "http://"+address, "prometheus", password) })
		<-entered
	}
	if code, body := fetch(plain, "GET", "http://"+address, "prometheus", "guess"); code != http.StatusServiceUnavailable {
		t.Errorf("one more guess: %d %s", code, body)
	}
}

func TestHeadersWithoutEndAreNotRead(t *testing.T) {
	address := served(t, Listener{Handler: saying("ok")})
	req, _ := http.NewRequest("GET", "http://"+address, nil)
	req.Header.Set("X-Long", strings.Repeat("x", 2*maxHeaderBytes))
	resp, err := plain.Do(req)
	if err != nil {
		return // it may close while we still send
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Error(resp.Status)
	}
}

// What strangers do on a listener is nothing for the log; what we do wrong is.
func TestOnlyOurOwnFaultsOfAListenerAreLogged(t *testing.T) {
	var lines lockedBuffer
	log := slog.New(slog.NewTextHandler(&lines, nil))
	dir := t.TempDir()
	fakenet.NewAuthority(t, dir).Server("server")
	address := served(t, Listener{Handler: saying("x"), Log: log,
		WebConfig: webConfigFile(t, dir, "tls_server_config:\n  cert_file: server.pem\n  key_file: server-key.pem\n")})
	fetch(plain, "GET", "http://"+address, "", "")
	if text := lines.String(); strings.Contains(text, "handshake") {
		t.Error(text)
	}
	address = served(t, Listener{Log: log, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("our fault") })})
	fetch(plain, "GET", "http://"+address, "", "")
	if text := lines.String(); !strings.Contains(text, "our fault") || !strings.Contains(text, "ERROR") {
		t.Errorf("the panic is not logged: %s", text)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// overControl asks the control socket.
func overControl(path string) (int, string) {
	c := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}}}
	return fetch(c, "GET", "http://sidecar/v1/status", "", "")
}

func TestTheControlSocketIsForItsOwnUserByModeAndByCredentials(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil { // a directory that anybody may use
		t.Fatal(err)
	}
	path := filepath.Join(dir, "control.sock")
	served(t, Listener{Network: "unix", Addr: path, Handler: saying("status")})
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if code, body := overControl(path); code != http.StatusOK || body != "status" {
		t.Errorf("our own user: %d %s", code, body)
	}
}

// A stream outlives the bound of an answer, which every other has.
func TestOnlyWhatStreamsMayAnswerForLongerThanTheBound(t *testing.T) {
	for _, tt := range []struct {
		name string
		h    http.HandlerFunc
		want bool
	}{
		{"an answer", func(w http.ResponseWriter, r *http.Request) { saying("x").ServeHTTP(w, r) }, true},
		{"a stream", unbounded(func(w http.ResponseWriter, r *http.Request) { saying("x").ServeHTTP(w, r) }), false},
	} {
		w := &deadlined{ResponseRecorder: httptest.NewRecorder()}
		guarded(tt.h).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if got := !w.write.IsZero() && !w.read.IsZero(); got != tt.want {
			t.Errorf("%s: read until %v, write until %v", tt.name, w.read, w.write)
		}
	}
}

type deadlined struct {
	*httptest.ResponseRecorder
	read, write time.Time
}

func (d *deadlined) SetReadDeadline(t time.Time) error  { d.read = t; return nil }
func (d *deadlined) SetWriteDeadline(t time.Time) error { d.write = t; return nil }
