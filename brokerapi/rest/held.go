package rest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// maxLine bounds one line of a held answer, in bytes.
const maxLine = 4 << 10

// Held is an answer that goes on: its lines come one by one, and its end is news.
type Held struct {
	resp   *http.Response
	lines  *bufio.Reader
	client *Client
	what   string
	ctx    context.Context
	end    func()
}

// Hold makes a call whose answer goes on until the broker or ctx ends it; the head of the
// answer has the usual time. What is not 200 is an *AnswerError. The caller closes it.
func (c *Client) Hold(ctx context.Context, r Request) (*Held, error) {
	if !c.enter() {
		return nil, ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })
	h := &Held{client: c, what: r.method() + " " + r.Path, ctx: ctx, end: sync.OnceFunc(func() {
		stop()
		cancel(context.Canceled)
		c.inside.Done()
	})}
	if err := h.open(r, cancel); err != nil {
		h.end()
		return nil, err
	}
	return h, nil
}

// open waits for the head, and for the rest of an answer that is not wanted.
func (h *Held) open(r Request, cancel context.CancelCauseFunc) error {
	c := h.client
	bound, done := c.within(h.ctx)
	defer done()
	late := context.AfterFunc(bound, func() { cancel(context.Cause(bound)) })
	defer late()
	resp, err := c.send(h.ctx, r)
	if err != nil {
		return c.gaveUp(h.ctx, h.what, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		body, err := readAll(resp, c.maxAnswer)
		if err != nil {
			return c.gaveUp(h.ctx, h.what, err)
		}
		a := &Answer{Status: resp.StatusCode, Header: resp.Header, Body: body, client: c, asked: c.base + r.Path, what: h.what}
		return a.Want(http.StatusOK)
	}
	if !late() { // the bound came first, and takes the answer with it
		resp.Body.Close()
		return c.failed(h.what, context.Cause(bound))
	}
	h.resp, h.lines = resp, bufio.NewReaderSize(resp.Body, maxLine)
	return nil
}

// ErrEnded is wrapped by Line when the broker ended the answer in good order.
var ErrEnded = errors.New("the answer ended")

// Line waits for the next line, which is given without its end and is good until the next
// call. After an error there are no more; half a line is none.
func (h *Held) Line() ([]byte, error) {
	line, err := h.lines.ReadSlice('\n')
	if err == nil {
		return bytes.TrimRight(line, "\r\n"), nil
	}
	switch {
	case errors.Is(err, io.EOF):
		err = ErrEnded
	case errors.Is(err, bufio.ErrBufferFull):
		err = fmt.Errorf("a line is longer than %d bytes", maxLine)
	}
	if cause := context.Cause(h.ctx); cause != nil {
		err = cause
	}
	return nil, h.client.failed(h.what, err)
}

// Errorf says what is wrong with a line.
func (h *Held) Errorf(format string, args ...any) error {
	return h.client.failed(h.what, fmt.Errorf(format, args...))
}

// Close gives the connection up. It may be called while Line waits, and again.
func (h *Held) Close() {
	h.resp.Body.Close()
	h.end()
}
