package danube

import (
	"context"
	"errors"
	"fmt"
)

// followAssignments does what changes of its assignments ask for, one after the other,
// from the start of the watch on. What was assigned before is not looked at.
func (b *Broker) followAssignments(ctx context.Context, events <-chan event) {
	for e := range events {
		id, topic, ok := splitAssignment(e.key)
		if !ok || id != b.id {
			continue
		}
		if !pause(ctx, b.cfg.Times.React) {
			continue
		}
		if e.deleted {
			b.unassigned(ctx, topic)
		} else {
			b.assigned(ctx, topic)
		}
	}
	b.deadRead.Store(true)
	b.log.Error("the watch of the assignments has ended")
}

// modeOf reads a broker's mode from the store, not from the cache. If it cannot be read,
// it is active.
func (b *Broker) modeOf(ctx context.Context, id string) string {
	value, _, err := b.store.get(ctx, stateKey(id))
	if err != nil {
		return modeActive
	}
	return mode(value)
}

func (b *Broker) assigned(ctx context.Context, topic string) {
	if b.modeOf(ctx, b.id) != modeActive {
		b.bounce(ctx, topic)
		return
	}
	for try := 1; !b.cache.isMade(topic); try++ {
		if try == metadataTries {
			b.log.Error("topic not loaded: its metadata is not there", "topic", topic)
			return
		}
		if !pause(ctx, metadataWait) {
			return
		}
	}
	if b.cfg.Raft && b.topics.get(topic) != nil {
		return // later releases look first
	}
	if err := b.topics.load(ctx, topic); err != nil {
		b.log.Error("topic not loaded", "err", err)
	}
}

// bounce gives an assignment back. The delete comes back as an event, which destroys the
// topic if it is loaded.
func (b *Broker) bounce(ctx context.Context, topic string) {
	if err := b.store.delete(ctx, assignmentKey(b.id, topic)); err != nil {
		b.log.Error("assignment not bounced", "err", err)
		return
	}
	from := number(b.id)
	if err := b.store.put(ctx, unassignedKey(topic), encode(Marker{Reason: reasonRedirect, FromBroker: &from})); err != nil {
		b.log.Error("assignment bounced, and not marked", "err", err)
	}
}

// unassigned unloads the topic if there is a marker that says so when it is looked for.
// If it cannot be read there is none.
func (b *Broker) unassigned(ctx context.Context, topic string) {
	value, found, err := b.store.get(ctx, unassignedKey(topic))
	if ctx.Err() != nil {
		return // a process that ends does nothing more
	}
	if err == nil && found && marker(value).Reason == reasonUnload {
		err = b.topics.unload(ctx, topic)
		if b.cfg.Raft {
			from := number(b.id)
			ready := encode(Marker{Reason: reasonUnload, FromBroker: &from, Ready: true})
			err = errors.Join(err, b.store.put(ctx, unassignedKey(topic), ready))
		}
	} else {
		err = b.topics.destroy(ctx, topic, describeMarker(value, found, err))
	}
	if err != nil {
		b.log.Warn("assignment deleted", "err", err)
	}
	if b.modeOf(ctx, b.id) == modeDraining && len(b.topics.names()) == 0 {
		if err := b.store.put(ctx, stateKey(b.id), encode(brokerState{modeDrained, "drain_complete"})); err != nil {
			b.log.Error("not drained", "err", err)
		}
	}
}

func describeMarker(value []byte, found bool, err error) string {
	const was = "its assignment was deleted while it was loaded, and "
	switch {
	case err != nil:
		return was + fmt.Sprintf("the marker could not be read: %v", err)
	case !found:
		return was + "there was no marker"
	default:
		return was + fmt.Sprintf("the marker was %s", value)
	}
}
