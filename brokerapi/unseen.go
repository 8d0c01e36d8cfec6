package brokerapi

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
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
