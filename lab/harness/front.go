package harness

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// Front is a TCP port in front of a server's, through which the server looks ill
// while it is well. It listens on the loopback of the host and ends with the lab.
type Front struct {
	listener net.Listener

	mu     sync.Mutex
	target string
	down   bool
	delay  time.Duration         // of answers
	whole  chan struct{}         // closed while what comes is passed on
	conns  map[net.Conn]struct{} // both sides; nil after close
	all    sync.WaitGroup
}

// NewFront puts a port in front of the one at target, which is host:port.
func NewFront(l *Lab, target string) (*Front, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start front: %w", err)
	}
	f := &Front{listener: listener, target: target, conns: map[net.Conn]struct{}{}, whole: make(chan struct{})}
	close(f.whole)
	f.all.Go(f.serve)
	l.onClose(f.close)
	return f, nil
}

// Addr is the front's host:port.
func (f *Front) Addr() string { return f.listener.Addr().String() }

// Lead leads to another server from now on. Connections to the old one are closed.
func (f *Front) Lead(target string) { f.change(func() { f.target = target }) }

// LeadNew leads to another server from now on, and leaves the connections to the old one.
func (f *Front) LeadNew(target string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.target = target
}

// SetDown closes every connection, and each new one at once, until it is undone.
func (f *Front) SetDown(down bool) { f.change(func() { f.down = down }) }

// Delay makes each answer this much later, also on connections that are open. A request
// is not delayed.
func (f *Front) Delay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// hold keeps back all that is said, in both directions, until it is undone: then it is passed
// on, as retransmission would.
func (f *Front) hold(held bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch is := !isClosed(f.whole); {
	case held && !is && f.conns != nil:
		f.whole = make(chan struct{})
	case !held && is:
		close(f.whole)
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// gate waits while all is held.
func (f *Front) gate() {
	f.mu.Lock()
	whole := f.whole
	f.mu.Unlock()
	<-whole
}

func (f *Front) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	for c := range f.conns {
		c.Close()
	}
}

func (f *Front) serve() {
	for {
		down, err := f.listener.Accept()
		if err != nil {
			return // closed
		}
		f.all.Go(func() { f.carry(down) })
	}
}

// carry serves one connection to its end.
func (f *Front) carry(down net.Conn) {
	defer down.Close()
	f.gate()
	f.mu.Lock()
	target, refuse := f.target, f.down
	f.mu.Unlock()
	if refuse {
		return
	}
	up, err := net.DialTimeout("tcp", target, time.Second)
	if err != nil {
		return
	}
	defer up.Close()
	f.mu.Lock()
	if f.conns == nil || f.down || f.target != target {
		f.mu.Unlock()
		return
	}
	f.conns[down], f.conns[up] = struct{}{}, struct{}{}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.conns, down)
		delete(f.conns, up)
	}()
	var requests sync.WaitGroup
	requests.Go(func() {
		f.pass(up, down, func() time.Duration { return 0 })
		up.Close()
	})
	f.pass(down, up, func() time.Duration { f.mu.Lock(); defer f.mu.Unlock(); return f.delay })
	down.Close()
	requests.Wait()
}

// late is what was read and when it is due.
type late struct {
	bytes []byte
	due   time.Time
}

// pass moves what src says to dst, in order, with any number of bytes under way,
// until one of them ends. by is how much later it is due.
func (f *Front) pass(dst, src net.Conn, by func() time.Duration) {
	said := make(chan late, 1024)
	var telling sync.WaitGroup
	telling.Go(func() {
		for s := range said {
			time.Sleep(time.Until(s.due))
			f.gate()
			if _, err := dst.Write(s.bytes); err != nil {
				src.Close() // so that nothing more is said
			}
		}
		f.gate() // an end is not heard of, either
	})
	defer telling.Wait()
	defer close(said)
	for {
		b := make([]byte, 32<<10)
		n, err := src.Read(b)
		if n > 0 {
			said <- late{b[:n], time.Now().Add(by())}
		}
		if err != nil {
			return
		}
	}
}

func (f *Front) close() error {
	err := f.listener.Close()
	f.mu.Lock()
	for c := range f.conns {
		c.Close()
	}
	f.conns = nil
	f.mu.Unlock()
	f.hold(false)
	f.all.Wait()
	if err != nil {
		return fmt.Errorf("stop front: %w", err)
	}
	return nil
}
