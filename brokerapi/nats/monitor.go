package nats

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// maxAnswer bounds what is read from the monitoring port, in bytes. /varz of a
// server with thousands of routes is well below.
const maxAnswer = 8 << 20

// maxHeader is room for what stands before the body, and what HTTP adds to it.
const maxHeader = 64 << 10

// monitor is the monitoring port. It is asked each second for as long as the sidecar lives,
// so it does without net/http's client, whose three goroutines for each connection cost
// more than all that is asked. One asks at a time, over a connection that is kept.
type monitor struct {
	url  *url.URL
	addr string
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	turn chan struct{}     // has room for the one who asks
	conn net.Conn          // his; nil: there is none
	said *bufio.Reader     // what comes over it
	room *io.LimitedReader // how much more of that is read, so that no header is endless
}

func newMonitor(at *url.URL) *monitor {
	tcp := &net.Dialer{Timeout: 5 * time.Second} // no proxy: the broker is beside us
	m := &monitor{url: at, addr: at.Host, dial: tcp.DialContext, turn: make(chan struct{}, 1)}
	port := "80"
	if at.Scheme == "https" {
		port, m.dial = "443", (&tls.Dialer{NetDialer: tcp}).DialContext
	}
	if at.Port() == "" {
		m.addr = net.JoinHostPort(at.Hostname(), port)
	}
	return m
}

// get asks for a path. A connection that was kept may have been closed by the other side;
// the question is repeated once then, over a new one.
func (m *monitor) get(ctx context.Context, path string) (answer, error) {
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
	defer func() { <-m.turn }()
	if m.conn != nil {
		if a, err := m.exchange(ctx, path); err == nil || ctx.Err() != nil {
			return a, err
		}
	}
	conn, err := m.dial(ctx, "tcp", m.addr)
	if err != nil {
		return answer{}, err
	}
	m.conn, m.room = conn, &io.LimitedReader{R: conn}
	m.said = bufio.NewReader(m.room)
	return m.exchange(ctx, path)
}

// exchange is one question over the connection, which it drops if it cannot be used again.
func (m *monitor) exchange(ctx context.Context, path string) (a answer, err error) {
	conn, last := m.conn, false
	m.room.N = maxAnswer + maxHeader
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer func() {
		if !stop() || last || err != nil {
			conn.Close()
			m.conn = nil
		}
	}()
	if _, err := io.WriteString(conn, "GET "+m.url.EscapedPath()+path+" HTTP/1.1\r\nHost: "+m.url.Host+"\r\n\r\n"); err != nil {
		return answer{}, err
	}
	resp, err := http.ReadResponse(m.said, nil)
	if err != nil {
		return answer{}, err
	}
	last = resp.Close
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return answer{}, fmt.Errorf("read the answer: %w", err)
	}
	if len(body) > maxAnswer {
		return answer{}, fmt.Errorf("the answer is larger than %d bytes: is this nats-server's monitoring port?", maxAnswer)
	}
	return answer{resp.StatusCode, resp.Header.Get("Content-Type"), body}, nil
}

// close drops the connection once nobody asks.
func (m *monitor) close() {
	m.turn <- struct{}{}
	if m.conn != nil {
		m.conn.Close()
		m.conn = nil
	}
	<-m.turn
}

// answer is what the monitoring port said.
type answer struct {
	status      int
	contentType string
	body        []byte
}

// get asks the monitoring port, bounded in time and size.
func (b *Broker) get(ctx context.Context, path string) (answer, error) {
	if b.life.Err() != nil {
		return answer{}, errClosed
	}
	ctx, done := b.within(ctx, b.life)
	defer done()
	a, err := b.port.get(ctx, path)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause // says which bound was hit
		}
		return answer{}, fmt.Errorf("--nats-monitor %s: GET %s: %w%s", b.monitor, path, err, monitorRemedy(err))
	}
	return a, nil
}

func monitorRemedy(err error) string {
	var refused *net.OpError
	if errors.As(err, &refused) && refused.Op == "dial" {
		return ": start nats-server with -m " + monitorPort + ", or set --nats-monitor to its monitoring port"
	}
	return ""
}

// varz is the part of /varz that is used.
type varz struct {
	ServerID   string    `json:"server_id"`
	ServerName string    `json:"server_name"`
	Version    string    `json:"version"`
	Start      time.Time `json:"start"`
	JetStream  struct {
		Config *struct {
			StoreDir string `json:"store_dir"`
		} `json:"config"`
	} `json:"jetstream"`
}

// varz reads who the monitoring port says it is. An answer that no nats-server
// gives wraps ErrIdentity; a 5xx may pass and does not.
func (b *Broker) varz(ctx context.Context) (varz, error) {
	a, err := b.get(ctx, "/varz")
	if err != nil {
		return varz{}, err
	}
	if a.status >= 500 {
		return varz{}, fmt.Errorf("--nats-monitor %s: GET /varz answered %d %s: %q", b.monitor, a.status, http.StatusText(a.status), excerpt(a.body))
	}
	var v varz
	if err := json.Unmarshal(a.body, &v); a.status != http.StatusOK || err != nil || v.ServerID == "" {
		return varz{}, identityErrorf(
			"--nats-monitor %s: GET /varz answered %d %s (%s) %q, which no nats-server says: set --nats-monitor to nats-server's monitoring port (nats-server -m %s)",
			b.monitor, a.status, http.StatusText(a.status), contentType(a), excerpt(a.body), monitorPort)
	}
	return v, nil
}

func contentType(a answer) string {
	if a.contentType == "" {
		return "no content type"
	}
	return a.contentType
}

// excerpt is enough of an unexpected answer to recognise it, in bytes.
func excerpt(body []byte) string {
	return excerptOf(string(body), 80)
}

func excerptOf(text string, enough int) string {
	if len(text) > enough {
		return text[:enough] + "…"
	}
	return text
}
