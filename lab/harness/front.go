package harness

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"holdfast/internal/testseed"
)

// Front is a TCP port in front of a server's, through which the server looks ill
// while it is well. It listens on the loopback of the host and ends with the lab.
type Front struct {
	listener net.Listener
	seed     uint64

	mu     sync.Mutex
	target string
	down   bool
	slow   time.Duration // of requests
	delay  time.Duration // of answers
	spoil  bool
	conns  map[net.Conn]struct{} // both sides; nil after close
	all    sync.WaitGroup
}

// NewFront puts a port in front of the one at target, which is host:port.
func NewFront(l *Lab, target string) (*Front, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start front: %w", err)
	}
	f := &Front{listener: listener, seed: testseed.Value(), target: target, conns: map[net.Conn]struct{}{}}
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
func (f *Front) Delay(d time.Duration) { f.later(0, d) }

// later delays requests and answers from now on.
func (f *Front) later(requests, answers time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slow, f.delay = requests, answers
}

// Spoil makes garbage of the answers, also on connections that are open: about a
// quarter of the bytes are others. Connections are closed when it is undone, as a
// stream that was garbled has no end.
func (f *Front) Spoil(on bool) {
	f.mu.Lock()
	f.spoil = on
	f.mu.Unlock()
	if !on {
		f.change(func() {})
	}
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
	for n := uint64(0); ; n++ {
		down, err := f.listener.Accept()
		if err != nil {
			return // closed
		}
		f.all.Go(func() { f.carry(down, rand.New(rand.NewPCG(f.seed, n))) })
	}
}

// carry serves one connection to its end.
func (f *Front) carry(down net.Conn, garbage *rand.Rand) {
	defer down.Close()
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
		carryLate(up, down, func([]byte) time.Duration { f.mu.Lock(); defer f.mu.Unlock(); return f.slow })
		up.Close()
	})
	carryLate(down, up, func(answer []byte) time.Duration { return f.answer(answer, garbage) })
	down.Close()
	requests.Wait()
}

// answer spoils what the server says if it is to be spoilt, and says how much later it
// comes.
func (f *Front) answer(b []byte, garbage *rand.Rand) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range b {
		if f.spoil && garbage.IntN(4) == 0 {
			b[i] = byte(garbage.Uint32())
		}
	}
	return f.delay
}

// late is what was read and when it is due.
type late struct {
	bytes []byte
	due   time.Time
}

// carryLate moves what src says to dst, in order, with any number of bytes under way,
// until one of them ends. by is told what was read, may change it, and returns how much
// later it is due.
func carryLate(dst, src net.Conn, by func([]byte) time.Duration) {
	said := make(chan late, 1024)
	var telling sync.WaitGroup
	telling.Go(func() {
		for s := range said {
			time.Sleep(time.Until(s.due))
			if _, err := dst.Write(s.bytes); err != nil {
				src.Close() // so that nothing more is said
			}
		}
	})
	defer telling.Wait()
	defer close(said)
	for {
		b := make([]byte, 32<<10)
		n, err := src.Read(b)
		if n > 0 {
			said <- late{b[:n], time.Now().Add(by(b[:n]))}
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
	f.all.Wait()
	if err != nil {
		return fmt.Errorf("stop front: %w", err)
	}
	return nil
}
