// Package linear judges what clients saw of a topic: whether all of it can have been one log, to which
// one message after the other is appended, whichever broker had it when.
package linear

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// History is what clients have asked and heard. Everybody who appends has to be in it. Its methods are
// safe for concurrent use; a nil one takes nothing down.
type History struct {
	mu    sync.Mutex
	began time.Time
	ops   []*porcupine.Operation
}

// question is one of a client: append id, read the message at seq, or, with neither, how long it is.
type question struct {
	id  string
	seq uint64
}

// answer is what was heard: where the message is, which one is there, or how many there are.
type answer struct {
	id  string
	seq uint64
}

// Append begins to append a message. heard takes the sequence at which it is; without it the message
// may be there or not.
func (h *History) Append(id string) (heard func(seq uint64)) {
	took := h.ask(question{id: id}, true)
	return func(seq uint64) { took(answer{seq: seq}) }
}

// Read begins to read the message at a sequence. What was not heard counts for nothing.
func (h *History) Read(seq uint64) (heard func(id string)) {
	took := h.ask(question{seq: seq}, false)
	return func(id string) { took(answer{id: id}) }
}

// Len begins to ask for the last sequence.
func (h *History) Len() (heard func(last uint64)) {
	took := h.ask(question{}, false)
	return func(last uint64) { took(answer{seq: last}) }
}

// ask takes a question down; acts: it may have done something also where nothing is heard.
func (h *History) ask(q question, acts bool) (heard func(answer)) {
	if h == nil {
		return func(answer) {}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.began.IsZero() {
		h.began = time.Now()
	}
	op := &porcupine.Operation{Input: q, Call: time.Since(h.began).Nanoseconds(), Return: math.MaxInt64}
	if acts {
		h.ops = append(h.ops, op)
	}
	return func(a answer) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if op.Output, op.Return = a, time.Since(h.began).Nanoseconds(); !acts {
			h.ops = append(h.ops, op)
		}
	}
}

// entry is a log by its last message; nil: it is empty.
type entry struct {
	before *entry
	id     string
	seq    uint64
}

func (e *entry) last() uint64 {
	if e == nil {
		return 0
	}
	return e.seq
}

// step reports whether a log gives that answer, and what it is then.
func step(state, input, output any) (bool, any) {
	log, q := state.(*entry), input.(question)
	a, heard := output.(answer)
	switch {
	case q.id != "":
		return !heard || a.seq == log.last()+1, &entry{log, q.id, log.last() + 1}
	case q.seq == 0:
		return a.seq == log.last(), log
	}
	at := log
	for at.last() > q.seq {
		at = at.before
	}
	return at.last() == q.seq && at.id == a.id, log
}

func equal(a, b any) bool {
	x, y := a.(*entry), b.(*entry)
	for x != y {
		if x == nil || y == nil || x.id != y.id || x.seq != y.seq {
			return false
		}
		x, y = x.before, y.before
	}
	return true
}

// Judge looks for an order in which one log gives all these answers, each while it was asked.
func (h *History) Judge(most time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	ops := make([]porcupine.Operation, len(h.ops))
	for i, op := range h.ops {
		ops[i] = *op
	}
	log := porcupine.Model{Init: func() any { return (*entry)(nil) }, Step: step, Equal: equal}
	if r := porcupine.CheckOperationsTimeout(log, ops, most); r != porcupine.Ok {
		return fmt.Errorf("what clients saw in %d answers is not one log: %s", len(h.ops), r)
	}
	return nil
}
