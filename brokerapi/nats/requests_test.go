package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
)

func TestSettingsThatCannotWorkAreNamed(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	const local = "nats://127.0.0.1:1"
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"no address", Config{}, `--broker-admin "": not a URL with a scheme and a host: write nats://host:port`},
		{"no scheme", Config{AdminURL: "localhost"}, `--broker-admin "localhost": not a URL with a scheme and a host: write nats://host:port`},
		{"other scheme", Config{AdminURL: "http://localhost:4222"}, `--broker-admin "http://localhost:4222": the scheme http does not work here: write nats://host:port`},
		{"no host", Config{AdminURL: "nats://:4222"}, `--broker-admin "nats://:4222": not a URL with a scheme and a host: write nats://host:port`},
		{"several hosts", Config{AdminURL: "nats://a,b"}, `--broker-admin "nats://a,b": names several servers: write the address of one, nats://host:port`},
		{"a path", Config{AdminURL: "nats://a/b"}, `--broker-admin "nats://a/b": has a path: write nats://host:port`},
		{"a query", Config{AdminURL: "nats://a?b=c"}, `--broker-admin "nats://a?b=c": has a query or a fragment: write nats://host:port`},
		{"not a URL", Config{AdminURL: "nats://a:port"}, `--broker-admin "nats://a:port": not a URL with a scheme and a host: write nats://host:port`},
		{"a password", Config{AdminURL: "nats://u:secret@a"}, `--broker-admin "nats://u:xxxxx@a": holds a user or password: secrets come only from files`},
		{"a token", Config{AdminURL: "nats://secret@a"}, `--broker-admin "nats://xxxxx@a": holds a user or password: secrets come only from files`},
		{"a password and no scheme", Config{AdminURL: "u:secret@a"}, `--broker-admin "…": not a URL, or one that holds a user or password: write nats://host:port`},
		{"monitor scheme", Config{AdminURL: local, MonitorURL: "nats://a"}, `--nats-monitor "nats://a": the scheme nats does not work here: write http://host:port`},
		{"password missing", Config{AdminURL: local, Password: missing}, `--nats-password-file: open ` + missing + `: no such file or directory`},
		{"token missing", Config{AdminURL: local, Files: access.Files{TokenFile: missing}}, `--broker-token-file: open ` + missing + `: no such file or directory`},
		{"authority missing", Config{AdminURL: local, Files: access.Files{CACert: missing}}, `--broker-cacert: open ` + missing + `: no such file or directory`},
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
}

// served is a fake server's JetStream in which requests are noted.
func served(t *testing.T, reply func(subject string, body []byte) string) (*Broker, *[]string) {
	t.Helper()
	var seen []string // written by the one connection, read after its last answer
	fake := newFakeServer(t, "", func(subject string, body []byte) (string, bool) {
		seen = append(seen, strings.TrimPrefix(subject, "$JS.API."))
		return reply(subject, body), true
	})
	return opened(t, Config{AdminURL: fake.url, MonitorURL: "http://127.0.0.1:1"}), &seen
}

const nameInUse = `{"error":{"code":400,"err_code":10058,"description":"stream name already in use"}}`

func TestLoadTakesAsFewRequestsAsCanBe(t *testing.T) {
	const create, info, update = "STREAM.CREATE.hf+default+a", "STREAM.INFO.hf+default+a", "STREAM.UPDATE.hf+default+a"
	for _, c := range []struct {
		name, created, subjects string
		want                    []string
	}{
		{"new or identical", `{}`, "", []string{create}},
		{"differs, same subjects", nameInUse, `["default.a"]`, []string{create, info}},
		{"quiesced", nameInUse, `["_HOLDFAST.quiesced.hf+default+a"]`, []string{create, info, update}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var sent string
			b, seen := served(t, func(subject string, body []byte) string {
				switch {
				case strings.Contains(subject, "CREATE"):
					return c.created
				case strings.Contains(subject, "INFO"):
					return `{"config":{"name":"hf+default+a","subjects":` + c.subjects + `,"storage":"memory","of_a_later_version":{"x":[1]}},"state":{}}`
				default:
					sent = string(body)
					return `{}`
				}
			})
			if err := b.Serve(bound(t), "/default/a", nil); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(*seen, c.want) {
				t.Errorf("requests %q, want %q", *seen, c.want)
			}
			if want := `{"name":"hf+default+a","of_a_later_version":{"x":[1]},"storage":"memory","subjects":["default.a"]}`; len(c.want) == 3 && sent != want {
				t.Errorf("updated with %s, want %s", sent, want)
			}
		})
	}
}

// What the record asks for stands beside JetStream's own words. Nobody waits at a start for what only
// another record, or another server, makes possible.
func TestWhatJetStreamRefusesNamesTheRecord(t *testing.T) {
	for _, c := range []struct {
		code    int
		record  string
		want    string
		forGood bool
	}{
		{10052, `{"subjects":["a","a"]}`, `load /default/a: JetStream refused: no (err_code 10052): its record, /topics/default/a, is {"subjects":["a","a"]}`, true},
		{10074, `{"replicas":3}`, `load /default/a: JetStream refused: no (err_code 10074): its record, /topics/default/a, is {"replicas":3}`, true},
		{10047, `{"max_bytes":9}`, `load /default/a: JetStream refused: no (err_code 10047): its record, /topics/default/a, is {"max_bytes":9}`, false},
		{10047, ``, `load /default/a: JetStream refused: no (err_code 10047)`, false},
	} {
		b, _ := served(t, func(string, []byte) string {
			return fmt.Sprintf(`{"error":{"code":400,"err_code":%d,"description":"no"}}`, c.code)
		})
		if err := b.Serve(bound(t), "/default/a", []byte(c.record)); err == nil || err.Error() != c.want || errors.Is(err, brokerapi.ErrRefused) != c.forGood {
			t.Errorf("%d: %v, for good: %v", c.code, err, errors.Is(err, brokerapi.ErrRefused))
		}
	}
}

func TestAnswersThatCannotBeReadAreErrors(t *testing.T) {
	for _, c := range []struct{ name, answer, want string }{
		{"garbage", `<html>`, `JetStream answered "<html>": invalid character`},
		{"nothing", ``, `JetStream answered "": unexpected end of JSON input`},
		{"no configuration", `{}`, `read stream hf+default+a: JetStream answered without its configuration`},
		{"subjects of another kind", `{"config":{"subjects":7}}`, `read stream hf+default+a: json: cannot unmarshal number`},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, _ := served(t, func(string, []byte) string { return c.answer })
			err := b.Withdraw(bound(t), "/default/a")
			if err == nil || !strings.HasPrefix(err.Error(), "quiesce /default/a: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestAListingThatIsNotWholeIsAnError(t *testing.T) {
	var n atomic.Int64
	for _, c := range []struct {
		name, want string
		page       func(offset int) string
	}{
		{"cut short", "list streams: JetStream listed 1 of 3 streams", func(offset int) string {
			if offset == 0 {
				return `{"total":3,"streams":["hf+a+b"]}`
			}
			return `{"total":3,"streams":[]}`
		}},
		{"never the same", "list streams: streams came and went during each of 5 listings: try again", func(int) string {
			return fmt.Sprintf(`{"total":%d,"streams":["hf+a+b"]}`, 10+n.Add(1))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, _ := served(t, func(_ string, body []byte) string {
				var req struct{ Offset int }
				if err := json.Unmarshal(body, &req); err != nil {
					t.Error(err)
				}
				return c.page(req.Offset)
			})
			held, err := b.Topics(bound(t))
			if err == nil || err.Error() != c.want || held.Serving != nil || held.Withdrawn != nil {
				t.Errorf("got %+v, %v, want %s", held, err, c.want)
			}
		})
	}
}

func TestStreamsOfOthersAreNoTopicsAndAreNamed(t *testing.T) {
	b, _ := served(t, func(_ string, body []byte) string {
		if strings.Contains(string(body), "subject") { // those that are withdrawn
			return `{"total":0,"streams":[]}`
		}
		return `{"total":3,"streams":["ORDERS","hf+shop+orders","KV_x"]}`
	})
	held, err := b.Topics(bound(t))
	if err != nil || !slices.Equal(held.Serving, []string{"/shop/orders"}) || !slices.Equal(held.Foreign, []string{"ORDERS", "KV_x"}) {
		t.Errorf("%+v, %v", held, err)
	}
}

func TestACallInFlightEndsWhenTheConnectionBreaks(t *testing.T) {
	asked := make(chan struct{}, 1)
	fake := newFakeServer(t, "", func(string, []byte) (string, bool) {
		asked <- struct{}{}
		return "", false
	})
	b := opened(t, Config{AdminURL: fake.url, MonitorURL: "http://127.0.0.1:1", Timeout: time.Hour})
	ended := make(chan error, 1)
	go func() { ended <- b.Serve(context.Background(), "/default/a", nil) }()
	<-asked
	fake.drop()
	select {
	case err := <-ended:
		if !errors.Is(err, errBroke) {
			t.Errorf("got %v, want %v", err, errBroke)
		}
	case <-bound(t).Done():
		t.Fatal("the call goes on")
	}
}

func TestTheConnectionNeverMovesToAnotherServer(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	visited := make(chan struct{}, 1)
	go func() {
		if conn, err := other.Accept(); err == nil {
			conn.Close()
			visited <- struct{}{}
		}
	}()
	fake := newFakeServer(t, fmt.Sprintf(`,"connect_urls":[%q]`, other.Addr()), jetStreamOK)
	b := opened(t, Config{AdminURL: fake.url, MonitorURL: "http://127.0.0.1:1"})
	for range 3 {
		if err := b.Serve(bound(t), "/default/a", nil); err != nil {
			t.Fatal(err)
		}
		fake.drop()
		awaitLoad(t, b) // back at the same server
	}
	select {
	case <-visited:
		t.Error("the client went to a server that its own one advertised")
	default:
	}
}

// awaitLoad loads until it succeeds, every 10 ms.
func awaitLoad(t *testing.T, b *Broker) {
	t.Helper()
	ctx := bound(t)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := b.Serve(ctx, "/default/a", nil)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("load: %v", err)
		case <-tick.C:
		}
	}
}

func TestAStreamThatCannotGiveItsSubjectsUpIsNamed(t *testing.T) {
	for word, setting := range map[string]string{"sealed": `"sealed":true`, "mirror": `"mirror":{"name":"x"}`} {
		b, seen := served(t, func(string, []byte) string { return `{"config":{"name":"hf+a+b","subjects":["a.b"],` + setting + `}}` })
		if err := b.Withdraw(within(t), "/a/b"); err == nil || !strings.Contains(err.Error(), word) || len(*seen) != 1 {
			t.Errorf("%s: %v after %v", word, err, *seen)
		}
	}
}

func TestAStreamIsChangedByOneAtATime(t *testing.T) {
	b, _ := served(t, func(string, []byte) string { return `{"config":{"subjects":["a.b"]}}` })
	if err := b.Withdraw(within(t), "/a/b"); err != nil {
		t.Fatal(err)
	}
	done, err := b.turn(t.Context(), "hf+a+b")
	if err != nil {
		t.Fatal(err)
	}
	given, giveUp := context.WithCancel(t.Context())
	giveUp()
	for range 20 {
		if _, err := b.turn(given, "hf+a+b"); err == nil {
			t.Fatal("two at a time")
		}
	}
	if other, err := b.turn(t.Context(), "hf+a+c"); err != nil {
		t.Error(err)
	} else {
		other()
	}
	done()
	if err := b.Withdraw(within(t), "/a/b"); err != nil {
		t.Errorf("after it: %v", err)
	}
}

func TestOurPasswordGoesToNoServerOnAWayWithoutTLS(t *testing.T) {
	b, err := New(Config{AdminURL: "tls://127.0.0.1:1", MonitorURL: "http://127.0.0.1:2"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	_, err = b.peer(t.Context(), brokerapi.Peer{ID: "n2", URL: "nats://127.0.0.1:3"})
	if !errors.Is(err, brokerapi.ErrRefused) || !strings.Contains(err.Error(), "set --connect-url there to its tls:// address") {
		t.Error(err)
	}
}
