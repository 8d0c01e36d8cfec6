package probes

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"holdfast/brokerapi/hosts"
)

// holdFirst is the first pause before another connection, doubled up to holdRedial while none is
// had, or each is closed soon.
const holdFirst, holdRedial = 50 * time.Millisecond, time.Second

// Held is what became of the connection.
type Held int

// HeldEnded says only that the broker should be asked now: servers close connections that are
// idle. HeldGone follows when the port then refuses another, at all its addresses, once for each
// that was held: whoever listened there has gone. HeldAway follows when it is not had for any
// other reason: nobody is seen there.
const (
	HeldBegun Held = iota
	HeldEnded
	HeldGone
	HeldAway
)

// Hold keeps one TCP connection to host:port until ctx ends, and asks nothing over it. A name
// that is not resolved says nothing.
func Hold(ctx context.Context, address string, say func(Held)) error {
	return keepOne(ctx, func(ctx context.Context) (net.Conn, error) { return hosts.Dial(ctx, address) }, say)
}

func keepOne(ctx context.Context, dial func(context.Context) (net.Conn, error), say func(Held)) error {
	held, away := false, false // since the port was last seen to refuse; HeldAway was said last
	for pause := holdFirst; ctx.Err() == nil; pause = min(2*pause, holdRedial) {
		switch conn, err := dial(ctx); {
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
			if !held || time.Since(since) > 10*holdRedial {
				pause = holdFirst // else the same process closes what is idle
			}
			held, away = true, false
		case ctx.Err() != nil:
			return nil
		case held && errors.Is(err, syscall.ECONNREFUSED):
			held = false
			say(HeldGone)
		case held && !away:
			away = true
			say(HeldAway)
		}
		Sleep(ctx, pause)
	}
	return nil
}
