package probes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
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
	live, ready := distinct(checks.Live), distinct(append(append([]Check(nil), checks.Live...), checks.Ready...))
	startup, broker := distinct(checks.Startup), distinct(checks.Broker)

	main, start := healthcheck.NewHandler(), healthcheck.NewHandler()
	for _, c := range checks.Live {
		main.AddLivenessCheck(c.Name, logged(c, log).Err)
	}
	for _, c := range checks.Ready {
		main.AddReadinessCheck(c.Name, logged(c, log).Err)
	}
	for _, c := range startup {
		start.AddLivenessCheck(c.Name, logged(c, log).Err)
	}

	mux := http.NewServeMux()
	answers := map[string]http.HandlerFunc{
		"/live":        main.LiveEndpoint,
		"/ready":       inFull(ready, main.ReadyEndpoint, log),
		"/startup":     start.LiveEndpoint,
		"/broker/live": oneWord(broker, log),
		"/livez":       text("livez", live, log),
		"/readyz":      text("readyz", ready, log),
	}
	if checks.Remark != nil {
		for path, endpoint := range map[string][]Check{"/ready": ready, "/readyz": ready, "/startup": startup, "/broker/live": broker} {
			answers[path] = remarked(endpoint, checks.Remark, log)
		}
	}
	for path, answer := range answers {
		mux.Handle(path, readOnly(answer, log))
	}
	return mux
}

func distinct(checks []Check) []Check {
	seen := make(map[string]bool, len(checks))
	for _, c := range checks {
		if c.Name == "" || c.Err == nil || seen[c.Name] {
			panic(fmt.Sprintf("probes: check %q is incomplete or there twice", c.Name))
		}
		seen[c.Name] = true
	}
	return checks
}

// logged makes a check's panic into an error, and tells the log about it.
func logged(c Check, log *slog.Logger) Check {
	return Check{Name: c.Name, Err: func() error {
		err := safely(c.Err)
		if p, ok := err.(*panicError); ok {
			log.Error("probe check panicked", "check", c.Name, "panic", p.value, "stack", string(p.stack))
		}
		return err
	}}
}

// text answers in lines that a person reads.
func text(name string, checks []Check, log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var lines strings.Builder
		failed := 0
		verbose := r.URL.Query().Has("verbose")
		for _, c := range checks {
			err := logged(c, log).Err()
			switch {
			case err != nil:
				failed++
				fmt.Fprintf(&lines, "[-]%s failed: %s\n", c.Name, oneLine(err.Error()))
			case verbose:
				fmt.Fprintf(&lines, "[+]%s ok%s\n", c.Name, c.note())
			}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		switch {
		case failed > 0:
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(&lines, "%s: %d of %d checks failed\n", name, failed, len(checks))
		case verbose:
			fmt.Fprintf(&lines, "%s: all %d checks passed\n", name, len(checks))
		default:
			lines.WriteString("ok\n")
		}
		_, _ = w.Write([]byte(lines.String())) // a client that went away is not our trouble
	}
}

// oneWord answers ok, or the first cause, in one line; ?full=1 gives every check as
// JSON, as the others do.
func oneWord(checks []Check, log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, why := http.StatusOK, "ok"
		all := outcomes(checks, log)
		for _, c := range checks {
			if all[c.Name] != passed && status == http.StatusOK {
				status, why = http.StatusServiceUnavailable, all[c.Name]
			}
		}
		answer(w, r, status, why, checks, all)
	}
}

// inFull answers ?full=1, with the notes; short answers the rest.
func inFull(checks []Check, short http.HandlerFunc, log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("full") != "1" {
			short(w, r)
			return
		}
		status, all := http.StatusOK, outcomes(checks, log)
		for _, text := range all {
			if text != passed {
				status = http.StatusServiceUnavailable
			}
		}
		answer(w, r, status, "", checks, all)
	}
}

// remarked answers 200 with the remark.
func remarked(checks []Check, remark func([]Check) string, log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		all := outcomes(checks, log)
		known := make([]Check, 0, len(checks)) // each check runs once for a request
		for _, c := range checks {
			known = append(known, Check{Name: c.Name, Err: func() error {
				if all[c.Name] == passed {
					return nil
				}
				return errors.New(all[c.Name])
			}})
		}
		answer(w, r, http.StatusOK, remark(known), checks, all)
	}
}

// passed is what healthcheck, too, says of a check that holds.
const passed = "OK"

func outcomes(checks []Check, log *slog.Logger) map[string]string {
	all := make(map[string]string, len(checks))
	for _, c := range checks {
		all[c.Name] = passed
		if err := logged(c, log).Err(); err != nil {
			all[c.Name] = err.Error()
		}
	}
	return all
}

// note follows the word that the check holds.
func (c Check) note() string {
	if c.Note == nil {
		return ""
	}
	if text := c.Note(); text != "" {
		return ": " + text
	}
	return ""
}

func answer(w http.ResponseWriter, r *http.Request, status int, line string, checks []Check, all map[string]string) {
	if r.URL.Query().Get("full") == "1" {
		for _, c := range checks {
			if all[c.Name] == passed {
				all[c.Name] += c.note()
			}
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(status)
		enc := json.NewEncoder(w)
		enc.SetIndent("", "    ")
		_ = enc.Encode(all) // a client that went away is not our trouble
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintln(w, oneLine(line))
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
		body := &buffered{header: make(http.Header), status: http.StatusOK}
		if !finished(answer, body, r, log) {
			http.Error(w, "the probe itself failed: see the log of holdfast", http.StatusServiceUnavailable)
			return
		}
		for key, values := range body.header {
			w.Header()[key] = values
		}
		w.WriteHeader(body.status)
		if r.Method == http.MethodGet {
			_, _ = w.Write(body.content.Bytes())
		}
	})
}

func finished(answer http.HandlerFunc, body *buffered, r *http.Request, log *slog.Logger) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("probe endpoint panicked", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			ok = false
		}
	}()
	asGet := r.Clone(r.Context())
	asGet.Method = http.MethodGet
	answer(body, asGet)
	return true
}

// buffered is a response that is not sent yet.
type buffered struct {
	header  http.Header
	status  int
	content bytes.Buffer
}

func (b *buffered) Header() http.Header         { return b.header }
func (b *buffered) WriteHeader(status int)      { b.status = status }
func (b *buffered) Write(p []byte) (int, error) { return b.content.Write(p) }
