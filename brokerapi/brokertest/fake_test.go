package brokertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"holdfast/brokerapi"
)

// TestTheSuiteCanBePassed runs it against a broker that has every capability, so that no
// claim asks for what cannot be, and against one that has none.
func TestTheSuiteCanBePassed(t *testing.T) {
	if testing.Short() {
		t.Skip("a test of the suite alone, which the drivers go through with real servers")
	}
	for name, h := range map[string]Harness{
		"by a broker that can do all":                  {Parks: true, Traits: brokerapi.Traits{LocalData: true}},
		"by a broker that can do no more than serve":   {Traits: brokerapi.Traits{LocalData: true, AtDeadline: brokerapi.Stop}},
		"by a broker that is named by its instance":    {Traits: brokerapi.Traits{Registers: true}},
		"by a broker whose cluster assigns the topics": {Traits: brokerapi.Traits{Places: true}},
	} {
		t.Run(name, func(t *testing.T) {
			h.Launch = func(*testing.T) Server { s := &fake{kind: h, topics: map[string]*held{}}; s.wake(); return s }
			h.Odd = []OddTopic{{"dots", "/a.b/c.d", nil}, {"record", "/a/b", []byte("{}")}}
			h.Retriable = func(err error) bool { return errors.Is(err, errBusy) }
			Run(t, h)
		})
	}
}

var errBusy = errors.New("not here, try again")

// held is one topic of the fake.
type held struct {
	messages       []string
	loaded, parked bool
	theirs         bool
	believed       bool
}

// fake is a broker and its server in one.
type fake struct {
	kind Harness

	mu      sync.Mutex
	life    int
	ended   bool
	blind   bool
	drained bool
	thawed  chan struct{} // closed while it runs
	topics  map[string]*held
}

func (f *fake) wake() { f.thawed = make(chan struct{}); close(f.thawed); f.life++; f.ended = false }

func (f *fake) topic(name string) *held {
	if f.topics[name] == nil {
		f.topics[name] = &held{}
	}
	return f.topics[name]
}

func (f *fake) Open(*testing.T) brokerapi.Broker {
	d := &driver{fake: f}
	d.open, d.end = context.WithCancel(context.Background())
	return d
}

func (f *fake) Kill(*testing.T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for _, h := range f.topics {
		h.loaded = h.loaded && f.kind.Traits.LocalData
	}
}
func (f *fake) Start(*testing.T)  { f.mu.Lock(); defer f.mu.Unlock(); f.wake() }
func (f *fake) Freeze(*testing.T) { f.mu.Lock(); defer f.mu.Unlock(); f.thawed = make(chan struct{}) }
func (f *fake) Thaw(*testing.T)   { f.mu.Lock(); defer f.mu.Unlock(); close(f.thawed) }
func (f *fake) Blind(*testing.T)  { f.blind = true }

func (f *fake) Assign(_ *testing.T, topic string)   { f.Reassign(nil, topic) }
func (f *fake) Reassign(_ *testing.T, topic string) { f.topic(topic).believed = !f.blind }
func (f *fake) GiveAway(_ *testing.T, topic string) { f.topic(topic).theirs = true }

func (f *fake) Publish(topic string, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.topic(topic)
	if f.kind.Traits.Places {
		h.loaded = h.loaded || !f.drained // its cluster does that
	} else if !h.loaded || h.parked || f.drained {
		return errBusy
	}
	h.messages = append(h.messages, string(data))
	return nil
}

func (f *fake) Count(topic string) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.topic(topic).messages), nil
}

func (f *fake) AddForeign(*testing.T) func() error { return func() error { return nil } }

// driver is one client of the fake.
type driver struct {
	*fake
	open context.Context
	end  func()
}

// ask is the way of every call.
func (d *driver) ask(ctx context.Context, answer func() error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.mu.Lock()
	thawed := d.thawed
	d.mu.Unlock()
	select {
	case <-thawed:
	case <-ctx.Done():
		return ctx.Err()
	case <-d.open.Done():
		return errors.New("the driver is closed")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended || d.open.Err() != nil {
		return errors.New("connection refused")
	}
	return answer()
}

func (d *driver) Probe(ctx context.Context) (id brokerapi.Report, err error) {
	err = d.ask(ctx, func() error {
		id = brokerapi.Report{Instance: fmt.Sprint(d.life), Version: "1", StartedAt: time.Time{}}
		if !d.kind.Traits.Registers {
			id.Name = "n1"
		}
		if d.kind.Traits.Places {
			one := 1
			id.Others = &one
		}
		for name, topic := range d.topics {
			if !topic.believed {
				id.Notes = []brokerapi.Note{{Kind: brokerapi.StaleView, Text: "it does not see " + name}}
			}
		}
		return nil
	})
	return id, err
}
func (d *driver) Topics(ctx context.Context) (held brokerapi.Held, err error) {
	err = d.ask(ctx, func() error {
		for name, h := range d.topics {
			switch {
			case h.loaded && h.parked:
				held.Withdrawn = append(held.Withdrawn, name)
			case h.loaded && !d.drained:
				held.Serving = append(held.Serving, name)
			}
		}
		return nil
	})
	return held, err
}
func (d *driver) Serve(ctx context.Context, topic string, _ []byte) error {
	return d.ask(ctx, func() error {
		h := d.topic(topic)
		if h.theirs {
			return fmt.Errorf("load %s: %w", topic, brokerapi.ErrElsewhere)
		}
		h.loaded, h.parked = true, false
		return nil
	})
}
func (d *driver) Withdraw(ctx context.Context, topic string) error {
	if d.kind.Traits.AtDeadline == brokerapi.Stop {
		return errors.ErrUnsupported
	}
	return d.ask(ctx, func() error {
		if h := d.topics[topic]; h != nil {
			h.parked, h.loaded = d.kind.Parks, h.loaded && d.kind.Parks
		}
		return nil
	})
}
func (d *driver) SetMode(ctx context.Context, mode brokerapi.Mode, _ string) error {
	return d.ask(ctx, func() error {
		if mode != brokerapi.Active && mode != brokerapi.Drained {
			return fmt.Errorf("mode %q: want active or drained", mode)
		}
		d.drained = mode == brokerapi.Drained
		return nil
	})
}
func (d *driver) Close() error { d.end(); return nil }
