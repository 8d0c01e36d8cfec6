package clustertest

import (
	"net"
	"sync"
	"testing"
)

// proxy forwards TCP to one server. Stalled, it goes on accepting and reading and
// forwards nothing, holding what it has, until it is healed.
type proxy struct {
	listener net.Listener
	target   string
	pumps    sync.WaitGroup

	mu    sync.Mutex
	moved *sync.Cond // the fields below changed
	stall bool
	done  bool
	conns map[net.Conn]net.Conn // client side to server side
	total int
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target, conns: map[net.Conn]net.Conn{}}
	p.moved = sync.NewCond(&p.mu)
	p.pumps.Go(p.accept)
	t.Cleanup(func() {
		p.set(func() { p.done = true })
		l.Close()
		p.cut()
		p.pumps.Wait()
	})
	return p
}

func (p *proxy) url() string { return "http://" + p.listener.Addr().String() }

func (p *proxy) set(change func()) {
	p.mu.Lock()
	change()
	p.moved.Broadcast()
	p.mu.Unlock()
}

func (p *proxy) hold() { p.set(func() { p.stall = true }) }
func (p *proxy) heal() { p.set(func() { p.stall = false }) }

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for client, server := range p.conns {
		client.Close()
		server.Close()
	}
}

// live waits until exactly n connections are open.
func (p *proxy) live(t *testing.T, n int) {
	t.Helper()
	ctx := bounded(t)
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.conns) != n {
		if ctx.Err() != nil {
			t.Fatalf("%d connections are open, want %d", len(p.conns), n)
		}
		p.moved.Wait()
	}
}

// accepted is the number of connections there have been.
func (p *proxy) accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.set(func() {
			if p.done {
				client.Close()
				server.Close()
			}
			p.conns[client] = server
			p.total++
		})
		p.pumps.Go(func() {
			var both sync.WaitGroup
			both.Go(func() { p.pump(server, client) })
			both.Go(func() { p.pump(client, server) })
			both.Wait()
			p.set(func() { delete(p.conns, client) })
		})
	}
}

// pump forwards one direction and closes both sides when it ends.
func (p *proxy) pump(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 8<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		for p.stall && !p.done {
			p.moved.Wait()
		}
		p.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
