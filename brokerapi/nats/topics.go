package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	client "github.com/nats-io/nats.go"

	"holdfast/brokerapi"
)

// Topics implements brokerapi.Broker: a stream of ours serves unless its subject
// is the parked one. Two listings are made, so a topic that is quiesced or loaded
// in between may be in the list that it has just left.
func (b *Broker) Topics(ctx context.Context) (brokerapi.Held, error) {
	all, foreign, err := b.list(ctx, "")
	if err != nil {
		return brokerapi.Held{}, fmt.Errorf("list streams: %w", err)
	}
	parkedOnes, _, err := b.list(ctx, parkedFilter)
	if err != nil {
		return brokerapi.Held{}, fmt.Errorf("list quiesced streams: %w", err)
	}
	if len(parkedOnes) > 0 { // half a copy is no topic yet
		halves, _, err := b.list(ctx, parked+"*."+isCopying+".*")
		if err != nil {
			return brokerapi.Held{}, fmt.Errorf("list what is being copied: %w", err)
		}
		for half := range halves {
			delete(all, half)
			delete(parkedOnes, half)
		}
	}
	maps.DeleteFunc(all, func(topic string, _ bool) bool { return parkedOnes[topic] })
	return brokerapi.Held{Serving: slices.Sorted(maps.Keys(all)), Withdrawn: slices.Sorted(maps.Keys(parkedOnes)), Foreign: foreign}, nil
}

// relists bounds how often a listing that changes under our eyes is started over.
const relists = 5

// list returns the topics among the streams with a subject under filter, and the other streams. The
// pages are not of one moment: if the total changes between two, a name may have
// moved over a page's edge, and it lists again.
func (b *Broker) list(ctx context.Context, filter string) (topics map[string]bool, foreign []string, err error) {
again:
	for range relists {
		topics, foreign = map[string]bool{}, nil
		for offset, total := 0, 0; offset == 0 || offset < total; {
			var page struct {
				Total   int      `json:"total"`
				Streams []string `json:"streams"`
			}
			asked := struct {
				Offset  int    `json:"offset"`
				Subject string `json:"subject,omitempty"`
			}{offset, filter}
			if err := b.api(ctx, "STREAM.NAMES", asked, &page); err != nil {
				return nil, nil, err
			}
			if offset > 0 && page.Total != total {
				continue again
			}
			if total = page.Total; total == 0 {
				break
			}
			for _, stream := range page.Streams {
				if topic, ok := topicOf(stream); ok {
					topics[topic] = true
				} else {
					foreign = append(foreign, stream)
				}
			}
			if offset += len(page.Streams); len(page.Streams) == 0 {
				return nil, nil, fmt.Errorf("JetStream listed %d of %d streams", offset, total)
			}
		}
		return topics, foreign, nil
	}
	return nil, nil, fmt.Errorf("streams came and went during each of %d listings: try again", relists)
}

// Serve implements brokerapi.Broker. It is one request if the stream does not
// exist, or exists with this very configuration. Of a stream that exists
// differently only the subjects are set.
func (b *Broker) Serve(ctx context.Context, topic string, record []byte) error {
	key := b.recordKey(topic)
	cfg, err := configOf(key, topic, record)
	if err != nil {
		return refuse("%v", err)
	}
	var no *client.APIError
	err = b.api(ctx, "STREAM.CREATE."+cfg.Name, cfg, nil)
	if errors.Is(err, client.ErrStreamNameAlreadyInUse) {
		err = b.resubject(ctx, topic, func(now standing) (subjects []string, err error) {
			switch now.mark.state {
			case isCopying:
				err = refuse("half a copy of it is here, which move %s made: unload the topic anew", now.mark.move)
			case isSealed, isCopied:
				err = b.hush(ctx, cfg.Name, time.Time{})
				fallthrough
			case isResumed:
				return append(cfg.Subjects, mark{isResumed, now.mark.move}.subject(cfg.Name)), err
			}
			return cfg.Subjects, err
		})
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errSubjectsOverlap):
		return fmt.Errorf(`load %s: %w: change the other stream, or give this topic other subjects than %q in its record, %s = {"subjects":["…"]}`, topic, err, cfg.Subjects, key)
	case len(record) > 0 && errors.As(err, &no):
		err = fmt.Errorf("load %s: %w: its record, %s, is %.200s", topic, err, key, record)
		if no.ErrorCode == client.JSStreamInvalidConfig || no.ErrorCode == noReplicas { // until somebody mends it
			err = refuse("%v", err)
		}
		return err
	default:
		return fmt.Errorf("load %s: %w", topic, err)
	}
}

// recordKey is where the record of a topic stands in etcd.
func (b *Broker) recordKey(topic string) string {
	return strings.TrimSuffix(b.cfg.KeyPrefix, "/") + "/topics" + topic
}

// Withdraw implements brokerapi.Broker: the stream and its data stay, parked. A topic that is not
// here is withdrawn.
func (b *Broker) Withdraw(ctx context.Context, topic string) error {
	err := b.resubject(ctx, topic, func(now standing) ([]string, error) {
		switch {
		case now.parked:
			return now.subjects, nil
		case now.mark.state != "":
			return []string{parked + now.name, now.mark.subject(now.name)}, nil
		}
		return []string{parked + now.name}, nil
	})
	if err == nil || errors.Is(err, client.ErrStreamNotFound) {
		return nil
	}
	return fmt.Errorf("quiesce %s: %w", topic, err)
}

// turn waits until nobody else changes the topic's stream. nats-server 2.15 may subscribe twice to a
// subject that two updates restore at once, and stores each message twice from then on.
func (b *Broker) turn(ctx context.Context, topic string) (done func(), err error) {
	one, _ := b.changing.LoadOrStore(topic, make(chan struct{}, 1))
	turn := one.(chan struct{})
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// resubject sets the subjects of a topic's stream that exists, by how it stands,
// and sends everything else back as it came: a newer server's settings survive, known here or not.
func (b *Broker) resubject(ctx context.Context, topic string, wanted func(now standing) ([]string, error)) error {
	done, err := b.turn(ctx, topic)
	if err != nil {
		return err
	}
	defer done()
	now, err := b.look(ctx, topic)
	switch {
	case err != nil:
		return err
	case now.Config.has("sealed"):
		return fmt.Errorf("stream %s is sealed, which cannot be undone: it accepts no messages and its subjects cannot change", now.name)
	case now.Config.has("mirror"):
		return fmt.Errorf("stream %s is a mirror, which has no subjects of its own: remove the mirror setting, or the stream", now.name)
	}
	subjects, err := wanted(now)
	if err != nil || sameSubjects(now.subjects, subjects) {
		return err
	}
	if now.Config["subjects"], err = json.Marshal(subjects); err != nil {
		return fmt.Errorf("encode the subjects of stream %s: %w", now.name, err)
	}
	return b.api(ctx, "STREAM.UPDATE."+now.name, now.Config, nil)
}

func sameSubjects(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}
