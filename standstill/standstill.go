// Package standstill judges what tests and benches claim about real time ("within a
// second") by how long the process that looks stood still itself. It is for tests only.
//
// Guaranteed: what held is never doubted, and what took longer than the machine can have
// added is a broken claim. What lies between is unjudged, under one fixed word. Not guaranteed:
// that a machine is noticed which is busy but never stands still. Limits must leave room for it.
// No new use: a failed real-time test runs once more, alone, which does the same.
//
// It excuses nothing where safety is claimed: what was seen served past its deadline was
// served past its deadline. Only which of two moments came first may be unknown.
package standstill

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// Word begins the message of a claim that could not be judged.
const Word = "UNJUDGED"

// ErrUnjudged begins what is returned for a claim that could not be judged.
var ErrUnjudged = errors.New(Word)

const (
	tick  = 10 * time.Millisecond
	least = 5 * time.Millisecond // being this late is how every scheduler works
	// hops is how many processes what is measured goes through at most: a sidecar, etcd or
	// a broker, and this one, which sees it. Each may have stood still as long as this one.
	hops = 3
)

// span is one in which nothing ran here.
type span struct{ from, to time.Time }

var watched struct {
	sync.Mutex
	watchers int
	since    time.Time
	stop     func()
	late     []span
}

// Watch notes how late this process is for its own ticks, until stop is called.
func Watch() (stop func()) {
	watched.Lock()
	defer watched.Unlock()
	if watched.watchers++; watched.watchers == 1 {
		watched.since, watched.stop = time.Now(), start()
	}
	return func() {
		watched.Lock()
		watched.watchers--
		last := watched.watchers == 0
		end := watched.stop
		watched.Unlock()
		if last {
			end()
		}
	}
}

func start() (stop func()) {
	ended, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		ticks := time.NewTicker(tick)
		defer ticks.Stop()
		for last := time.Now(); ; {
			select {
			case <-ticks.C:
			case <-ended:
				return
			}
			now := time.Now()
			if now.Sub(last)-tick >= least {
				watched.Lock()
				watched.late = append(watched.late, span{last.Add(tick), now})
				watched.Unlock()
			}
			last = now
		}
	}()
	return func() { close(ended); <-gone }
}

// Begin is now, for a claim that is judged later in this test. It watches until the test ends.
func Begin(t testing.TB) time.Time {
	t.Helper()
	t.Cleanup(Watch())
	return time.Now()
}

// For is for how long, in all, this process did not run between two moments, although it
// wanted to. Another process will have waited about as long.
func For(from, to time.Time) (sum time.Duration) {
	watched.Lock()
	defer watched.Unlock()
	for _, s := range watched.late {
		if s.from.Before(from) {
			s.from = from
		}
		if s.to.After(to) {
			s.to = to
		}
		sum += max(0, s.to.Sub(s.from))
	}
	return sum
}

// Added is how much longer this may have made what was measured between two moments.
func Added(from, to time.Time) time.Duration { return hops * For(from, to) }

// isWatched says whether For knows everything from a moment on.
func isWatched(from time.Time) bool {
	watched.Lock()
	defer watched.Unlock()
	return watched.watchers > 0 && !from.Before(watched.since)
}

// Judge says whether something took so long at most that went on within a span of time.
// Somebody has to have watched from its beginning on.
func Judge(what string, from, to time.Time, took, most time.Duration) error {
	if !isWatched(from) {
		return fmt.Errorf("%s: nobody watched from its beginning on: call Begin or Watch", what)
	}
	stood := For(from, to)
	switch {
	case took <= most:
		return nil
	case took-Added(from, to) <= most:
		return fmt.Errorf("%w: %s after %v: stood still for %v of the %v that the claim allows", ErrUnjudged, what, round(took), round(stood), most)
	}
	return fmt.Errorf("%s after %v, want at most %v (stood still for %v)", what, round(took), most, round(stood))
}

// JudgeOrder says whether one event was seen before another. The first may have been seen
// too late by as long as this process stood still.
func JudgeOrder(end string, at time.Time, entitled string, gone time.Time) error {
	late := at.Sub(gone)
	if late < 0 {
		return nil
	}
	from := gone.Add(-time.Second)
	if stood := For(from, at); late < stood {
		return fmt.Errorf("%w: %s %v after %s: stood still for %v meanwhile", ErrUnjudged, end, round(late), entitled, round(stood))
	}
	return fmt.Errorf("%s %v after %s", end, round(late), entitled)
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// Check fails a test for a claim that is broken, and for one that is unjudged: what the machine
// broke holds when the test runs once more, alone.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Within is Judge for something that a test saw begin.
func Within(t testing.TB, what string, began time.Time, took, most time.Duration) {
	t.Helper()
	Check(t, Judge(what, began, began.Add(took), took, most))
}
