package probes

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"holdfast/brokerapi/hosts"
)

// holdFirst is the first pause before another connection, doubled up to holdRedial
// while none is had, and up to holdMost where each is closed soon.
const holdFirst, holdRedial, holdMost = 50 * time.Millisecond, time.Second, 30 * time.Second

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
	held := false // since the port was last seen to refuse
	for pause := holdFirst; ctx.Err() == nil; {
		most := holdRedial
		switch conn, err := hosts.Dial(ctx, address); {
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
