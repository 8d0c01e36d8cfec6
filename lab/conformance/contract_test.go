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
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/httpapi"
	"holdfast/lab/reference"
	"holdfast/recovery/moves"
)

// witness stands before a broker and compares what is asked and answered with the contract.
type witness struct {
	contract *contract
	broker   http.Handler

	mu    sync.Mutex
	wrong []string
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
	if strings.HasPrefix(r.URL.Path, "/client/") || strings.HasPrefix(r.URL.Path, "/peer/") {
		return // what clients and other brokers ask is not in the contract
	}
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
	do(t, err)
	w := &witness{contract: loadContract(t), broker: b}
	web := httptest.NewServer(w)
	t.Cleanup(func() {
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
	do(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

// raw asks what the driver never would.
func raw(t *testing.T, method, url, kind, body string, header ...string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(bound(t), method, url, strings.NewReader(body))
	do(t, err)
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	do(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// TestTheReferenceBrokerAndTheDriverKeepTheContract goes through what the driver asks, and through requests
// that are malformed: whatever is asked and answered is what the contract says.
func TestTheReferenceBrokerAndTheDriverKeepTheContract(t *testing.T) {
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
	_, peer := witnessed(t, reference.Options{})
	moveThrough(ctx, t, b, openHTTP(t, httpapi.Config{AdminURL: peer}), url, peer)
	refused("not_found", second(b.Extent(ctx, "/default/nowhere")))
	refused("not_found", second(b.Seal(ctx, "/default/nowhere", "m1", false)))
	refused("not_found", second(b.Resume(ctx, "/default/nowhere", "m1", nil, &moves.Extent{Empty: true})))
	fine(second(b.Resume(ctx, "/default/undone", "m1", nil, nil)))
	refused("not_found", second(b.Compare(ctx, "/default/nowhere", brokerapi.Peer{ID: "n2", URL: peer}, moves.Extent{Empty: true}, nil)))
	fine(b.SetMode(ctx, brokerapi.Drained, "test"))
	refused("drained", b.Serve(ctx, "/default/orders", nil))
	refused("drained", b.Accept(ctx, "/default/nowhere", nil, moves.Extent{Empty: true}, brokerapi.Peer{ID: "n2", URL: peer}))
	fine(b.SetMode(ctx, brokerapi.Active, ""))
	if code := raw(t, "POST", url+"/client/make", "application/json", `{"topic":"/default/theirs"}`); code != 200 {
		t.Fatal(code)
	}
	refused("foreign", b.Withdraw(ctx, "/default/theirs"))
	for _, call := range steps {
		refused("foreign", call(ctx, b, "/default/theirs", url))
	}

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
}

// second is the error of a call that answers more.
func second[T any](_ T, err error) error { return err }

// steps are the calls of a move, each about one topic.
var steps = map[string]func(ctx context.Context, b *httpapi.Broker, topic, peer string) error{
	"extent": func(ctx context.Context, b *httpapi.Broker, topic, _ string) error {
		return second(b.Extent(ctx, topic))
	},
	"accept": func(ctx context.Context, b *httpapi.Broker, topic, peer string) error {
		like := moves.Extent{Last: 41, Count: 42, Bytes: 8400, Floors: map[string]uint64{"billing": 1 << 60}}
		return b.Accept(ctx, topic, []byte(`{"schema":1}`), like, brokerapi.Peer{ID: "n2", URL: peer})
	},
	"seal": func(ctx context.Context, b *httpapi.Broker, topic, _ string) error {
		return second(b.Seal(ctx, topic, "m1", true))
	},
	"copy": func(ctx context.Context, b *httpapi.Broker, topic, peer string) error {
		return second(b.Copy(ctx, topic, "m1", brokerapi.Peer{ID: "n2", URL: peer}, moves.Extent{Empty: true}, unmetered))
	},
	"resume": func(ctx context.Context, b *httpapi.Broker, topic, _ string) error {
		return second(b.Resume(ctx, topic, "m1", []byte(`{"schema":1}`), &moves.Extent{Empty: true}))
	},
	"compare": func(ctx context.Context, b *httpapi.Broker, topic, peer string) error {
		return second(b.Compare(ctx, topic, brokerapi.Peer{ID: "n2", URL: peer}, moves.Extent{Last: 41}, unmetered))
	},
	"remove": func(ctx context.Context, b *httpapi.Broker, topic, _ string) error { return b.Remove(ctx, topic, "m1") },
}

// ofOrders is a step about that topic.
func ofOrders(name string) func(context.Context, *httpapi.Broker) error {
	return func(ctx context.Context, b *httpapi.Broker) error { return steps[name](ctx, b, "/default/orders", "") }
}

func unmetered(context.Context, int) error { return nil }

// moveThrough moves a topic from one broker to the other, and asks each of what it must refuse.
func moveThrough(ctx context.Context, t *testing.T, from, to *httpapi.Broker, source, target string) {
	t.Helper()
	const topic = "/default/moves"
	fine := func(err error) {
		t.Helper()
		do(t, err)
	}
	refused := func(code string, err error) {
		t.Helper()
		if !errors.Is(err, brokerapi.ErrRefused) || !strings.Contains(err.Error(), ": "+code+": ") {
			t.Errorf("got %v, want %s", err, code)
		}
	}
	n1 := brokerapi.Peer{ID: "n1", URL: source}
	fine(from.Serve(ctx, topic, []byte(`{"tags":"<b>"}`)))
	for range 3 {
		if code := raw(t, "POST", source+"/client/publish", "application/json", `{"topic":"`+topic+`","data":"`+strings.Repeat("x", 900_000)+`"}`); code != 200 {
			t.Fatal(code)
		}
	}
	refused("not_sealed", from.Remove(ctx, topic, "m1"))
	refused("exists", from.Accept(ctx, topic, nil, moves.Extent{Empty: true}, n1))
	refused("no_room", to.Accept(ctx, topic, nil, moves.Extent{Bytes: 1 << 62}, n1))
	refused("not_sealed", second(from.Resume(ctx, topic, "m1", nil, &moves.Extent{Last: 2})))
	refused("does_not_fit", second(to.Copy(ctx, topic, "m1", n1, moves.Extent{Last: 2, Count: 3}, nil)))
	refused("no_url", second(to.Copy(ctx, topic, "m1", brokerapi.Peer{ID: "n1"}, moves.Extent{Last: 2, Count: 3}, nil)))
	if err := second(to.Copy(ctx, topic, "m1", brokerapi.Peer{ID: "n3", URL: "http://127.0.0.1:1"}, moves.Extent{}, nil)); err == nil || errors.Is(err, brokerapi.ErrRefused) {
		t.Errorf("the source does not answer: %v", err)
	}
	if code := raw(t, "POST", source+"/client/attach", "application/json", `{"topic":"`+topic+`","subscription":"s"}`); code != 200 {
		t.Fatal(code)
	}
	refused("consumers_active", second(from.Seal(ctx, topic, "m1", false)))
	sealed, err := from.Seal(ctx, topic, "m1", true)
	fine(err)
	refused("other_move", second(from.Seal(ctx, topic, "m2", false)))
	refused("other_move", from.Remove(ctx, topic, "m2"))
	fine(to.Accept(ctx, topic, nil, sealed, n1))
	told := 0
	meter := func(_ context.Context, n int) error { told += n; return nil }
	copied, err := to.Copy(ctx, topic, "m1", n1, sealed, meter)
	if fine(err); copied.Bytes != sealed.Bytes || copied.Config != sealed.Config || told != int(sealed.Bytes) {
		t.Errorf("copied %+v, sealed was %+v, the meter was told of %d bytes", copied, sealed, told)
	}
	refused("does_not_fit", second(to.Resume(ctx, topic, "m1", nil, nil)))
	refused("does_not_fit", second(to.Resume(ctx, topic, "m1", nil, &moves.Extent{Last: 7})))
	refused("other_move", second(to.Resume(ctx, topic, "m2", nil, &sealed)))
	for range 2 {
		fine(second(to.Resume(ctx, topic, "m1", []byte(`{"tags":"new"}`), &sealed)))
	}
	refused("was_resumed", second(to.Seal(ctx, topic, "m1", false)))
	told = 0
	same, err := to.Compare(ctx, topic, n1, sealed, meter)
	if fine(err); same.Compared != 3 || same.Differs != "" || told != int(sealed.Bytes) {
		t.Errorf("compared %+v, the meter was told of %d bytes", same, told)
	}
	fine(from.Remove(ctx, topic, "m1"))
	fine(second(to.Extent(ctx, topic)))
	refused("does_not_fit", second(to.Compare(ctx, topic, n1, sealed, nil)))
}

// TestTheDriverUnderstandsEveryAnswerOfTheContract gives the driver each example: a success
// succeeds, an error is one, and none of them makes it healthy.
func TestTheDriverUnderstandsEveryAnswerOfTheContract(t *testing.T) {
	c := loadContract(t)
	calls := map[string]func(context.Context, *httpapi.Broker) error{
		"getIdentity":   func(ctx context.Context, b *httpapi.Broker) error { _, err := b.Probe(ctx); return err },
		"getHealth":     func(ctx context.Context, b *httpapi.Broker) error { return health(ctx, b) },
		"getTopics":     func(ctx context.Context, b *httpapi.Broker) error { _, err := b.Topics(ctx); return err },
		"loadTopic":     func(ctx context.Context, b *httpapi.Broker) error { return b.Serve(ctx, "/default/orders", nil) },
		"quiesceTopic":  func(ctx context.Context, b *httpapi.Broker) error { return b.Withdraw(ctx, "/default/orders") },
		"unloadTopic":   func(ctx context.Context, b *httpapi.Broker) error { return b.Withdraw(ctx, "/default/orders") },
		"extentOfTopic": ofOrders("extent"), "acceptTopic": ofOrders("accept"), "sealTopic": ofOrders("seal"), "copyTopic": ofOrders("copy"),
		"resumeTopic": ofOrders("resume"), "compareTopic": ofOrders("compare"), "removeTopic": ofOrders("remove"),
		"putMode": func(ctx context.Context, b *httpapi.Broker) error { return b.SetMode(ctx, brokerapi.Drained, "test") },
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
						do(t, err)
						defer b.Close()
						patience := 3 * time.Second
						if status == http.StatusAccepted { // it is asked for ever
							patience = 500 * time.Millisecond
						}
						ctx, cancel := context.WithTimeout(bound(t), patience)
						defer cancel()
						err = calls[o.id](ctx, b)
						// What it cannot quiesce is unloaded.
						if good := status < 300 && status != 202 || o.id == "quiesceTopic" && status == 501; good != (err == nil) {
							t.Errorf("got %v", err)
						}
						if final := o.tag == "move" && (status < 500 && status > 401 || status == 400 || status == 501); final != errors.Is(err, brokerapi.ErrRefused) {
							t.Errorf("%v: asking again changes nothing: %v", err, !final)
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
