package nats

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// fakeServer speaks just enough of the NATS protocol to answer requests as a
// test wants it. Real servers are in the lab's conformance tests.
type fakeServer struct {
	url   string
	reply func(subject string, body []byte) (answer string, ok bool) // !ok: never answered

	refuses atomic.Value // string: what a new connection is refused with; none or empty: it is not

	mu    sync.Mutex
	conns map[net.Conn]bool
	wg    sync.WaitGroup
	l     net.Listener
}

const fakeID = "NFAKE"

// newFakeServer serves until the test ends. info is more JSON for its greeting.
func newFakeServer(t testing.TB, info string, reply func(subject string, body []byte) (string, bool)) *fakeServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeServer{url: "nats://" + l.Addr().String(), reply: reply, conns: map[net.Conn]bool{}, l: l}
	greeting := fmt.Sprintf("INFO {\"server_id\":%q,\"server_name\":\"n1\",\"version\":\"2.10.0\",\"proto\":1,\"headers\":true,\"max_payload\":1048576%s}\r\n", fakeID, info)
	s.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[conn] = true
			s.mu.Unlock()
			s.wg.Go(func() { s.serve(conn, greeting) })
		}
	})
	t.Cleanup(s.stop)
	return s
}

func (s *fakeServer) stop() {
	s.l.Close()
	s.drop()
	s.wg.Wait()
}

// drop breaks all connections.
func (s *fakeServer) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		conn.Close()
	}
}

func (s *fakeServer) serve(conn net.Conn, greeting string) {
	defer conn.Close()
	if _, err := io.WriteString(conn, greeting); err != nil {
		return
	}
	in := bufio.NewReader(conn)
	if refusal, _ := s.refuses.Load().(string); refusal != "" {
		for strings.Contains(refusal, "Authorization") { // it is the answer to a login
			if line, err := in.ReadString('\n'); err != nil || strings.HasPrefix(line, "PING") {
				break
			}
		}
		_, _ = io.WriteString(conn, refusal)
		return
	}
	sid := ""
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
		case f[0] == "PING":
			_, err = io.WriteString(conn, "PONG\r\n")
		case f[0] == "SUB" && strings.HasSuffix(f[1], ".*"): // for the answers to all requests
			sid = f[len(f)-1]
		case f[0] == "PUB" && len(f) == 4, f[0] == "HPUB" && len(f) == 5: // headers are part of the body
			size, _ := strconv.Atoi(f[len(f)-1])
			body := make([]byte, size+2)
			if _, err := io.ReadFull(in, body); err != nil {
				return
			}
			if text, ok := s.reply(f[1], body[:size]); ok {
				_, err = fmt.Fprintf(conn, "MSG %s %s %d\r\n%s\r\n", f[2], sid, len(text), text)
			}
		}
		if err != nil {
			return
		}
	}
}
