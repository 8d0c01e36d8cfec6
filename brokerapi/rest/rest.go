// Package rest is a bounded HTTP client for a broker's admin API.
//
// Guaranteed: no call outlives its context, its time for one answer or the client; no
// answer is larger than its bound, and none is cut short without an error; redirects are
// given back, not followed, so that a token goes only to the address that was set; after
// a call that failed no kept connection is used again, so a connection that is dead and
// does not show it delays nobody but its own call; a token or a certificate that is
// renewed on disk is used without a restart; an error is one sentence that names the
// setting, the method, the path and the status, quotes at most 200 bytes of the answer
// made fit for a terminal, and never holds the token.
//
// Not guaranteed: that a call which ended with an error had no effect (its request may
// have arrived); that a token stays secret over http:// to another machine.
package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"holdfast/brokerapi/access"
)

const (
	defaultTimeout   = 10 * time.Second // one answer, when Config.Timeout is zero
	defaultMaxAnswer = 4 << 20          // bytes of one body, when Config.MaxAnswer is zero
	maxHead          = 64 << 10         // bytes of an answer's status line and header
	dialTimeout      = 5 * time.Second  // to connect and, apart from that, to shake hands
	idleTimeout      = 10 * time.Second // how long a connection is kept for the next call
	maxIdle          = 16               // connections kept: as many as topics are loaded at once
)

// Config is what New needs. Messages name the settings by their flags.
type Config struct {
	Setting   string        // the flag that holds URL; empty: --broker-admin
	URL       string        // http(s)://host[:port][/path]; calls are made below it
	TokenFile string        // --broker-token-file: sent as bearer token; empty: none
	CACert    string        // --broker-cacert: PEM; empty: the system's authorities
	Cert, Key string        // --broker-cert, --broker-key: PEM; both or none
	Timeout   time.Duration // longest wait for one answer, within the caller's context; 0: 10 s
	MaxAnswer int64         // largest body of an answer, in bytes; 0: 4 MiB
}

// Client makes calls to one admin API. It is safe for concurrent use.
type Client struct {
	setting, base string
	timeout       time.Duration
	maxAnswer     int64
	token         *access.Token // nil: none
	files         access.Files  // for what messages say
	http          *http.Client

	life context.Context // ends with Close
	end  context.CancelCauseFunc

	mu     sync.Mutex // held to enter, so that Close waits for whoever entered
	closed bool
	inside sync.WaitGroup // calls, held answers and attempts to connect
}

// ErrClosed is wrapped by calls that Close ended, or that came after it.
var ErrClosed = errors.New("the driver is closed")

// New checks the settings and reads the files they name; it connects to nothing. Its
// errors are settings that cannot work, each with its flag.
func New(cfg Config) (*Client, error) {
	if cfg.Setting == "" {
		cfg.Setting = "--broker-admin"
	}
	base, err := parseBase(cfg.Setting, cfg.URL)
	if err != nil {
		return nil, err
	}
	if cfg.Timeout < 0 || cfg.MaxAnswer < 0 {
		return nil, fmt.Errorf("broker timeout %v, largest answer %d bytes: must not be negative", cfg.Timeout, cfg.MaxAnswer)
	}
	c := &Client{setting: cfg.Setting, base: base.String(), timeout: cfg.Timeout, maxAnswer: cfg.MaxAnswer}
	if c.timeout == 0 {
		c.timeout = defaultTimeout
	}
	if c.maxAnswer == 0 {
		c.maxAnswer = defaultMaxAnswer
	}
	files := access.Files{CACert: cfg.CACert, Cert: cfg.Cert, Key: cfg.Key}
	if base.Scheme == "http" && files != (access.Files{}) {
		return nil, fmt.Errorf("%s has http:// and TLS files are set: write https://, or leave out --broker-cacert, --broker-cert and --broker-key", cfg.Setting)
	}
	if err := files.Check(); err != nil {
		return nil, err
	}
	c.files = files
	if cfg.TokenFile != "" {
		if c.token, err = access.OpenToken(cfg.TokenFile); err != nil {
			return nil, err
		}
	}
	c.life, c.end = context.WithCancelCause(context.Background())
	c.http = c.newHTTP(files, base.Hostname())
	return c, nil
}

// URL is the base URL as messages show it.
func (c *Client) URL() string { return c.base }

// Close ends calls in flight, waits for them and frees the connections. Calls after it
// fail with ErrClosed.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end(ErrClosed)
	c.inside.Wait()
	c.http.CloseIdleConnections()
	return nil
}

// enter is false after Close. Who entered must leave.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.inside.Add(1)
	return true
}

// parseBase accepts one host, and a path to be put in front of the calls' own.
func parseBase(flag, raw string) (*url.URL, error) {
	const want = "want http://host:port"
	if raw == "" {
		return nil, fmt.Errorf("%s is empty: %s", flag, want)
	}
	if strings.Contains(raw, "@") {
		return nil, fmt.Errorf("%s holds credentials, which would show in logs: %s (a token goes into --broker-token-file)", flag, want)
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s %q: not a URL: %s", flag, raw, want)
	case strings.Contains(u.Host, ","):
		return nil, fmt.Errorf("%s %q: names several servers: want this broker's own address, http://host:port", flag, raw)
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
		return nil, fmt.Errorf("%s %q: %s, or https://host:port", flag, raw, want)
	case u.RawQuery != "", u.ForceQuery, u.Fragment != "":
		return nil, fmt.Errorf("%s %q: has a query or a fragment: %s", flag, raw, want)
	}
	for _, segment := range strings.Split(u.Path, "/") {
		if segment == "." || segment == ".." {
			return nil, fmt.Errorf("%s %q: its path has a segment of dots: write it without", flag, raw)
		}
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	return u, nil
}

// Path is a path below the base URL: prefix as it is, then the segments, each escaped.
// It refuses what servers and proxies between would take for another path.
func Path(prefix string, segments ...string) (string, error) {
	var b strings.Builder
	b.WriteString(prefix)
	for _, s := range segments {
		if s == "" || s == "." || s == ".." {
			return "", fmt.Errorf("%q cannot be a part of a path", s)
		}
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	return b.String(), nil
}
