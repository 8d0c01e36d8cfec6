package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
)

func bound(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func opened(t *testing.T, cfg Config) *Broker {
	t.Helper()
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

const (
	goodIdentity = `{"name":"n1","instance":"i1","version":"1","capabilities":["stable-name","steer"]}`
	goodHealth   = `{"status":"ok","instance":"i1"}`
)

// answers serves one body for each path, with 200 and as JSON unless the body says
// otherwise: "503 text/html <html>".
func answers(t *testing.T, bodies map[string]string) string {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := bodies[r.Method+" "+strings.TrimPrefix(r.URL.Path, base)]
		status, kind := 200, "application/json"
		if !ok {
			status = 404
		} else if body[0] >= '0' && body[0] <= '9' {
			parts := strings.SplitN(body, " ", 3)
			fmt.Sscan(parts[0], &status)
			kind, body = parts[1], parts[2]
		}
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	t.Cleanup(web.Close)
	return web.URL
}

func TestNothingButAGoodAnswerIsHealthy(t *testing.T) {
	const remedy = ": no broker that keeps Holdfast's HTTP contract says that (not the expected broker): set --broker-admin to where one does, without /holdfast/v1"
	for _, c := range []struct {
		name, identity, health string
		identityError          bool
		want                   string // in the error; empty: healthy
	}{
		{"well", goodIdentity, goodHealth, false, ""},
		{"more than is known", strings.Replace(goodIdentity, "{", `{"later":[1],`, 1), goodHealth, false, ""},
		{"not well", goodIdentity, `503 application/json {"error":{"code":"unavailable","message":"disk is full"}}`, false,
			"/health answered 503 Service Unavailable: unavailable: disk is full"},
		{"well in other words", goodIdentity, `{"status":"OK","instance":"i1"}`, false, `want {"status":"ok","instance":"…"}`},
		{"well without an instance", goodIdentity, `{"status":"ok"}`, false, `want {"status":"ok","instance":"…"}`},
		{"204", goodIdentity, `204 application/json {}`, false, "answered 204 No Content with nothing"},
		{"redirect", goodIdentity, `302 application/json {}`, false, "answered 302 Found"},
		{"HTML", `200 text/html <html>`, goodHealth, true, `answered 200 OK: "<html>": invalid character '<' looking for beginning of value` + remedy},
		{"not there", `404 text/plain 404 page not found`, goodHealth, true, `answered 404 Not Found: "404 page not found"` + remedy},
		{"not there, in the contract's words", `404 application/json {"error":{"code":"unknown_path","message":"no"}}`, goodHealth, false, `404 Not Found: unknown_path: no: set --broker-admin to the URL below which it answers, without /holdfast/v1`},
		{"token refused", `401 application/json {"error":{"code":"unauthorized","message":"no"}}`, goodHealth, false, "set --broker-token-file to a token that the broker accepts"},
		{"no instance", `{"version":"1","capabilities":[]}`, goodHealth, true, "instance is missing, has more than 1024 bytes, or holds what cannot be printed" + remedy},
		{"long version", `{"instance":"i1","version":"` + strings.Repeat("x", 2000) + `","capabilities":[]}`, goodHealth, true, "version is missing, has more"},
		{"terminal codes in the version", `{"name":"n1","instance":"i1","version":"\u001b[31m","capabilities":[]}`, goodHealth, true, "version is missing, has more"},
		{"a name that no broker can go by", strings.Replace(goodIdentity, "n1", `eu/n\u001b1`, 1), goodHealth, false, ""}, // --broker-id is its name
		{"relative data directory", `{"data_dir":"../x","instance":"i1","version":"1","capabilities":[]}`, goodHealth, true, "data_dir does not start with a slash"},
		{"time of another form", `{"started_at":"yesterday","instance":"i1","version":"1","capabilities":[]}`, goodHealth, true, "parsing time"},
		{"another broker", strings.Replace(goodIdentity, "n1", "n2", 1), goodHealth, true,
			`the broker there calls itself "n2", --broker-id says "n1": point --broker-admin at n1's own address, or set --broker-id to n2`},
		{"two brokers", goodIdentity, `{"status":"ok","instance":"i2"}`, false, `/identity says instance "i1": two brokers answer there, or it was restarted just now`},
	} {
		t.Run(c.name, func(t *testing.T) {
			url := answers(t, map[string]string{"GET /identity": c.identity, "GET /health": c.health})
			err := health(bound(t), opened(t, Config{AdminURL: url, BrokerID: "n1"}))
			switch {
			case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got  %v\nwant %s", err, c.want)
			case err != nil && !strings.HasPrefix(err.Error(), "--broker-admin "+url):
				t.Errorf("does not name the setting: %v", err)
			case errors.Is(err, brokerapi.ErrIdentity) != c.identityError:
				t.Errorf("%v: wraps ErrIdentity: %v", err, !c.identityError)
			}
		})
	}
}

func TestAListingThatIsNotOneIsAnError(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"no topics", `{}`, "topics is missing"},
		{"null", `{"topics":null}`, "topics is missing"},
		{"topics are no list", `{"topics":"/a/b"}`, "topics"},
		{"the same page for ever", `{"topics":[{"name":"/a/b","state":"serving"}],"next":"/a/b"}`, `a page that leads nowhere`},
		{"the same odd page for ever", `{"topics":[{"name":"","state":"serving"}],"next":"x"}`, `a page that leads nowhere`},
		{"an empty page that has a next", `{"topics":[],"next":"x"}`, `a page that leads nowhere`},
	} {
		t.Run(c.name, func(t *testing.T) {
			url := answers(t, map[string]string{"GET /topics": c.body})
			held, err := opened(t, Config{AdminURL: url}).Topics(bound(t))
			if err == nil || !strings.HasPrefix(err.Error(), "list topics: --broker-admin ") || !strings.Contains(err.Error(), c.want) || held.Serving != nil || held.Withdrawn != nil || held.Unreadable != nil {
				t.Errorf("got %+v, %v\nwant %s", held, err, c.want)
			}
		})
	}
}

func TestAnEntryThatCannotBeReadVoidsNoOther(t *testing.T) {
	long := strings.Repeat("\U0001F600", 1<<14)
	for _, c := range []struct {
		name, topics                  string
		serving, quiesced, unreadable []string
	}{
		{"a name of another form", `{"name":"orders","state":"serving"}`, nil, nil, []string{`"orders"`}},
		{"a name that is a number", `{"name":7,"state":"serving"}`, nil, nil, []string{brokerapi.Unreadable(`{"name":7,"state":"serving"}`)}},
		{"no object", `"/a/b"`, nil, nil, []string{brokerapi.Unreadable(`"/a/b"`)}},
		{"nothing", `null`, nil, nil, []string{`""`}},
		{"a state that is a number", `{"name":"/a/b","state":7}`, []string{"/a/b"}, nil, nil},
		{"no name", `{"state":"serving"}`, nil, nil, []string{`""`}},
		{"a name of 64 kB", `{"name":"` + long + `","state":"serving"}`, nil, nil, []string{brokerapi.Unreadable(long)}},
		{"such a one that is not served", `{"name":"orders","state":"quiesced"}`, nil, nil, nil},
		{"a state of another form", `{"name":"/a/b","state":"asleep"}`, []string{"/a/b"}, nil, nil},
		{"not there", `{"name":"/a/b","state":"absent"}`, nil, nil, nil},
		{"twice, once served", `{"name":"/a/b","state":"serving"},{"name":"/a/b","state":"quiesced"}`, []string{"/a/b"}, nil, nil},
		{"twice, never served", `{"name":"/a/b","state":"quiesced"},{"name":"/a/b","state":"quiesced"}`, nil, []string{"/a/b"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			url := answers(t, map[string]string{"GET /topics": `{"topics":[` + c.topics + `,{"name":"/a/good","state":"serving"}]}`})
			held, err := opened(t, Config{AdminURL: url}).Topics(bound(t))
			if err != nil || !slices.Equal(held.Serving, append(c.serving, "/a/good")) || !slices.Equal(held.Withdrawn, c.quiesced) || !slices.Equal(held.Unreadable, c.unreadable) {
				t.Errorf("%+v, %v", held, err)
			}
		})
	}
}

func TestAListingOfHugeNamesEndsBeforeTheMemoryDoes(t *testing.T) {
	pages, huge := 0, strings.Repeat("x", 3<<20)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pages++
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"topics":[{"name":"/a/%d%s","state":"serving"}],"next":"%d"}`, pages, huge, pages)
	}))
	t.Cleanup(web.Close)
	b := opened(t, Config{AdminURL: web.URL})
	held, err := b.Topics(bound(t))
	if err == nil || !strings.Contains(err.Error(), "bytes of their names") || held.Serving != nil || pages < 20 {
		t.Errorf("after %d pages: %d topics, %v", pages, len(held.Serving), err)
	}
}

func TestAnAnswerThatSaysSomethingElseIsAnError(t *testing.T) {
	can := Config{}
	for _, c := range []struct {
		name, body, want string
		call             func(context.Context, *Broker) error
	}{
		{"load", `{"state":"quiesced"}`, `load /a/b: --broker-admin `, func(ctx context.Context, b *Broker) error { return b.Serve(ctx, "/a/b", nil) }},
		{"quiesce", `{"state":"serving"}`, `the state is "serving", want one of ["quiesced" "absent"]`, func(ctx context.Context, b *Broker) error { return b.Withdraw(ctx, "/a/b") }},
		{"mode", `{"mode":"active"}`, `want mode "drained"`, func(ctx context.Context, b *Broker) error { return b.SetMode(ctx, brokerapi.Drained, "") }},
		{"mode on its way", `202 application/json {"mode":"drained"}`, `steer to drained: the broker is still on its way: ask again`, func(ctx context.Context, b *Broker) error { return b.SetMode(ctx, brokerapi.Drained, "") }},
		{"elsewhere", `409 application/json {"error":{"code":"elsewhere","message":"at n2"}}`, `409 Conflict: elsewhere: at n2`, func(ctx context.Context, b *Broker) error { return b.Serve(ctx, "/a/b", nil) }},
		{"not the contract's error", `409 application/json {"error":"elsewhere"}`, `answered 409 Conflict: "{\"error\":\"elsewhere\"}"`, func(ctx context.Context, b *Broker) error { return b.Serve(ctx, "/a/b", nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := map[string]string{"PUT /mode": c.body}
			for _, verb := range []string{"load", "quiesce", "unload"} {
				all["POST /topics/"+verb] = c.body
			}
			can.AdminURL = answers(t, all)
			err := c.call(bound(t), opened(t, can))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if errors.Is(err, brokerapi.ErrElsewhere) != (c.name == "elsewhere") {
				t.Errorf("is served elsewhere: %v", err)
			}
		})
	}
}

func TestWhatCannotBeSentIsRefusedHere(t *testing.T) {
	b := opened(t, Config{AdminURL: "http://127.0.0.1:1", KeyPrefix: "/p"})
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"not a topic", b.Serve(bound(t), "orders", nil), `load: topic "orders": want the form /namespace/topic`},
		{"not UTF-8", b.Withdraw(bound(t), "/a/\xff"), `quiesce: topic "/a/\xff": is not UTF-8, which JSON cannot carry`},
		{"record not JSON", b.Serve(bound(t), "/a/b", []byte("{")), `load /a/b: topic record /p/topics/a/b: want JSON of at most 1048576 bytes: mend it or remove it`},
		{"record too large", b.Serve(bound(t), "/a/b", []byte(`"`+strings.Repeat("x", 1<<20)+`"`)), `load /a/b: topic record /p/topics/a/b: want JSON of at most 1048576 bytes: mend it or remove it`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.err == nil || c.err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", c.err, c.want)
			}
		})
	}
}

func TestWhatTheBrokerCannotDoItSays(t *testing.T) {
	const no = `501 application/json {"error":{"code":"not_implemented","message":"no"}}`
	for _, c := range []struct {
		name     string
		answers  map[string]string
		quiesces bool
		places   bool
		steers   bool
	}{
		{"it can only unload, and has no mode", map[string]string{"POST /topics/quiesce": no, "POST /topics/unload": `{"state":"absent"}`, "PUT /mode": no}, true, false, true},
		{"it can do neither", map[string]string{"POST /topics/quiesce": no, "POST /topics/unload": no, "PUT /mode": no}, false, false, true},
		{"its cluster places topics, and it has no mode", map[string]string{"POST /topics/quiesce": no, "POST /topics/unload": no, "PUT /mode": no}, false, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := opened(t, Config{AdminURL: answers(t, c.answers), Places: c.places})
			if err := b.Withdraw(bound(t), "/a/b"); (err == nil) != c.quiesces || errors.Is(err, errors.ErrUnsupported) == c.quiesces {
				t.Errorf("quiesce: %v", err)
			}
			if err := b.SetMode(bound(t), brokerapi.Drained, ""); (err == nil) != c.steers {
				t.Errorf("steer: %v", err)
			}
		})
	}
}

func TestARefusalIsNoWordOfTheBrokerOnItself(t *testing.T) {
	for body, unseen := range map[string]bool{
		`503 application/json {"error":{"code":"unavailable","message":"disk is full"}}`: false,
		`503 text/html <html>`: true,
		`429 application/json {"error":{"code":"busy","message":"later"}}`: true,
		`500 text/html <html>`: false,
	} {
		err := health(bound(t), opened(t, Config{AdminURL: answers(t, map[string]string{"GET /health": body})}))
		if err == nil || errors.Is(err, brokerapi.ErrUnseen) != unseen {
			t.Errorf("%s: %v, want unseen %v", body, err, unseen)
		}
	}
}

func TestWordsThatThereAreNotAreNamed(t *testing.T) {
	for word, want := range map[string]string{
		"fly":        `no capability is called "fly": known are local-data, must-stop, places`,
		"held-watch": `held-watch is no word of this version: leave it out: nothing need be held`,
	} {
		if err := CheckCapabilities([]string{"places", word}); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestSettingsThatCannotWorkAreNamed(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"no address", Config{}, `--broker-admin "": not a URL with a scheme and a host: write http://host:port`},
		{"no token", Config{AdminURL: "http://a", Files: access.Files{TokenFile: missing}}, "--broker-token-file: open " + missing + ": no such file or directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := New(c.cfg)
			if err == nil {
				b.Close()
			}
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("made the file")
	}
}
