package rest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
)

// Authorization is the value of that header, for who asks on a connection of his own; empty:
// there is no token.
func (c *Client) Authorization() string {
	if c.token == nil {
		return ""
	}
	return "Bearer " + c.token.Current()
}

// Dial opens a connection to the admin API that no call uses, for who wants to know when
// it breaks, and the host to ask for on it. The caller closes it; Close of the client
// does not.
func (c *Client) Dial(ctx context.Context) (conn net.Conn, host string, err error) {
	u, err := url.Parse(c.base)
	if err != nil {
		return nil, "", fmt.Errorf("dial %s: %w", c.base, err)
	}
	t := c.http.Transport.(*http.Transport)
	dial, port := t.DialContext, "80"
	if u.Scheme == "https" {
		dial, port = t.DialTLSContext, "443"
	}
	conn, err = dial(ctx, "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port)))
	if err != nil {
		return nil, "", c.failed("connect", err)
	}
	return conn, u.Host, nil
}
