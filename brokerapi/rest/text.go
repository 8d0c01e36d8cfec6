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
	text := strings.TrimSpace(string(body))
	if text == "" {
		return " with nothing"
	}
	return fmt.Sprintf(": %q", shown(c.token.Hide(text), maxQuote))
}

// failed is the error of a call that got no answer.
func (c *Client) failed(what string, err error) error {
	return &callError{fmt.Sprintf("%s %s: %s: %s%s", c.setting, c.base, what,
		shown(c.token.Hide(strings.TrimPrefix(err.Error(), "readLoopPeekFailLocked: ")), 2*maxQuote), c.remedy(err)), err}
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
	var otherHost x509.HostnameError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return ": is the broker running there?"
	case errors.As(err, &unknown):
		return fmt.Sprintf(": set --broker-cacert%s to the authority that signed the broker's certificate", now(c.files.CACert))
	case errors.As(err, &otherHost):
		return fmt.Sprintf(": write a host in %s that the broker's certificate is made out to", c.setting)
	case strings.Contains(err.Error(), "remote error: tls: "): // an alert has no type of its own
		return fmt.Sprintf(": the broker refuses the handshake: set --broker-cert%s and --broker-key to a certificate that it accepts", now(c.files.Cert))
	case strings.Contains(err.Error(), `malformed HTTP response "\x15\x03`): // an alert
		return c.speaksTLS()
	case errors.As(err, &noTLS), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Sprintf(": no TLS is spoken there: write http:// in %s", c.setting)
	case errors.As(err, &lookup):
		return fmt.Sprintf(": set %s to a name that can be resolved", c.setting)
	}
	return ""
}

// now is the value that a setting has, if any.
func now(value string) string {
	if value == "" {
		return ""
	}
	return fmt.Sprintf(" (now %q)", value)
}

func (c *Client) speaksTLS() string {
	return fmt.Sprintf(": TLS is spoken there: write https:// in %s", c.setting)
}
