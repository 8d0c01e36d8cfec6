package rest

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"holdfast/brokerapi/access"
)

// newHTTP has no proxy: the broker is beside us. It speaks HTTP/1.1 only, where a call
// that is given up takes its connection with it.
func (c *Client) newHTTP(files access.Files, host string) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Client{
		Transport: &http.Transport{
			DialContext: c.dial,
			DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				return c.dialTLS(ctx, network, address, files, host)
			},
			Protocols:              protocols,
			DisableCompression:     true, // a small answer must not unpack into a huge one
			MaxResponseHeaderBytes: maxHead,
			MaxIdleConnsPerHost:    maxIdle,
			IdleConnTimeout:        idleTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// dial connects on behalf of a call, and may outlive it: the connection is then kept
// for the next one. It does not outlive the client.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if !c.enter() {
		return nil, ErrClosed
	}
	defer c.inside.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	return (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext(ctx, network, address)
}

func (c *Client) dialTLS(ctx context.Context, network, address string, files access.Files, host string) (net.Conn, error) {
	cfg, err := files.Config(host)
	if err != nil {
		return nil, err
	}
	raw, err := c.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if !c.enter() {
		raw.Close()
		return nil, ErrClosed
	}
	defer c.inside.Done()
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}
