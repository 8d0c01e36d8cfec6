package danube

import (
	"context"
	"fmt"
	"time"

	"holdfast/brokerapi"
)

// Load implements brokerapi.Broker. The topic must be assigned to the broker. If the
// broker had the time to load it and has not, the assignment is put again, once in a
// call. record is not used: the broker reads it itself.
func (b *etcdBroker) Load(ctx context.Context, topic string, _ []byte) error {
	if err := checkTopic("load", topic); err != nil {
		return err
	}
	id, err := b.self(ctx)
	if err != nil {
		return fmt.Errorf("load %s: %w", topic, err)
	}
	seen, again := b.observe(id, topic), false
	err = b.await(ctx, topic, func(at place) (bool, error) {
		switch {
		case at == elsewhere:
			return false, brokerapi.ErrElsewhere
		case at == here || again:
			return at == here, nil
		}
		settled, err := seen.settled(ctx)
		if err == nil && seen.revision == 0 {
			err = fmt.Errorf("it is not assigned to broker %s", id)
		}
		if err != nil || !settled {
			return false, err
		}
		again, err = b.store.Reassign(ctx, id, topic, seen.revision)
		if again {
			b.log.Info("assignment put again: the broker had overlooked it", "topic", topic, "broker", id)
		}
		seen.restart() // if it was not put, somebody else did
		return false, err
	})
	if err != nil {
		switch {
		case isOver(ctx) && again:
			err = fmt.Errorf("its assignment was put again, and the broker has not loaded it: see the broker's log: %w", err)
		case isOver(ctx):
			err = fmt.Errorf("the broker has not loaded it: %w", err)
		}
		return fmt.Errorf("load %s: %w", topic, err)
	}
	return nil
}

// observed is an assignment to a broker that says again and again that the topic is not
// loaded. Whoever puts it, and whenever the broker does not answer for a while, as one
// that is stopped and goes on, it has its time to load from then on.
type observed struct {
	b         *etcdBroker
	id, topic string
	revision  int64 // of the assignment; 0: none, or not read yet
	since     time.Time
	answered  time.Time // last
}

func (b *etcdBroker) observe(id, topic string) *observed {
	return &observed{b: b, id: id, topic: topic}
}

func (o *observed) restart() { o.revision = 0 }

// settled is to be called at each answer by which the topic is not loaded. It is true when
// the broker had the time to load it. After an answer with the revision 0 there is no
// assignment.
func (o *observed) settled(ctx context.Context) (bool, error) {
	now := time.Now()
	late := now.Sub(o.answered) > prompt
	o.answered = now
	if o.revision != 0 && !late {
		return now.Sub(o.since) >= o.b.settle, nil
	}
	revision, err := o.b.store.Assigned(ctx, o.id, o.topic)
	if err != nil {
		return false, err
	}
	o.revision, o.since = revision, time.Now() // not before it was read
	o.answered = o.since
	return false, nil
}
