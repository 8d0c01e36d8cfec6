package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	// Recent is how many entries of the journal a stream begins with.
	Recent = 200
	// piece is how many entries are told at a time: a client that does not take them has
	// them held here for WriteTimeout.
	piece = 25
	// WriteTimeout is how long a client may take to take what it is told.
	WriteTimeout = 5 * time.Second
	// retry is when a client whose stream broke should come again.
	retry = 2 * time.Second
)

// event is one event in the form of text/event-stream; data has no line break. An id of
// zero stands for none.
func event(name string, id int64, data []byte) []byte {
	var b []byte
	if id > 0 {
		b = fmt.Appendf(b, "id: %d\n", id)
	}
	return fmt.Appendf(b, "event: %s\ndata: %s\n\n", name, data)
}

// ServeHTTP is one stream: the status first, then the journal's recent entries, or
// those after Last-Event-ID, then whatever comes.
func (f *Feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	after, err := resumption(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := http.NewResponseController(w)
	if err := out.SetWriteDeadline(time.Now().Add(WriteTimeout)); err != nil {
		// Who takes nothing could not be dropped.
		http.Error(w, "no stream over this connection: "+err.Error(), http.StatusInternalServerError)
		return
	}
	select {
	case f.places <- struct{}{}:
		defer func() { <-f.places }()
	default:
		err = fmt.Errorf("%d streams are open", MaxStreams)
	}
	if f.life.Err() != nil {
		err = errors.New("the sidecar ends")
	}
	if err != nil {
		w.Header().Set("Retry-After", "5")
		http.Error(w, err.Error()+": try again later, or ask /api/status", http.StatusServiceUnavailable)
		return
	}

	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no") // nginx would keep events back
	if r.ProtoMajor == 1 {
		h.Set("Connection", "close") // its deadline is not for another request
	}
	if r.Method == http.MethodHead {
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(f.life, cancel)()
	if newest := f.source.Newest(); after < 0 || after > newest { // that was another journal
		after = max(0, newest-Recent)
	}
	told, tick := status{}, time.NewTicker(look)
	defer tick.Stop()
	for text := fmt.Appendf(nil, "retry: %d\n\n", retry.Milliseconds()); ctx.Err() == nil; text = nil {
		// A status comes before the journal: it says whose that is.
		if now := f.status(); now.same != told.same || time.Since(told.at) >= StatusEvery {
			told = now
			text = append(text, now.event...)
		}
		entries, more := f.source.Journal(after, piece)
		for _, e := range entries {
			text = append(text, event("journal", e.ID, e.Data)...)
			after = e.ID
		}
		if len(text) > 0 {
			_ = out.SetWriteDeadline(time.Now().Add(WriteTimeout)) // it could be set at the beginning
			if _, err := w.Write(text); err != nil || out.Flush() != nil {
				return
			}
			continue // there may be more
		}
		select {
		case <-ctx.Done():
		case <-more:
		case <-tick.C:
		}
	}
}

// resumption is the id of the last entry that the client had; negative: it had none. A
// client that cannot set the header says ?since=.
func resumption(r *http.Request) (int64, error) {
	name, id := "Last-Event-ID", r.Header.Get("Last-Event-ID")
	if id == "" {
		name, id = "since", r.URL.Query().Get("since")
	}
	if id == "" {
		return -1, nil
	}
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s: %q: want the number of a journal entry", name, id)
	}
	return n, nil
}
