package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/brokerapi/access"
	"holdfast/internal/fakenet"
)

func bound(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func opened(t *testing.T, cfg Config) *Client {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestSettingsThatCannotWorkAreNamed(t *testing.T) {
	empty := fakenet.File(t, "empty", "\n")
	missing := filepath.Join(t.TempDir(), "missing")
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"no address", Config{}, `--broker-admin "": not a URL with a scheme and a host: write http://host:port`},
		{"another flag's", Config{Setting: "--pulsar-x"}, `--pulsar-x "": not a URL with a scheme and a host: write http://host:port`},
		{"no scheme", Config{URL: "localhost"}, `--broker-admin "localhost": not a URL with a scheme and a host: write http://host:port`},
		{"other scheme", Config{URL: "nats://a"}, `--broker-admin "nats://a": the scheme nats does not work here: write http://host:port`},
		{"no host", Config{URL: "http://:80"}, `--broker-admin "http://:80": not a URL with a scheme and a host: write http://host:port`},
		{"several hosts", Config{URL: "http://a,b"}, `--broker-admin "http://a,b": names several servers: write the address of one, http://host:port`},
		{"a query", Config{URL: "http://a?b"}, `--broker-admin "http://a?b": has a query or a fragment: write http://host:port`},
		{"a password", Config{URL: "http://u:secret@a"}, `--broker-admin "http://u:xxxxx@a": holds a user or password: secrets come only from files`},
		{"not a URL", Config{URL: "http://a:port"}, `--broker-admin "http://a:port": not a URL with a scheme and a host: write http://host:port`},
		{"token file missing", Config{URL: "http://a", Files: access.Files{TokenFile: missing}}, `--broker-token-file: open ` + missing + `: no such file or directory`},
		{"token file empty", Config{URL: "http://a", Files: access.Files{TokenFile: empty}}, `--broker-token-file ` + empty + `: is empty: want the token or password alone`},
		{"authority missing", Config{URL: "https://a", Files: access.Files{CACert: missing}}, `--broker-cacert: open ` + missing + `: no such file or directory`},
		{"authority empty", Config{URL: "https://a", Files: access.Files{CACert: empty}}, `--broker-cacert ` + empty + `: has no certificate in PEM form`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := New(c.cfg)
			if err == nil {
				got.Close()
			}
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestAnswersThatCannotBeUsedSayWhatCame(t *testing.T) {
	head := func(kind, body string) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", kind, len(body), body)
	}
	const j = "application/json"
	for _, c := range []struct{ name, says, want string }{
		{"nothing", "", "EOF"},
		{"another protocol", "SSH-2.0-x\r\n\r\n", `malformed HTTP response "SSH-2.0-x": no HTTP is spoken there`},
		{"HTML", head("text/html", "<html>"), `answered 200 OK: "<html>": invalid character '<'`},
		{"empty", head(j, ""), `answered 200 OK with nothing: unexpected end of JSON input`},
		{"cut JSON", head(j, `{"a":`), `: "{\"a\":": unexpected end of JSON input`},
		{"another kind", head(j, `[1]`), `cannot unmarshal array`},
		{"an error status", "HTTP/1.1 503 x\r\nContent-Length: 5\r\n\r\nlater", `answered 503 Service Unavailable: "later"`},
		{"refused", "HTTP/1.1 401 x\r\nContent-Length: 0\r\n\r\n", `answered 401 Unauthorized with nothing: set --broker-token-file to a token that the broker accepts`},
		{"elsewhere", "HTTP/1.1 307 x\r\nLocation: http://127.0.0.1:1/y\r\nContent-Length: 0\r\n\r\n", `answered 307 Temporary Redirect with nothing: it redirects to "http://127.0.0.1:1/y", which is not followed: set --broker-admin to the broker's own address`},
		{"huge", "HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat(" ", 2000), `larger than 1000 bytes`},
		{"one byte too many", head(j, strings.Repeat(" ", 1001)), `larger than 1000 bytes`},
		{"endless head", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 70000), `server response headers exceeded 65536 bytes`},
		{"half closed", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", `read the answer: unexpected EOF`},
		{"terminal codes", head("text/plain", "\x1b[31mred"), `answered 200 OK: "\x1b[31mred": inv`},
		{"long", head("text/plain", strings.Repeat("é", 400)), strings.Repeat("é", 200) + `": inv`},
	} {
		t.Run(c.name, func(t *testing.T) {
			url := "http://" + fakenet.Answer(t, func() []byte { return []byte(c.says) })
			client := opened(t, Config{URL: url, MaxAnswer: 1000})
			a, err := client.Do(bound(t), Request{Path: "/x"})
			if err == nil {
				err = a.Want(200)
			}
			if err == nil {
				var v struct{ A string }
				err = a.JSON(&v)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "--broker-admin "+url+": GET /x") || len(err.Error()) > 900 {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestNothingListensSaysSo(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	web.Close()
	_, err := opened(t, Config{URL: web.URL}).Do(bound(t), Request{Method: "PUT", Path: "/x"})
	want := fmt.Sprintf("--broker-admin %s: PUT /x: dial tcp %s: connect: connection refused: is the broker running there?", web.URL, web.Listener.Addr())
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// The broker is beside us, whatever the environment says.
func TestNoProxyIsAsked(t *testing.T) {
	if opened(t, Config{URL: "http://a:1"}).http.Transport.(*http.Transport).Proxy != nil {
		t.Error("a proxy is asked")
	}
}

func TestWhatIsSent(t *testing.T) {
	var got string
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = fmt.Sprintf("%s %s %s %v", r.Method, r.RequestURI, body, r.Header)
		w.WriteHeader(204)
	}))
	defer web.Close()
	c := opened(t, Config{URL: web.URL + "/base/"})
	a, err := c.Do(bound(t), Request{Method: "PUT", Path: "/v1/a%2Fb/%C3%BC%3F/%252e", Query: map[string][]string{"q": {"1&2"}}, Body: map[string]int{"n": 1}})
	if err != nil || a.Status != 204 {
		t.Fatalf("%v, %v", a, err)
	}
	want := `PUT /base/v1/a%2Fb/%C3%BC%3F/%252e?q=1%262 {"n":1} map[Accept:[application/json] Content-Length:[7] Content-Type:[application/json] User-Agent:[holdfast]]`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestTheTokenFollowsItsFileAndIsNeverShown(t *testing.T) {
	accepted := "first-secret"
	var asked atomic.Int64
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Header.Get("Authorization") != "Bearer "+accepted {
			w.WriteHeader(401)
		}
		fmt.Fprintf(w, "you sent %s", r.Header.Get("Authorization"))
	}))
	defer web.Close()
	file := fakenet.File(t, "token", "first-secret\n")
	c := opened(t, Config{URL: web.URL, Files: access.Files{TokenFile: file}})
	status := func() int {
		t.Helper()
		a, err := c.Do(bound(t), Request{Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		return a.Status
	}
	if got := status(); got != 200 {
		t.Errorf("first: %d", got)
	}
	accepted = "other-secret"
	if err := os.WriteFile(file, []byte("other-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := status(); got != 200 || asked.Load() != 2 {
		t.Errorf("renewed: %d after %d requests", got, asked.Load())
	}
	accepted = "unknown"
	a, err := c.Do(bound(t), Request{Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`--broker-admin %s: GET / answered 401 Unauthorized: "you sent Bearer [token]": put a token that the broker accepts into %s (--broker-token-file)`, web.URL, file)
	if err := a.Want(200); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	var refused *AnswerError
	if err := a.Want(200); !errors.As(err, &refused) || refused.Answer.Status != 401 {
		t.Errorf("%v is no AnswerError of 401", err)
	}
}
