package reference

import (
	"encoding/json"
	"strconv"
)

// topic is one topic: what is in its file, and where its messages end.
type topic struct {
	Name    string          `json:"topic"`
	Foreign bool            `json:"foreign,omitempty"` // not made by Holdfast: not its business
	Litter  bool            `json:"litter,omitempty"`  // foreign, and listed all the same
	Theirs  bool            `json:"theirs,omitempty"`  // stands for a topic of another broker
	Loaded  bool            `json:"loaded"`
	Parked  bool            `json:"parked"` // quiesced
	Paused  bool            `json:"paused"` // its consumers are
	Sealed  *end            `json:"sealed,omitempty"`
	Resumed *end            `json:"resumed,omitempty"` // the last time
	Record  json.RawMessage `json:"record,omitempty"`
	Cursors map[string]int  `json:"cursors,omitempty"` // next message by subscription

	messages int
}

func (t *topic) state() string {
	switch {
	case !t.Loaded:
		return absent
	case t.Sealed != nil:
		return sealed
	case t.Parked:
		return quiesced
	}
	return serving
}

// serves is what clients see.
func (b *Broker) serves(t *topic) bool { return b.mode.Mode == "active" && t.state() == serving }

// ours is a copy of a topic that Holdfast may change, nil if there is none; it counts when
// it was kept. A topic of that name may be none of its business: then nothing is done.
func (b *Broker) ours(name string) (*topic, error) {
	t := b.topics[name]
	switch {
	case t != nil && t.Foreign:
		return nil, errForeign
	case t != nil && t.Theirs:
		return nil, errElsewhere
	case t != nil:
		changed := *t
		return &changed, nil
	}
	return nil, nil
}

// load makes a topic that is not here, and serves one that is. Twice is once.
func (b *Broker) load(r loadRequest) (state, error) {
	t, err := b.ours(r.Topic)
	switch {
	case err != nil:
		return state{}, err
	case b.mode.Mode != "active":
		return state{}, errDrained
	case t != nil && t.Sealed != nil:
		return state{}, errSealed
	case t == nil:
		t = &topic{Name: r.Topic}
	case t.state() == serving:
		return state{serving}, nil
	}
	t.Loaded, t.Parked, t.Paused, t.Record = true, false, false, r.Record
	return b.keep(t)
}

// quiesce refuses producers. Consumers go on. A topic that is not here stays away.
func (b *Broker) quiesce(r topicRequest) (state, error) {
	t, err := b.ours(r.Topic)
	switch {
	case err != nil:
		return state{}, err
	case t == nil:
		return state{absent}, nil
	case t.state() != serving:
		return state{t.state()}, nil
	}
	t.Parked = true
	return b.keep(t)
}

// unload stops serving. The data stays.
func (b *Broker) unload(r topicRequest) (state, error) {
	t, err := b.ours(r.Topic)
	switch {
	case err != nil:
		return state{}, err
	case t == nil || !t.Loaded:
		return state{absent}, nil
	}
	t.Loaded = false
	return b.keep(t)
}

// commit pauses the consumers; their positions are on disk already.
func (b *Broker) commit(r topicRequest) (state, error) {
	t, err := b.ours(r.Topic)
	switch {
	case err != nil:
		return state{}, err
	case t == nil:
		return state{}, errNotHere
	case t.Sealed != nil:
		return state{sealed}, nil
	case t.state() != quiesced:
		return state{}, errNotQuiesced
	}
	t.Paused = true
	return b.keep(t)
}

// seal ends the topic here. Sealed is sealed: asked again, it says the same.
func (b *Broker) seal(r topicRequest) (end, error) {
	t, err := b.ours(r.Topic)
	switch {
	case err != nil:
		return end{}, err
	case t == nil:
		return end{}, errNotHere
	case t.Sealed == nil && t.state() != quiesced:
		return end{}, errNotQuiesced
	case t.Sealed == nil:
		at := t.end()
		t.Sealed, t.Paused = &at, true
		if _, err := b.keep(t); err != nil {
			return end{}, err
		}
	}
	return *t.Sealed, b.share(t)
}

// end is where the messages that are here end.
func (t *topic) end() end {
	if t.messages == 0 {
		return end{Empty: true}
	}
	last := strconv.Itoa(t.messages - 1)
	return end{LastOffset: &last}
}

// resume serves a sealed topic again, here or where it was handed over to. It refuses a
// topic whose data does not end where it was sealed: something is missing, or too much.
func (b *Broker) resume(r resumeRequest) (state, error) {
	t, err := b.ours(r.Topic)
	if err != nil {
		return state{}, err
	}
	if b.mode.Mode != "active" {
		return state{}, errDrained
	}
	away := t == nil
	if away {
		if t, err = b.shared(r.Topic); err != nil {
			return state{}, err
		}
	}
	switch {
	case t == nil && !r.From.Empty:
		return state{}, errNotHere
	case t == nil:
		t, away = &topic{Name: r.Topic}, false // there never was a message: nothing need be here
	case t.Sealed == nil && (t.Resumed == nil || !t.Resumed.equal(*r.From)):
		return state{}, errNotSealed
	case t.Sealed != nil && !t.Sealed.equal(*r.From):
		return state{}, errNoFit
	case away:
		if err := b.fetch(r.Topic); err != nil {
			return state{}, err
		}
	}
	t.Loaded, t.Parked, t.Paused, t.Sealed, t.Resumed = true, false, false, nil, r.From
	return b.keep(t)
}

// delete removes a sealed topic, and nothing else ever.
func (b *Broker) delete(r topicRequest) (state, error) {
	t, err := b.ours(r.Topic)
	switch {
	case err != nil:
		return state{}, err
	case t == nil:
		return state{absent}, nil
	case t.Sealed == nil:
		return state{}, errNotSealed
	}
	return state{absent}, b.remove(t)
}

// steer changes the mode. A drained broker gives its topics up; their data stays.
func (b *Broker) steer(m mode) (mode, error) {
	if m.Mode == b.mode.Mode {
		return b.mode, nil
	}
	if m.Mode == "drained" {
		for _, t := range b.topics {
			if t.Loaded && !t.Foreign {
				gone := *t
				gone.Loaded = false
				if _, err := b.keep(&gone); err != nil {
					return mode{}, err
				}
			}
		}
	}
	return m, b.keepMode(m)
}
