package danube

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// Unload implements brokerapi.Unloader: the assignment goes, together with the marker
// that makes it an unload, and the topic waits for another broker.
//
// A broker that comes to look for the marker when the leader has taken it away already
// destroys the topic. So nothing is written for one that does not answer just now, that
// may be loading the topic, or that has another one to unload: they are unloaded one
// after the other.
func (b *etcdBroker) Unload(ctx context.Context, topic string) error {
	if err := checkTopic("unload", topic); err != nil {
		return err
	}
	id, err := b.self(ctx)
	if err == nil {
		err = b.unload(ctx, id, topic)
	}
	if err != nil {
		return fmt.Errorf("unload %s: %w", topic, err)
	}
	return nil
}

func (b *etcdBroker) unload(ctx context.Context, id, topic string) error {
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return fmt.Errorf("others are being unloaded: %w", context.Cause(ctx))
	case <-b.life.Done():
		return errClosed
	}
	for other, since := range b.left() {
		if other != topic {
			if err := b.awaitGone(ctx, id, other, since); err != nil {
				return fmt.Errorf("nothing was written: %s comes first: %w", other, err)
			}
		}
	}
	if known, err := b.awaitReady(ctx, id, topic); err != nil {
		return fmt.Errorf("nothing was written: the broker must see an unload at once, or it destroys the topic: %w", err)
	} else if !known {
		b.noteGone(topic)
		return nil
	}
	since, repeated := b.left()[topic]
	released, err := b.store.Release(ctx, id, topic)
	if released || err != nil && !repeated { // what failed may have been written
		since, repeated = time.Now(), true
		b.noteLeaving(topic, since)
	}
	if err != nil {
		return err
	}
	if !repeated {
		return b.awaitOrphan(ctx, id, topic)
	}
	return b.awaitGone(ctx, id, topic, since)
}

// awaitReady waits until the broker answers promptly, and is not loading the topic. known
// is false when the topic is neither served here nor assigned.
func (b *etcdBroker) awaitReady(ctx context.Context, id, topic string) (known bool, err error) {
	seen, asked := b.observe(id, topic), time.Now()
	err = b.await(ctx, topic, func(at place) (bool, error) {
		soon := time.Since(asked) <= prompt
		asked = time.Now()
		if known = at == here; known {
			return soon, nil
		}
		settled, err := seen.settled(ctx)
		known = seen.revision != 0
		return settled || !known, err
	})
	return known, err
}

// awaitGone waits until the broker has unloaded a topic that was released, or has it
// assigned again.
func (b *etcdBroker) awaitGone(ctx context.Context, id, topic string, since time.Time) error {
	err := b.await(ctx, topic, func(at place) (bool, error) {
		if at != here {
			return true, nil
		}
		revision, err := b.store.Assigned(ctx, id, topic)
		return revision != 0, err
	})
	if err != nil {
		return fmt.Errorf("broker %s was told %v ago and is not known to have unloaded it: see the broker's log, and stop it if it does not follow etcd any more: %w",
			id, time.Since(since).Round(time.Millisecond), err)
	}
	b.noteGone(topic)
	return nil
}

// awaitOrphan waits whether the broker gives up a topic that is not assigned to it, as
// one does that was told so by somebody else just now.
func (b *etcdBroker) awaitOrphan(ctx context.Context, id, topic string) error {
	began := time.Now()
	return b.await(ctx, topic, func(at place) (bool, error) {
		if at == here && time.Since(began) >= b.settle {
			return false, fmt.Errorf("broker %s serves it without being assigned to it, and gives up only what is assigned: assign it to the broker in etcd first, or stop the broker", id)
		}
		return at != here, nil
	})
}

// left are the topics that were released and may be served still, and since when.
func (b *etcdBroker) left() map[string]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.leaving)
}

func (b *etcdBroker) noteLeaving(topic string, since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leaving[topic] = since
}

func (b *etcdBroker) noteGone(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.leaving, topic)
}
