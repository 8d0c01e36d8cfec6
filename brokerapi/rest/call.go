package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// Request is one call.
type Request struct {
	Method string     // empty: GET
	Path   string     // below the base URL, starts with a slash; see Path
	Query  url.Values // may be nil
	Body   any        // sent as JSON; nil: no body
	Accept string     // empty: application/json
	// Once: the request must not be sent again by itself. Otherwise it is, once, when a
	// kept connection turns out to be closed, or when the broker refuses the token and the
	// file has another by now.
	Once bool
	// MaxAnswer bounds this answer's body, in bytes; 0: as the client's.
	MaxAnswer int64
}

func (r Request) method() string {
	if r.Method == "" {
		return http.MethodGet
	}
	return r.Method
}

// Answer is what came back, whatever its status.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte

	client *Client
	asked  string // the URL
	what   string // method and path
}

// Do makes the call and reads the whole answer. Every status is an answer; an error says
// that there was none: see Answer.Want and Answer.JSON for the rest.
func (c *Client) Do(ctx context.Context, r Request) (*Answer, error) {
	if !c.enter() {
		return nil, ErrClosed
	}
	defer c.inside.Done()
	what := r.method() + " " + r.Path
	if err := ctx.Err(); err != nil {
		return nil, c.failed(what, fmt.Errorf("not asked: %w", err))
	}
	ctx, done := c.within(ctx)
	defer done()
	limit := r.MaxAnswer
	if limit == 0 {
		limit = c.maxAnswer
	}
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, c.gaveUp(ctx, what, err)
	}
	defer resp.Body.Close()
	body, err := readAll(resp, limit)
	if err != nil {
		return nil, c.gaveUp(ctx, what, err)
	}
	return &Answer{Status: resp.StatusCode, Header: resp.Header, Body: body, client: c, asked: c.base + r.Path, what: what}, nil
}

// gaveUp lets go of every kept connection: what this call met may have happened to the
// others as well.
func (c *Client) gaveUp(ctx context.Context, what string, err error) error {
	c.http.CloseIdleConnections()
	if cause := context.Cause(ctx); cause != nil {
		err = cause // says which bound was hit
	}
	return c.failed(what, err)
}

// within bounds ctx by the time for one answer and by the life of the client.
func (c *Client) within(ctx context.Context) (context.Context, func()) {
	ctx, slow := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer within %v: %w", c.timeout, context.DeadlineExceeded))
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })
	return ctx, func() {
		stop()
		cancel(nil)
		slow()
	}
}

// send makes the request, and once more with the file's token if the broker refused ours.
func (c *Client) send(ctx context.Context, r Request) (*http.Response, error) {
	var token string
	if c.token != nil {
		token = c.token.Current()
	}
	resp, err := c.sendWith(ctx, r, token)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || c.token == nil || r.Once {
		return resp, err
	}
	if err := c.token.Reread(); err != nil {
		resp.Body.Close()
		return nil, fmt.Errorf("answered %s: %w", statusText(resp.StatusCode), err)
	}
	renewed := c.token.Current()
	if renewed == token {
		return resp, nil
	}
	resp.Body.Close()
	return c.sendWith(ctx, r, renewed)
}

func (c *Client) sendWith(ctx context.Context, r Request, token string) (*http.Response, error) {
	target := c.base + r.Path
	if len(r.Query) > 0 {
		target += "?" + r.Query.Encode()
	}
	var body io.Reader
	if r.Body != nil {
		text, err := json.Marshal(r.Body)
		if err != nil {
			return nil, fmt.Errorf("write the request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.method(), target, body)
	if err != nil {
		return nil, plain(err)
	}
	req.Header.Set("User-Agent", "holdfast")
	req.Header.Set("Accept", "application/json")
	if r.Accept != "" {
		req.Header.Set("Accept", r.Accept)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if !r.Once {
		// Without a value it is not sent, and lets net/http repeat any method.
		req.Header["Idempotency-Key"] = nil
	} else {
		req.GetBody = nil
		req.Close = true // and a connection of its own, which cannot be a dead one
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, plain(err)
	}
	return resp, nil
}

// plain takes off *url.Error, which repeats method and URL.
func plain(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// readAll reads a body that is neither larger than limit nor packed.
func readAll(resp *http.Response, limit int64) ([]byte, error) {
	tooLarge := fmt.Errorf("the answer is larger than %d bytes", limit)
	if resp.ContentLength > limit {
		return nil, tooLarge
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if int64(len(body)) > limit {
		return nil, tooLarge
	}
	if packed := resp.Header.Get("Content-Encoding"); packed != "" && packed != "identity" && len(body) > 0 {
		return nil, fmt.Errorf("the answer has content encoding %q, which was not asked for", packed)
	}
	return body, nil
}
