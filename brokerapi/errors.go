package brokerapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// ErrUnseen is wrapped by errors that say something of us, and nothing of the broker: it lives
// and would not talk to us. A login that was refused, a handshake that failed, a server that is
// full: what its last answer said stays true.
var ErrUnseen = errors.New("the broker was not seen")

// ErrLogin is wrapped by an ErrUnseen that only another login cures: a setting is wrong.
var ErrLogin = fmt.Errorf("our login is refused: %w", ErrUnseen)

// Unseen reports whether an attempt to connect ended by something on our side of the broker: a
// name that was not resolved, a handshake that failed.
func Unseen(err error) bool {
	var lookup *net.DNSError
	var certificate *tls.CertificateVerificationError
	var noTLS tls.RecordHeaderError
	var op *net.OpError
	return errors.Is(err, ErrUnseen) || errors.As(err, &lookup) || errors.As(err, &certificate) || errors.As(err, &noTLS) ||
		errors.As(err, &op) && op.Op == "remote error" // an alert of TLS
}

// ErrClosed is wrapped by calls of a driver that its Close ended, or that came after it.
var ErrClosed = errors.New("the driver is closed")

// Bounded is ctx with two more ends, each of which is its cause: the life of what is asked, and the
// time for one answer. done frees it.
func Bounded(ctx, life context.Context, patience time.Duration) (bounded context.Context, done func()) {
	ctx, slow := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v: %w", patience, context.DeadlineExceeded))
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() {
		stop()
		cancel(nil)
		slow()
	}
}

// Sleep waits for so long, or until ctx ends, and returns why it did.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// worded is an error in other words: people see the text, errors.Is and errors.As the error.
type worded struct {
	text string
	err  error
}

func (e *worded) Error() string { return e.text }
func (e *worded) Unwrap() error { return e.err }

// Errorf is err in other words.
func Errorf(err error, format string, args ...any) error {
	return &worded{fmt.Sprintf(format, args...), err}
}
