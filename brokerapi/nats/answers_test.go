package nats

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/internal/fakenet"
)

func bound(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func opened(t testing.TB, cfg Config) *Broker {
	t.Helper()
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// goodVarz is what the monitoring port of the fake server says, to /healthz too.
const goodVarz = `{"status":"ok","server_id":"NFAKE","server_name":"n1","version":"2.10.0","start":"2026-01-02T03:04:05.6Z","jetstream":{"config":{"store_dir":"/data/jetstream"}}}`

func silent(string, []byte) (string, bool) { return "", false }

func jetStreamOK(string, []byte) (string, bool) { return "{}", true }

func answering(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

func TestIdentityIsReadFromBothPorts(t *testing.T) {
	for _, c := range []struct {
		name, varz string
		want       brokerapi.Report
	}{
		{"named", goodVarz, brokerapi.Report{Name: "n1", Instance: "NFAKE", Version: "2.10.0", DataDir: "/data",
			StartedAt: time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC)}},
		{"unnamed, no JetStream", `{"server_id":"NFAKE","server_name":"NFAKE","version":"2.9.0","jetstream":{}}`,
			brokerapi.Report{Instance: "NFAKE", Version: "2.9.0"}},
		{"a store that does not end in jetstream", `{"server_id":"NFAKE","server_name":"n1","jetstream":{"config":{"store_dir":"/data/js"}}}`,
			brokerapi.Report{Name: "n1", Instance: "NFAKE", DataDir: "/data/js"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			web := httptest.NewServer(answering(200, "application/json", c.varz))
			defer web.Close()
			b := opened(t, Config{AdminURL: newFakeServer(t, "", silent).url, MonitorURL: web.URL})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			got, err := b.Probe(ctx) // it is not healthy
			if errors.Is(err, brokerapi.ErrIdentity) || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

func TestMonitorAnswersThatAreNotANATSServersAreRefused(t *testing.T) {
	halfClosed := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, goodVarz[:20])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	huge := func(w http.ResponseWriter, _ *http.Request) {
		chunk := []byte(strings.Repeat(" ", 1<<16))
		for range maxAnswer/len(chunk) + 1 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}
	says := func(words string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				io.WriteString(conn, words)
				conn.Close()
			}
		}
	}
	const ports = `: start nats-server with -m 8222, or set --nats-monitor to its monitoring port`
	const remedy = `no nats-server says that: set --nats-monitor to its monitoring port (nats-server -m 8222)`
	for _, c := range []struct {
		name     string
		handler  http.HandlerFunc
		identity bool
		want     string // after the flag and the URL
	}{
		{"HTML", answering(200, "text/html", "<html>hello</html>"), true, `: GET /varz answered 200 OK: "<html>hello</html>": ` + remedy},
		{"not found", answering(404, "text/plain", "404 page not found\n"), true, `: GET /varz answered 404 Not Found: "404 page not found\n": ` + remedy},
		{"another's JSON", answering(200, "application/json", `{"status":"ok"}`), true, `: GET /varz answered 200 OK: "{\"status\":\"ok\"}": ` + remedy},
		{"http:// to its TLS port", answering(400, "text/plain", "Client sent an HTTP request to an HTTPS server.\n"), true,
			`: GET /varz answered 400 Bad Request: "Client sent an HTTP request to an HTTPS server.\n": write https:// in --nats-monitor`},
		{"a 5xx may pass", answering(503, "text/plain", "later"), false, `: GET /varz answered 503 Service Unavailable: "later"`},
		{"huge", huge, false, `: GET /varz: read the answer: larger than 8388608 bytes`},
		{"the client port", says(`INFO {"server_id":"NFAKE"}` + "\r\n"), false, `: GET /varz: net/http: HTTP/1.x transport connection broken: malformed HTTP status code: no HTTP is spoken there` + ports},
		{"not a word", says(""), false, `: GET /varz: EOF` + ports},
		{"half closed", halfClosed, false, `: GET /varz: read the answer: unexpected EOF`},
	} {
		t.Run(c.name, func(t *testing.T) {
			web := httptest.NewServer(c.handler)
			defer web.Close()
			b := opened(t, Config{AdminURL: newFakeServer(t, "", silent).url, MonitorURL: web.URL})
			_, err := b.Probe(bound(t))
			if want := "--nats-monitor " + web.URL + c.want; err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
			if got := errors.Is(err, brokerapi.ErrIdentity); got != c.identity {
				t.Errorf("wraps ErrIdentity: %v, want %v", got, c.identity)
			}
		})
	}
}

func TestWhatIsWrongWithTLSIsSaidWithItsSetting(t *testing.T) {
	const greeting, wants = `INFO {"server_id":"N","tls_required":true`, `INFO {"server_id":"N","tls_required":true,"tls_verify":true`
	for _, c := range []struct {
		name, said string
		err        error
		files      access.Files
		want       string
	}{
		{"its authority is not known", greeting, &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, access.Files{}, "set --broker-cacert"},
		{"another authority", greeting, &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, access.Files{CACert: "/ca.pem"}, "in place of /ca.pem"},
		{"it wants our certificate", wants, io.EOF, access.Files{}, "set --broker-cert and --broker-key"},
		{"it refuses ours", wants, &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}, access.Files{Cert: "/c.pem"}, "in place of /c.pem"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &attempt{said: []byte(c.said + "}\r\n")}
			if err := a.failure(c.err, c.files); !errors.Is(err, brokerapi.ErrUnseen) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestSlowAnswersEndWithTheirBound(t *testing.T) {
	release := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer web.Close()
	defer close(release)
	fake := newFakeServer(t, "", silent)
	b := opened(t, Config{AdminURL: fake.url, MonitorURL: web.URL, Timeout: 100 * time.Millisecond})
	_, monitorErr := b.Probe(bound(t))
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, shortErr := b.Probe(short)
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"monitor", monitorErr, "--nats-monitor " + web.URL + ": GET /varz: no answer within 100ms: context deadline exceeded"},
		{"monitor, the caller's", shortErr, "--nats-monitor " + web.URL + ": GET /varz: context deadline exceeded"},
		{"JetStream", b.Serve(bound(t), "/default/orders", nil), "load /default/orders: --broker-admin " + fake.url + ": no answer within 100ms: context deadline exceeded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.err == nil || c.err.Error() != c.want || !errors.Is(c.err, context.DeadlineExceeded) {
				t.Errorf("got  %v\nwant %s", c.err, c.want)
			}
		})
	}
}

func TestNoMonitorSaysHowToStartOne(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	web.Close()
	b := opened(t, Config{AdminURL: newFakeServer(t, "", silent).url, MonitorURL: web.URL})
	_, err := b.Probe(bound(t))
	want := fmt.Sprintf("--nats-monitor %s: GET /varz: dial tcp %s: connect: connection refused: is the broker running there?: start nats-server with -m 8222, or set --nats-monitor to its monitoring port",
		web.URL, strings.TrimPrefix(web.URL, "http://"))
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// talker accepts connections and says one thing.
func talker(t *testing.T, says string) (url string) {
	t.Helper()
	return "nats://" + fakenet.Listen(t, func(conn net.Conn) { _, _ = io.WriteString(conn, says) })
}

func TestWhyThereIsNoConnectionIsSaidAtOnce(t *testing.T) {
	const info = "INFO {\"server_id\":\"NFAKE\",\"version\":\"2.10.0\",\"auth_required\":true}\r\n"
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, c := range []struct {
		name, url     string
		unseen, login bool
		want          string
	}{
		{"login refused", talker(t, info+"-ERR 'Authorization Violation'\r\n"), true, true, `: the server refuses our login: "nats: Authorization Violation": set --nats-user and`},
		{"full", talker(t, info+"-ERR 'maximum connections exceeded'\r\n"), true, false, `: the server refuses us: "'maximum connections exceeded'": it lives, and has no room`},
		{"slow", talker(t, info), true, false, `: the server does not take us in: "`},
		{"no TLS", "tls" + talker(t, info)[len("nats"):], true, false, `": no TLS is spoken there: write nats://`},
		{"no name", "nats://broker.invalid:4222", true, false, `: not connected: lookup broker.invalid`},
		{"another protocol", talker(t, "SSH-2.0-Example\r\n"), false, false, `: not connected: "SSH-2.0-Example\r\n" is not how a nats-server greets: set --broker-admin to its client port`},
		{"nothing said", talker(t, ""), false, false, `the port is open, and no nats-server greets there: it hangs, or --broker-admin is another's`},
		{"nothing listens", strings.Replace(gone.URL, "http", "nats", 1), false, false, `connection refused: is nats-server running there?`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := opened(t, Config{AdminURL: c.url, MonitorURL: gone.URL})
			_, err := b.Probe(bound(t))
			if err == nil || !strings.HasPrefix(err.Error(), "--broker-admin "+c.url) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if errors.Is(err, brokerapi.ErrUnseen) != c.unseen || errors.Is(err, brokerapi.ErrLogin) != c.login {
				t.Errorf("%v: want unseen %v, login refused %v", err, c.unseen, c.login)
			}
		})
	}
}

// The client library alone gives up after two tries of a login.
func TestAServerThatDoesNotTakeUsInAgainIsUnseenAndAskedAgain(t *testing.T) {
	for _, refusal := range []string{"maximum connections exceeded", "Authorization Violation"} {
		t.Run(refusal, func(t *testing.T) {
			fake := newFakeServer(t, "", jetStreamOK)
			web := httptest.NewServer(answering(200, "application/json", goodVarz))
			defer web.Close()
			b := opened(t, Config{AdminURL: fake.url, MonitorURL: web.URL})
			if err := health(bound(t), b); err != nil {
				t.Fatal(err)
			}
			fake.refuses.Store("-ERR '" + refusal + "'\r\n")
			fake.drop()
			for ctx := bound(t); ; time.Sleep(10 * time.Millisecond) {
				who, err := b.Probe(ctx)
				fake.mu.Lock()
				tried := len(fake.conns)
				fake.mu.Unlock()
				if errors.Is(err, brokerapi.ErrUnseen) && strings.Contains(err.Error(), refusal) && who.Instance == fakeID && tried >= 4 {
					break
				}
				if ctx.Err() != nil {
					t.Fatalf("%+v, %v, after %d connections", who, err, tried)
				}
			}
			fake.refuses.Store("")
			for ctx := bound(t); health(ctx, b) != nil; time.Sleep(10 * time.Millisecond) {
				if ctx.Err() != nil {
					t.Fatal("it is not taken in again")
				}
			}
		})
	}
}

// A server that hangs would find all of them when it goes on, and count them.
func TestAnAttemptWithoutAGreetingIsClosed(t *testing.T) {
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	opened(t, Config{AdminURL: "nats://" + deaf.Addr().String(), MonitorURL: "http://127.0.0.1:1"})
	var all []net.Conn
	for range 3 {
		conn, err := deaf.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		all = append(all, conn)
	}
	_ = all[1].SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, all[1]); err != nil {
		t.Errorf("the second connection stands beside the third: %v", err)
	}
}

func TestHealthNamesWhatIsWrong(t *testing.T) {
	named := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/varz" {
				io.WriteString(w, strings.ReplaceAll(goodVarz, "n1", name))
			} else {
				io.WriteString(w, `{"status":"ok"}`)
			}
		}
	}
	good := named("n1")
	refuse := func(code int, text string) func(string, []byte) (string, bool) {
		return func(string, []byte) (string, bool) {
			return fmt.Sprintf(`{"type":"x","error":{"code":503,"err_code":%d,"description":%q}}`, code, text), true
		}
	}
	for _, c := range []struct {
		name    string
		api     func(string, []byte) (string, bool)
		monitor http.HandlerFunc
		want    string // empty: healthy
	}{
		{"well", jetStreamOK, good, ""},
		{"JetStream off", refuse(10076, "jetstream not enabled"), good, "JetStream refused: jetstream not enabled (err_code 10076): start nats-server with -js"},
		{"JetStream off for the account", refuse(10039, "jetstream not enabled for account"), good, "(err_code 10039): enable JetStream for the account that we log in to"},
		{"JetStream answers garbage", func(string, []byte) (string, bool) { return "<html>", true }, good, `JetStream answered "<html>": invalid character`},
		{"healthz says no", jetStreamOK, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/varz" {
				good(w, r)
				return
			}
			answering(503, "application/json", `{"status":"unavailable"}`)(w, r)
		}, `/healthz?js-enabled-only=true answered 503 Service Unavailable: "{\"status\":\"unavailable\"}": see nats-server's log`},
		{"a name that no broker can go by", jetStreamOK, named("eu/n1"), ""}, // --broker-id is its name
		{"another name", jetStreamOK, named("n2"), `the broker there calls itself "n2", --broker-id says "n1": point --broker-admin at n1's own address, or set --broker-id to n2`},
		{"monitor of another", jetStreamOK, answering(200, "application/json", strings.ReplaceAll(goodVarz, "NFAKE", "NOTHER")), `is server "n1" (NOTHER): set both to ports of the same server`},
	} {
		t.Run(c.name, func(t *testing.T) {
			web := httptest.NewServer(c.monitor)
			defer web.Close()
			err := health(bound(t), opened(t, Config{AdminURL: newFakeServer(t, "", c.api).url, MonitorURL: web.URL, BrokerID: "n1"}))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
