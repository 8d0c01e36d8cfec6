package reference

import "encoding/json"

// topic is one topic: what is in its file, and where its messages end.
type topic struct {
	Name    string          `json:"topic"`
	Foreign bool            `json:"foreign,omitempty"` // not made by Holdfast: not its business
	Litter  bool            `json:"litter,omitempty"`  // foreign, and listed all the same
	Theirs  bool            `json:"theirs,omitempty"`  // stands for a topic of another broker
	Loaded  bool            `json:"loaded"`
	Parked  bool            `json:"parked"` // quiesced
	Record  json.RawMessage `json:"record,omitempty"`

	Move    string            `json:"move,omitempty"`    // the last one that had it in hand
	Stage   string            `json:"stage,omitempty"`   // how far that is here
	Cursors map[string]uint64 `json:"cursors,omitempty"` // the next message, by subscription

	messages, bytes int
}

// The stages of a move at one broker. Nothing is appended or consumed in the first three.
const (
	isSealed  = "sealed"
	isCopying = "copying" // half of a copy, which is never served
	isCopied  = "copied"
	isResumed = "resumed"
)

// sealed reports whether the topic stands still, here or as a copy.
func (t *topic) sealed() bool { return t.Stage == isSealed || t.Stage == isCopied }

func (t *topic) state() string {
	switch {
	case !t.Loaded:
		return absent
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

// load makes a topic that is not here, and serves one that is. Twice is once. Whatever was sealed is
// served, too: it is asked for where no move has the topic.
func (b *Broker) load(r loadRequest) (state, error) {
	t, err := b.ours(r.Topic)
	switch {
	case err != nil:
		return state{}, err
	case b.mode.Mode != "active":
		return state{}, errDrained
	case t != nil && t.Stage == isCopying:
		return state{}, errHalf
	case t == nil:
		t = &topic{Name: r.Topic}
	case t.state() == serving:
		return state{serving}, nil
	}
	if t.sealed() { // no move has it any more
		t.Stage = isResumed
	}
	t.Loaded, t.Parked, t.Record = true, false, r.Record
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
