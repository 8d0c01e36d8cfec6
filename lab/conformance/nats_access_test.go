package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/brokerapi/nats"
	"holdfast/lab/harness"
)

// configured is a server with more in its configuration.
func configured(t *testing.T, o harness.NATSOptions) *server {
	t.Helper()
	o.Name = "n1"
	n, err := harness.ForTest(t).NewNATS(o)
	do(t, err)
	do(t, n.Launch())
	do(t, harness.Await(t.Context(), harness.Patience, "the server to listen", func(ctx context.Context) (bool, string) {
		conn, err := n.Place.DialContext(ctx, "tcp", strings.TrimPrefix(n.URL(), "nats://"))
		if err == nil {
			conn.Close()
		}
		return err == nil, fmt.Sprint(err)
	}))
	return &server{NATS: n}
}

func fileOf(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	do(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// healthy asks until the server is well, or the refusal is the one that is wanted.
func healthy(t *testing.T, b *nats.Broker, refused string) error {
	t.Helper()
	for ctx := bound(t); ; {
		err := health(ctx, b)
		switch {
		case err == nil && refused == "", err != nil && refused != "" && strings.Contains(err.Error(), refused):
			return err
		case ctx.Err() != nil:
			t.Fatalf("health: %v, want %q", err, refused)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestNATSAsCompaniesRunIt(t *testing.T) {
	t.Parallel()
	authority, err := harness.ForTest(t).NewAuthority("companies")
	do(t, err)
	cert, key, err := authority.Issue("127.0.0.1")
	do(t, err)
	mine, mineKey, err := authority.Issue("holdfast")
	do(t, err)
	tls := fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n", cert, key, authority.CACert)
	for _, c := range []struct {
		name, conf string
		with       func(*nats.Config)
	}{
		{"a user and a password", `authorization { users: [ {user: holdfast, password: "pass word"} ] }`, func(c *nats.Config) {
			c.User, c.Password = "holdfast", fileOf(t, "pass word\n")
		}},
		{"a token", `authorization { token: "a-token" }`, func(c *nats.Config) { c.TokenFile = fileOf(t, "a-token") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := configured(t, harness.NATSOptions{HTTPS: true, Extra: tls + c.conf})
			cfg := nats.Config{AdminURL: strings.Replace(s.URL(), "nats", "tls", 1), MonitorURL: strings.Replace(s.MonitorURL(), "http", "https", 1), BrokerID: "n1",
				Files: access.Files{CACert: authority.CACert, Cert: mine, Key: mineKey}}
			c.with(&cfg)
			b := opened(t, cfg)
			healthy(t, b, "")
			id, err := b.Probe(bound(t))
			if err != nil || id.Name != "n1" || id.DataDir != s.StoreDir {
				t.Errorf("%+v, %v", id, err)
			}
			if err := b.Serve(bound(t), "/default/orders", nil); err != nil {
				t.Error(err)
			}
			cfg.Cert, cfg.Key = "", ""
			if err := healthy(t, opened(t, cfg), "the server does not take us in: "); !errors.Is(err, brokerapi.ErrUnseen) {
				t.Errorf("without a client certificate: %v", err)
			}
			cfg.CACert = ""
			if err := healthy(t, opened(t, cfg), "certificate signed by unknown authority"); !errors.Is(err, brokerapi.ErrUnseen) {
				t.Errorf("without the authority: %v", err)
			}
		})
	}
}

func TestARefusalOfNATSIsNoSilenceAndNamesItsCause(t *testing.T) {
	t.Parallel()
	account := `accounts { A: { jetstream: enabled, users: [ {user: holdfast, password: secret} ], limits: { max_conn: 1 } } }`
	for _, c := range []struct {
		name, conf   string
		others       int // clients that are there already
		user, file   string
		want         string
		loginRefused bool
	}{
		{"max_connections", "max_connections: 3\n", 3, "", "", `the server refuses us: "'maximum connections exceeded'"`, false},
		{"wrong password", `authorization { users: [ {user: holdfast, password: right} ] }`, 0, "holdfast", "wrong", "the server refuses our login: ", true},
		{"no login", `authorization { users: [ {user: holdfast, password: right} ] }`, 0, "", "", "the server refuses our login: ", true},
		{"account limit", "max_connections: 3\n" + account, 1, "holdfast", "secret", `maximum account active connections exceeded`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := configured(t, harness.NATSOptions{Extra: c.conf})
			var opts []client.Option
			cfg := s.config()
			if c.user != "" {
				cfg.User, cfg.Password = c.user, fileOf(t, c.file)
				opts = append(opts, client.UserInfo(c.user, c.file))
			}
			for range c.others {
				nc, err := client.Connect(s.URL(), opts...)
				do(t, err)
				defer nc.Close()
			}
			b := opened(t, cfg)
			// The first attempt's own error, and the same while it is tried again.
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for until := time.Now().Add(2 * time.Second); time.Now().Before(until); <-tick.C {
				err := health(bound(t), b)
				if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, brokerapi.ErrUnseen) ||
					errors.Is(err, brokerapi.ErrLogin) != c.loginRefused {
					t.Fatalf("got %v, want %s", err, c.want)
				}
			}
			// It has said who it is all the same.
			id, err := b.Probe(bound(t))
			if err == nil || id.Name != "n1" || id.Instance == "" {
				t.Errorf("%+v, %v", id, err)
			}
		})
	}
}
