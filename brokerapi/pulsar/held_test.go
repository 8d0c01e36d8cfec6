package pulsar

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestAnAnswerWithoutEndIsNotReadForEver(t *testing.T) {
	const enough = 64 << 20 // bytes, far more than sockets keep
	for name, begin := range map[string]string{
		"one header":   "HTTP/1.1 200 OK\r\nX: ",
		"many headers": "HTTP/1.1 200 OK\r\n",
		"a body":       "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n",
		"no HTTP":      "x",
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			sent := make(chan int, 100)
			var wg sync.WaitGroup
			t.Cleanup(wg.Wait)
			t.Cleanup(func() { l.Close() })
			wg.Go(func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					wg.Go(func() {
						defer conn.Close()
						n, _ := conn.Write([]byte(begin))
						more := []byte(strings.Repeat("X-Y: 0123456789abcdef\r\n", 1000))
						if name == "one header" {
							more = []byte(strings.Repeat("x", 20000))
						}
						for n < enough {
							m, err := conn.Write(more)
							if n += m; err != nil {
								break
							}
						}
						select {
						case sent <- n:
						default:
						}
					})
				}
			})
			b, err := New(Config{AdminURL: "http://" + l.Addr().String(), Cluster: "cl"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { b.Close() })
			b.watch()
			select {
			case n := <-sent:
				if n >= enough {
					t.Errorf("took %d bytes", n)
				}
			case <-time.After(time.Minute):
				t.Error("the connection is held")
			}
		})
	}
}
