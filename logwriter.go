package main

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// logQueue is how many lines may wait for whoever takes them.
	logQueue = 1024
	// logFlush bounds the wait for the last lines.
	logFlush = time.Second
)

// logWriter hands lines on without ever waiting: a pipe that nobody reads any more, or a
// terminal that somebody stopped, must not stop the sidecar. What finds the queue full is
// dropped, and counted when lines are taken again.
type logWriter struct {
	to     io.Writer
	lines  chan []byte
	ended  chan struct{}
	mu     sync.Mutex
	lost   int
	closed bool
}

// newLogWriter starts what writes; close ends it.
func newLogWriter(to io.Writer) *logWriter {
	w := &logWriter{to: to, lines: make(chan []byte, logQueue), ended: make(chan struct{})}
	go w.run()
	return w
}

// Write takes one line. It never fails.
func (w *logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		select {
		case w.lines <- bytes.Clone(line):
		default:
			w.lost++
		}
	}
	return len(line), nil
}

func (w *logWriter) run() {
	defer close(w.ended)
	for line := range w.lines {
		_, _ = w.to.Write(line) // there is nobody to tell
		if n := w.takeLost(); n > 0 {
			fmt.Fprintf(w.to, "holdfast: %d lines of the log were dropped: nobody took them\n", n)
		}
	}
}

// takeLost is how many lines were dropped, once the queue has room again.
func (w *logWriter) takeLost() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines) > logQueue/2 {
		return 0
	}
	n := w.lost
	w.lost = 0
	return n
}

// close writes what waits, as long as is worth it. What comes later is dropped.
func (w *logWriter) close() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.lines)
	}
	w.mu.Unlock()
	select {
	case <-w.ended:
	case <-time.After(logFlush):
	}
}
