package rest

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/url"
)

// Authorization is the value of that header, for who asks on a connection of his own; empty:
// there is no token.
func (c *Client) Authorization() string {
	if token := c.token.Current(); token != "" {
		return "Bearer " + token
	}
	return ""
}

// Dial opens a connection to the admin API that no call uses, for who wants to know when
// it breaks, and the host to ask for on it. The caller closes it.
func (c *Client) Dial(ctx context.Context) (conn net.Conn, host string, err error) {
	u, err := url.Parse(c.base)
	if err != nil {
		return nil, "", c.failed("connect", err, nil)
	}
	t := c.http.Transport.(*http.Transport)
	dial, port := t.DialContext, "80"
	if u.Scheme == "https" {
		dial, port = t.DialTLSContext, "443"
	}
	if conn, err = dial(ctx, "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))); err != nil {
		return nil, "", c.failed("connect", err, nil)
	}
	return conn, u.Host, nil
}
