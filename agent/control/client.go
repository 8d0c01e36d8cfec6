package control

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

// Events calls each with every event with a larger id, oldest first, and its JSON line without
// the newline. It returns nil at the end of the journal or, when it follows, when ctx
// ends; and the first error of each.
func (c *Client) Events(ctx context.Context, since int64, follow bool, each func(Event, []byte) error) error {
	path := fmt.Sprintf("/v1/events?since=%d", since)
	if follow {
		path += "&follow=1"
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
			if follow && ctx.Err() == nil {
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

// stoppedAfter is how long a sidecar is waited for that may be stopped by a signal: it does not
// answer before somebody continues it.
const stoppedAfter = time.Second

// Get asks for what the path names. raw is the same as JSON, unchanged.
func (c *Client) Get(ctx context.Context, path string, into any) (raw []byte, err error) {
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

// Post has the sidecar do what the path names.
func (c *Client) Post(ctx context.Context, path string, body, into any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	resp, err := c.do(ctx, http.MethodPost, path, b)
	if err != nil {
		return err
	}
	_, err = c.decode(resp, into)
	return err
}

func (c *Client) decode(resp *http.Response, into any) ([]byte, error) {
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read answer of the sidecar on %s: %w", c.socket, err)
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
	return nil, &ExitError{Code: e.ExitCode, Err: errors.New(strings.TrimSpace(e.Error))}
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
