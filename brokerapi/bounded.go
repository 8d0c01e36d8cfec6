package brokerapi

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrClosed is wrapped by calls of a driver that its Close ended, or that came after it.
var ErrClosed = errors.New("the driver is closed")

// Bounded is ctx with two more ends, each of which is its cause: the life of what is asked, and the
// time for one answer. done frees it.
func Bounded(ctx, life context.Context, patience time.Duration) (bounded context.Context, done func()) {
	ctx, slow := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v: %w", patience, context.DeadlineExceeded))
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() {
		stop()
		cancel(nil)
		slow()
	}
}
