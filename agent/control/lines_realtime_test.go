package control

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/standstill"
)

// tap lets lines through when it is open.
type tap struct {
	open chan struct{}
	mu   sync.Mutex
	got  strings.Builder
}

func (p *tap) Write(b []byte) (int, error) {
	<-p.open
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.got.Write(b)
}

func TestNobodyWaitsForLinesThatAreNotTaken(t *testing.T) {
	p := &tap{open: make(chan struct{})}
	w := NewLines(p, func(n int64) { fmt.Fprintf(p, "dropped: %d lines", n) })
	began := standstill.Begin(t)
	const lines = 3 * linesWaiting
	for i := range lines {
		fmt.Fprintf(w, "line %d\n", i)
	}
	took := time.Since(began)
	close(p.open)
	w.Close()
	fmt.Fprintln(w, "too late")
	got := p.got.String()
	kept, lost := strings.Count(got, "line "), 0
	if _, err := fmt.Sscanf(got[strings.Index(got, "dropped: "):], "dropped: %d lines", &lost); err != nil {
		t.Fatalf("%v in %q", err, got)
	}
	if kept < linesWaiting || kept+lost != lines || !strings.HasPrefix(got, "line 0\nline 1\n") || strings.Contains(got, "too late") {
		t.Errorf("%d kept, %d dropped, of %d", kept, lost, lines)
	}
	standstill.Within(t, "all written", began, took, 5*time.Second)
}

func TestLinesThatNobodyTakesDoNotKeepTheEndUp(t *testing.T) {
	read, write := io.Pipe()
	defer read.Close()
	w := NewLines(write, func(int64) {})
	fmt.Fprintln(w, "nobody reads this")
	began := standstill.Begin(t)
	w.Close()
	standstill.Within(t, "closed", began, time.Since(began), 10*linesFlush)
}
