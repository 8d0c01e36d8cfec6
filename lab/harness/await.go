package harness

import (
	"context"
	"fmt"
	"time"
)

// PollEvery is the pause between two looks at a state that is awaited. Looks cost: most of a
// run's load would be those. What must be known more exactly has a ticker of its own.
const PollEvery = 50 * time.Millisecond

// Patience bounds the wait for a state that should come within a second or two. It is no
// claim about how fast that is: a machine on which much else runs can stand still for many
// seconds, and a test that waits a minute in vain loses no more than the minute.
const Patience = time.Minute

// Await looks until ok holds, at most for bound. look returns whether the state is
// there and a short text for what it saw, which the error quotes if time runs out.
func Await(ctx context.Context, bound time.Duration, what string, look func(context.Context) (ok bool, saw string)) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	tick := time.NewTicker(PollEvery)
	defer tick.Stop()
	last := "nothing"
	for {
		ok, saw := look(ctx)
		if ok {
			return nil
		}
		if ctx.Err() == nil {
			last = saw
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("await %s for %v: %w; last seen: %s", what, bound, ctx.Err(), last)
		}
	}
}

// awaitProcess is Await that gives up at once when the process ends.
func awaitProcess(ctx context.Context, p *Process, bound time.Duration, what string, look func(context.Context) (bool, string)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	exited := p.Exited()
	go func() {
		select {
		case <-exited:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := Await(ctx, bound, what, look)
	if err != nil && !p.Running() {
		return fmt.Errorf("await %s: %w", what, p.diedError())
	}
	return err
}

// Wait returns when d is over, or the error of ctx when that ends before.
func Wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// AwaitNone looks until find finds nothing, such as goroutines that are left, at most for
// Patience: what is on its way out may wait for the processor. It returns what it found last.
func AwaitNone(find func() error) error {
	for end := time.Now().Add(Patience); ; {
		err := find()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(PollEvery)
	}
}
