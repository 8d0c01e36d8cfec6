package harness

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// NewSlowEndpoint is a URL of an etcd server on which everything takes this much longer
// each way. It ends with the lab.
func NewSlowEndpoint(l *Lab, e *Etcd, oneWay time.Duration) (url string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("start slow proxy: %w", err)
	}
	s := &slowProxy{listener: listener, upstream: fmt.Sprintf("127.0.0.1:%d", e.Port), oneWay: oneWay,
		over: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	s.all.Go(s.serve)
	l.onClose(s.close)
	return "http://" + listener.Addr().String(), nil
}

// slowProxy forwards TCP late, in order, with any number of bytes under way.
type slowProxy struct {
	listener net.Listener
	upstream string
	oneWay   time.Duration
	over     chan struct{}
	all      sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil after close
}

func (s *slowProxy) serve() {
	for {
		down, err := s.listener.Accept()
		if err != nil {
			return // closed
		}
		up, err := net.Dial("tcp", s.upstream)
		if err != nil {
			down.Close()
			continue
		}
		s.mu.Lock()
		if s.conns == nil {
			down.Close()
			up.Close()
		} else {
			s.conns[down], s.conns[up] = struct{}{}, struct{}{}
			s.all.Go(func() { s.carry(up, down) })
			s.all.Go(func() { s.carry(down, up) })
		}
		s.mu.Unlock()
	}
}

// late is what was read and when it is due.
type late struct {
	bytes []byte
	due   time.Time
}

// carry moves one direction to its end, and then ends the other one too.
func (s *slowProxy) carry(dst, src net.Conn) {
	queue := make(chan late, 1024)
	s.all.Go(func() {
		defer s.forget(dst, src)
		for c := range queue {
			select {
			case <-time.After(time.Until(c.due)):
			case <-s.over:
				return
			}
			if _, err := dst.Write(c.bytes); err != nil {
				return
			}
		}
	})
	defer close(queue)
	for {
		buf := make([]byte, 32<<10)
		n, err := src.Read(buf)
		if n > 0 {
			select {
			case queue <- late{buf[:n], time.Now().Add(s.oneWay)}:
			case <-s.over:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (s *slowProxy) forget(conns ...net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range conns {
		c.Close()
		delete(s.conns, c)
	}
}

func (s *slowProxy) close() error {
	err := s.listener.Close()
	close(s.over)
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.all.Wait()
	if err != nil {
		return fmt.Errorf("stop slow proxy: %w", err)
	}
	return nil
}
