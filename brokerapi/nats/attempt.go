package nats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/nats-io/nats.go"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/brokerapi/hosts"
)

// maxGreeting is how much of what a server says before it takes us in is kept, in bytes.
const maxGreeting = 32 << 10

// attempt is one attempt to connect. A server that does not take us in says why, and closes: the
// client library has written by then, and reads only that the connection broke.
type attempt struct {
	net.Conn
	err error // of the dial

	in   atomic.Bool // we were taken in
	mu   sync.Mutex
	said []byte // in the clear
}

// Dial implements the client library's CustomDialer.
func (b *Broker) Dial(_, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(b.life, dialTimeout)
	defer cancel()
	conn, err := hosts.Dial(ctx, address)
	a := &attempt{Conn: conn, err: err}
	if last := b.attempt.Swap(a); last != nil {
		last.end() // the client library does not
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// end closes the connection, if there is one.
func (a *attempt) end() {
	if a.Conn != nil {
		a.Conn.Close()
	}
}

// Read keeps the greeting.
func (a *attempt) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.in.Load() && len(a.said) < maxGreeting {
		a.said = append(a.said, p[:n]...)
	}
	return n, err
}

// Write reads what the server said last, if it does not listen any more.
func (a *attempt) Write(p []byte) (int, error) {
	n, err := a.Conn.Write(p)
	if err != nil && !a.in.Load() && a.Conn.SetReadDeadline(time.Now().Add(dialTimeout/4)) == nil {
		for rest := make([]byte, 512); ; {
			if _, end := a.Read(rest); end != nil {
				break
			}
		}
	}
	return n, err
}

// over ends the greeting.
func (a *attempt) over() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.in.Store(true)
	a.said = nil
}

// failure is why the attempt failed, by what the server said and by what the client library did.
func (a *attempt) failure(err error, files access.Files) error {
	if a == nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	remedy := files.Remedy(err)
	if remedy == "" && files.Cert == "" && bytes.Contains(a.said, []byte(`"tls_verify":true`)) {
		remedy = ": it wants a client's certificate: set --broker-cert and --broker-key"
	}
	greeted := bytes.HasPrefix(a.said, []byte("INFO "))
	_, said, refused := bytes.Cut(a.said, []byte("\r\n-ERR "))
	said, _, _ = bytes.Cut(said, []byte("\r\n"))
	switch {
	case a.err != nil && !brokerapi.Unseen(a.err):
		return fmt.Errorf("not connected: %w: is nats-server running there?", a.err)
	case a.err != nil:
		return brokerapi.Errorf(brokerapi.ErrUnseen, "not connected: %v: check the name, and the nameservers in /etc/resolv.conf", a.err)
	case isLogin(err), bytes.Contains(said, []byte("Authorization Violation")):
		return brokerapi.Errorf(brokerapi.ErrLogin, "the server refuses our login: %.200q: set --nats-user and --nats-password-file, --nats-creds-file, --broker-token-file or --broker-cert to what this server accepts", err)
	case greeted && refused:
		return brokerapi.Errorf(brokerapi.ErrUnseen, "the server refuses us: %.200q: it lives, and has no room for one more client: raise its limit, or close what need not be connected", said)
	case greeted || brokerapi.Unseen(err):
		return brokerapi.Errorf(brokerapi.ErrUnseen, "the server does not take us in: %.200q%s", err, remedy)
	case len(a.said) > 0:
		return fmt.Errorf("not connected: %.80q is not how a nats-server greets: set --broker-admin to its client port", a.said)
	}
	return fmt.Errorf("not connected: %w: the port is open, and no nats-server greets there: it hangs, or --broker-admin is another's", err)
}

func isLogin(err error) bool {
	return slices.ContainsFunc([]error{client.ErrAuthorization, client.ErrAuthExpired, client.ErrAuthRevoked, client.ErrAccountAuthExpired},
		func(login error) bool { return errors.Is(err, login) })
}
