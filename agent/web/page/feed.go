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
// http.Handler; each looks at the status by itself.
type Feed struct {
	source Source
	places chan struct{}   // holds what each that watches holds
	life   context.Context // until the end of Run
	end    context.CancelFunc

	mu  sync.Mutex
	now status
}

// status is one that was computed at some time.
type status struct {
	event []byte
	same  string // see Source
	at    time.Time
}

// NewFeed makes a feed. Its streams end when Run does.
func NewFeed(source Source) *Feed {
	f := &Feed{source: source, places: make(chan struct{}, MaxStreams)}
	f.life, f.end = context.WithCancel(context.Background())
	return f
}

// Run waits for the end of ctx. Then it ends all streams, and no other begins.
func (f *Feed) Run(ctx context.Context) error {
	<-ctx.Done()
	f.end()
	return nil
}

// status is that of now. It is computed and encoded once in that time for all who watch.
func (f *Feed) status() status {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.now.at) >= look {
		data, same := f.source.Status()
		f.now = status{event("status", 0, data), same, now}
	}
	return f.now
}
