package harness

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"holdfast/standstill"
)

// ProbeSample is what the two probes answered at one moment. 0: no answer.
type ProbeSample struct {
	At    time.Time // when it was asked
	Asked time.Time // when it was last asked with the same answers
	Until time.Time // when the same answers were last seen
	Live  int
	Ready int
}

func (s ProbeSample) String() string {
	return fmt.Sprintf("%s to %s: live %d, ready %d",
		s.At.Format("15:04:05.000"), s.Until.Format("15:04:05.000"), s.Live, s.Ready)
}

// Recorder keeps what /live and /ready of a sidecar answered over time. It asks
// every PollEvery, so an answer that lasted less may be missed. A probe that does
// not answer within 2 s counts as no answer. Safe for concurrent use.
type Recorder struct {
	sidecar *Sidecar
	stop    context.CancelFunc
	done    chan struct{}

	mu   sync.Mutex
	runs []ProbeSample // of equal answers
}

// Record starts a recorder; it ends with Stop or with the lab.
func (l *Lab) Record(s *Sidecar) *Recorder {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Recorder{sidecar: s, stop: cancel, done: make(chan struct{})}
	go r.run(ctx)
	l.onClose(func() error { r.Stop(); return nil })
	return r
}

// Stop ends the recording; the timeline stays.
func (r *Recorder) Stop() {
	r.stop()
	<-r.done
}

func (r *Recorder) run(ctx context.Context) {
	defer close(r.done)
	tick := time.NewTicker(PollEvery)
	defer tick.Stop()
	for {
		s := ProbeSample{At: time.Now()}
		// One after the other: a sample that mixes two moments must not invent
		// "ready" for the later one, so readiness is asked first.
		s.Ready, _, _ = r.sidecar.Probe(ctx, "/ready")
		s.Live, _, _ = r.sidecar.Probe(ctx, "/live")
		if ctx.Err() != nil {
			return
		}
		s.Asked, s.Until = s.At, time.Now()
		r.add(s)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Recorder) add(s ProbeSample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.runs); n > 0 && r.runs[n-1].Live == s.Live && r.runs[n-1].Ready == s.Ready {
		r.runs[n-1].Asked, r.runs[n-1].Until = s.Asked, s.Until
		return
	}
	r.runs = append(r.runs, s)
}

// Timeline is the answers so far, equal neighbours joined.
func (r *Recorder) Timeline() []ProbeSample {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]ProbeSample(nil), r.runs...)
}

func (r *Recorder) String() string {
	var b strings.Builder
	for _, s := range r.Timeline() {
		fmt.Fprintln(&b, s)
	}
	return b.String()
}

// NeverReady says whether no answer that was asked for between from and to was ready.
// Give it a from at which it is already known not to be ready, such as the return of
// AwaitNotReady, not the moment of what makes it so. A question that was under way at
// from may have been answered before, and does not count.
func (r *Recorder) NeverReady(from, to time.Time) error {
	for _, s := range r.Timeline() {
		if s.Ready == http.StatusOK && s.Asked.After(from) && s.At.Before(to) {
			return fmt.Errorf(Violation+"%s was ready between %s and %s:\n%s", r.sidecar.Name,
				from.Format("15:04:05.000"), to.Format("15:04:05.000"), r)
		}
	}
	return nil
}

// AlwaysReady says whether /ready was 200 in every answer from from to to.
func (r *Recorder) AlwaysReady(from, to time.Time) error {
	return r.always("ready", from, to, func(s ProbeSample) int { return s.Ready })
}

// AlwaysLive says whether /live was 200 in every answer from from to to. Give it a
// span in which the sidecar ran and had opened its listener.
func (r *Recorder) AlwaysLive(from, to time.Time) error {
	return r.always("live", from, to, func(s ProbeSample) int { return s.Live })
}

// always does not count a question that went unanswered while this process, who asked,
// stood still for a good part of the time itself. An answer always counts.
func (r *Recorder) always(what string, from, to time.Time, code func(ProbeSample) int) error {
	seen := false
	for _, s := range r.Timeline() {
		if s.Until.Before(from) || s.At.After(to) {
			continue
		}
		seen = true
		excused := code(s) == 0 && 4*standstill.For(s.At, s.Until) > s.Until.Sub(s.At)
		if code(s) != http.StatusOK && !excused {
			return fmt.Errorf("%s was not always %s between %s and %s:\n%s", r.sidecar.Name, what,
				from.Format("15:04:05.000"), to.Format("15:04:05.000"), r)
		}
	}
	if !seen {
		return fmt.Errorf("%s: no probe was asked between %s and %s", r.sidecar.Name,
			from.Format("15:04:05.000"), to.Format("15:04:05.000"))
	}
	return nil
}

// FirstReady is when /ready was first 200 in a run that began at from or later, or
// that was going on then. ok is false if it was not.
func (r *Recorder) FirstReady(from time.Time) (at time.Time, ok bool) {
	return r.first(from, func(s ProbeSample) bool { return s.Ready == http.StatusOK })
}

// FirstNotReady is when /ready first was not 200 at from or later.
func (r *Recorder) FirstNotReady(from time.Time) (at time.Time, ok bool) {
	return r.first(from, func(s ProbeSample) bool { return s.Ready != http.StatusOK })
}

func (r *Recorder) first(from time.Time, match func(ProbeSample) bool) (time.Time, bool) {
	for _, s := range r.Timeline() {
		if !s.Until.Before(from) && match(s) {
			if s.At.Before(from) {
				return from, true
			}
			return s.At, true
		}
	}
	return time.Time{}, false
}
