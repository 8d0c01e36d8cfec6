package rest

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

// maxQuote is how much of an answer an error quotes, in bytes.
const maxQuote = 200

// shown is a text fit for a terminal and no longer than max bytes and an ellipsis.
func shown(text string, max int) string {
	var b strings.Builder
	for _, r := range text {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			r = '.'
		}
		if b.Len()+utf8.RuneLen(r) > max {
			b.WriteString("…")
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// quote is the beginning of a body, as it stands behind a status.
func (c *Client) quote(body []byte) string {
	if len(body) == 0 {
		return " with nothing"
	}
	return fmt.Sprintf(": %q", shown(c.token.hide(string(body)), maxQuote))
}

// failed is the error of a call that got no answer.
func (c *Client) failed(what string, err error) error {
	return &callError{fmt.Sprintf("%s %s: %s: %s%s", c.setting, c.base, what,
		shown(c.token.hide(strings.TrimPrefix(err.Error(), "readLoopPeekFailLocked: ")), 2*maxQuote), c.remedy(err)), err}
}

// callError keeps a text that was made fit to be shown apart from what it came from.
type callError struct {
	text string
	err  error
}

func (e *callError) Error() string { return e.text }
func (e *callError) Unwrap() error { return e.err }

// remedy says what to do when no answer came, where that is known.
func (c *Client) remedy(err error) string {
	var unknown x509.UnknownAuthorityError
	var noTLS tls.RecordHeaderError
	var lookup *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return ": is the broker running there?"
	case errors.As(err, &unknown):
		return ": set --broker-cacert to the authority that signed the broker's certificate"
	case strings.Contains(err.Error(), "remote error: tls: "): // an alert has no type of its own
		return ": the broker refuses the handshake: set --broker-cert and --broker-key to a certificate that it accepts"
	case errors.As(err, &noTLS), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Sprintf(": no TLS is spoken there: write http:// in %s", c.setting)
	case errors.As(err, &lookup):
		return fmt.Sprintf(": set %s to a name that can be resolved", c.setting)
	}
	return ""
}
