package harness

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// proxyLink is a TCP proxy on the host. While it is cut it reads from nobody and
// accepts nobody; what was under way is held and delivered after the heal, as
// retransmission would. What it cannot show: a peer's kernel still acknowledges
// packets and completes handshakes, so timeouts below the application never fire.
type proxyLink struct {
	listener net.Listener
	upstream string

	mu    sync.Mutex
	whole chan struct{}         // closed while the link is whole
	conns map[net.Conn]struct{} // both sides
	over  bool
	wg    sync.WaitGroup
}

// NewProxyLink makes a proxy on the loopback of the host. It needs no rights.
func NewProxyLink(l *Lab, e *Etcd) (Link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start proxy: %w", err)
	}
	p := &proxyLink{
		listener: listener,
		upstream: fmt.Sprintf("127.0.0.1:%d", e.Port),
		whole:    make(chan struct{}),
		conns:    map[net.Conn]struct{}{},
	}
	close(p.whole)
	p.wg.Add(1)
	go p.serve()
	l.onClose(p.close)
	return p, nil
}

func (p *proxyLink) Place() Place     { return Place{} }
func (p *proxyLink) Endpoint() string { return "http://" + p.listener.Addr().String() }
func (p *proxyLink) Kind() string     { return "proxy" }

func (p *proxyLink) Cut() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isWhole() && !p.over {
		p.whole = make(chan struct{})
		// Wake the readers, so that they stand at the gate and not in a read.
		for c := range p.conns {
			c.SetReadDeadline(time.Now())
		}
	}
	return nil
}

func (p *proxyLink) Heal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isWhole() {
		for c := range p.conns {
			c.SetReadDeadline(time.Time{})
		}
		close(p.whole)
	}
	return nil
}

// isWhole needs the lock.
func (p *proxyLink) isWhole() bool {
	select {
	case <-p.whole:
		return true
	default:
		return false
	}
}

// gate waits until the link is whole.
func (p *proxyLink) gate() {
	p.mu.Lock()
	whole := p.whole
	p.mu.Unlock()
	<-whole
}

func (p *proxyLink) serve() {
	defer p.wg.Done()
	for {
		p.gate()
		down, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p.wg.Add(1)
		go p.carry(down)
	}
}

// carry serves one connection to its end.
func (p *proxyLink) carry(down net.Conn) {
	defer p.wg.Done()
	defer down.Close()
	p.gate() // it may have been accepted at the moment of the cut
	up, err := net.Dial("tcp", p.upstream)
	if err != nil {
		return
	}
	defer up.Close()
	if !p.track(down, up) {
		return
	}
	defer p.untrack(down, up)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.copy(up, down)
	}()
	p.copy(down, up)
	<-done
}

func (p *proxyLink) track(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	for _, c := range conns {
		p.conns[c] = struct{}{}
		if !p.isWhole() {
			c.SetReadDeadline(time.Now())
		}
	}
	return true
}

func (p *proxyLink) untrack(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
	}
}

// copy moves bytes from src to dst until one of them ends, and then ends both.
func (p *proxyLink) copy(dst, src net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		p.gate() // what was read before or during a cut is held until the heal
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				src.Close()
				return
			}
		}
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			continue // a cut woke us
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				src.Close()
			}
			dst.Close()
			return
		}
	}
}

func (p *proxyLink) close() error {
	err := p.listener.Close()
	p.mu.Lock()
	p.over = true
	for c := range p.conns {
		c.Close()
	}
	if !p.isWhole() {
		close(p.whole)
	}
	p.mu.Unlock()
	p.wg.Wait()
	if err != nil {
		return fmt.Errorf("stop proxy: %w", err)
	}
	return nil
}
