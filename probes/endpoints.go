package probes

import (
	"encoding/json"
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
	// Note, if not nil, is what a person should know although the condition holds; empty:
	// nothing. It decides nothing, and stands in the full answers only. As bounded as Err.
	Note func() string
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
func Causes(checks []Check) []Cause {
	return causes(evaluate(checks, slog.New(slog.DiscardHandler)))
}

// outcome is what a check said in one request.
type outcome struct {
	Check
	err error
}

func evaluate(checks []Check, log *slog.Logger) (all []outcome) {
	for _, c := range checks {
		all = append(all, outcome{c, safely(log, c.Name, c.Err)})
	}
	return all
}

func causes(all []outcome) (failed []Cause) {
	for _, o := range all {
		if o.err != nil {
			failed = append(failed, Cause{o.Name, o.err.Error()})
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
// before the answer is complete, so a panic is a clean 503. The first three are answered by
// heptiolabs/healthcheck in brief, which knows GET only and no notes.
func NewEndpoints(checks EndpointChecks, log *slog.Logger) http.Handler {
	ready := slices.Concat(checks.Live, checks.Ready)
	mux := http.NewServeMux()
	for _, e := range []struct {
		path   string
		checks []Check
		brief  func(r *http.Request, all []outcome) string // nil: the library's
		remark func([]Cause) string
	}{
		{"/live", checks.Live, nil, nil},
		{"/ready", ready, nil, checks.Remark},
		{"/startup", checks.Startup, nil, checks.Remark},
		{"/broker/live", checks.Broker, firstCause, checks.Remark},
		{"/livez", checks.Live, lines, nil},
		{"/readyz", ready, lines, checks.Remark},
	} {
		library := healthcheck.NewHandler()
		for _, c := range e.checks {
			library.AddLivenessCheck(c.Name, func() error { return safely(log, c.Name, c.Err) })
		}
		mux.HandleFunc(e.path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-store")
			full := r.URL.Query().Get("full") == "1"
			switch {
			case r.Method != http.MethodGet && r.Method != http.MethodHead:
				w.Header().Set("Allow", "GET, HEAD")
				http.Error(w, "use GET or HEAD", http.StatusMethodNotAllowed)
				return
			case e.brief == nil && e.remark == nil && !full:
				asGet := r.Clone(r.Context())
				asGet.Method = http.MethodGet
				library.LiveEndpoint(w, asGet)
				return
			}
			status, kind, body := http.StatusServiceUnavailable, "text/plain", "the probe itself failed: see the log of holdfast\n"
			_ = safely(log, e.path, func() error { // said above
				all := evaluate(e.checks, log)
				failed := causes(all)
				switch {
				case full:
					body, kind = inFull(all), "application/json"
				case e.remark != nil:
					body = oneLine(e.remark(failed)) + "\n"
				default:
					body = e.brief(r, all)
				}
				if len(failed) == 0 || e.remark != nil {
					status = http.StatusOK
				}
				return nil
			})
			w.Header().Set("Content-Type", kind+"; charset=utf-8")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body) // a client that went away is not our trouble
		})
	}
	return mux
}

// note follows the word that the check holds.
func (o outcome) note() string {
	if o.Note == nil {
		return ""
	}
	if text := o.Note(); text != "" {
		return ": " + text
	}
	return ""
}

// firstCause is ok, or the first cause, in one line.
func firstCause(_ *http.Request, all []outcome) string {
	if failed := causes(all); len(failed) > 0 {
		return oneLine(failed[0].Message) + "\n"
	}
	return "ok\n"
}

// lines are for a person who reads.
func lines(r *http.Request, all []outcome) string {
	var text strings.Builder
	failed, verbose, name := len(causes(all)), r.URL.Query().Has("verbose"), strings.TrimPrefix(r.URL.Path, "/")
	for _, o := range all {
		if o.err != nil {
			fmt.Fprintf(&text, "[-]%s failed: %s\n", o.Name, oneLine(o.err.Error()))
		} else if verbose {
			fmt.Fprintf(&text, "[+]%s ok%s\n", o.Name, o.note())
		}
	}
	switch {
	case failed > 0:
		fmt.Fprintf(&text, "%s: %d of %d checks failed\n", name, failed, len(all))
	case verbose:
		fmt.Fprintf(&text, "%s: all %d checks passed\n", name, len(all))
	default:
		return "ok\n"
	}
	return text.String()
}

// inFull is every check and its message, OK as healthcheck has it, with the notes.
func inFull(all []outcome) string {
	said := make(map[string]string, len(all))
	for _, o := range all {
		if said[o.Name] = "OK" + o.note(); o.err != nil {
			said[o.Name] = o.err.Error()
		}
	}
	text, _ := json.MarshalIndent(said, "", "    ") // strings always can be
	return string(text) + "\n"
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
