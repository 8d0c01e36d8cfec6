package probes

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"time"
)

const (
	// holdFirst is the first pause before another connection, doubled up to holdRedial
	// while none is had, and up to holdMost where each is closed soon.
	holdFirst, holdRedial, holdMost = 50 * time.Millisecond, time.Second, 30 * time.Second
	// holdLookup bounds the lookup of a name: resolvers wait 5 s for each dead server.
	holdLookup = 12 * time.Second
)

// Held is what became of the connection.
type Held int

// HeldEnded says only that the broker should be asked now: servers close connections that are
// idle. HeldGone follows when the port then refuses another, once for each that was held:
// whoever listened there has gone.
const (
	HeldBegun Held = iota
	HeldEnded
	HeldGone
)

// Hold keeps one TCP connection to host:port until ctx ends, and asks nothing over it. A name
// that is not resolved says nothing.
func Hold(ctx context.Context, address string, say func(Held)) error {
	h := holder{address: address}
	held := false // since the port was last seen to refuse
	for pause := holdFirst; ctx.Err() == nil; {
		most := holdRedial
		switch conn, err := h.dial(ctx); {
		case err == nil:
			since := time.Now()
			say(HeldBegun)
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			_, _ = io.Copy(io.Discard, conn) // until it ends, however it does
			stop()
			conn.Close()
			if ctx.Err() != nil {
				return nil
			}
			say(HeldEnded)
			if most = holdMost; !held || time.Since(since) > holdMost/2 {
				pause = holdFirst // else the same process closes what is idle
			}
			held = true
		case held && errors.Is(err, syscall.ECONNREFUSED):
			held = false
			say(HeldGone)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, most)
	}
	return nil
}

// holder remembers the addresses of a name: where the last connection was, another is tried
// without a lookup, and a lookup that fails changes nothing.
type holder struct {
	address string
	hosts   []string
	look    bool
}

// dial connects to the first address that takes a connection. The error is that of the last.
func (h *holder) dial(ctx context.Context) (conn net.Conn, err error) {
	host, port, err := net.SplitHostPort(h.address)
	if err != nil {
		return nil, err
	}
	if h.look || h.hosts == nil {
		bounded, cancel := context.WithTimeout(ctx, holdLookup)
		defer cancel()
		hosts, err := net.DefaultResolver.LookupHost(bounded, host)
		if err != nil && h.hosts == nil {
			return nil, err
		} else if err == nil {
			h.hosts = hosts
		}
	}
	dialer := net.Dialer{Timeout: time.Second}
	for _, host := range h.hosts {
		if conn, err = dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, port)); err == nil {
			break
		}
	}
	h.look = err != nil
	return conn, err
}
