package agent

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// shadowPass is how long what would have been done to topics is gathered before it is
// told: about as long as one pass over them.
const shadowPass = time.Second

// shadowTopics gathers what would have been done to topics.
type shadowTopics struct {
	mu     sync.Mutex
	since  time.Time // zero: nothing is gathered
	passes []topicPass
}

// topicPass is one action on some topics.
type topicPass struct {
	what  action
	n     int
	first string
}

func (p topicPass) about() string {
	if p.n == 1 {
		return p.first
	}
	return fmt.Sprintf("%s and %s", p.first, plural(p.n-1, "other topic"))
}

func (t *shadowTopics) add(what action, topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() {
		t.since = time.Now()
	}
	i := slices.IndexFunc(t.passes, func(p topicPass) bool { return p.what == what })
	if i < 0 {
		t.passes = append(t.passes, topicPass{what: what, n: 1, first: topic})
		return
	}
	t.passes[i].n++
}

// take returns what was gathered, if it is time to tell.
func (t *shadowTopics) take(end bool) []topicPass {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() || !end && time.Since(t.since) < shadowPass {
		return nil
	}
	passes := t.passes
	t.passes, t.since = nil, time.Time{}
	return passes
}
