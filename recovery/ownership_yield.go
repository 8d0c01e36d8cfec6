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
// lock is not ours as far as we know. One that is another's, such as an earlier
// incarnation's of this broker, is for the store to refuse until it is gone: nobody here
// waits for it.
func (o *Ownership) Yielded(topic string) bool {
	o.mu.Lock()
	l, ok := o.table[topic]
	released := ok && l.yield && (l.State == LockFree || l.State == LockForeign) && l.claim.Unloads()
	o.mu.Unlock()
	return released && len(o.reconciler.Idle([]string{topic})) == 1
}

// Yields receives a value when Yielded may have another answer. It has room for one.
func (o *Ownership) Yields() <-chan struct{} { return o.yields }
