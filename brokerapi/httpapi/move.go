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
	"strconv"
	"strings"
	"time"
	"unicode"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
	"holdfast/recovery/moves"
)

const (
	window       = 1 << 20                // bytes that a broker is let copy or read before it is asked again
	askAgain     = 200 * time.Millisecond // until a broker is asked again that has not done what it was let
	maxConsumers = 1000                   // of one topic: the journal holds their positions four times
	maxWord      = 256                    // bytes of a consumer's name or a hash
	maxSentence  = 1024                   // bytes of what is for people
)

var _ brokerapi.Mover = (*Broker)(nil)

// number is decimal text in JSON: many readers round what is above 2^53.
type number uint64

func (n number) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `"%d"`, uint64(n)), nil }

func (n *number) UnmarshalJSON(text []byte) error {
	v, err := strconv.ParseUint(strings.Trim(string(text), `"`), 10, 64)
	if err != nil || string(text) != fmt.Sprintf(`"%d"`, v) {
		return fmt.Errorf("%.30q is no number: want decimal digits in quotes, below 2^64", text)
	}
	*n = number(v)
	return nil
}

// flawed is a body that says what in it cannot be; empty: nothing.
type flawed interface{ flaw() string }

// extentBody is where a topic stands. A number that is left out is 0.
type extentBody struct {
	Empty     *bool             `json:"empty"`
	First     number            `json:"first_offset,omitempty"`
	Last      *number           `json:"last_offset,omitempty"` // exactly when it is not empty
	Messages  number            `json:"messages,omitempty"`
	Bytes     number            `json:"bytes,omitempty"`
	Positions map[string]number `json:"positions,omitempty"`
	Config    string            `json:"config,omitempty"`
	Schema    string            `json:"schema,omitempty"`
	Shrinks   bool              `json:"shrinks,omitempty"`
	RestsOn   string            `json:"rests_on,omitempty"`
	Active    number            `json:"active_consumers,omitempty"`
}

func bodyOf(e moves.Extent) *extentBody {
	b := &extentBody{Empty: &e.Empty, Config: e.Config, Schema: e.Schema, Shrinks: e.Shrinks, RestsOn: e.Rests, Positions: map[string]number{}}
	if last := number(e.Last); !e.Empty {
		b.First, b.Last, b.Messages, b.Bytes = number(e.First), &last, number(e.Count), number(e.Bytes)
	}
	for consumer, at := range e.Floors {
		b.Positions[consumer] = number(at)
	}
	return b
}

func (b *extentBody) extent() moves.Extent {
	e := moves.Extent{
		Empty: *b.Empty, First: uint64(b.First), Count: uint64(b.Messages), Bytes: uint64(b.Bytes), Floors: map[string]uint64{},
		Config: b.Config, Schema: b.Schema, Shrinks: b.Shrinks, Rests: b.RestsOn, Active: int(min(b.Active, math.MaxInt)),
	}
	if b.Last != nil {
		e.Last = uint64(*b.Last)
	}
	for consumer, at := range b.Positions {
		e.Floors[consumer] = uint64(at)
	}
	return e
}

func (b *extentBody) flaw() string {
	_, nameless := b.Positions[""]
	switch {
	case b.Empty == nil:
		return "empty is missing"
	case *b.Empty && (b.Last != nil || b.First != 0 || b.Messages != 0 || b.Bytes != 0):
		return "it is empty, and it has offsets, messages or bytes"
	case !*b.Empty && b.Last == nil:
		return "last_offset is missing, and it is not empty"
	case len(b.Positions) > maxConsumers:
		return fmt.Sprintf("positions of more than %d consumers", maxConsumers)
	case nameless:
		return "positions of a consumer without a name"
	}
	words := slices.AppendSeq([]string{b.Config, b.Schema}, maps.Keys(b.Positions))
	return cmp.Or(unfit(maxWord, words...), unfit(maxSentence, b.RestsOn))
}

// unfit says which of the texts cannot be shown; empty: none.
func unfit(longest int, texts ...string) string {
	for _, text := range texts {
		if len(text) > longest || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return fmt.Sprintf("%.40q has more than %d bytes, or holds what cannot be printed", text, longest)
		}
	}
	return ""
}

// contentBody is what a comparison has found.
type contentBody struct {
	Compared *number `json:"compared"`
	Gone     number  `json:"gone"`
	Hash     string  `json:"hash"`
	Differs  string  `json:"differs"`
	Observed string  `json:"observed"`
}

func (b *contentBody) flaw() string {
	if b.Compared == nil {
		return "compared is missing"
	}
	return cmp.Or(unfit(maxWord, b.Hash), unfit(maxSentence, b.Differs, b.Observed))
}

// progressBody is the answer of 202: the call is to be repeated.
type progressBody struct {
	Bytes *number `json:"bytes"`
}

func (b *progressBody) flaw() string {
	if b.Bytes == nil || *b.Bytes > math.MaxInt64/2 {
		return "bytes is missing, or cannot be"
	}
	return ""
}

// absentBody is the answer about a topic that is not here.
type absentBody struct {
	State State `json:"state"`
}

func (b *absentBody) flaw() string {
	if b.State != Absent {
		return fmt.Sprintf("the state is %q, want %q", b.State, Absent)
	}
	return ""
}

// moveRequest is what the calls of a move send.
type moveRequest struct {
	Topic  string          `json:"topic"`
	Move   string          `json:"move,omitempty"`   // seal, copy, resume, remove
	Like   *extentBody     `json:"like,omitempty"`   // accept
	Force  bool            `json:"force,omitempty"`  // seal
	From   *brokerapi.Peer `json:"from,omitempty"`   // accept, copy, compare
	Sealed *extentBody     `json:"sealed,omitempty"` // copy, resume, compare
	Record json.RawMessage `json:"record,omitempty"` // accept, resume
	UpTo   *number         `json:"up_to,omitempty"`  // copy, compare
}

// Extent implements brokerapi.Mover.
func (b *Broker) Extent(ctx context.Context, topic string) (moves.Extent, error) {
	return b.stands(ctx, "extent", moveRequest{Topic: topic}, nil)
}

// Accept implements brokerapi.Mover.
func (b *Broker) Accept(ctx context.Context, topic string, record []byte, like moves.Extent, from brokerapi.Peer) error {
	if err := b.usable("accept", topic, record); err != nil {
		return err
	}
	return b.move(ctx, "accept", moveRequest{Topic: topic, Like: bodyOf(like), From: &from, Record: record}, &absentBody{}, nil)
}

// Seal implements brokerapi.Mover.
func (b *Broker) Seal(ctx context.Context, topic, move string, force bool) (moves.Extent, error) {
	return b.stands(ctx, "seal", moveRequest{Topic: topic, Move: move, Force: force}, nil)
}

// Copy implements brokerapi.Mover: the broker itself takes the data from the other.
func (b *Broker) Copy(ctx context.Context, topic, move string, from brokerapi.Peer, sealed moves.Extent, meter brokerapi.Meter) (moves.Extent, error) {
	return b.stands(ctx, "copy", moveRequest{Topic: topic, Move: move, From: &from, Sealed: bodyOf(sealed)}, meter)
}

// Resume implements brokerapi.Mover.
func (b *Broker) Resume(ctx context.Context, topic, move string, record []byte, sealed *moves.Extent) (moves.Extent, error) {
	if err := b.usable("resume", topic, record); err != nil {
		return moves.Extent{}, err
	}
	r := moveRequest{Topic: topic, Move: move, Record: record}
	if sealed != nil {
		r.Sealed = bodyOf(*sealed)
	}
	return b.stands(ctx, "resume", r, nil)
}

// Compare implements brokerapi.Mover.
func (b *Broker) Compare(ctx context.Context, topic string, from brokerapi.Peer, sealed moves.Extent, meter brokerapi.Meter) (moves.Content, error) {
	var c contentBody
	r := moveRequest{Topic: topic, From: &from, Sealed: bodyOf(sealed)}
	if err := b.move(ctx, "compare", r, &c, meter); err != nil {
		return moves.Content{}, err
	}
	return moves.Content{Compared: uint64(*c.Compared), Gone: uint64(c.Gone), Hash: c.Hash, Differs: c.Differs, Observed: c.Observed}, nil
}

// Remove implements brokerapi.Mover.
func (b *Broker) Remove(ctx context.Context, topic, move string) error {
	return b.move(ctx, "remove", moveRequest{Topic: topic, Move: move}, &absentBody{}, nil)
}

// stands makes a call that is answered with where the topic stands.
func (b *Broker) stands(ctx context.Context, verb string, r moveRequest, meter brokerapi.Meter) (moves.Extent, error) {
	var e extentBody
	if err := b.move(ctx, verb, r, &e, meter); err != nil {
		return moves.Extent{}, err
	}
	return e.extent(), nil
}

// move makes a call of a move, and makes it again while the answer is 202.
func (b *Broker) move(ctx context.Context, verb string, r moveRequest, into flawed, meter brokerapi.Meter) error {
	if err := sendable(verb, r.Topic); err != nil {
		return err
	}
	if meter != nil {
		r.UpTo = new(number)
	}
	for {
		on, err := b.step(ctx, verb, r, into)
		granted := false
		if err == nil && on != nil && meter != nil {
			granted, err = r.grant(ctx, *on.Bytes, meter)
		}
		switch {
		case err != nil:
			return fmt.Errorf("%s %s: %w", verb, r.Topic, err)
		case on == nil:
			return nil
		case granted:
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s %s: --broker-admin %s: the broker was still at it: %w", verb, r.Topic, b.rest.URL(), context.Cause(ctx))
		case <-time.After(askAgain):
		}
	}
}

// step makes the call once. A progress says that it is not done yet.
func (b *Broker) step(ctx context.Context, verb string, r moveRequest, into flawed) (*progressBody, error) {
	var raw json.RawMessage
	a, err := b.ask(ctx, rest.Request{Method: http.MethodPost, Path: "/topics/" + verb, Body: r}, &raw, http.StatusOK, http.StatusAccepted)
	if err != nil {
		return nil, settled(a, err)
	}
	var on *progressBody
	if a.Status == http.StatusAccepted {
		on = &progressBody{}
		into = on
	}
	if err = a.JSON(into); err == nil && into.flaw() != "" {
		err = a.Errorf("%s", into.flaw())
	}
	return on, err
}

// grant tells the meter of a window and lets the broker go on by it, and reports whether it had done
// what it was let before. What was moved before the first call nobody is told of.
func (r *moveRequest) grant(ctx context.Context, done number, meter brokerapi.Meter) (bool, error) {
	if *r.UpTo == 0 {
		*r.UpTo = done
	}
	next := done + window
	if all := r.Sealed.Bytes; all != 0 {
		next = min(next, all)
	}
	if next <= *r.UpTo {
		return false, nil
	}
	if err := meter(ctx, int(next-*r.UpTo)); err != nil {
		return false, err
	}
	reached := done >= *r.UpTo
	*r.UpTo = next
	return reached, nil
}

// passing are refusals of the caller, or of the moment.
var passing = []int{401, 403, 407, 408, 425, 429}

// settled makes a refusal brokerapi.ErrRefused where asking again changes nothing, and says so of a
// broker that moves no topics.
func settled(a *rest.Answer, err error) error {
	if a == nil || a.Status < 400 || a.Status > 501 || a.Status == 500 || slices.Contains(passing, a.Status) {
		return err
	}
	text, own := err.Error(), (*refusal)(nil)
	if a.Status == 501 || a.Status == 405 || a.Status == 404 && !(errors.As(err, &own) && own.code == "not_found") {
		text = "the broker does not move topics: " + text
	}
	return brokerapi.Errorf(errors.Join(brokerapi.ErrRefused, err), "%s", text)
}
