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
	"strings"
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

// Mangled are answers that no broker should give, by name.
func Mangled() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"cut JSON":        say("application/json", `{"status":"ok","insta`),
		"empty":           say("application/json", ``),
		"null":            say("application/json", `null`),
		"an empty object": say("application/json", `{}`),
		"other kinds":     say("application/json", `{"status":1,"instance":[],"topics":"all","name":{},"capabilities":7}`),
		"a name twice":    say("application/json", `{"status":"ok","status":"ok","instance":"x","instance":"y"}`),
		"deep JSON":       say("application/json", strings.Repeat("[", 1<<20)),
		"a page":          say("text/html", "<html><body>ok</body></html>"),
		"terminal codes":  say("text/plain", "\x1b[2J\x1b]0;ok\a\r\nok"),
		"bytes":           say("application/json", strings.Repeat("\x00\xff\xfe", 1000)),
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusTemporaryRedirect)
		},
		"an error":     func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "later", http.StatusServiceUnavailable) },
		"hung":         func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"huge":         endless(strings.Repeat(" ", 64<<10), 0),
		"huge JSON":    endless(`{"is_active":true},`+strings.Repeat("x", 64<<10), 0),
		"drop by drop": endless(" ", 10*time.Millisecond),
		"closed halfway": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			say("application/json", `{"status":`)(w, nil)
			panic(http.ErrAbortHandler)
		},
		"another protocol": raw("SSH-2.0-OpenSSH_9.9\r\n"),
		"endless head":     raw("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20)),
		"reset":            raw(""),
	}
}

func say(kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, body)
	}
}

// endless says the same again and again until nobody listens.
func endless(part string, pause time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, part); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
			time.Sleep(pause)
		}
	}
}

// raw says that, whatever HTTP is, and resets the connection.
func raw(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, text)
		if tcp, ok := conn.(*net.TCPConn); ok && text == "" {
			_ = tcp.SetLinger(0)
		}
	}
}
