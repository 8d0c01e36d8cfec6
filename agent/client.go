package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Client asks and steers a running sidecar over its control socket. Errors that
// the sidecar answers are *ExitError with the code that it chose. It is safe for
// concurrent use.
type Client struct {
	socket   string
	stateDir string
	http     *http.Client
}

// NewClient does not touch the socket yet. stateDir is where to look why nobody answers.
func NewClient(socket, stateDir string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &Client{socket, stateDir, &http.Client{Transport: &http.Transport{
		DialContext:       dial,
		DisableKeepAlives: true,
	}}}
}

// Status is the sidecar's view of itself. raw is the same as JSON, unchanged.
func (c *Client) Status(ctx context.Context) (s Status, raw []byte, err error) {
	raw, err = c.get(ctx, "/v1/status", &s)
	return s, raw, err
}

// Topics lists the topics wanted or served. raw is the same as JSON, unchanged.
func (c *Client) Topics(ctx context.Context) (t []TopicStatus, raw []byte, err error) {
	raw, err = c.get(ctx, "/v1/topics", &t)
	return t, raw, err
}

// Event explains one entry of the journal. raw is the same as JSON, unchanged.
func (c *Client) Event(ctx context.Context, id int64) (e Explanation, raw []byte, err error) {
	raw, err = c.get(ctx, "/v1/events/"+strconv.FormatInt(id, 10), &e)
	return e, raw, err
}

// EventOptions selects from the journal.
type EventOptions struct {
	Follow bool  // wait for more until ctx ends
	Since  int64 // only events with a larger id
}

// Events calls each with every event, oldest first, and its JSON line without the
// newline. It returns nil at the end of the journal or, when following, when ctx
// ends; and the first error of each.
func (c *Client) Events(ctx context.Context, o EventOptions, each func(Event, []byte) error) error {
	q := url.Values{}
	if o.Follow {
		q.Set("follow", "1")
	}
	if o.Since > 0 {
		q.Set("since", strconv.FormatInt(o.Since, 10))
	}
	path := "/v1/events"
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	resp, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 && (err == nil || errors.Is(err, io.EOF)) {
			var e Event
			if jsonErr := json.Unmarshal(line, &e); jsonErr != nil {
				return c.garbled(jsonErr)
			}
			if eachErr := each(e, line); eachErr != nil {
				return eachErr
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			if o.Follow && ctx.Err() == nil {
				return fmt.Errorf("events: the sidecar on %s ended: run the command again when it is back", c.socket)
			}
			return nil
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("read events from %s: %w", c.socket, err)
		}
	}
}

// Activate sets the mode to active.
func (c *Client) Activate(ctx context.Context, reason string) (Status, []byte, error) {
	return c.post(ctx, "/v1/activate", map[string]any{"reason": reason})
}

// Drain sets the mode to drained and waits up to timeout until nothing is served.
func (c *Client) Drain(ctx context.Context, reason string, timeout time.Duration) (Status, []byte, error) {
	return c.post(ctx, "/v1/drain", map[string]any{"reason": reason, "timeout_seconds": timeout.Seconds()})
}

// Leave has the broker leave on purpose, within the timeout. wait: one that cannot leave yet
// is waited for.
func (c *Client) Leave(ctx context.Context, timeout time.Duration, wait, withSidecar bool) (Status, []byte, error) {
	return c.post(ctx, "/v1/leave", map[string]any{"timeout_seconds": timeout.Seconds(), "wait": wait, "with_sidecar": withSidecar})
}

// Confirm lets a tripped mass-change guard proceed.
func (c *Client) Confirm(ctx context.Context) (Status, []byte, error) {
	return c.post(ctx, "/v1/confirm", map[string]any{})
}

// Reload has the sidecar read its settings anew.
func (c *Client) Reload(ctx context.Context) (done Reloaded, err error) {
	resp, err := c.do(ctx, http.MethodPost, "/v1/reload", []byte("{}"))
	if err != nil {
		return done, err
	}
	_, err = c.decode(resp, &done)
	return done, err
}

// Pause has recovery wait for a time.
func (c *Client) Pause(ctx context.Context, req PauseRequest) (PauseAnswer, error) {
	return c.pause(ctx, "/v1/pause", req)
}

// Resume ends a pause. Without one it changes nothing, and the answer has none.
func (c *Client) Resume(ctx context.Context) (PauseAnswer, error) {
	return c.pause(ctx, "/v1/resume", struct{}{})
}

func (c *Client) pause(ctx context.Context, path string, body any) (answer PauseAnswer, err error) {
	b, err := json.Marshal(body)
	if err != nil {
		return answer, fmt.Errorf("encode request: %w", err)
	}
	resp, err := c.do(ctx, http.MethodPost, path, b)
	if err != nil {
		return answer, err
	}
	_, err = c.decode(resp, &answer)
	return answer, err
}

// stoppedAfter is how long a sidecar is waited for that may be stopped by a signal: it does not
// answer before somebody continues it.
const stoppedAfter = time.Second

func (c *Client) get(ctx context.Context, path string, into any) ([]byte, error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	impatient := time.AfterFunc(stoppedAfter, func() {
		if stoppedSidecar(c.stateDir) != 0 {
			giveUp(context.DeadlineExceeded)
		}
	})
	defer impatient.Stop()
	resp, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	return c.decode(resp, into)
}

func (c *Client) post(ctx context.Context, path string, body any) (s Status, raw []byte, err error) {
	b, err := json.Marshal(body)
	if err != nil {
		return s, nil, fmt.Errorf("encode request: %w", err)
	}
	resp, err := c.do(ctx, http.MethodPost, path, b)
	if err != nil {
		return s, nil, err
	}
	raw, err = c.decode(resp, &s)
	return s, raw, err
}

func (c *Client) decode(resp *http.Response, into any) ([]byte, error) {
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read answer of the sidecar on %s: %w", c.socket, err)
	}
	if len(bytes.TrimSpace(raw)) == 0 && resp.Request.Method == http.MethodPost {
		return raw, nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return nil, c.garbled(err)
	}
	return raw, nil
}

func (c *Client) garbled(err error) error {
	return fmt.Errorf("%s: the answer is not from a Holdfast sidecar of this version: %w", c.socket, err)
}

// do returns an answer of class 200, or an error in words.
func (c *Client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://sidecar"+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unanswered(ctx, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var e struct {
		Error    string `json:"error"`
		ExitCode int    `json:"exit_code"`
	}
	if json.Unmarshal(raw, &e) != nil || e.Error == "" {
		return nil, fmt.Errorf("%s answered %s to %s: is the sidecar of the same version?", c.socket, resp.Status, path)
	}
	if e.ExitCode < ExitFailed || e.ExitCode > ExitRefused {
		e.ExitCode = ExitFailed
	}
	return nil, &ExitError{e.ExitCode, errors.New(strings.TrimSpace(e.Error))}
}

func (c *Client) unanswered(ctx context.Context, err error) error {
	switch {
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		if pid := stoppedSidecar(c.stateDir); pid != 0 {
			return withGuard(c.stateDir, fmt.Errorf("the sidecar on %s does not answer: its process %d is stopped (SIGSTOP): kill -CONT %d", c.socket, pid, pid), "")
		}
		return withGuard(c.stateDir, fmt.Errorf("the sidecar on %s did not answer in time: see its log", c.socket), "")
	case ctx.Err() != nil:
		return fmt.Errorf("ask the sidecar on %s: %w", c.socket, ctx.Err())
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("no permission for %s: run as the user of the sidecar, or as root", c.socket)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTSOCK):
		if pid, dir := holderOf(c.stateDir); pid != 0 {
			return fmt.Errorf("%w on %s, but process %d holds --state-dir %s: it starts, or ends, or makes a socket anew that was removed: ask again in a few seconds, or give its --control-socket", ErrNoSidecar, c.socket, pid, dir)
		}
		return withGuard(c.stateDir, fmt.Errorf("%w on %s: is 'holdfast run' running here? give --control-socket or --state-dir", ErrNoSidecar, c.socket), ": start 'holdfast run' again")
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return withGuard(c.stateDir, fmt.Errorf("%w on %s any more: it ended while it was asked, see its log", ErrNoSidecar, c.socket), "")
	}
	return fmt.Errorf("ask the sidecar on %s: %w", c.socket, err)
}
