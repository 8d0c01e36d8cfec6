package pulsar

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"holdfast/brokerapi"
)

// sending is a cluster of three brokers, of which the second leads, as 4.0.7 with its modular load
// manager answered on 2026-11-27: the leader remembers who is to have the bundle, and the next lookup
// brings it there.
type sending struct {
	ids     []string // host:port of all
	owner   int      // -1: nobody
	next    int      // who takes it
	topics  string
	status  int // that an unload is answered with; 0: as it is
	astray  int // how often a client's lookup takes it to us, whoever was named
	unloads int
	tokens  []string // that were shown, by broker
}

func (c *sending) serve(me int, w http.ResponseWriter, r *http.Request) {
	c.tokens[me] = r.Header.Get("Authorization")
	leads, query := me == 1, r.URL.Query()
	sendTo := func(to int) {
		query.Set("authoritative", strconv.FormatBool(leads))
		w.Header().Set("Location", "http://"+c.ids[to]+r.URL.EscapedPath()+"?"+query.Encode())
		w.WriteHeader(http.StatusTemporaryRedirect)
	}
	say := func(status int, body string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
	switch r.Method + " " + r.URL.EscapedPath() {
	case "GET /admin/v2/brokers/cl":
		say(200, `["`+strings.Join(c.ids, `","`)+`"]`)
	case "GET /admin/v2/persistent/t/n":
		say(200, c.topics)
	case "GET /lookup/v2/topic/persistent/t/n/my%20topic":
		switch {
		case c.owner >= 0:
		case query.Get("authoritative") == "true":
			c.owner = me
		case !leads:
			sendTo(1)
			return
		case c.next != me:
			sendTo(c.next)
			return
		default:
			c.owner = me
		}
		say(200, `{"brokerUrl":"pulsar://x","httpUrl":"http://`+c.ids[c.owner]+`","nativeUrl":"pulsar://x","brokerUrlSsl":""}`)
	case "PUT /admin/v2/namespaces/t/n/0x00000000_0x40000000/unload":
		to := query.Get("destinationBroker")
		query.Del("destinationBroker")
		switch {
		case c.status != 0:
			say(c.status, `{"reason":"so it is"}`)
		case to != "" && !leads:
			query.Set("destinationBroker", to)
			sendTo(1)
		default:
			if to != "" {
				c.next = slices.Index(c.ids, to)
			}
			if c.owner != me {
				sendTo(c.owner)
				return
			}
			c.owner = -1
			if c.unloads++; c.unloads <= c.astray {
				c.owner = 0
			}
			w.WriteHeader(http.StatusNoContent)
		}
	default:
		say(404, `{"reason":"no such path"}`)
	}
}

const sent = "/t~n/0x00000000_0x40000000"

func newSending(t *testing.T, change func(*sending, *Config)) (*sending, *Broker) {
	t.Helper()
	c := &sending{topics: `["persistent://t/n/my topic","persistent://t/n/b"]`, tokens: make([]string, 3)}
	for me := range 3 {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.serve(me, w, r) }))
		t.Cleanup(server.Close)
		c.ids = append(c.ids, strings.TrimPrefix(server.URL, "http://"))
	}
	cfg := Config{AdminURL: "http://" + c.ids[0], Cluster: "cl"}
	if change != nil {
		change(c, &cfg)
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return c, b
}

func TestABundleIsSentToTheBrokerThatWasNamed(t *testing.T) {
	for to := range 3 {
		c, b := newSending(t, func(c *sending, _ *Config) { c.owner = (to + 1) % 3 })
		for range 2 { // it may be repeated
			seen, err := b.Send(t.Context(), sent, brokerapi.Peer{ID: c.ids[to]})
			if want := "by Pulsar's own lookup " + c.ids[to] + " owns the bundle, with its topics, 2 of them"; err != nil || seen != want {
				t.Errorf("to %d: %q, %v; want %q", to, seen, err, want)
			}
		}
		if c.owner != to || c.unloads != 1 {
			t.Errorf("to %d: it is with %d after %d unloads", to, c.owner, c.unloads)
		}
	}
	c, b := newSending(t, func(c *sending, _ *Config) { c.astray = 2 })
	if _, err := b.Send(t.Context(), sent, brokerapi.Peer{ID: c.ids[2]}); err != nil || c.owner != 2 || c.unloads != 3 {
		t.Errorf("a client was faster twice: %v; it is with %d after %d unloads", err, c.owner, c.unloads)
	}
	c, b = newSending(t, func(c *sending, _ *Config) { c.next = 2 })
	if seen, err := b.Send(t.Context(), sent, brokerapi.Peer{}); err != nil || c.owner != 2 || !strings.Contains(seen, c.ids[2]+" owns") {
		t.Errorf("to whom the cluster chooses: %q, %v; it is with %d", seen, err, c.owner)
	}
}

func TestWhyABundleIsNotSent(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		change  func(*sending, *Config)
		topic   string
		to      int // -1: nobody
		refused bool
		want    string
		unloads int
	}{
		"no bundle":                {nil, "/t~n/orders", 2, true, "unload /t~n/orders: no bundle: want", 0},
		"no topic in it":           {func(c *sending, _ *Config) { c.topics = "[]" }, sent, 2, true, "no persistent topic", 0},
		"a broker of no such name": {func(c *sending, cfg *Config) { c.ids[2] = "127.0.0.1:1" }, sent, 3, true, "--to b3: Pulsar's cluster has the brokers", 0},
		"the cluster chooses us":   {func(*sending, *Config) {}, sent, -1, true, "unload it there, with --to", 1},
		"clients are faster":       {func(c *sending, _ *Config) { c.astray = 9 }, sent, 2, true, "unload it there, with --to", 3},
		"no leave":                 {func(c *sending, _ *Config) { c.status = 403 }, sent, 2, true, "403 Forbidden", 0},
		"no such bundle":           {func(c *sending, _ *Config) { c.status = 412 }, sent, 2, true, "so it is", 0},
		"its store is away":        {func(c *sending, _ *Config) { c.status = 500 }, sent, 2, false, "500 Internal", 0},
		"a token over http":        {func(c *sending, cfg *Config) { cfg.TokenFile = token }, sent, 2, true, "is shown no token over http: write https:// in --broker-admin", 0},
	} {
		t.Run(name, func(t *testing.T) {
			c, b := newSending(t, row.change)
			to := brokerapi.Peer{}
			switch row.to {
			case -1:
			case 3:
				to.ID = "b3"
			default:
				to.ID = c.ids[row.to]
			}
			seen, err := b.Send(t.Context(), row.topic, to)
			if err == nil || errors.Is(err, brokerapi.ErrRefused) != row.refused || !strings.Contains(err.Error(), row.want) || seen != "" {
				t.Errorf("%q, %v; want %q, refused for good: %v", seen, err, row.want, row.refused)
			}
			if c.unloads != row.unloads || c.tokens[1] != "" || c.tokens[2] != "" {
				t.Errorf("%d unloads, and the tokens %q were shown", c.unloads, c.tokens)
			}
		})
	}
}

// A redirect to a host that is none of the cluster's is followed by nobody.
func TestAMoveAsksNobodyOutsideTheCluster(t *testing.T) {
	asked := false
	stranger := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer stranger.Close()
	b := answering(t, map[string]http.HandlerFunc{
		"/admin/v2/brokers/cl":     func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`["broker-1:8080"]`)) },
		"/admin/v2/persistent/t/n": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`["persistent://t/n/a"]`)) },
		"/lookup/v2/topic/persistent/t/n/a": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, stranger.URL, http.StatusTemporaryRedirect)
		},
	}, nil)
	if _, err := b.Send(context.Background(), sent, brokerapi.Peer{}); err == nil || !strings.Contains(err.Error(), "which is not followed") || asked {
		t.Errorf("%v; asked: %v", err, asked)
	}
}
