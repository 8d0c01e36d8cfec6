package page

import (
	"bytes"
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
	// Heartbeat is the longest silence on a stream.
	Heartbeat = 10 * time.Second
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
	if !f.enter() {
		w.Header().Set("Retry-After", "5")
		http.Error(w, fmt.Sprintf("%d streams are open, or the sidecar ends: try again later, or ask /api/status", MaxStreams), http.StatusServiceUnavailable)
		return
	}
	defer f.leave()

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
	write := func(b []byte) bool {
		err := out.SetWriteDeadline(time.Now().Add(WriteTimeout))
		if err == nil {
			_, err = w.Write(b)
		}
		if err == nil {
			err = out.Flush()
		}
		return err == nil
	}
	if newest := f.source.Newest(); after < 0 || after > newest { // that was another journal
		after = max(0, newest-Recent)
	}
	s := stream{source: f.source, after: after}
	silence := time.NewTimer(Heartbeat)
	defer silence.Stop()
	text := fmt.Appendf(nil, "retry: %d\n\n", retry.Milliseconds())
	for write(text) {
		silence.Reset(Heartbeat)
		now := f.present()
		if text = s.news(now); len(text) > 0 && !f.over(r) {
			continue
		}
		select {
		case <-r.Context().Done():
			return
		case <-f.done:
			return
		case <-now.newer:
		case <-s.more:
		case <-silence.C:
		}
		if text = s.news(f.present()); len(text) == 0 {
			text = []byte(":\n\n")
		}
	}
}

// over reports whether the stream is to end, also while there is more and more to tell.
func (f *Feed) over(r *http.Request) bool {
	select {
	case <-r.Context().Done():
		return true
	case <-f.done:
		return true
	default:
		return false
	}
}

// stream is what one client knows.
type stream struct {
	source Source
	told   *status // nil: none
	after  int64   // id of its last journal entry
	more   <-chan struct{}
}

// news is what the client does not know yet. A status comes before the journal: it says
// whose that is.
func (s *stream) news(now *status) []byte {
	var b bytes.Buffer
	if now != s.told && now.event != nil {
		s.told = now
		b.Write(now.event)
	}
	if s.told == nil {
		return nil
	}
	var entries []Entry
	entries, s.more = s.source.Journal(s.after, piece)
	for _, e := range entries {
		b.Write(event("journal", e.ID, e.Data))
		s.after = e.ID
	}
	return b.Bytes()
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
