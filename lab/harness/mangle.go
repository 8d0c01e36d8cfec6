package harness

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// Mangler is an HTTP server in front of an admin API. It passes everything on, until it is
// told to answer in another way. It listens on the loopback of the host and ends with the
// lab.
type Mangler struct {
	url    string
	server *http.Server
	pass   http.Handler

	mu      sync.Mutex
	answer  http.HandlerFunc // nil: pass on
	present context.Context  // of the answers under way
	change  context.CancelFunc
}

// NewMangler puts a server in front of the admin API at that URL.
func NewMangler(l *Lab, admin string) (*Mangler, error) {
	target, err := url.Parse(admin)
	if err != nil {
		return nil, fmt.Errorf("start mangler: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start mangler: %w", err)
	}
	quiet := log.New(io.Discard, "", 0)
	proxy := httputil.NewSingleHostReverseProxy(target)
	transport := &http.Transport{DisableCompression: true}
	proxy.Transport, proxy.FlushInterval, proxy.ErrorLog = transport, -1, quiet
	m := &Mangler{url: "http://" + listener.Addr().String(), pass: proxy}
	m.present, m.change = context.WithCancel(context.Background())
	m.server = &http.Server{Handler: m, ReadHeaderTimeout: 10 * time.Second, ErrorLog: quiet}
	var served sync.WaitGroup
	served.Go(func() { _ = m.server.Serve(listener) })
	l.onClose(func() error {
		m.Answer(nil)
		err := m.server.Close()
		transport.CloseIdleConnections()
		served.Wait()
		return err
	})
	return m, nil
}

// URL is where the admin API is to be looked for.
func (m *Mangler) URL() string { return m.url }

// Answer answers in that way from now on; nil: what the broker answers. Answers under way
// are broken off.
func (m *Mangler) Answer(as http.HandlerFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.change()
	m.answer = as
	m.present, m.change = context.WithCancel(context.Background())
}

// ServeHTTP implements http.Handler.
func (m *Mangler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	answer, present := m.answer, m.present
	m.mu.Unlock()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(present, cancel)()
	r = r.WithContext(ctx)
	if answer == nil {
		m.pass.ServeHTTP(w, r)
		return
	}
	answer(w, r)
}
