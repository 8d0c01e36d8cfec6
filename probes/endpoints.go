package probes

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/heptiolabs/healthcheck"
)

// Check is one named condition. Err must be an O(1) read of state that some loop
// keeps current, with a bound on its age: it is called in the request, under a lock.
type Check struct {
	Name string
	Err  func() error // nil: the condition holds
}

// Cause is one condition that does not hold.
type Cause struct{ Name, Message string }

// EndpointChecks are the conditions of each endpoint. The set is fixed for the life
// of the process; names are unique within Live and Ready together, and within Startup.
type EndpointChecks struct {
	Live    []Check // of /live and /livez
	Ready   []Check // of /ready and /readyz, after those of Live
	Startup []Check // of /startup
	Broker  []Check // of /broker/live
	// Remark, if not nil, makes every endpoint but those of Live answer 200, whatever
	// its checks say, and tells in one line what they would have said.
	Remark func([]Cause) string
}

// Causes evaluates each check once, in order. A check that panics does not hold.
func Causes(checks []Check, log *slog.Logger) (failed []Cause) {
	for _, c := range checks {
		if err := safely(log, c.Name, c.Err); err != nil {
			failed = append(failed, Cause{c.Name, err.Error()})
		}
	}
	return failed
}

// errPanicked is what a check that panicked reports; the rest is for the log only.
var errPanicked = errors.New("the check itself failed: see the log of holdfast")

func safely(log *slog.Logger, check string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("check panicked", "check", check, "panic", p, "stack", string(debug.Stack()))
			err = errPanicked
		}
	}()
	return f()
}

// NewEndpoints serves the probes:
//
//	/live /ready /startup   200 or 503
//	/broker/live            the same in one line, which says why
//	/livez /readyz          200 or 503 as text; ?verbose lists every check
//
// ?full=1 makes each a JSON object of every check and its message. GET and HEAD only, anything
// else is 405 with Allow; never cached; each check runs once for a request. Nothing is sent
// before each check has answered, so one that panics is a clean 503.
func NewEndpoints(checks EndpointChecks, log *slog.Logger) http.Handler {
	ready, shadow := slices.Concat(checks.Live, checks.Ready), checks.Remark != nil
	brief, detailed, why := text(nil), lines, firstCause
	if shadow {
		remark := func(_ *http.Request, _ []Check, failed []Cause) string { return oneLine(checks.Remark(failed)) + "\n" }
		brief, detailed, why = remark, remark, remark
	}
	mux := http.NewServeMux()
	for _, e := range []endpoint{
		{"/live", checks.Live, nil, false},
		{"/livez", checks.Live, lines, false},
		{"/ready", ready, brief, shadow},
		{"/readyz", ready, detailed, shadow},
		{"/startup", checks.Startup, brief, shadow},
		{"/broker/live", checks.Broker, why, shadow},
	} {
		mux.HandleFunc("GET "+e.path, e.handler(log))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}

// text is what an endpoint says; nil: JSON.
type text func(r *http.Request, checks []Check, failed []Cause) string

type endpoint struct {
	path   string
	checks []Check
	text   text
	steady bool // 200 whatever the checks say
}

// handler answers in JSON by heptiolabs/healthcheck, which knows no HEAD.
func (e endpoint) handler(log *slog.Logger) http.HandlerFunc {
	library := healthcheck.NewHandler()
	for _, c := range e.checks {
		library.AddLivenessCheck(c.Name, func() error { return safely(log, c.Name, c.Err) })
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if e.steady {
			w = steady{w}
		}
		if e.text == nil || r.URL.Query().Get("full") == "1" {
			get := r.Clone(r.Context())
			get.Method = http.MethodGet
			library.LiveEndpoint(w, get)
			return
		}
		failed := Causes(e.checks, log)
		body := e.text(r, e.checks, failed)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if len(failed) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, body) // a client that went away is not our trouble
	}
}

// steady answers 200.
type steady struct{ http.ResponseWriter }

func (s steady) WriteHeader(int) { s.ResponseWriter.WriteHeader(http.StatusOK) }

// firstCause is ok, or the first cause, in one line.
func firstCause(_ *http.Request, _ []Check, failed []Cause) string {
	if len(failed) > 0 {
		return oneLine(failed[0].Message) + "\n"
	}
	return "ok\n"
}

// lines are for a person who reads.
func lines(r *http.Request, checks []Check, failed []Cause) string {
	var said strings.Builder
	verbose, name := r.URL.Query().Has("verbose"), strings.TrimPrefix(r.URL.Path, "/")
	for _, c := range checks {
		if i := slices.IndexFunc(failed, func(f Cause) bool { return f.Name == c.Name }); i >= 0 {
			fmt.Fprintf(&said, "[-]%s failed: %s\n", c.Name, oneLine(failed[i].Message))
		} else if verbose {
			fmt.Fprintf(&said, "[+]%s ok\n", c.Name)
		}
	}
	if said.Len() == 0 {
		return "ok\n"
	}
	fmt.Fprintf(&said, "%s: %d of %d checks failed\n", name, len(failed), len(checks))
	return said.String()
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
