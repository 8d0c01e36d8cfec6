package control

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"holdfast/agent/config"
)

// Reply answers with v as JSON.
func Reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the client went away
}

// ReplyEach replies with a list, and holds the text of one entry at a time.
func ReplyEach[T any](w http.ResponseWriter, list []T) {
	w.Header().Set("Content-Type", "application/json")
	front, end := "[\n  ", "[]\n"
	for _, v := range list {
		text, _ := json.MarshalIndent(v, "  ", "  ")
		fmt.Fprintf(w, "%s%s", front, text)
		front, end = ",\n  ", "\n]\n"
	}
	fmt.Fprint(w, end)
}

// Respond replies, or refuses with the error.
func Respond(w http.ResponseWriter, v any, err error) {
	if err != nil {
		Refuse(w, err)
		return
	}
	Reply(w, v)
}

// Refuse answers with an error, and the exit code that it decides.
func Refuse(w http.ResponseWriter, err error) {
	code, status := Code(err), http.StatusServiceUnavailable
	switch code {
	case ExitUsage:
		status = http.StatusBadRequest
	case ExitRefused:
		status = http.StatusConflict
	}
	RefuseWith(w, status, code, err)
}

// RefuseWith is Refuse where the HTTP status says something of its own.
func RefuseWith(w http.ResponseWriter, status, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": err.Error(), "exit_code": code})
}

// Answered answers a request with what is made of its body.
func Answered[Order, Answer any](do func(context.Context, Order) (Answer, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var o Order
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&o); err != nil {
			Refuse(w, UsageError(fmt.Errorf("request body: %w", err)))
			return
		}
		answer, err := do(r.Context(), o)
		Respond(w, answer, err)
	}
}

// ServeEvents writes the journal as JSON lines, for ever with ?follow=1.
func (j *Journal) ServeEvents(w http.ResponseWriter, r *http.Request) {
	since := int64(0)
	if s := r.URL.Query().Get("since"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			Refuse(w, UsageError(fmt.Errorf("since=%q: want the number of an event", s)))
			return
		}
		since = n
	}
	w.Header().Set("Content-Type", "application/jsonl")
	enc, flush := json.NewEncoder(w), http.NewResponseController(w)
	for {
		events, more := j.Since(since)
		for _, e := range events {
			if enc.Encode(e) != nil {
				return
			}
			since = e.ID
		}
		if r.URL.Query().Get("follow") != "1" || flush.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-more:
		}
	}
}

// ServeExplanation says why an event came, with the settings in force.
func (j *Journal) ServeExplanation(settings func() *config.Config) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err != nil {
			Refuse(w, UsageError(fmt.Errorf("event %q: want a number: 'holdfast events' lists them", r.PathValue("id"))))
			return
		}
		e, ok := j.find(id)
		if !ok {
			Refuse(w, UsageError(fmt.Errorf("event %d: not in the journal (any more): 'holdfast events' lists them", id)))
			return
		}
		Reply(w, Explain(e, *settings()))
	}
}
