package pulsar

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"holdfast/brokerapi/rest"
)

const (
	// askEvery keeps the held connection in use: the broker closes idle ones after 30 s.
	askEvery = 5 * time.Second
	// redialFirst and redialMost are the pauses between attempts to connect.
	redialFirst, redialMost = 50 * time.Millisecond, time.Second
	// maxAnswer is how much of an answer on the held connection is read, in bytes.
	maxAnswer = 64 << 10
)

// held is one connection that is kept for no other purpose than to tell one process from the next.
// Each is numbered. It asks whether the broker is ready now and then, since the status page of
// a drained one leaves a warning in its log each time; whatever is answered does.
type held struct {
	rest *rest.Client
	life context.Context
	end  context.CancelFunc
	back chan struct{} // the broker answers again: connect at once

	mu      sync.Mutex
	number  int // of the present or last connection
	up      bool
	changed chan struct{} // closed when number or up change
}

func (h *held) init(client *rest.Client) {
	h.rest, h.changed = client, make(chan struct{})
	h.life, h.end = context.WithCancel(context.Background())
	h.back = make(chan struct{})
}

func (h *held) close() { h.end() }

// run connects again and again, for ever.
func (h *held) run() {
	pause := redialFirst
	for h.life.Err() == nil {
		since := time.Now()
		conn, host, err := h.rest.Dial(h.life)
		if err == nil {
			h.set(true)
			h.hold(conn, host)
			h.set(false)
		}
		if time.Since(since) > askEvery {
			pause = redialFirst
		}
		select {
		case <-time.After(pause):
		case <-h.back:
		case <-h.life.Done():
		}
		pause = min(2*pause, redialMost)
	}
}

// answers says that the broker does. One that boots for seconds is not dialled every moment,
// and its end is to be known from its first answer on.
func (h *held) answers() {
	select {
	case h.back <- struct{}{}:
	default:
	}
}

func (h *held) set(up bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.up = up
	if up {
		h.number++
	}
	close(h.changed)
	h.changed = make(chan struct{})
}

// hold returns when the connection is broken, or the driver closed.
func (h *held) hold(conn net.Conn, host string) {
	defer conn.Close()
	defer context.AfterFunc(h.life, func() { conn.Close() })()
	bounded := &io.LimitedReader{R: conn}
	answers := bufio.NewReader(bounded)
	for {
		bounded.N = maxAnswer // head and all: http.ReadResponse has no bound of its own
		request := "GET /admin/v2/brokers/ready HTTP/1.1\r\nHost: " + host + "\r\nUser-Agent: holdfast\r\n"
		if auth := h.rest.Authorization(); auth != "" {
			request += "Authorization: " + auth + "\r\n"
		}
		if _, err := io.WriteString(conn, request+"\r\n"); err != nil {
			return
		}
		// A broker that hangs answers nothing, and holds the connection: so do we.
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.Body.Close() != nil {
			return
		}
		if conn.SetReadDeadline(time.Now().Add(askEvery)) != nil {
			return
		}
		_, err = answers.Peek(1)
		var late net.Error
		if !errors.As(err, &late) || !late.Timeout() { // it ended, or said what nobody asked for
			return
		}
		if conn.SetReadDeadline(time.Time{}) != nil {
			return
		}
	}
}

// present is the number of the connection that is held; 0: none is.
func (h *held) present() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.up {
		return 0
	}
	return h.number
}

// connected waits until a connection is held, and returns its number.
func (h *held) connected(ctx context.Context) (int, error) {
	for {
		h.mu.Lock()
		number, up, changed := h.number, h.up, h.changed
		h.mu.Unlock()
		if up {
			return number, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, fmt.Errorf("hold a connection to %s: %w", h.rest.URL(), ctx.Err())
		case <-h.life.Done():
			return 0, rest.ErrClosed
		}
	}
}
