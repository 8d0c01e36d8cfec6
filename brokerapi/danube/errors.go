package danube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi"
	"holdfast/brokerapi/hosts"
)

// callError is what the broker, or gRPC for it, answered instead of a message.
type callError struct {
	code  codes.Code
	text  string
	cause error // why there is no connection; nil: not known, or there is one
}

func (e *callError) Error() string { return e.text }

// Unwrap makes a deadline of one that the broker was the first to notice, and of a refusal
// what says something of us alone.
func (e *callError) Unwrap() error {
	switch {
	case e.code == codes.DeadlineExceeded:
		return context.DeadlineExceeded
	case e.CredentialsRefused():
		return brokerapi.ErrUnseen
	}
	return e.cause
}

// code is the status of a call that failed; Unknown if it never got one.
func code(err error) codes.Code {
	var c *callError
	if errors.As(err, &c) {
		return c.code
	}
	return codes.Unknown
}

// CredentialsRefused tells a setting that is wrong from a broker that is away.
func (c *callError) CredentialsRefused() bool {
	return c.code == codes.Unauthenticated || c.code == codes.PermissionDenied
}

// explain says in our words why a call failed.
func (l *link) explain(ctx context.Context, method string, err error) error {
	why := hosts.Unknown(l.host)
	if failure := l.failure.Load(); why == nil && failure != nil {
		why = *failure
	}
	if brokerapi.Unseen(why) {
		why = fmt.Errorf("%w: %w", brokerapi.ErrUnseen, why)
	}
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(why, brokerapi.ErrUnseen) {
			cause = fmt.Errorf("%w: %w", cause, why)
		}
		return fmt.Errorf("%s %s: %s: %w", l.flag, l.url, method, cause) // says which bound was hit
	}
	s := status.Convert(err)
	if s.Code() == codes.Canceled && isOver(ctx) {
		s = status.New(codes.DeadlineExceeded, s.Message())
	}
	text := fmt.Sprintf("%s %s: %s answered %s: %s", l.flag, l.url, method, s.Code(), shown(l.token.Hide(s.Message())))
	switch s.Code() {
	case codes.Unauthenticated, codes.PermissionDenied:
		text += ": set --broker-token-file to a token that this broker accepts"
	case codes.ResourceExhausted:
		text += ": an answer that large is not a Danube broker's"
	case codes.Unavailable:
		if why == nil && strings.Contains(s.Message(), "remote error: tls: ") { // with TLS 1.3 it comes after our handshake
			why = fmt.Errorf("%w: it refuses our certificate", brokerapi.ErrUnseen)
		}
		return &callError{s.Code(), text + ": " + l.unreached(why), why}
	}
	return &callError{code: s.Code(), text: text}
}

// isOver says whether the time of a call is over. A broker that knows our deadline ends the
// call itself, a moment before us at times.
func isOver(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && time.Until(deadline) < 20*time.Millisecond
}

// unreached is what to do about a connection that failed that way.
func (l *link) unreached(err error) string {
	var stranger x509.UnknownAuthorityError
	var misnamed x509.HostnameError
	var invalid x509.CertificateInvalidError
	var plain tls.RecordHeaderError
	var unknown *net.DNSError
	switch {
	case errors.As(err, &unknown):
		return "check the name, and the nameservers in /etc/resolv.conf"
	case errors.As(err, &stranger):
		return "set --broker-cacert to the certificate of the authority that signed the broker's"
	case errors.As(err, &misnamed):
		return "write a name or address in " + l.flag + " that the broker's certificate is for"
	case errors.As(err, &invalid):
		return "renew the broker's certificate, or look at this machine's clock"
	case errors.As(err, &plain):
		return "no TLS is spoken there: write http:// in " + l.flag + ", or set up TLS in the broker"
	case strings.HasPrefix(l.url, "http://") && err == nil: // it was connected, and hung up: a server of TLS
		return "is it a Danube broker? If it speaks TLS, write https:// in " + l.flag
	}
	return "is the Danube broker running there?"
}

// shown is a text from outside as far as it is fit for a terminal.
func shown(text string) string {
	const enough = 200
	if len(text) > enough {
		text = text[:enough] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '.'
		}
		return r
	}, text)
}

// identityError is a message of its own that wraps brokerapi.ErrIdentity.
type identityError struct{ message string }

func (e *identityError) Error() string { return e.message }
func (e *identityError) Unwrap() error { return brokerapi.ErrIdentity }

func identityErrorf(format string, args ...any) error {
	return &identityError{fmt.Sprintf(format, args...)}
}
