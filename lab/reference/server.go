package reference

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"holdfast/brokerapi"
	"holdfast/recovery/moves"
)

// Version is what GET /identity says.
const Version = "1.0.0"

const (
	base       = "/holdfast/v1"
	maxRequest = 2 << 20 // bytes of a body
	maxPage    = 1000    // topics on a page
)

func (b *Broker) routes() *http.ServeMux {
	mux := http.NewServeMux()
	contract := map[string]http.HandlerFunc{
		"GET /identity":        b.getIdentity,
		"GET /health":          b.getHealth,
		"GET /topics":          b.getTopics,
		"POST /topics/load":    change(b, b.load),
		"POST /topics/quiesce": b.able("quiesce", change(b, b.quiesce)),
		"POST /topics/unload":  b.able("unload", change(b, b.unload)),
		"POST /topics/extent":  b.able("move", change(b, b.extent)),
		"POST /topics/accept":  b.able("move", change(b, b.accept)),
		"POST /topics/seal":    b.able("move", change(b, b.seal)),
		"POST /topics/copy":    b.able("move", b.fetch(b.mayCopy, b.copy)),
		"POST /topics/resume":  b.able("move", change(b, b.resume)),
		"POST /topics/compare": b.able("move", b.fetch(b.mayCompare, b.compare)),
		"POST /topics/remove":  b.able("move", change(b, b.removeTopic)),
		"PUT /mode":            b.able("mode", change(b, b.steer)),
	}
	methods := map[string]string{}
	for route, handler := range contract {
		method, path, _ := strings.Cut(route, " ")
		mux.HandleFunc(method+" "+base+path, b.authorized(handler))
		methods[base+path] = method
	}
	mux.HandleFunc("POST "+exportPath, b.authorized(change(b, b.export))) // what these brokers ask each other
	b.clientRoutes(mux)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if method, ok := methods[r.URL.Path]; ok {
			w.Header().Set("Allow", method)
			answer(w, nil, refuse(http.StatusMethodNotAllowed, "method_not_allowed", "want "+method))
			return
		}
		answer(w, nil, refuse(http.StatusNotFound, "unknown_path", "the contract has no such path"))
	})
	return mux
}

// ServeHTTP implements http.Handler.
func (b *Broker) ServeHTTP(w http.ResponseWriter, r *http.Request) { b.mux.ServeHTTP(w, r) }

// authorized lets a request in that has the token. The file is read each time, so a new
// token counts at once.
func (b *Broker) authorized(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if b.o.TokenFile != "" {
			token, err := os.ReadFile(b.o.TokenFile)
			if err != nil {
				answer(w, nil, err)
				return
			}
			if r.Header.Get("Authorization") != "Bearer "+strings.TrimSpace(string(token)) {
				w.Header().Set("WWW-Authenticate", "Bearer")
				answer(w, nil, refuse(http.StatusUnauthorized, "unauthorized", "want the bearer token of this broker"))
				return
			}
		}
		next(w, r)
	}
}

// able answers 501 for what this broker says it cannot do.
func (b *Broker) able(capability string, next http.HandlerFunc) http.HandlerFunc {
	if b.can(capability) {
		return next
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		answer(w, nil, refuse(http.StatusNotImplemented, "not_implemented", "this broker has no "+capability))
	}
}

// change is a call that changes something: one JSON value in, one out, one at a time.
func change[In interface{ check() error }, Out any](b *Broker, do func(In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := asked(w, r, &in); err != nil {
			answer(w, nil, err)
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		out, err := do(in)
		answer(w, out, err)
	}
}

// asked reads a request and looks whether it can be meant.
func asked[In interface{ check() error }](w http.ResponseWriter, r *http.Request, in *In) error {
	if err := read(w, r, in); err != nil {
		return err
	}
	return (*in).check()
}

func bad(format string, args ...any) error {
	return refuse(http.StatusBadRequest, "bad_request", fmt.Sprintf(format, args...))
}

// read takes one JSON value and nothing else.
func read(w http.ResponseWriter, r *http.Request, into any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, "unsupported_media_type", "want application/json")
	}
	if err := noQuery(r); err != nil {
		return err
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return refuse(http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("want at most %d bytes", maxRequest))
	case err != nil:
		return bad("read the request: %v", err)
	case !utf8.Valid(text):
		return bad("not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return bad("read the request: %v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return bad("more than one value")
	}
	return nil
}

func noQuery(r *http.Request) error {
	if r.URL.RawQuery != "" {
		return bad("unknown parameters %q", r.URL.RawQuery)
	}
	return nil
}

// answer writes the one value, or the refusal.
func answer(w http.ResponseWriter, v any, err error) { answerWith(w, http.StatusOK, v, err) }

func answerWith(w http.ResponseWriter, status int, v any, err error) {
	if err != nil {
		var r *refusal
		if !errors.As(err, &r) {
			r = &refusal{http.StatusInternalServerError, "internal", err.Error()}
		}
		status = r.status
		v = map[string]any{"error": map[string]string{"code": r.code, "message": r.message}}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the other side has gone
}

func checkTopic(name string) error {
	if _, _, err := brokerapi.SplitTopic(name); err != nil {
		return bad("%v", err)
	}
	return nil
}

func (r topicRequest) check() error { return checkTopic(r.Topic) }
func (r loadRequest) check() error  { return checkTopic(r.Topic) }

func (r acceptRequest) check() error { return cmp.Or(checkTopic(r.Topic), checkExtent("like", r.Like)) }
func (r sealRequest) check() error   { return cmp.Or(checkTopic(r.Topic), checkMove(r.Move)) }
func (r removeRequest) check() error { return cmp.Or(checkTopic(r.Topic), checkMove(r.Move)) }
func (r fetchRequest) check() error {
	if r.From.ID == "" {
		return bad("from.id is missing")
	}
	return cmp.Or(checkTopic(r.Topic), checkExtent("sealed", r.Sealed))
}
func (r resumeRequest) check() error {
	err := cmp.Or(checkTopic(r.Topic), checkMove(r.Move))
	if r.Sealed != nil {
		err = cmp.Or(err, checkExtent("sealed", r.Sealed))
	}
	return err
}

func checkMove(id string) error {
	if id == "" {
		return bad("move is missing")
	}
	return nil
}

func checkExtent(name string, e *moves.Extent) error {
	if e == nil {
		return bad("%s is missing", name)
	}
	return nil
}

func (m mode) check() error {
	if m.Mode != "active" && m.Mode != "drained" {
		return bad("mode %q: want active or drained", m.Mode)
	}
	return nil
}

func (b *Broker) getIdentity(w http.ResponseWriter, r *http.Request) {
	answer(w, identity{b.o.Name, b.instance, b.startedAt, Version, b.o.Dir}, noQuery(r))
}

// getHealth says ok when the broker can do its job: here, when it can write. A broker
// that cannot answers 503 and says why.
func (b *Broker) getHealth(w http.ResponseWriter, r *http.Request) {
	err := noQuery(r)
	b.mu.Lock() // also shows that no other call hangs
	defer b.mu.Unlock()
	if err == nil {
		if wrong := writeJSON(b.o.Dir+"/health", b.instance); wrong != nil {
			err = refuse(http.StatusServiceUnavailable, "unavailable", wrong.Error())
		}
	}
	answer(w, health{"ok", b.instance}, err)
}

// getTopics lists in the order of the names, so that a topic that stays is listed once
// whatever comes and goes between two pages.
func (b *Broker) getTopics(w http.ResponseWriter, r *http.Request) {
	limit, after, err := pageOf(r.URL.Query())
	b.mu.Lock()
	defer b.mu.Unlock()
	out := page{Topics: []listed{}}
	for _, name := range slices.Sorted(maps.Keys(b.topics)) {
		t := b.topics[name]
		if name <= after || t.state() == absent || t.Foreign && !t.Litter || t.Theirs {
			continue
		}
		if len(out.Topics) == limit {
			out.Next = out.Topics[limit-1].Name
			break
		}
		out.Topics = append(out.Topics, listed{name, t.state()})
	}
	answer(w, out, err)
}

func pageOf(q url.Values) (limit int, after string, err error) {
	limit = maxPage
	for name, values := range q {
		switch {
		case len(values) > 1:
			return 0, "", bad("parameter %s twice", name)
		case name == "after":
			after = values[0]
		case name == "limit":
			if limit, err = strconv.Atoi(values[0]); err != nil || limit < 1 || limit > maxPage {
				return 0, "", bad("limit %q: want 1 to %d", values[0], maxPage)
			}
		default:
			return 0, "", bad("unknown parameter %s", name)
		}
	}
	return limit, after, nil
}
