package agent

import (
	"context"
	"maps"
	"slices"
	"sync"

	"holdfast/brokerapi"
)

// shadowBroker answers what the broker answers, changed by what would have been done
// to it. A new process of the broker knows nothing of that.
type shadowBroker struct {
	brokerapi.Broker
	shadow *shadow

	mu       sync.Mutex
	instance string
	told     brokerapi.Mode  // supposed last
	serving  map[string]bool // topics that were only supposed to change: true loaded, false quiesced
}

func newShadowBroker(b brokerapi.Broker, s *shadow) *shadowBroker {
	broker := &shadowBroker{Broker: b, shadow: s, serving: map[string]bool{}}
	s.supposed = broker.supposed
	return broker
}

func (b *shadowBroker) Probe(ctx context.Context) (brokerapi.Report, error) {
	who, err := b.Broker.Probe(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if who.Instance != "" && who.Instance != b.instance {
		b.instance, b.told = who.Instance, ""
		clear(b.serving)
	}
	return who, err
}

func (b *shadowBroker) Topics(ctx context.Context) (brokerapi.Held, error) {
	held, err := b.Broker.Topics(ctx)
	if err != nil {
		return held, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.serving) == 0 {
		return held, nil
	}
	state := map[string]bool{}
	for _, topic := range held.Quiesced {
		state[topic] = false
	}
	for _, topic := range held.Serving {
		state[topic] = true
	}
	maps.Copy(state, b.serving)
	held.Serving, held.Quiesced = nil, nil
	for _, topic := range slices.Sorted(maps.Keys(state)) {
		if state[topic] {
			held.Serving = append(held.Serving, topic)
		} else {
			held.Quiesced = append(held.Quiesced, topic)
		}
	}
	return held, nil
}

func (b *shadowBroker) Load(_ context.Context, topic string, _ []byte) error {
	b.suppose(actLoad, topic, true)
	return nil
}

// Quiesce supposes what the real broker would be asked for.
func (b *shadowBroker) Quiesce(_ context.Context, topic string) error {
	what := actQuiesce
	if can := b.Capabilities(); !can.Quiesce && can.Unload {
		what = actUnload
	}
	b.suppose(what, topic, false)
	return nil
}

// Unload implements brokerapi.Unloader.
func (b *shadowBroker) Unload(_ context.Context, topic string) error {
	b.suppose(actUnload, topic, false)
	return nil
}

func (b *shadowBroker) suppose(what action, topic string, serving bool) {
	b.shadow.would(what, topic)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serving[topic] = serving
}

// supposed reports whether the topic's state is not the broker's own word.
func (b *shadowBroker) supposed(topic string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, is := b.serving[topic]
	return is
}

// SetMode implements brokerapi.ModeSetter: a drained broker serves nothing, and an active one
// what it has.
func (b *shadowBroker) SetMode(ctx context.Context, mode brokerapi.Mode, reason string) error {
	b.mu.Lock()
	again := b.told == mode
	b.told = mode
	b.mu.Unlock()
	if !again {
		b.shadow.would(actSteer, string(mode)+" ("+reason+")")
	}
	held, err := b.Broker.Topics(ctx)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.serving)
	if mode == brokerapi.Drained {
		for _, topic := range held.Serving {
			b.serving[topic] = false
		}
	}
	return nil
}
