package control

import (
	"bytes"
	"io"
	"sync/atomic"
	"time"
)

const (
	// linesWaiting is how many lines may wait for whoever takes them.
	linesWaiting = 1024
	// linesFlush bounds the wait for the last lines.
	linesFlush = 2 * time.Second
)

// Lines hands lines on without ever waiting: a pipe that nobody reads any more, a terminal that
// somebody stopped, or a disk that hangs must not stop the sidecar. What finds so many waiting is
// dropped, and counted when lines are taken again.
type Lines struct {
	to      io.Writer
	dropped func(n int64)
	lines   chan []byte // nil: the last one
	lost    atomic.Int64
	ended   chan struct{}
}

// NewLines starts what writes. dropped is told, from there, how many lines were, once there is room.
func NewLines(to io.Writer, dropped func(n int64)) *Lines {
	l := &Lines{to: to, dropped: dropped, lines: make(chan []byte, linesWaiting), ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		for line := <-l.lines; line != nil; line = <-l.lines {
			l.hand(line)
		}
	}()
	return l
}

// Write takes one line. It never fails.
func (l *Lines) Write(line []byte) (int, error) {
	select {
	case l.lines <- bytes.Clone(line):
	default:
		l.lost.Add(1)
	}
	return len(line), nil
}

// hand writes a line. There is nobody to tell of an error.
func (l *Lines) hand(line []byte) {
	_, _ = l.to.Write(line)
	if len(l.lines) > linesWaiting/2 {
		return
	}
	if n := l.lost.Swap(0); n > 0 {
		l.dropped(n)
	}
}

// Close writes what waits, as long as is worth it. What comes later is dropped.
func (l *Lines) Close() {
	end := time.After(linesFlush)
	select {
	case l.lines <- nil:
	case <-end:
		return
	}
	select {
	case <-l.ended:
	case <-end:
	}
}
