package topics

import (
	"math/rand/v2"
	"time"
)

// Retries: jittered exponential backoff, factor 2.
const (
	initialBackoff = 250 * time.Millisecond
	maxCallBackoff = 30 * time.Second
	// What must not be served is tried again sooner: another broker may serve it too.
	maxQuiesceBackoff = 5 * time.Second
	maxListBackoff    = 5 * time.Second // also of reading records
)

// act is what is done to a topic.
type act uint8

const (
	actNone act = iota
	actLoad
	actQuiesce
)

func (a act) String() string { return [...]string{"none", "load", "quiesce"}[a] }

// phase is where a wanted topic is on its way.
type phase uint8

const (
	phaseIdle     phase = iota
	phasePending        // to be loaded, record not asked for
	phaseFetching       // record asked for
	phaseReady          // may be called at any time
	phaseFlying         // call in flight
	phaseWaiting        // failed, waits for its retry
)

// queue is first in, first out. Entries whose topic has moved on are skipped when
// they come up.
type queue struct {
	items []*topic
	head  int
}

func (q *queue) push(t *topic) {
	if q.head > 1024 && q.head > len(q.items)/2 { // a queue that never empties must not grow
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, t)
}

// pop returns the first entry that is still in the phase; nil: none.
func (q *queue) pop(p phase) *topic {
	for q.head < len(q.items) {
		t := q.items[q.head]
		q.items[q.head] = nil
		q.head++
		if t.phase == p {
			return t
		}
	}
	*q = queue{}
	return nil
}

func (q *queue) empty() bool { return q.head == len(q.items) }

// lane is which of two queues a topic waits in: 0 fresh, 1 failed before.
func lane(t *topic) int {
	if t.attempt > 0 {
		return 1
	}
	return 0
}

// backoff is the wait after the nth failure in a row, with a fifth of jitter either
// way, never above limit.
func backoff(n int, limit time.Duration) time.Duration {
	d := min(limit, initialBackoff<<min(n-1, 16))
	return min(limit, time.Duration(float64(d)*(0.8+0.4*rand.Float64())))
}

// dueHeap orders topics by the time of their retry.
type dueHeap []*topic

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].retryAt.Before(h[j].retryAt) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].due, h[j].due = i, j
}

// Push is for package heap.
func (h *dueHeap) Push(x any) {
	t := x.(*topic)
	t.due = len(*h)
	*h = append(*h, t)
}

// Pop is for package heap.
func (h *dueHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.due = -1
	return t
}
