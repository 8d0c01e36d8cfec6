package recovery

import "slices"

// Yield replaces the set of topics that are assigned here and on their way to another
// broker: they are unloaded, and after that their locks are released. Neither the settle
// time nor the mass-change guard applies, since we moved them ourselves.
func (o *Ownership) Yield(topics []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for topic, l := range o.table {
		if l.yield && !slices.Contains(topics, topic) {
			l.yield = false
			o.open[l] = struct{}{}
		}
	}
	for _, topic := range topics {
		if l, ok := o.table[topic]; ok && !l.yield {
			l.yield = true
			o.open[l] = struct{}{}
		}
	}
	o.poke()
}

// Yielded reports whether the topic is on its way, is not served here any more, and its
// lock is free as far as we know.
func (o *Ownership) Yielded(topic string) bool {
	o.mu.Lock()
	l, ok := o.table[topic]
	free := ok && l.yield && l.State == LockFree && l.claim == ClaimYielded
	o.mu.Unlock()
	return free && len(o.reconciler.Idle([]string{topic})) == 1
}

// Yields receives a value when Yielded may have another answer. It has room for one.
func (o *Ownership) Yields() <-chan struct{} { return o.yields }

func (o *Ownership) yielded() {
	select {
	case o.yields <- struct{}{}:
	default:
	}
}
