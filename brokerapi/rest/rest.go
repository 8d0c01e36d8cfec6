// Package rest is a bounded use of net/http for a broker's admin API.
//
// Guaranteed: no call outlives its context, its time for one answer or the client; no answer is
// larger than its bound; redirects are given back, not followed, so that a token goes only to
// the address that was set; after a call that failed no kept connection is used again; a token
// or a certificate that is renewed on disk is used without a restart; an error names the
// setting, the method, the path and the status, and never holds the token. One that says
// something of us and not of the broker wraps brokerapi.ErrUnseen.
//
// Not guaranteed: that a call which ended with an error had no effect; that a token stays
// secret over http:// to another machine.
package rest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/brokerapi/hosts"
)

const (
	defaultTimeout   = 10 * time.Second // one answer, when Config.Timeout is zero
	defaultMaxAnswer = 4 << 20          // bytes of one body, when Config.MaxAnswer is zero
	dialTimeout      = 5 * time.Second  // to connect and shake hands
)

// Config is what New needs. Messages name the settings by their flags.
type Config struct {
	Setting      string        // the flag that holds URL; empty: --broker-admin
	URL          string        // http(s)://host[:port][/path]; calls are made below it
	Timeout      time.Duration // longest wait for one answer, within the caller's context; 0: 10 s
	MaxAnswer    int64         // largest body of an answer, in bytes; 0: 4 MiB
	access.Files               // those for TLS are of no use with http://
}

// Client makes calls to one admin API. It is safe for concurrent use.
type Client struct {
	cfg        Config
	base, host string
	token      *access.Token // nil: none
	http       *http.Client

	life context.Context // ends with Close
	end  context.CancelCauseFunc
}

// New checks the settings and reads the files they name; it connects to nothing. Its
// errors are settings that cannot work, each with its flag.
func New(cfg Config) (*Client, error) {
	cfg.Setting, cfg.Timeout, cfg.MaxAnswer = cmp.Or(cfg.Setting, "--broker-admin"), cmp.Or(cfg.Timeout, defaultTimeout), cmp.Or(cfg.MaxAnswer, defaultMaxAnswer)
	base, err := access.ParseURL(cfg.Setting, cfg.URL, "http", "https")
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, base: base.String(), host: base.Hostname()}
	c.token, err = cfg.Token()
	if err = cmp.Or(cfg.Check(), err); err != nil {
		return nil, err
	}
	c.life, c.end = context.WithCancelCause(context.Background())
	dial := func(ctx context.Context, _, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		defer context.AfterFunc(c.life, cancel)() // it may outlive its call, and must not outlive the client
		return cfg.Connect(ctx, address, base.Scheme == "https")
	}
	c.http = &http.Client{
		Transport: &http.Transport{ // no proxy: the broker is beside us
			DialContext:            dial,
			DialTLSContext:         dial,
			DisableCompression:     true, // a small answer must not unpack into a huge one
			MaxResponseHeaderBytes: 64 << 10,
			MaxIdleConnsPerHost:    16, // as many as topics are loaded at once
			IdleConnTimeout:        10 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// URL is the base URL as messages show it.
func (c *Client) URL() string { return c.base }

// Close ends calls in flight and frees the connections. Calls after it fail with brokerapi.ErrClosed.
func (c *Client) Close() error {
	c.end(brokerapi.ErrClosed)
	c.http.CloseIdleConnections()
	return nil
}

// Request is one call.
type Request struct {
	Method string     // empty: GET
	Path   string     // below the base URL, starts with a slash; see Path
	Query  url.Values // may be nil
	Body   any        // sent as JSON; nil: no body
	Accept string     // empty: application/json

	enough int64 // how many bytes of the answer are read, though it may be longer; 0: all
}

// Do makes the call and reads the whole answer. Every status is an answer; an error says
// that there was none: see Answer.Want and Answer.JSON for the rest.
func (c *Client) Do(ctx context.Context, r Request) (*Answer, error) {
	if c.life.Err() != nil {
		return nil, brokerapi.ErrClosed
	}
	ctx, done := brokerapi.Bounded(ctx, c.life, c.cfg.Timeout)
	defer done()
	a := &Answer{client: c, what: cmp.Or(r.Method, http.MethodGet) + " " + r.Path}
	resp, err := c.send(ctx, r)
	if err == nil {
		defer resp.Body.Close()
		a.Status, a.Header, a.asked = resp.StatusCode, resp.Header, resp.Request.URL
		a.Body, err = io.ReadAll(io.LimitReader(resp.Body, cmp.Or(r.enough, c.cfg.MaxAnswer+1)))
		if err == nil && int64(len(a.Body)) > max(r.enough, c.cfg.MaxAnswer) {
			err = fmt.Errorf("larger than %d bytes", c.cfg.MaxAnswer)
		}
		if err != nil {
			err = fmt.Errorf("read the answer: %w", err)
		}
	}
	if err != nil {
		c.http.CloseIdleConnections() // what this call met may have happened to the others as well
		return nil, c.failed(a.what, err, context.Cause(ctx))
	}
	return a, nil
}

func (c *Client) send(ctx context.Context, r Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = json.Marshal(r.Body); err != nil {
			return nil, fmt.Errorf("write the request: %w", err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, c.base+r.Path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.URL.RawQuery = cmp.Or(r.Query.Encode(), req.URL.RawQuery)
	req.Header.Set("Accept", cmp.Or(r.Accept, "application/json"))
	req.Header.Set("User-Agent", "holdfast")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token := c.token.Current(); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err // without method and URL, which we say ourselves
	}
	return resp, err
}

// failed is the error of a call that got no answer; cause is the bound that was hit, if one was.
func (c *Client) failed(what string, err, cause error) error {
	text, remedy := cmp.Or(hosts.Unknown(c.host), cause, err), c.cfg.Remedy(err)
	said, _, _ := strings.Cut(c.token.Hide(text.Error()), ` "{`) // without the JSON that another protocol begins with
	if brokerapi.Unseen(err) || hosts.Unknown(c.host) != nil || errors.Is(err, http.ErrSchemeMismatch) {
		err = errors.Join(brokerapi.ErrUnseen, err)
	}
	return brokerapi.Errorf(errors.Join(cause, err), "%s %s: %s: %s%s", c.cfg.Setting, c.base, what, said, remedy)
}

// Answer is what came back, whatever its status.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte

	client *Client
	asked  *url.URL
	what   string // method and path
}

// AnswerError says that an answer is not one of those that were wanted.
type AnswerError struct {
	Answer *Answer
	text   string
}

func (e *AnswerError) Error() string { return e.text }

// Unwrap makes a refusal brokerapi.ErrUnseen: it is answered, and so it is no silence. The broker
// knows nobody by our token, or we have shown one and it is not enough; or it has no room for one
// more question.
func (e *AnswerError) Unwrap() error {
	switch status := e.Answer.Status; {
	case status == http.StatusUnauthorized, status == http.StatusForbidden && e.Answer.client.token != nil:
		return brokerapi.ErrLogin
	case status == http.StatusForbidden, status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return brokerapi.ErrUnseen
	}
	return nil
}

// Want is nil if the status is one of those, and an *AnswerError otherwise.
func (a *Answer) Want(statuses ...int) error {
	switch {
	case slices.Contains(statuses, a.Status):
		return nil
	case a.Status == http.StatusUnauthorized && a.client.token == nil:
		return a.Errorf("set --broker-token-file to a token that the broker accepts")
	case a.Status == http.StatusUnauthorized, a.Status == http.StatusForbidden && a.client.token != nil:
		return a.Errorf("put a token that the broker accepts into %s (--broker-token-file)", a.client.token.Path())
	case a.Status == http.StatusBadRequest && bytes.Contains(a.Body, []byte("HTTP request to an HTTPS server")):
		return a.Errorf("write https:// in %s", a.client.cfg.Setting)
	case a.Location() != "":
		return a.Errorf("it redirects to %q, which is not followed: set %s to the broker's own address", a.Location(), a.client.cfg.Setting)
	}
	return a.Errorf("")
}

// Errorf is an *AnswerError that quotes the answer and says what is wrong with it.
func (a *Answer) Errorf(format string, args ...any) error {
	said := " with nothing"
	if len(a.Body) > 0 {
		said = fmt.Sprintf(": %.200q", a.client.token.Hide(string(a.Body)))
	}
	if format != "" {
		said += ": " + fmt.Sprintf(format, args...)
	}
	return a.refused(said)
}

// Refusedf is an *AnswerError without a quotation, for an answer whose own words stand
// among args.
func (a *Answer) Refusedf(format string, args ...any) error {
	return a.refused(": " + fmt.Sprintf(format, args...))
}

func (a *Answer) refused(words string) error {
	return &AnswerError{a, a.client.token.Hide(fmt.Sprintf("%s %s: %s answered %d %s%s",
		a.client.cfg.Setting, a.client.base, a.what, a.Status, http.StatusText(a.Status), words))}
}

// JSON decodes the body into v. Names that v does not know are skipped. Null is nothing, and so
// it is no empty list. Errors are *AnswerError.
func (a *Answer) JSON(v any) error {
	if string(bytes.TrimSpace(a.Body)) == "null" {
		return a.Errorf("is null")
	}
	if err := json.Unmarshal(a.Body, v); err != nil {
		return a.Errorf("%.300v", err) // it quotes a number whole
	}
	return nil
}

// Location is where a redirect points, made absolute; empty if it says nothing usable.
func (a *Answer) Location() string {
	if to := a.Header.Get("Location"); to != "" && a.Status >= 300 && a.Status < 400 {
		if at, err := a.asked.Parse(to); err == nil {
			return at.String()
		}
	}
	return ""
}
