package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Lab owns a directory and everything that was started in it.
// Close it; it is safe for concurrent use.
type Lab struct {
	// Dir holds data, logs and sockets. Its path is short: a unix socket's path
	// may have 107 bytes.
	Dir string

	mu        sync.Mutex
	closed    bool
	teardown  []func() error // last in, first out
	processes []*Process
}

// New makes a lab in a new temporary directory.
func New() (*Lab, error) {
	dir, err := os.MkdirTemp("", "hf-")
	if err != nil {
		return nil, fmt.Errorf("make lab directory: %w", err)
	}
	if len(dir) > 60 {
		// Sockets would not fit: fall back to the one place known to be short.
		os.Remove(dir)
		if dir, err = os.MkdirTemp("/tmp", "hf-"); err != nil {
			return nil, fmt.Errorf("make lab directory: %w", err)
		}
	}
	l := &Lab{Dir: dir}
	l.onClose(func() error { return os.RemoveAll(dir) })
	return l, nil
}

// TB is what the lab needs from a *testing.T or *testing.B.
type TB interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Context() context.Context
}

// ForTest makes a lab that is closed with the test, and that prints the last lines
// of every log if the test failed.
func ForTest(t TB) *Lab {
	t.Helper()
	l, err := New()
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", l.Logs(30))
		}
		if err := l.Close(); err != nil {
			t.Errorf("close lab: %v", err)
		}
	})
	return l
}

// Close ends everything in reverse order of its start and removes the directory.
func (l *Lab) Close() error {
	l.mu.Lock()
	teardown := l.teardown
	l.teardown, l.closed = nil, true
	l.mu.Unlock()
	var errs []error
	for i := len(teardown) - 1; i >= 0; i-- {
		errs = append(errs, teardown[i]())
	}
	return errors.Join(errs...)
}

// onClose registers a teardown. After Close it runs at once.
func (l *Lab) onClose(f func() error) {
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.teardown = append(l.teardown, f)
	}
	l.mu.Unlock()
	if closed {
		f()
	}
}

func (l *Lab) own(p *Process) {
	l.mu.Lock()
	l.processes = append(l.processes, p)
	l.mu.Unlock()
	l.onClose(p.close)
}

// Port reserves a port for the life of the lab. Nobody listens on it yet.
func (l *Lab) Port() (int, error) {
	port, release, err := ReservePort()
	if err != nil {
		return 0, err
	}
	l.onClose(release)
	return port, nil
}

func (l *Lab) ports(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		port, err := l.Port()
		if err != nil {
			return nil, err
		}
		ports[i] = port
	}
	return ports, nil
}

// Logs is the last lines of every process of the lab.
func (l *Lab) Logs(lines int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var s string
	for _, p := range l.processes {
		s += fmt.Sprintf("---- %s (%s), running: %v\n%s\n", p.Name, filepath.Base(p.log), p.Running(), p.LogTail(lines))
	}
	return s
}
