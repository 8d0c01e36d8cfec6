package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
	"holdfast/recovery/moves"
)

const (
	window   = 1 << 20                // bytes that a broker is let copy or read before it is asked again
	askAgain = 200 * time.Millisecond // until a broker is asked again that has not done what it was let
	maxSaid  = 256 << 10              // bytes of an answer: the journal holds what it says four times
	maxText  = 1024                   // bytes of one text in it
	missing  = math.MaxUint64         // stands for what an answer leaves out: no offset is that large
)

var _ brokerapi.Mover = (*Broker)(nil)

// moveRequest is what the calls of a move send.
type moveRequest struct {
	Topic  string          `json:"topic"`
	Move   string          `json:"move,omitempty"`   // seal, copy, resume, remove
	Like   *moves.Extent   `json:"like,omitempty"`   // accept
	Force  bool            `json:"force,omitempty"`  // seal
	From   *brokerapi.Peer `json:"from,omitempty"`   // accept, copy, compare
	Sealed *moves.Extent   `json:"sealed,omitempty"` // copy, resume, compare
	Record json.RawMessage `json:"record,omitempty"` // accept, resume
	UpTo   *uint64         `json:"up_to,omitempty"`  // copy, compare
}

// said is what the calls of a move answer: where the topic stands, what a comparison has found, that
// the topic is not here, or, of a call that goes on, the bytes so far.
type said struct {
	moves.Extent
	moves.Content
	Active uint32 `json:"active"`
	Served bool   `json:"served"`
	State  State  `json:"state"`
}

// flaw says what in the answer cannot be; empty: nothing.
func (s *said) flaw(verb string, a *rest.Answer) string {
	away, compared, goesOn := verb == "accept" || verb == "remove", verb == "compare", a.Status == http.StatusAccepted
	switch {
	case len(a.Body) > maxSaid:
		return fmt.Sprintf("has more than %d bytes", maxSaid)
	case goesOn && s.Bytes > math.MaxInt64/2:
		return "bytes cannot be"
	case goesOn:
		return ""
	case away && s.State != Absent:
		return fmt.Sprintf("the state is %q, want %q", s.State, Absent)
	case compared && s.Compared == missing:
		return "compared is missing"
	case !away && !compared && s.Last == missing:
		return "last is missing, and it is not empty"
	case s.Empty && s.First|s.Last|s.Count|s.Bytes != 0:
		return "it is empty, and it has offsets, messages or bytes"
	}
	for _, text := range slices.AppendSeq([]string{s.Config, s.Schema, s.Rests, s.Hash, s.Differs, s.Observed}, maps.Keys(s.Floors)) {
		if len(text) > maxText || strings.ContainsFunc(text, hidden) {
			return fmt.Sprintf("%.40q has more than %d bytes, or holds what cannot be printed", text, maxText)
		}
	}
	return ""
}

// Extent implements brokerapi.Mover.
func (b *Broker) Extent(ctx context.Context, topic string) (moves.Extent, error) {
	s, err := b.move(ctx, "extent", moveRequest{Topic: topic}, nil)
	return s.Extent, err
}

// Accept implements brokerapi.Mover.
func (b *Broker) Accept(ctx context.Context, topic string, record []byte, like moves.Extent, from brokerapi.Peer) error {
	_, err := b.move(ctx, "accept", moveRequest{Topic: topic, Record: record, Like: &like, From: &from}, nil)
	return err
}

// Seal implements brokerapi.Mover.
func (b *Broker) Seal(ctx context.Context, topic, move string, force bool) (moves.Extent, error) {
	s, err := b.move(ctx, "seal", moveRequest{Topic: topic, Move: move, Force: force}, nil)
	return s.Extent, err
}

// Copy implements brokerapi.Mover: the broker itself takes the data from the other.
func (b *Broker) Copy(ctx context.Context, topic, move string, from brokerapi.Peer, sealed moves.Extent, meter brokerapi.Meter) (moves.Extent, error) {
	s, err := b.move(ctx, "copy", moveRequest{Topic: topic, Move: move, From: &from, Sealed: &sealed}, meter)
	return s.Extent, err
}

// Resume implements brokerapi.Mover.
func (b *Broker) Resume(ctx context.Context, topic, move string, record []byte, sealed *moves.Extent) (moves.Extent, error) {
	s, err := b.move(ctx, "resume", moveRequest{Topic: topic, Move: move, Record: record, Sealed: sealed}, nil)
	return s.Extent, err
}

// Compare implements brokerapi.Mover.
func (b *Broker) Compare(ctx context.Context, topic string, from brokerapi.Peer, sealed moves.Extent, meter brokerapi.Meter) (moves.Content, error) {
	s, err := b.move(ctx, "compare", moveRequest{Topic: topic, From: &from, Sealed: &sealed}, meter)
	return s.Content, err
}

// Remove implements brokerapi.Mover.
func (b *Broker) Remove(ctx context.Context, topic, move string) error {
	_, err := b.move(ctx, "remove", moveRequest{Topic: topic, Move: move}, nil)
	return err
}

// move makes a call of a move, and makes it again while the answer is 202.
func (b *Broker) move(ctx context.Context, verb string, r moveRequest, meter brokerapi.Meter) (said, error) {
	if err := cmp.Or(sendable(verb, r.Topic), b.usable(verb, r.Topic, r.Record)); err != nil {
		return said{}, err
	}
	if meter != nil {
		r.UpTo = new(uint64)
	}
	for {
		s, goesOn, err := b.step(ctx, verb, r)
		atOnce := false
		if err == nil && goesOn && meter != nil {
			atOnce, err = r.grant(ctx, s.Bytes, meter)
		}
		switch {
		case err != nil:
			return said{}, fmt.Errorf("%s %s: %w", verb, r.Topic, err)
		case !goesOn:
			return s, nil
		case !atOnce:
			_ = brokerapi.Sleep(ctx, askAgain) // the next call says that ctx has ended
		}
	}
}

// step makes the call once, and reports whether it goes on.
func (b *Broker) step(ctx context.Context, verb string, r moveRequest) (said, bool, error) {
	s := said{Extent: moves.Extent{Last: missing}, Content: moves.Content{Compared: missing}}
	a, err := b.ask(ctx, rest.Request{Method: http.MethodPost, Path: "/topics/" + verb, Body: r}, &s, http.StatusOK, http.StatusAccepted)
	if err != nil {
		return s, false, settled(a, err)
	}
	if s.Extent.Active, s.Extent.Served = int(s.Active), s.Served; s.Empty && s.Last == missing {
		s.Last = 0
	}
	if flaw := s.flaw(verb, a); flaw != "" {
		err = a.Errorf("%s", flaw)
	}
	return s, a.Status == http.StatusAccepted, err
}

// grant tells the meter of a window and lets the broker go on by it, and reports whether it had done
// what it was let before. What was moved before the first call nobody is told of.
func (r *moveRequest) grant(ctx context.Context, done uint64, meter brokerapi.Meter) (bool, error) {
	was := cmp.Or(*r.UpTo, done)
	next := max(was, min(done+window, cmp.Or(r.Sealed.Bytes, missing)))
	*r.UpTo = next
	if next == was {
		return false, nil
	}
	return done >= was, meter(ctx, int(next-was))
}

// settled makes a refusal brokerapi.ErrRefused where asking again changes nothing, and says so of a
// broker that moves no topics. Some are of the caller, or of the moment.
func settled(a *rest.Answer, err error) error {
	if a == nil || a.Status < 400 || a.Status > 501 || slices.Contains([]int{401, 403, 407, 408, 425, 429, 500}, a.Status) {
		return err
	}
	text, own := err.Error(), (*refusal)(nil)
	if a.Status == 501 || a.Status == 405 || a.Status == 404 && !(errors.As(err, &own) && own.code == "not_found") {
		text = "the broker does not move topics: " + text
	}
	return brokerapi.Errorf(errors.Join(brokerapi.ErrRefused, err), "%s", text)
}
