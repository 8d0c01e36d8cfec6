package probes

import (
	"bytes"
	"encoding/json"
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
	// its checks say, and is told in one line what they would have said.
	Remark func(endpoint []Check) string
}

// Causes evaluates each check once, in order. A check that panics does not hold.
func Causes(checks []Check) []Cause {
	var causes []Cause
	for _, c := range checks {
		if err := safely(c.Err); err != nil {
			causes = append(causes, Cause{Name: c.Name, Message: err.Error()})
		}
	}
	return causes
}

// panicError is what a check that panicked reports; the stack is for the log only.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return "the check itself failed: see the log of holdfast" }

func safely(check func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p, stack: debug.Stack()}
		}
	}()
	return check()
}

// NewEndpoints serves the probes:
//
//	/live /ready /startup   200 or 503; ?full=1 adds every check and its message as JSON
//	/broker/live            the same in one line, which says why
//	/livez /readyz          200 or 503 as text; ?verbose lists every check
//
// GET and HEAD only, anything else is 405 with Allow; never cached; each check runs
// once for a request. The first three are answered by heptiolabs/healthcheck, whose
// own limits (GET only, no notes, a panicking check ends the request) are mended here.
// It panics when two checks of one endpoint have the same name, or one has none:
// one of them would hide the other.
func NewEndpoints(checks EndpointChecks, log *slog.Logger) http.Handler {
	live, startup, broker := logged(checks.Live, log), logged(checks.Startup, log), logged(checks.Broker, log)
	ready := logged(slices.Concat(checks.Live, checks.Ready), log)
	library := healthcheck.NewHandler()
	for i, c := range ready {
		if i < len(live) {
			library.AddLivenessCheck(c.Name, c.Err)
		} else {
			library.AddReadinessCheck(c.Name, c.Err)
		}
	}
	mux := http.NewServeMux()
	for _, e := range []struct {
		path   string
		checks []Check
		brief  func(r *http.Request, all []outcome) string // the answer without ?full=1
		by     http.HandlerFunc                            // gives the brief answer; nil: we do
	}{
		{"/live", live, emptyObject, library.LiveEndpoint},
		{"/ready", ready, emptyObject, library.ReadyEndpoint},
		{"/startup", startup, emptyObject, nil},
		{"/broker/live", broker, firstCause, nil},
		{"/livez", live, lines, nil},
		{"/readyz", ready, lines, nil},
	} {
		remark := checks.Remark
		if e.path == "/live" || e.path == "/livez" {
			remark = nil
		}
		mux.Handle(e.path, readOnly(func(w http.ResponseWriter, r *http.Request) {
			isText := strings.HasSuffix(e.path, "z")
			full := r.URL.Query().Get("full") == "1" && (!isText || remark != nil)
			if e.by != nil && !full && remark == nil {
				e.by(w, r)
				return
			}
			all := evaluate(e.checks)
			status, body, kind := http.StatusOK, "", "text/plain"
			if slices.ContainsFunc(all, func(o outcome) bool { return o.err != nil }) && remark == nil {
				status = http.StatusServiceUnavailable
			}
			switch {
			case full:
				body, kind = inFull(all), "application/json"
			case remark != nil:
				body = oneLine(remark(asSeen(all))) + "\n"
			default:
				if body = e.brief(r, all); body == emptyBody {
					kind = "application/json"
				}
			}
			w.Header().Set("Content-Type", kind+"; charset=utf-8")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body) // a client that went away is not our trouble
		}, log))
	}
	return mux
}

// logged makes a check's panic into an error, and tells the log about it.
func logged(checks []Check, log *slog.Logger) []Check {
	seen := make(map[string]bool, len(checks))
	all := slices.Clone(checks)
	for i, c := range checks {
		if c.Name == "" || c.Err == nil || seen[c.Name] {
			panic(fmt.Sprintf("probes: check %q is incomplete or there twice", c.Name))
		}
		seen[c.Name] = true
		all[i].Err = func() error {
			err := safely(c.Err)
			if p, ok := err.(*panicError); ok {
				log.Error("probe check panicked", "check", c.Name, "panic", p.value, "stack", string(p.stack))
			}
			return err
		}
	}
	return all
}

// outcome is what a check said in one request.
type outcome struct {
	Check
	err error
}

func evaluate(checks []Check) (all []outcome) {
	for _, c := range checks {
		all = append(all, outcome{c, c.Err()})
	}
	return all
}

// asSeen are the checks as they turned out: each runs once for a request.
func asSeen(all []outcome) (checks []Check) {
	for _, o := range all {
		checks = append(checks, Check{Name: o.Name, Err: func() error { return o.err }})
	}
	return checks
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

// emptyBody is what healthcheck, too, answers in brief.
const emptyBody = "{}\n"

func emptyObject(*http.Request, []outcome) string { return emptyBody }

// firstCause is ok, or the first cause, in one line.
func firstCause(_ *http.Request, all []outcome) string {
	for _, o := range all {
		if o.err != nil {
			return oneLine(o.err.Error()) + "\n"
		}
	}
	return "ok\n"
}

// lines are for a person who reads.
func lines(r *http.Request, all []outcome) string {
	var text strings.Builder
	failed, verbose, name := 0, r.URL.Query().Has("verbose"), strings.TrimPrefix(r.URL.Path, "/")
	for _, o := range all {
		switch {
		case o.err != nil:
			failed++
			fmt.Fprintf(&text, "[-]%s failed: %s\n", o.Name, oneLine(o.err.Error()))
		case verbose:
			fmt.Fprintf(&text, "[+]%s ok%s\n", o.Name, o.note())
		}
	}
	switch {
	case failed > 0:
		fmt.Fprintf(&text, "%s: %d of %d checks failed\n", name, failed, len(all))
	case verbose:
		fmt.Fprintf(&text, "%s: all %d checks passed\n", name, len(all))
	default:
		text.WriteString("ok\n")
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

// readOnly lets GET and HEAD through, as GET, and sends the answer only when it is
// complete, so that a panic halfway still becomes a clean 503.
func readOnly(answer http.HandlerFunc, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "use GET or HEAD", http.StatusMethodNotAllowed)
			return
		}
		whole := &buffered{ResponseWriter: w, status: http.StatusOK}
		asGet := r.Clone(r.Context())
		asGet.Method = http.MethodGet
		if err := safely(func() error { answer(whole, asGet); return nil }); err != nil {
			p := err.(*panicError)
			log.Error("probe endpoint panicked", "path", r.URL.Path, "panic", p.value, "stack", string(p.stack))
			http.Error(w, "the probe itself failed: see the log of holdfast", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(whole.status)
		if r.Method == http.MethodGet {
			_, _ = w.Write(whole.content.Bytes())
		}
	})
}

// buffered is a response that is not sent yet, but for its headers.
type buffered struct {
	http.ResponseWriter
	status  int
	content bytes.Buffer
}

func (b *buffered) WriteHeader(status int)      { b.status = status }
func (b *buffered) Write(p []byte) (int, error) { return b.content.Write(p) }
