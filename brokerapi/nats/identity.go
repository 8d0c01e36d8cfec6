package nats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	client "github.com/nats-io/nats.go"

	"holdfast/brokerapi"
)

// identityError is a message of its own that wraps brokerapi.ErrIdentity.
type identityError struct{ message string }

func (e *identityError) Error() string { return e.message }
func (e *identityError) Unwrap() error { return brokerapi.ErrIdentity }

func identityErrorf(format string, args ...any) error {
	return &identityError{fmt.Sprintf(format, args...)}
}

// Identify implements brokerapi.Broker: both ports must belong to one server
// process. Name is the server's name if one is set (an unnamed server calls
// itself by its id, which is new at every start); Instance is the server id.
func (b *Broker) Identify(ctx context.Context) (brokerapi.Identity, error) {
	nc, _, err := b.connected(ctx)
	if err != nil {
		return brokerapi.Identity{}, b.diagnose(ctx, err)
	}
	v, err := b.varz(ctx)
	if err != nil {
		return brokerapi.Identity{}, err
	}
	if err := b.sameServer(ctx, nc, v); err != nil {
		return brokerapi.Identity{}, err
	}
	id := brokerapi.Identity{Instance: v.ServerID, StartedAt: v.Start, Version: v.Version}
	if v.ServerName != v.ServerID {
		id.Name = v.ServerName
	}
	if c := v.JetStream.Config; c != nil {
		// nats-server keeps its files in a folder of this name below the configured one.
		id.DataDir = strings.TrimSuffix(strings.TrimSuffix(c.StoreDir, "/"), "/jetstream")
	}
	return id, nil
}

// sameServer is nil if the client connection and the monitor are one process,
// and it does not carry another broker's name.
func (b *Broker) sameServer(ctx context.Context, nc *client.Conn, v varz) error {
	if nc.ConnectedServerId() != v.ServerID {
		// A restart may show at the monitor first: ask the held connection.
		flush, done := b.within(ctx, b.life)
		defer done()
		if err := nc.FlushWithContext(flush); err != nil {
			return fmt.Errorf("--broker-admin %s: ask the held connection: %w", b.admin, err)
		}
		if id := nc.ConnectedServerId(); id != v.ServerID {
			return identityErrorf(
				"--broker-admin %s is server %q (%s) and --nats-monitor %s is server %q (%s): set both to ports of the same server",
				b.admin, nc.ConnectedServerName(), id, b.monitor, v.ServerName, v.ServerID)
		}
	}
	// One whose name no broker can go by has --broker-id instead.
	if named := v.ServerName != v.ServerID; named && b.brokerID != "" && v.ServerName != b.brokerID && brokerapi.NameFlaw(v.ServerName) == "" {
		return identityErrorf(
			"--broker-admin %s: the broker there calls itself %q, --broker-id says %q: point --broker-admin at %s's own port, or set --broker-id to %s",
			b.admin, v.ServerName, b.brokerID, b.brokerID, v.ServerName)
	}
	b.mu.Lock()
	b.verified = v.ServerID
	b.mu.Unlock()
	return nil
}

// diagnosis bounds each read of diagnose.
const diagnosis = 250 * time.Millisecond

// diagnose looks at what is at the admin address when the client cannot connect,
// and returns unreachable unless it finds something better to say.
func (b *Broker) diagnose(ctx context.Context, unreachable error) error {
	if !errors.Is(unreachable, errUnreachable) || ctx.Err() != nil {
		return unreachable
	}
	u, err := url.Parse(b.admin)
	if err != nil {
		return unreachable
	}
	dialer := net.Dialer{Timeout: 2 * diagnosis}
	conn, err := dialer.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return unreachable
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	said := listen(conn)
	if len(said) == 0 {
		// A NATS server greets; who waits for us to speak may be a web server.
		if _, err := conn.Write([]byte("HEAD / HTTP/1.0\r\n\r\n")); err == nil {
			said = listen(conn)
		}
	}
	switch {
	case ctx.Err() != nil, bytes.HasPrefix(said, []byte("INFO ")):
		return unreachable
	case len(said) == 0:
		return fmt.Errorf("--broker-admin %s: accepts connections and says nothing: the broker hangs, or it is not a NATS server: %w", b.admin, unreachable)
	case bytes.HasPrefix(said, []byte("HTTP/")):
		return identityErrorf("--broker-admin %s: a web server answers there (%q): set --broker-admin to nats-server's client port (nats-server -p %s)", b.admin, firstLine(said), adminPort)
	default:
		return identityErrorf("--broker-admin %s: %q answers there, which is not NATS: set --broker-admin to nats-server's client port (nats-server -p %s)", b.admin, firstLine(said), adminPort)
	}
}

// listen reads what comes within diagnosis, at most one buffer.
func listen(conn net.Conn) []byte {
	buf := make([]byte, 256)
	if err := conn.SetReadDeadline(time.Now().Add(diagnosis)); err != nil {
		return nil
	}
	n, _ := conn.Read(buf) // an error is an answer of no bytes
	return buf[:n]
}

func firstLine(said []byte) string {
	line, _, _ := bytes.Cut(said, []byte("\n"))
	return excerpt(bytes.TrimSpace(line))
}
