package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/lab/harness"
)

// What publishers heard.
const (
	served  = "served"  // every topic stored the message
	mixed   = "mixed"   // some did
	refused = "refused" // none did: no topic is served
	away    = "away"    // none did, and for some there was no answer: the broker is down
)

// heard is a span in which publishers heard the same.
type heard struct {
	At        time.Time // start of the first round
	Last      time.Time // start of the last round
	Until     time.Time // end of the last round
	What      string
	LastError string
}

// traffic publishes to every topic of a node all the time, as clients do that
// ignore /ready, and keeps what they heard.
type traffic struct {
	n      *node
	topics []string
	done   chan struct{}

	mu    sync.Mutex
	spans []heard
}

// publishAlways starts traffic; it ends with the test.
func (n *node) publishAlways() *traffic {
	n.t.Helper()
	c, err := n.broker.Connect()
	n.must(err)
	tr := &traffic{n: n, topics: slices.Clone(n.topics), done: make(chan struct{})}
	ctx, cancel := context.WithCancel(n.ctx)
	go tr.run(ctx, c)
	n.t.Cleanup(func() {
		cancel()
		<-tr.done
		c.Close()
	})
	return tr
}

func (tr *traffic) run(ctx context.Context, c client) {
	defer close(tr.done)
	tick := time.NewTicker(harness.PollEvery)
	defer tick.Stop()
	for {
		h := tr.round(ctx, c)
		if ctx.Err() != nil {
			return
		}
		tr.mu.Lock()
		if last := len(tr.spans) - 1; last >= 0 && tr.spans[last].What == h.What {
			tr.spans[last].Last, tr.spans[last].Until = h.Last, h.Until
		} else {
			tr.spans = append(tr.spans, h)
		}
		tr.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (tr *traffic) round(ctx context.Context, c client) heard {
	now := time.Now()
	h := heard{At: now, Last: now}
	count := map[string]int{}
	for _, topic := range tr.topics {
		pctx, cancel := context.WithTimeout(ctx, time.Second)
		err := c.Publish(pctx, topic)
		cancel()
		switch {
		case err == nil:
			count[served]++
		case errors.Is(err, errNotServed):
			count[refused]++
		default:
			count[away]++
		}
		if err != nil {
			h.LastError = err.Error()
		}
	}
	h.Until = time.Now()
	switch {
	case count[served] == len(tr.topics):
		h.What = served
	case count[served] > 0:
		h.What = mixed
	case count[away] > 0:
		h.What = away
	default:
		h.What = refused
	}
	return h
}

func (tr *traffic) heard() []heard {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return append([]heard(nil), tr.spans...)
}

func (tr *traffic) String() string {
	var b strings.Builder
	for _, h := range tr.heard() {
		fmt.Fprintf(&b, "%s to %s: %s %s\n", h.At.Format("15:04:05.000"), h.Until.Format("15:04:05.000"), h.What, h.LastError)
	}
	return b.String()
}

// await waits for the first span of that kind that goes on after from.
func (tr *traffic) await(what string, from time.Time) time.Time {
	tr.n.t.Helper()
	var at time.Time
	tr.n.must(harness.Await(tr.n.ctx, tr.n.ttl+bound, "publishers of "+tr.n.id+" to be "+what, func(context.Context) (bool, string) {
		for _, h := range tr.heard() {
			if h.What == what && h.Until.After(from) {
				at = h.At
				return true, ""
			}
		}
		return false, tr.String()
	}))
	return at
}

// unserved checks that no topic took a message of publishers who asked in a span of time.
func (tr *traffic) unserved(from, to time.Time) {
	tr.n.t.Helper()
	for _, h := range tr.heard() {
		if (h.What == served || h.What == mixed) && h.Last.After(from) && h.At.Before(to) {
			tr.n.t.Errorf(harness.Violation+"%s: publishers were served between %s and %s:\n%s", tr.n.id,
				from.Format("15:04:05.000"), to.Format("15:04:05.000"), tr)
			return
		}
	}
}

// only checks that publishers who asked in a span of time heard nothing else.
func (tr *traffic) only(what string, from, to time.Time) {
	tr.n.t.Helper()
	for _, h := range tr.heard() {
		if h.What != what && h.Last.After(from) && h.At.Before(to) {
			tr.n.t.Errorf("%s: publishers heard %q between %s and %s; want only %q:\n%s", tr.n.id, h.What,
				from.Format("15:04:05.000"), to.Format("15:04:05.000"), what, tr)
			return
		}
	}
}
