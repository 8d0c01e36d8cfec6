package page

import (
	"context"
	"sync"
	"time"
)

const (
	// MaxStreams bounds how many watch at a time. One more is told to come again.
	MaxStreams = 64
	// StatusEvery is the longest time between two statuses on a stream.
	StatusEvery = time.Second
	// look is how often is looked whether the status is another.
	look = 200 * time.Millisecond
)

// Source is what there is to watch. Its methods do not wait for anything and are safe
// for concurrent use.
type Source interface {
	// Status is the status of now as one line of JSON. same is equal for two of them
	// that differ only in what passing time changes.
	Status() (data []byte, same string)
	// Journal lists the oldest entries after that id, at most that many, oldest first.
	// more is closed when there is one that is newer than all.
	Journal(after int64, most int) (entries []Entry, more <-chan struct{})
	// Newest is the id of the newest entry; 0: there is none.
	Newest() int64
}

// Entry is one entry of the journal as one line of JSON. Ids are positive and grow.
type Entry struct {
	ID   int64
	Data []byte
}

// Feed tells everybody who watches what there is to see. It serves the streams as an
// http.Handler, and Run tells them the status, which is computed and encoded once for
// all of them.
type Feed struct {
	source Source
	came   chan struct{} // somebody began to watch

	mu      sync.Mutex
	streams int
	ended   bool
	now     *status
	done    chan struct{} // closed at the end
}

// status is one that was told, until there is a newer one.
type status struct {
	event []byte // nil: none was computed yet for those who watch now
	newer chan struct{}
}

// NewFeed makes a feed. Its streams are told something once Run runs.
func NewFeed(source Source) *Feed {
	return &Feed{source: source, came: make(chan struct{}, 1), now: newStatus(nil), done: make(chan struct{})}
}

func newStatus(event []byte) *status { return &status{event, make(chan struct{})} }

// Run serves those who watch until ctx ends. Then it ends all streams, refuses others,
// and returns nil. It is for one call.
func (f *Feed) Run(ctx context.Context) error {
	defer f.end()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.came:
			f.tell(ctx)
		}
	}
}

// tell tells the status to those who watch, until nobody does.
func (f *Feed) tell(ctx context.Context) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	var told time.Time
	var before string
	for f.watched() {
		data, same := f.source.Status()
		if now := time.Now(); same != before || now.Sub(told) >= StatusEvery {
			before, told = same, now
			f.publish(newStatus(event("status", 0, data)))
		}
		select {
		case <-ctx.Done():
			return
		case <-f.came: // and may have found nothing
		case <-tick.C:
		}
	}
}

func (f *Feed) publish(s *status) {
	f.mu.Lock()
	before := f.now
	f.now = s
	f.mu.Unlock()
	close(before.newer)
}

// watched reports whether somebody watches. If nobody does, whoever comes next waits for
// a new status.
func (f *Feed) watched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.streams == 0 {
		f.now = newStatus(nil)
	}
	return f.streams > 0
}

// enter counts a stream in; false: there are enough, or it is over. Who enters leaves.
func (f *Feed) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || f.streams >= MaxStreams {
		return false
	}
	f.streams++
	select {
	case f.came <- struct{}{}:
	default:
	}
	return true
}

func (f *Feed) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams--
}

func (f *Feed) present() *status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *Feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ended {
		f.ended = true
		close(f.done)
	}
}
