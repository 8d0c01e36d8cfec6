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

// held is one connection that is kept for no other purpose than to break with the broker.
// Each is numbered. It asks for the status page now and then; whatever is answered does.
type held struct {
	rest *rest.Client
	lost chan struct{}
	life context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	number  int // of the present or last connection
	up      bool
	changed chan struct{} // closed when number or up change
}

func (h *held) init(client *rest.Client) {
	h.rest, h.lost, h.changed = client, make(chan struct{}, 1), make(chan struct{})
	h.life, h.end = context.WithCancel(context.Background())
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
			select {
			case h.lost <- struct{}{}:
			default:
			}
		}
		if time.Since(since) > askEvery {
			pause = redialFirst
		}
		select {
		case <-time.After(pause):
		case <-h.life.Done():
		}
		pause = min(2*pause, redialMost)
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
		if _, err := fmt.Fprintf(conn, "GET /status.html HTTP/1.1\r\nHost: %s\r\nUser-Agent: holdfast\r\n\r\n", host); err != nil {
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
