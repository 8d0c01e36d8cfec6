package main

import (
	"bytes"
	"fmt"
	"io"
	"sync/atomic"
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
	to    io.Writer
	lines chan []byte // nil: the last one
	lost  atomic.Int64
	ended chan struct{}
}

// newLogWriter starts what writes; close, once, ends it.
func newLogWriter(to io.Writer) *logWriter {
	w := &logWriter{to: to, lines: make(chan []byte, logQueue), ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		for line := <-w.lines; line != nil; line = <-w.lines {
			w.hand(line)
		}
	}()
	return w
}

// Write takes one line. It never fails.
func (w *logWriter) Write(line []byte) (int, error) {
	select {
	case w.lines <- bytes.Clone(line):
	default:
		w.lost.Add(1)
	}
	return len(line), nil
}

// hand writes a line, and how many were dropped once the queue has room again. There is nobody
// to tell of an error.
func (w *logWriter) hand(line []byte) {
	_, _ = w.to.Write(line)
	if len(w.lines) > logQueue/2 {
		return
	}
	if n := w.lost.Swap(0); n > 0 {
		fmt.Fprintf(w.to, "holdfast: %d lines of the log were dropped: nobody took them\n", n)
	}
}

// close writes what waits, as long as is worth it. What comes later is dropped.
func (w *logWriter) close() {
	end := time.After(logFlush)
	select {
	case w.lines <- nil:
	case <-end:
		return
	}
	select {
	case <-w.ended:
	case <-end:
	}
}
