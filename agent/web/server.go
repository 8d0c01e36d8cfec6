// Package web is how a sidecar listens: TCP and unix sockets that bear whoever comes, and the site on
// --web-listen with metrics, status and the status page. Nothing that comes in over TCP changes the
// sidecar but a reload by somebody who showed who he is.
package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/exporter-toolkit/web"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/probes"
)

// What one listener bears, so that a client can waste neither the memory nor the
// descriptors of a process that has a lease to keep. All of it at once, over TLS and with
// nobody who reads, is about 30 MB.
const (
	maxConnections = 128
	maxStreams     = 8   // requests at a time on one connection of HTTP/2
	maxRequests    = 128 // on all; over TCP. One that waits for its password to be judged may outlive its connection
	maxHeaderBytes = 16 << 10
	headerTimeout  = 5 * time.Second // also of a TLS handshake
	idleTimeout    = time.Minute
	readTimeout    = 10 * time.Second // of a request with its body; over TCP
	writeTimeout   = 10 * time.Second // of an answer; over TCP, unless it streams
)

// Listener is what one of the sidecar's servers listens on.
type Listener struct {
	Setting       string // such as "--probe-listen"
	Network, Addr string
	Handler       http.Handler
	Base          context.Context // of every request
	// WebConfig is a file of exporter-toolkit with TLS and users; empty: neither.
	WebConfig string
	// Later reports whether a unix socket that cannot be opened for that reason is opened once it
	// can; nil: none is.
	Later func(error) bool
	Log   *slog.Logger
}

// Server is a listener that is open. Serve returns nil after Close.
type Server interface {
	Addr() string
	Serve() error
	Close() error
}

// lookEvery is the pause between two looks whether a socket's file is still there.
const lookEvery = 2 * time.Second

// socketServer serves HTTP on a socket.
type socketServer struct {
	listener  net.Listener
	http      *http.Server
	webConfig string
	log       *slog.Logger
}

// Open opens a listener. Its errors name the setting, the value and the remedy.
func Open(l Listener) (Server, error) {
	open := func() (net.Listener, error) { return listen(l.Setting, l.Network, l.Addr) }
	if l.Network == "unix" {
		open = func() (net.Listener, error) { return listenControl(l) }
	}
	socket, err := open()
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: l.Handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		BaseContext: func(net.Listener) context.Context { return l.Base }, ErrorLog: slog.NewLogLogger(quietHandler{l.Log.Handler()}, slog.LevelError)}
	limited := &limitedListener{Listener: socket, begin: func() {}}
	if l.Network != "unix" {
		server.ReadTimeout, server.WriteTimeout = readTimeout, writeTimeout // of who was not let in, too
		// By then exporter-toolkit has put its own handler, which judges passwords, around ours.
		limited.begin = sync.OnceFunc(func() { server.Handler = few(maxRequests, server.Handler) })
	}
	return &socketServer{limited, server, l.WebConfig, l.Log}, nil
}

func (s *socketServer) Addr() string { return s.listener.Addr().String() }

func (s *socketServer) Serve() (err error) {
	if s.webConfig == "" {
		err = s.http.Serve(s.listener)
	} else {
		err = web.Serve(s.listener, s.http, &web.FlagConfig{WebConfigFile: &s.webConfig}, s.log)
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", s.Addr(), err)
	}
	return nil
}

// Close may come before Serve, which then closes nothing.
func (s *socketServer) Close() error {
	err := s.http.Close()
	_ = s.listener.Close()
	return err
}

func listen(setting, network, addr string) (net.Listener, error) {
	l, err := net.Listen(network, addr)
	if err != nil {
		if op, of := errors.AsType[*net.OpError](err); of {
			err = op.Err
		}
		return nil, control.UsageError(fmt.Errorf("%s %s: %w: free the address or set another", setting, addr, err))
	}
	return l, nil
}

// controlListener is the control socket. Whoever removes its file, or the directory that it
// is in, finds it again within seconds.
type controlListener struct {
	l      Listener
	ending chan struct{}

	mu      sync.Mutex
	current *net.UnixListener // nil: it cannot be opened yet
	file    os.FileInfo       // of that one
	failing bool              // said
}

func listenControl(l Listener) (net.Listener, error) {
	c := &controlListener{l: l, ending: make(chan struct{})}
	err := c.bind()
	if l.Later != nil && l.Later(err) {
		c.fails(err)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// bind takes the socket over from a sidecar that died. One that lives answers, and keeps it.
func (c *controlListener) bind() error {
	setting, path := c.l.Setting, c.l.Addr
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if other, err := net.DialTimeout("unix", path, time.Second); err == nil {
			other.Close()
			return control.UsageError(fmt.Errorf("%s %s: another process answers on it: give each sidecar its own", setting, path))
		}
		if err := os.Remove(path); err != nil {
			return control.UsageError(fmt.Errorf("%s %s: %w", setting, path, err))
		}
	}
	l, err := listen(setting, "unix", path)
	if err != nil {
		return err
	}
	next := l.(*net.UnixListener)
	next.SetUnlinkOnClose(false) // the name may be another's by then
	err = os.Chmod(path, 0o600)
	info, statErr := os.Lstat(path)
	if err = cmp.Or(err, statErr); err != nil {
		return errors.Join(control.UsageError(fmt.Errorf("%s %s: %s", setting, path, config.Cause(err))), next.Close())
	}
	if c.current != nil {
		c.current.Close()
	}
	c.current, c.file = next, info
	return nil
}

func (c *controlListener) fails(err error) {
	if !c.failing {
		c.l.Log.Error("control socket not opened: verbs and gates get no answer before it is", "err", err)
	}
	c.failing = true
}

// look returns the socket whose file stands there; nil: there is none yet.
func (c *controlListener) look() (*net.UnixListener, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.ending:
		return nil, net.ErrClosed
	default:
	}
	if info, err := os.Lstat(c.l.Addr); c.current == nil || err != nil || !os.SameFile(info, c.file) {
		if err := c.bind(); err != nil {
			c.fails(err)
			return c.current, nil
		}
		c.failing = false
		c.l.Log.Info("control socket opened anew", "path", c.l.Addr)
	}
	return c.current, nil
}

// Accept implements net.Listener.
func (c *controlListener) Accept() (net.Conn, error) {
	for {
		socket, err := c.look()
		switch {
		case err != nil:
			return nil, err
		case socket == nil:
			select {
			case <-c.ending:
			case <-time.After(probes.UntilTick(lookEvery)):
			}
			continue
		}
		_ = socket.SetDeadline(time.Now().Add(probes.UntilTick(lookEvery)))
		conn, err := socket.Accept()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		return conn, err
	}
}

// Addr implements net.Listener.
func (c *controlListener) Addr() net.Addr { return &net.UnixAddr{Name: c.l.Addr, Net: "unix"} }

// Close implements net.Listener.
func (c *controlListener) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.ending:
		return net.ErrClosed
	default:
		close(c.ending)
	}
	if c.current == nil {
		return nil
	}
	if info, err := os.Lstat(c.l.Addr); err == nil && os.SameFile(info, c.file) {
		os.Remove(c.l.Addr)
	}
	return c.current.Close()
}

// limitedListener closes the oldest connection when one more than maxConnections comes: whoever
// just holds them cannot lock out those who ask, and a probe that is not answered has its broker
// restarted.
type limitedListener struct {
	net.Listener
	begin func() // before the first connection

	mu   sync.Mutex
	open []*limitedConn // oldest first
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	l.begin()
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	one := &limitedConn{c, l}
	l.mu.Lock()
	l.open = append(l.open, one)
	oldest := l.open[0]
	full := len(l.open) > maxConnections
	l.mu.Unlock()
	if full {
		oldest.Close()
	}
	return one, nil
}

type limitedConn struct {
	net.Conn
	in *limitedListener
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.in.mu.Lock()
	c.in.open = slices.DeleteFunc(c.in.open, func(o *limitedConn) bool { return o == c })
	c.in.mu.Unlock()
	return c.Conn.Close()
}

// quietHandler keeps what a stranger can cause on a listener out of the log: a handshake
// that fails is his affair, a handler that panics is ours.
type quietHandler struct{ slog.Handler }

// Handle implements slog.Handler.
func (h quietHandler) Handle(ctx context.Context, r slog.Record) error {
	if !strings.Contains(r.Message, "panic") {
		if r.Level = slog.LevelDebug; !h.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}
