package harness

import (
	"context"
	"time"
)

// KeepRunning starts a server again, pause after each of its ends, until the lab ends: as
// a unit with Restart=always does, or a loop in a shell.
func (l *Lab) KeepRunning(n *NATS, pause time.Duration) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-n.Exited():
			case <-ctx.Done():
				return
			}
			select {
			case <-time.After(pause):
				_ = n.Launch() // tried again: it has not started
			case <-ctx.Done():
				return
			}
		}
	}()
	l.onClose(func() error {
		stop()
		<-done
		return nil
	})
}
