package danube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi"
)

func TestWhatSaysSomethingOfUsIsUnseen(t *testing.T) {
	away := status.Error(codes.Unavailable, "connection error")
	for _, c := range []struct {
		name, host    string
		failure, says error // of the connection, and of gRPC
		over          bool  // the time is
		unseen        bool
	}{
		{"a login that is refused", "127.0.0.1", nil, status.Error(codes.Unauthenticated, "who?"), false, true},
		{"another authority", "127.0.0.1", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, away, false, true},
		{"another authority, no answer", "127.0.0.1", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, away, true, true},
		{"no TLS there", "127.0.0.1", tls.RecordHeaderError{}, away, false, true},
		{"an alert in the handshake", "127.0.0.1", &net.OpError{Op: "remote error", Err: tls.AlertError(42)}, away, false, true},
		{"an alert after it", "127.0.0.1", nil, status.Error(codes.Unavailable, "error reading server preface: remote error: tls: bad certificate"), false, true},
		{"a name that nobody knows", "broker.example", &net.DNSError{Err: "no such host"}, away, false, true},
		{"a name that is looked up yet", "broker.example", nil, away, true, true},
		{"nothing listens", "127.0.0.1", syscall.ECONNREFUSED, away, false, false},
		{"it hung up", "127.0.0.1", nil, away, false, false},
		{"silence", "127.0.0.1", nil, away, true, false},
		{"silence after a connect that failed", "127.0.0.1", syscall.ECONNREFUSED, away, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := &link{flag: "--broker-admin", url: &url.URL{Scheme: "https", Host: c.host}}
			l.failure.Store(&c.failure)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if c.over {
				cancel(context.DeadlineExceeded)
			}
			if err := l.explain(ctx, "Get", c.says); errors.Is(err, brokerapi.ErrUnseen) != c.unseen || c.over != errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v: unseen %v, want %v", err, !c.unseen, c.unseen)
			}
		})
	}
}

func TestANameThatIsNotResolvedIsUnseen(t *testing.T) {
	b := opened(t, Config{AdminURL: "http://broker.invalid", LookupURL: "http://broker.invalid", MetricsURL: "http://broker.invalid", Store: &memory{}})
	if err := bounded(t, "health", func(ctx context.Context) error { return health(ctx, b) }); !errors.Is(err, brokerapi.ErrUnseen) {
		t.Error(err)
	}
}
