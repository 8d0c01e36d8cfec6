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

func newShadowBroker(b brokerapi.Broker, s *shadow) brokerapi.Broker {
	broker := &shadowBroker{Broker: b, shadow: s, serving: map[string]bool{}}
	s.supposed = broker.supposed
	if _, ok := b.(brokerapi.ModeSetter); ok {
		return shadowModes{broker}
	}
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
	for _, topic := range held.Withdrawn {
		state[topic] = false
	}
	for _, topic := range held.Serving {
		state[topic] = true
	}
	maps.Copy(state, b.serving)
	held.Serving, held.Withdrawn = nil, nil
	for _, topic := range slices.Sorted(maps.Keys(state)) {
		if state[topic] {
			held.Serving = append(held.Serving, topic)
		} else {
			held.Withdrawn = append(held.Withdrawn, topic)
		}
	}
	return held, nil
}

func (b *shadowBroker) Serve(_ context.Context, topic string, _ []byte) error {
	b.suppose(actLoad, topic, true)
	return nil
}

func (b *shadowBroker) Withdraw(_ context.Context, topic string) error {
	b.suppose(actQuiesce, topic, false)
	return nil
}

func (b *shadowBroker) suppose(what, topic string, serving bool) {
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

// shadowModes is a shadowBroker with a mode of its own.
type shadowModes struct{ *shadowBroker }

// SetMode implements brokerapi.ModeSetter: a drained broker serves nothing, and an active one
// what it has.
func (b shadowModes) SetMode(ctx context.Context, mode brokerapi.Mode, reason string) error {
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
