package lease

import (
	"context"
	"time"
)

// hasteInitial is the first wait of a haste: so short that a few cuts in a row cost nothing.
const hasteInitial = 50 * time.Millisecond

// haste paces what cuts a pause short: a connection that came up, a change that a watch saw.
// The first cut counts at once. A try may bring about the next cut itself: each one that failed
// is made again on a new connection, which comes up at once where etcd is well and refuses. So
// the wait between two cuts grows, until there was none for longer than it can become.
type haste struct {
	wait backoff
	free time.Time // the next cut counts from then on
}

// cut returns what is left of a pause of which left was left. The wait for the next cut is
// bounded by most.
func (h *haste) cut(left, most time.Duration) time.Duration {
	wait := max(0, time.Until(h.free))
	if wait >= left {
		return left
	}
	if time.Since(h.free) > h.wait.max {
		h.wait.reset()
	}
	h.free = time.Now().Add(wait + min(h.wait.next(), most))
	return wait
}

// idle waits for d, less if it is to rest, the connection comes back or somebody asks for the
// Registrar meanwhile. back is called for a connection that is taken to be news. It returns what
// waits for the next one.
func (k *Keeper) idle(ctx context.Context, d time.Duration, reconnect *reconnectWatch, back func()) *reconnectWatch {
	over := time.Now().Add(d)
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		var left time.Duration
		select {
		case <-ctx.Done():
			return reconnect
		case <-t.C:
			return reconnect
		case <-k.nudge:
			if !k.renews() {
				return reconnect
			}
			left = k.asks.cut(time.Until(over), RetryCeiling)
		case <-reconnect.c:
			reconnect.stop()
			reconnect = k.watchReconnect(ctx)
			left = k.returned(time.Until(over), back)
		}
		over = time.Now().Add(left)
		t.Reset(left)
	}
}

// returned is what is left of a pause when a connection has come up. The first of a series ends
// what came before it: what fails from there on fails anew.
func (k *Keeper) returned(left time.Duration, anew func()) time.Duration {
	left = k.returns.cut(left, k.boundPause(k.set.Timing.BackoffMax, k.set.Clock()))
	if left <= 0 && k.returns.wait.failures == 1 {
		anew()
	}
	return left
}

// wanted reports whether the Registrar is to be asked while the lease is held. When
// renewals fail they come first: what they cannot reach, the Registrar cannot either.
func (k *Keeper) wanted(v View) bool {
	return k.renewed.Load() && (v.FailureStreak == 0 || k.foreign) && !time.Now().Before(k.asks.free)
}

// spaceAsks counts a question to the Registrar while the lease is held, and has the next one
// wait: somebody who changes the registration whenever we do is not answered without a pause.
func (k *Keeper) spaceAsks() { k.asks.cut(RetryCeiling, RetryCeiling) }

// wakeWhenFree has renewals interrupted when the Registrar may be asked again, for whoever wished
// that before, be it while the registration was not there yet. stop ends that.
func (k *Keeper) wakeWhenFree() (stop func()) {
	left := time.Until(k.asks.free)
	if left <= 0 {
		return func() {}
	}
	t := time.AfterFunc(left, k.wake)
	return func() { t.Stop() }
}
