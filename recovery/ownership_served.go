package recovery

import "time"

// What a broker serves whose own cluster assigns its topics is wanted: its locks are the
// broker's own keys. In good times they are as they should be and nothing is written. After
// the registration was lost and written again, those that are free are taken back. What another
// broker has is told, and nothing is done about it: the broker could not unload it. One of an
// earlier session of this broker stands until the broker takes it, or its lease ends: the broker
// gives up only what is as it wrote it.

// brokerFirst is how long the broker, which has a session, is left to look after a lock by itself,
// from the begin of the orders and from when the lock was found to be free: one that we write
// while it does is lost to it.
const brokerFirst = 2 * time.Second

// takeServed makes wanted what the broker lists, and unwanted what it does not list any
// more: that one's lock was given up by the broker itself, or is now.
func (o *Ownership) takeServed() {
	topics, began := o.reconciler.Here()
	if began.IsZero() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	here := make(map[string]struct{}, len(topics))
	for _, topic := range topics {
		here[topic] = struct{}{}
	}
	for topic, l := range o.table {
		if _, ok := here[topic]; !ok {
			o.want(l, false)
		}
	}
	for _, topic := range topics {
		o.want(o.lock(topic), true)
	}
	o.wantedKnown, o.listed = true, began
	o.poke()
}

// servedStep is the step about a lock that the broker itself takes and releases: what it
// wrote last is never deleted by us nor written again, it holds what it serves as a rule, and
// what is another's is for its cluster to give.
func (o *Ownership) servedStep(l *lock, step LockStep) LockStep {
	switch {
	case step == LockTake && l.State == LockUnknown:
		return LockLook
	case step == LockRelease && l.written != l.Revision, step == LockWait, step == LockRebind:
		return LockLeave
	}
	return step
}

// brokerUntil is when a free lock may be taken in the broker's name.
func (o *Ownership) brokerUntil(l *lock) time.Time {
	from := o.began
	if l.freeAt.After(from) {
		from = l.freeAt
	}
	return from.Add(brokerFirst)
}

// unproven reports whether the lock is not to be taken yet: the broker was listed before it
// was found to be free, and may have released it itself. It has the broker listed again.
func (o *Ownership) unproven(l *lock) bool {
	if !o.listed.Before(l.freeAt) {
		return false
	}
	o.reconciler.Kick()
	return true
}

// resting is the claim of a topic whose lock holds nothing up.
func (o *Ownership) resting() Claim {
	if o.settings.Served {
		return ClaimOff
	}
	return ClaimPending
}

// Here lists the topics that the broker has, usable or not, and when it was asked; zero:
// there is no present view of it.
func (r *Reconciler) Here() (topics []string, began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.list.fresh {
		return nil, time.Time{}
	}
	for name, t := range r.table {
		if t.Serving || t.Quiesced {
			topics = append(topics, name)
		}
	}
	return topics, r.list.told
}
