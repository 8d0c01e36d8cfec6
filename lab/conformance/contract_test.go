package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/brokerapi/httpapi"
	"holdfast/lab/reference"
)

// witness stands before a broker and compares what is asked and answered with the contract.
type witness struct {
	contract *contract
	broker   http.Handler

	mu    sync.Mutex
	wrong []string
	seen  map[string]bool // "GET /health 200"
}

// answered keeps what the broker answers on its way to who asked.
type answered struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (a *answered) WriteHeader(status int) { a.status = status; a.ResponseWriter.WriteHeader(status) }
func (a *answered) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	a.body.Write(b)
	return a.ResponseWriter.Write(b)
}
func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (w *witness) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	a := &answered{ResponseWriter: rw}
	w.broker.ServeHTTP(a, r)
	w.mu.Lock()
	defer w.mu.Unlock()
	path, known := strings.CutPrefix(r.URL.Path, contractBase)
	name := r.Method + " " + path
	o := w.contract.operations[name]
	if !known || o == nil {
		w.wrong = append(w.wrong, fmt.Sprintf("%s is not in the contract", name))
		return
	}
	if err := o.judge(a); err != nil {
		w.wrong = append(w.wrong, fmt.Sprintf("%s answered %d: %v", name, a.status, err))
	}
	if a.status < 300 {
		if err := o.judgeRequest(r, body); err != nil {
			w.wrong = append(w.wrong, fmt.Sprintf("%s was asked: %v", name, err))
		}
	}
	w.seen[fmt.Sprintf("%s %d", name, a.status)] = true
}

func (o *operation) judge(a *answered) error {
	r := o.responses[a.status]
	if r == nil {
		return errors.New("a status that the contract does not list")
	}
	kind, _, err := mime.ParseMediaType(a.Header().Get("Content-Type"))
	if err != nil || r.contents[kind] == nil {
		return fmt.Errorf("content type %q: %w", kind, errors.Join(err, errors.New("not in the contract")))
	}
	if kind == "application/json" {
		return r.contents[kind].checkJSON(a.body.Bytes())
	}
	return nil
}

func (o *operation) judgeRequest(r *http.Request, body []byte) error {
	for name := range r.URL.Query() {
		if !o.params[name] {
			return fmt.Errorf("parameter %s", name)
		}
	}
	if o.request == nil {
		if len(body) > 0 {
			return errors.New("a body")
		}
		return nil
	}
	return o.request.checkJSON(body)
}

// witnessed is a reference broker in this process, behind a witness and a web server.
func witnessed(t *testing.T, o reference.Options) (*witness, string) {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	o.Name = "n1"
	b, err := reference.New(o)
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{contract: loadContract(t), broker: b, seen: map[string]bool{}}
	web := httptest.NewServer(w)
	t.Cleanup(func() {
		b.Stop()
		web.Close()
		for _, wrong := range w.wrong {
			t.Error(wrong)
		}
	})
	return w, web.URL
}

func openHTTP(t *testing.T, cfg httpapi.Config) *httpapi.Broker {
	t.Helper()
	cfg.BrokerID = "n1"
	b, err := httpapi.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// raw asks what the driver never would.
func raw(t *testing.T, method, url, kind, body string, header ...string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(bound(t), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// TestTheReferenceBrokerAndTheDriverKeepTheContract goes through every status that the
// reference broker can give, by the driver where it would ask that.
func TestTheReferenceBrokerAndTheDriverKeepTheContract(t *testing.T) {
	seen := map[string]bool{}
	note := func(w *witness) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for name := range w.seen {
			seen[name] = true
		}
	}
	fine := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	refused := func(code string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), ": "+code+": ") {
			t.Errorf("got %v, want %s", err, code)
		}
	}

	w, url := witnessed(t, reference.Options{})
	b := openHTTP(t, httpapi.Config{AdminURL: url})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for some 1,300 calls
	defer cancel()
	fine(health(ctx, b))
	_, err := b.Probe(ctx)
	fine(err)
	fine(b.Serve(ctx, "/default/orders", []byte(`{"schema":1}`)))
	for i := range 1200 { // two pages
		fine(b.Serve(ctx, fmt.Sprintf("/many/%d", i), nil))
	}
	held, err := b.Topics(ctx)
	if fine(err); len(held.Serving) != 1201 {
		t.Errorf("%d topics", len(held.Serving))
	}
	fine(b.Withdraw(ctx, "/default/orders"))
	fine(b.SetMode(ctx, brokerapi.Drained, "test"))
	refused("drained", b.Serve(ctx, "/default/orders", nil))
	fine(b.SetMode(ctx, brokerapi.Active, ""))
	if code := raw(t, "POST", url+"/client/make", "application/json", `{"topic":"/default/theirs"}`); code != 200 {
		t.Fatal(code)
	}
	w.wrong = nil // the client's side is not in the contract
	refused("foreign", b.Withdraw(ctx, "/default/theirs"))

	v1 := url + contractBase
	const j = "application/json"
	for name := range w.contract.operations {
		method, path, _ := strings.Cut(name, " ")
		if method == "GET" {
			if path == "/topics" {
				for _, query := range []string{"?limit=0", "?limit=x", "?limit=1001", "?offset=1", "?after=a&after=b"} {
					if code := raw(t, method, v1+path+query, "", ""); code != 400 {
						t.Errorf("%s%s: %d", path, query, code)
					}
				}
			}
			continue
		}
		for want, body := range map[string]string{
			"400 unknown field": `{"topic":"/a/b","x":1}`, "400 two values": `{"topic":"/a/b"}{}`, "400 nothing": ``, "400 null": `null`,
			"400 not UTF-8": "{\"topic\":\"/a/\xff\"}", "400 no topic": `{"topic":"orders"}`, "400 another kind": `[]`,
			"413 large": `{"topic":"` + strings.Repeat("x", 2<<20) + `"}`,
		} {
			if code := raw(t, method, v1+path, j, body); code != int(want[0]-'0')*100+int(want[1]-'0')*10+int(want[2]-'0') {
				t.Errorf("%s, %s: answered %d", name, want, code)
			}
		}
		if code := raw(t, method, v1+path, "text/plain", `{}`); code != 415 {
			t.Errorf("%s with text: answered %d", name, code)
		}
	}
	note(w)

	token := filepath.Join(t.TempDir(), "token")
	fine(os.WriteFile(token, []byte("secret"), 0o600))
	w, url = witnessed(t, reference.Options{TokenFile: token})
	for name := range w.contract.operations {
		method, path, _ := strings.Cut(name, " ")
		if code := raw(t, method, url+contractBase+path, j, `{}`, "Authorization", "Bearer wrong"); code != 401 {
			t.Errorf("%s with another token: %d", name, code)
		}
	}
	fine(health(ctx, openHTTP(t, httpapi.Config{AdminURL: url, Files: access.Files{TokenFile: token}})))
	note(w)

	w, url = witnessed(t, reference.Options{Capabilities: []string{}})
	none := openHTTP(t, httpapi.Config{AdminURL: url})
	if err := none.Withdraw(ctx, "/a/b"); err == nil || !strings.Contains(err.Error(), "501 Not Implemented: not_implemented: ") {
		t.Errorf("quiesce: %v", err)
	}
	fine(none.SetMode(ctx, brokerapi.Active, ""))
	note(w)

	for _, can := range [][]string{nil, {"unload", "mode"}} { // all, and what it cannot quiesce is unloaded
		dir := t.TempDir()
		w, url = witnessed(t, reference.Options{Dir: filepath.Join(dir, "data"), Capabilities: can})
		b = openHTTP(t, httpapi.Config{AdminURL: url})
		fine(b.Serve(ctx, "/a/withdrawn", nil))
		fine(b.Withdraw(ctx, "/a/withdrawn"))
		fine(b.Serve(ctx, "/a/served", nil))
		if code := raw(t, "POST", url+"/client/make", "application/json", `{"topic":"/a/theirs"}`); code != 200 {
			t.Fatal(code)
		}
		w.wrong = nil // the client's side is not in the contract
		refused("foreign", b.Withdraw(ctx, "/a/theirs"))
		fine(os.RemoveAll(filepath.Join(dir, "data")))
		fine(os.WriteFile(filepath.Join(dir, "data"), nil, 0o600)) // nothing can be written below it
		refused("internal", b.Serve(ctx, "/a/new", nil))
		refused("internal", b.Withdraw(ctx, "/a/served"))
		refused("internal", b.SetMode(ctx, brokerapi.Drained, ""))
		refused("unavailable", health(ctx, b))
		note(w)
	}

	for name, o := range loadContract(t).operations {
		for status := range o.responses {
			if at := fmt.Sprintf("%s %d", name, status); !seen[at] && !beyondReference(at) {
				t.Errorf("%s is in the contract, and the reference broker never answered it", at)
			}
		}
	}
}

// beyondReference are answers that the reference broker has no reason to give.
func beyondReference(at string) bool {
	switch at {
	case "PUT /mode 202", "POST /topics/load 422": // it is quick, and takes any record
		return true
	case "GET /identity 500", "GET /topics 500", "GET /health 500": // nothing of it can fail
		return true
	}
	return strings.HasSuffix(at, " 503") // it is there or not
}

// TestTheDriverUnderstandsEveryAnswerOfTheContract gives the driver each example: a success
// succeeds, an error is one, and none of them makes it healthy.
func TestTheDriverUnderstandsEveryAnswerOfTheContract(t *testing.T) {
	c := loadContract(t)
	calls := map[string]func(context.Context, *httpapi.Broker) error{
		"getIdentity":  func(ctx context.Context, b *httpapi.Broker) error { _, err := b.Probe(ctx); return err },
		"getHealth":    func(ctx context.Context, b *httpapi.Broker) error { return health(ctx, b) },
		"getTopics":    func(ctx context.Context, b *httpapi.Broker) error { _, err := b.Topics(ctx); return err },
		"loadTopic":    func(ctx context.Context, b *httpapi.Broker) error { return b.Serve(ctx, "/default/orders", nil) },
		"quiesceTopic": func(ctx context.Context, b *httpapi.Broker) error { return b.Withdraw(ctx, "/default/orders") },
		"unloadTopic":  func(ctx context.Context, b *httpapi.Broker) error { return b.Withdraw(ctx, "/default/orders") },
		"putMode":      func(ctx context.Context, b *httpapi.Broker) error { return b.SetMode(ctx, brokerapi.Drained, "test") },
	}
	// What is asked on the way gets its longest example.
	example := func(name string) (kind, body string) {
		for k, content := range c.operations[name].responses[http.StatusOK].contents {
			for _, e := range content.examples {
				text, ok := e.(string)
				if !ok {
					b, _ := json.Marshal(e)
					text = string(b)
				}
				if len(text) > len(body) {
					kind, body = k, text
				}
			}
		}
		return kind, body
	}
	for name, o := range c.operations {
		for status, r := range o.responses {
			for kind, content := range r.contents {
				bodies := content.examples
				if len(bodies) == 0 {
					bodies = map[string]any{"any error": map[string]any{"error": map[string]any{"code": "x", "message": "y"}}}
				}
				for title, value := range bodies {
					t.Run(fmt.Sprintf("%s %d %s", name, status, title), func(t *testing.T) {
						web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							asked := r.Method + " " + strings.TrimPrefix(r.URL.Path, contractBase)
							send := func(status int, kind, body string) {
								w.Header().Set("Content-Type", kind)
								w.WriteHeader(status)
								io.WriteString(w, body)
							}
							switch {
							case asked == name && r.URL.Query().Get("after") != "":
								send(200, "application/json", `{"topics":[]}`)
							case asked == name:
								body, ok := value.(string)
								if !ok {
									text, _ := json.Marshal(value)
									body = string(text)
								}
								send(status, kind, body)
							case o.id == "unloadTopic" && strings.HasSuffix(asked, "/quiesce"):
								send(501, "application/json", `{"error":{"code":"not_implemented","message":"no"}}`)
							default:
								good, body := example(asked)
								send(200, good, body)
							}
						}))
						defer web.Close()
						b, err := httpapi.New(httpapi.Config{AdminURL: web.URL, Places: true})
						if err != nil {
							t.Fatal(err)
						}
						defer b.Close()
						ctx, cancel := context.WithTimeout(bound(t), 3*time.Second)
						defer cancel()
						err = calls[o.id](ctx, b)
						// What it cannot quiesce is unloaded.
						if good := status < 300 && status != 202 || o.id == "quiesceTopic" && status == 501; good != (err == nil) {
							t.Errorf("got %v", err)
						}
						if elsewhere := title == "elsewhere"; errors.Is(err, brokerapi.ErrElsewhere) != elsewhere {
							t.Errorf("%v: is served elsewhere: %v", err, !elsewhere)
						}
					})
				}
			}
		}
	}
}

// health is what the broker is asked for each second.
func health(ctx context.Context, b brokerapi.Broker) error {
	_, err := b.Probe(ctx)
	return err
}
