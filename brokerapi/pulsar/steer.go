package pulsar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"holdfast/brokerapi"
)

const (
	// unloadsAtOnce is how many bundles are unloaded at the same time.
	unloadsAtOnce = 8
	// drainPause is between two looks at what is left.
	drainPause = 100 * time.Millisecond
)

// SetMode implements brokerapi.ModeSetter, for a broker that has no modes: load balancers ask the
// status file, and a policy has the cluster choose others. reason goes nowhere: Pulsar takes none.
// That bundles may come back, or stay away, is no reason to try it again at once: it is said, and
// tried at the next audit.
func (b *Broker) SetMode(ctx context.Context, mode brokerapi.Mode, reason string) error {
	switch mode {
	case brokerapi.Active:
		flaw := b.keepAway(ctx, false)
		b.say(flaw)
		if err := b.showStatus(ctx); err != nil || flaw == "" {
			return err
		}
		return fmt.Errorf("%w: %s", brokerapi.ErrRemains, flaw)
	case brokerapi.Drained:
		b.say(b.keepAway(ctx, true)) // first: what is unloaded before that may come back
		return b.drain(ctx)
	}
	return fmt.Errorf("steer to mode %q: want %s or %s", mode, brokerapi.Active, brokerapi.Drained)
}

// say logs a flaw of the mode when it changes.
func (b *Broker) say(flaw string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if flaw != b.flaw && flaw != "" {
		b.log.Warn("the mode of the broker may not hold", "why", flaw)
	}
	b.flaw = flaw
}

func (b *Broker) showStatus(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("steer to active: %w", err)
	}
	if b.cfg.StatusFile == "" {
		// Nothing is to be done; but the broker is to be there.
		_, err := b.list(ctx)
		return err
	}
	if _, err := b.list(ctx); err != nil {
		return err
	}
	if _, err := os.Stat(b.cfg.StatusFile); err == nil {
		return nil
	}
	if err := os.WriteFile(b.cfg.StatusFile, []byte("OK\n"), 0o644); err != nil {
		return fmt.Errorf("--pulsar-status-file: create it: %w: make its directory writable for this sidecar", err)
	}
	return nil
}

// drain returns when no bundle is left that could be elsewhere.
func (b *Broker) drain(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("steer to drained: %w", err)
	}
	if b.cfg.StatusFile != "" {
		if err := os.Remove(b.cfg.StatusFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("--pulsar-status-file: remove it: %w: make its directory writable for this sidecar", err)
		}
	}
	for {
		o, err := b.list(ctx)
		if err != nil {
			return fmt.Errorf("steer to drained: %w", err)
		}
		if len(o.serving) == 0 && len(o.leaving) == 0 {
			return nil
		}
		if err := b.unloadAll(ctx, o.serving); err != nil {
			return fmt.Errorf("steer to drained: %w", err)
		}
		select {
		case <-time.After(drainPause):
		case <-ctx.Done():
			return fmt.Errorf("steer to drained: bundles left: %d served, %d being unloaded: %w", len(o.serving), len(o.leaving), ctx.Err())
		}
	}
}

// unloadAll unloads several at a time. One that fails keeps no other.
func (b *Broker) unloadAll(ctx context.Context, bundles []place) error {
	var wg sync.WaitGroup
	failed := make(chan error, len(bundles))
	slots := make(chan struct{}, unloadsAtOnce)
	for _, p := range bundles {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := b.unload(ctx, p); err != nil {
				failed <- fmt.Errorf("unload %s: %w", p.topic(), err)
			}
		})
	}
	wg.Wait()
	close(failed)
	first := <-failed // nil if there is none
	if more := len(failed); more > 0 {
		return fmt.Errorf("%w (and %d more)", first, more)
	}
	return first
}
