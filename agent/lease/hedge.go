package lease

import (
	"slices"
	"time"
)

// Bounds of the wait before a renewal is hedged. The upper one is what a silent
// endpoint may cost: with the round trip to another one it stays well under
// RetryCeiling. The lower one keeps a very quick etcd from being asked twice because
// of a pause in a scheduler.
const (
	hedgeSoonest = 20 * time.Millisecond
	hedgeLatest  = 500 * time.Millisecond
	hedgeUnknown = 250 * time.Millisecond // while too little is known
	fewAnswers   = 16
)

// pace remembers how long the last confirmed renewals took, each from its own send.
// The zero pace knows nothing.
type pace struct {
	took [128]time.Duration
	n    int // ever added
}

// add takes one confirmed renewal into account.
func (p *pace) add(took time.Duration) {
	p.took[p.n%len(p.took)] = took
	p.n++
}

// hedgeAfter is how long an attempt may be unanswered before the same question goes
// to another endpoint: a little more than the 99th percentile of the recent ones, so
// that in quiet times at most about one renewal in a hundred is sent twice. It leaves
// the hedge at least half of the attempt's own time.
func (p *pace) hedgeAfter(attemptTimeout time.Duration) time.Duration {
	wait := hedgeUnknown
	if p.n >= fewAnswers {
		known := slices.Sorted(slices.Values(p.took[:min(p.n, len(p.took))]))
		wait = known[(99*len(known)+99)/100-1]
		wait += wait / 8
	}
	return min(max(wait, hedgeSoonest), hedgeLatest, attemptTimeout/2)
}
