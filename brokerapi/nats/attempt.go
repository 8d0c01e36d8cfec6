package nats

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	client "github.com/nats-io/nats.go"

	"holdfast/brokerapi"
	"holdfast/brokerapi/hosts"
)

// maxGreeting is how much of what a server says before it takes us in is kept, in bytes.
const maxGreeting = 32 << 10

// attempt is one attempt to connect. A server that does not take us in says why, and closes: the
// client library has written by then, and reads only that the connection broke.
type attempt struct {
	net.Conn
	err     error // of the dial
	greeted func(by string)

	mu   sync.Mutex
	said []byte // in the clear
	in   bool   // we were taken in
}

// Dial implements the client library's CustomDialer.
func (b *Broker) Dial(_, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(b.life, dialTimeout)
	defer cancel()
	a := &attempt{greeted: func(by string) { b.greeted.Store(by) }}
	a.Conn, a.err = hosts.Dial(ctx, address)
	b.attempt.Store(a)
	if a.err != nil {
		a.greeted("")
		return nil, a.err
	}
	return a, nil
}

// Read keeps the greeting.
func (a *attempt) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.in && len(a.said) < maxGreeting {
		a.said = append(a.said, p[:n]...)
		if line, _, whole := bytes.Cut(a.said, []byte("\r\n")); whole {
			var info struct {
				ID string `json:"server_id"`
			}
			_ = json.Unmarshal(bytes.TrimPrefix(line, []byte("INFO ")), &info)
			a.greeted(info.ID)
		}
	}
	return n, err
}

// Write reads what the server said last, if it does not listen any more.
func (a *attempt) Write(p []byte) (int, error) {
	n, err := a.Conn.Write(p)
	a.mu.Lock()
	greets := err != nil && !a.in
	a.mu.Unlock()
	if greets && a.Conn.SetReadDeadline(time.Now().Add(dialTimeout/4)) == nil {
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
	a.in, a.said = true, nil
}

// refusal says that the server lives and would not take us in.
type refusal struct {
	text  string
	login bool
}

func (e *refusal) Error() string { return e.text }
func (e *refusal) Unwrap() error { return brokerapi.ErrUnseen }

// CredentialsRefused tells a setting that is wrong from a server that is away.
func (e *refusal) CredentialsRefused() bool { return e.login }

// failure is why the attempt failed, by what the server said and by what the client library did.
func (a *attempt) failure(err error) error {
	if a == nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	greeted := bytes.HasPrefix(a.said, []byte("INFO "))
	_, said, refused := bytes.Cut(a.said, []byte("\r\n-ERR "))
	said, _, _ = bytes.Cut(said, []byte("\r\n"))
	switch {
	case a.err != nil && !brokerapi.Unseen(a.err):
		return fmt.Errorf("not connected: %w: is nats-server running there?", a.err)
	case a.err != nil:
		return &refusal{fmt.Sprintf("not connected: %v: check the name, and the nameservers in /etc/resolv.conf", a.err), false}
	case isLogin(err), bytes.Contains(said, []byte("Authorization Violation")):
		return &refusal{fmt.Sprintf("the server refuses our login: %.200q: set --nats-user and --nats-password-file, --nats-creds-file, --broker-token-file or --broker-cert to what this server accepts", err), true}
	case greeted && refused:
		return &refusal{fmt.Sprintf("the server refuses us: %.200q: it lives, and has no room for one more client: raise its limit, or close what need not be connected", said), false}
	case greeted || brokerapi.Unseen(err):
		return &refusal{fmt.Sprintf("the server does not take us in: %.200q", err), false}
	case len(a.said) > 0:
		return fmt.Errorf("not connected: %.80q is not how a nats-server greets: set --broker-admin to its client port", a.said)
	}
	return fmt.Errorf("not connected: %w: the port is open, and no nats-server greets there: it hangs, or --broker-admin is another's", err)
}

func isLogin(err error) bool {
	return slices.ContainsFunc([]error{client.ErrAuthorization, client.ErrAuthExpired, client.ErrAuthRevoked, client.ErrAccountAuthExpired},
		func(login error) bool { return errors.Is(err, login) })
}

func (b *Broker) greeter() string {
	by, _ := b.greeted.Load().(string)
	return by
}
