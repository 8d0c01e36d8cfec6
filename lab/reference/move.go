package reference

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"holdfast/recovery/moves"
)

// A broker that moves topics has storage of its own here, so the target asks the source for what it
// has sealed, by a path that is no part of Holdfast's contract.

const (
	exportPath = "/peer/export"
	piece      = 1 << 20 // bytes that are taken in one call
)

// peers answer before Holdfast wants to know how far the call is.
var peers = http.Client{Timeout: 4 * time.Second}

// stands is where a topic stands. Offsets are those of its lines.
func (b *Broker) stands(t *topic) extent {
	e := extent{Served: t.state() == serving, Extent: moves.Extent{
		Empty: t.messages == 0, Last: uint64(max(t.messages-1, 0)), Count: uint64(t.messages), Bytes: uint64(t.bytes),
		Floors: maps.Clone(t.Cursors), Rests: "what is sealed is synced to disk, and what was published before is not",
	}}
	if t.Record != nil {
		text, _ := json.Marshal(t.Record) // as it is kept
		sum := sha256.Sum256(text)
		e.Config = hex.EncodeToString(sum[:8])
	}
	for _, n := range b.active[t.Name] {
		e.Active += n
	}
	return e
}

func (b *Broker) extent(r topicRequest) (extent, error) {
	t, err := b.whole(r.Topic)
	if err != nil {
		return extent{}, err
	}
	return b.stands(t), nil
}

// whole is a topic that is here, and not half of a copy.
func (b *Broker) whole(name string) (*topic, error) {
	t, err := b.ours(name)
	if err == nil && (t == nil || t.Stage == isCopying) {
		err = errNotHere
	}
	return t, err
}

// taken reports whether something is here that no copy may replace.
func taken(t *topic) bool { return t != nil && t.Stage != isCopying && t.Stage != isCopied }

func (b *Broker) accept(r acceptRequest) (state, error) {
	t, err := b.ours(r.Topic)
	if err == nil && taken(t) {
		err = errExists
	}
	if err == nil && b.mode.Mode != "active" {
		err = errDrained
	}
	var disk syscall.Statfs_t
	if err == nil {
		err = syscall.Statfs(b.o.Dir+"/.", &disk)
	}
	if free := uint64(disk.Bavail) * uint64(disk.Bsize); err == nil && free < r.Like.Bytes {
		err = refuse(http.StatusConflict, "no_room", fmt.Sprintf("want %d bytes, %d are free in %s", r.Like.Bytes, free, b.o.Dir))
	}
	return state{absent}, err
}

// seal ends the topic here. Sealed is sealed: asked again, it says the same.
func (b *Broker) seal(r sealRequest) (extent, error) {
	t, err := b.whole(r.Topic)
	switch {
	case err != nil:
		return extent{}, err
	case t.sealed() && (t.Move != r.Move || t.Stage == isCopied), t.Move > r.Move:
		return extent{}, otherMove(t)
	case t.Stage == isResumed && t.Move == r.Move:
		return extent{}, refuse(http.StatusConflict, "was_resumed", "this move was called off, and the topic serves again: move it anew")
	case t.sealed():
		return b.stands(t), nil
	case len(b.active[t.Name]) > 0 && !r.Force:
		return extent{}, refuse(http.StatusConflict, "consumers_active", "consumers are at work: "+strings.Join(slices.Sorted(maps.Keys(b.active[t.Name])), ", "))
	}
	t.Parked, t.Move, t.Stage = true, r.Move, isSealed // the cursors are on disk already
	if err := b.sync(t); err != nil {
		return extent{}, err
	}
	_, err = b.keep(t)
	return b.stands(t), err
}

// resume serves a sealed topic again, here or where it was copied to. It refuses one that does not
// stand where it was sealed: something is missing, or too much. What it has resumed before may have
// gone on.
func (b *Broker) resume(r resumeRequest) (extent, error) {
	t, err := b.ours(r.Topic)
	if err == nil && b.mode.Mode != "active" {
		err = errDrained
	}
	if err == nil {
		err = b.refuses(t, r)
	}
	if err != nil {
		return extent{}, err
	}
	if t == nil {
		t = &topic{Name: r.Topic}
	}
	if t.sealed() {
		t.Stage = isResumed
	}
	t.Loaded, t.Parked = true, false
	if r.Record != nil {
		t.Record = r.Record
	}
	_, err = b.keep(t)
	return b.stands(t), err
}

// refuses says why what is here cannot be resumed; nil: it can. Without r.Sealed it may never have
// been sealed.
func (b *Broker) refuses(t *topic, r resumeRequest) error {
	switch {
	case t == nil && r.Sealed == nil:
		return nil
	case t == nil:
		return errNotHere
	case t.Stage == isCopying:
		return errHalf
	case t.Move != r.Move && (t.sealed() || t.Move != "" && r.Sealed != nil):
		return otherMove(t)
	case t.Stage == "" && r.Sealed != nil:
		return errNotSealed
	case t.Stage == isCopied && r.Sealed == nil:
		return noFit(errors.New("what is here is a copy: say where it was sealed"))
	case r.Sealed == nil:
		return nil
	}
	now := b.stands(t)
	if t.Stage == isResumed && now.Count >= r.Sealed.Count { // it may have gone on
		return nil
	}
	return noFit(r.Sealed.Fits(&now.Extent, "here"))
}

// removeTopic removes what this move has sealed or copied, and nothing else ever.
func (b *Broker) removeTopic(r removeRequest) (state, error) {
	t, err := b.ours(r.Topic)
	switch {
	case err != nil:
		return state{}, err
	case t != nil && !t.sealed() && t.Stage != isCopying:
		return state{}, errNotSealed
	case t != nil && t.Move != r.Move:
		return state{}, otherMove(t)
	}
	delete(b.works, r.Topic)
	return state{absent}, b.remove(r.Topic)
}

// work is a copy or a comparison that goes on: each call takes one piece from the source.
type work struct {
	asked    string // a call that asks for something else begins anew
	at       uint64 // bytes so far
	compared uint64 // messages
	sum      hash.Hash
}

// fetch is a call that takes data from another broker, a piece each time. may says whether it can be
// begun or gone on with, or what came of it. take takes a piece, and says what came of it all after
// the last one.
func (b *Broker) fetch(may func(fetchRequest) (any, error), take func(*work, fetchRequest, exported) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in fetchRequest
		err := asked(w, r, &in)
		var out any
		if err == nil {
			out, err = b.goOn(r.Context(), in, may, take)
		}
		status := http.StatusOK
		if _, goesOn := out.(progress); goesOn {
			status = http.StatusAccepted
		}
		answerWith(w, status, out, err)
	}
}

func (b *Broker) goOn(ctx context.Context, r fetchRequest, may func(fetchRequest) (any, error), take func(*work, fetchRequest, exported) (any, error)) (any, error) {
	upTo := r.UpTo
	r.UpTo = nil
	b.mu.Lock()
	was, err := may(r)
	if was != nil || err != nil {
		b.mu.Unlock()
		return was, err
	}
	key, _ := json.Marshal(r)
	on := b.works[r.Topic]
	if on == nil || on.asked != string(key) {
		on = &work{asked: string(key), sum: sha256.New()}
		b.works[r.Topic] = on
	}
	at, n := on.at, uint64(piece)
	b.mu.Unlock()
	if upTo != nil {
		n = min(n, max(*upTo, at)-at)
	}
	said, err := b.ask(ctx, r, at, n) // unlocked: the other may be asking us
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch was, err := may(r); {
	case was != nil || err != nil:
		return was, err
	case b.works[r.Topic] != on:
		return nil, refuse(http.StatusServiceUnavailable, "unavailable", "another was begun, or the topic was removed")
	case on.at != at: // the same call came twice at a time
		return progress{on.at}, nil
	}
	out, err := take(on, r, said)
	if out == nil && err == nil {
		return progress{on.at}, nil
	}
	delete(b.works, r.Topic) // asked again, it is begun anew
	return out, err
}

func (b *Broker) mayCopy(r fetchRequest) (any, error) {
	t, err := b.ours(r.Topic)
	switch {
	case err != nil:
		return nil, err
	case r.Move == "":
		return nil, bad("move is missing")
	case b.mode.Mode != "active":
		return nil, errDrained
	case taken(t):
		return nil, errExists
	case t != nil && t.Move > r.Move:
		return nil, otherMove(t)
	case t != nil && t.Stage == isCopied && t.Move == r.Move:
		return b.stands(t), nil
	}
	return nil, nil
}

// copy brings what another broker has sealed. What is here is half of a copy until all of it is.
func (b *Broker) copy(w *work, r fetchRequest, said exported) (any, error) {
	t := &topic{Name: r.Topic, Move: r.Move, Stage: isCopying}
	if w.at == 0 {
		if _, err := b.keep(t); err != nil {
			return nil, err
		}
	}
	if err := b.put(t, w.at, said.Data); err != nil {
		return nil, err
	}
	if w.at += uint64(len(said.Data)); w.at < said.Stands.Bytes {
		return nil, nil
	}
	t.Record, t.Cursors, t.messages, t.bytes = said.Record, said.Stands.Floors, int(said.Stands.Count), int(said.Stands.Bytes)
	t.Loaded, t.Parked, t.Stage = true, true, isCopied
	if err := b.sync(t); err != nil {
		return nil, err
	}
	_, err := b.keep(t)
	return b.stands(t), err
}

func (b *Broker) mayCompare(r fetchRequest) (any, error) {
	_, err := b.whole(r.Topic)
	if err == nil && r.Move != "" {
		err = bad("a comparison has no move")
	}
	return nil, err
}

// compare reads what was sealed on both sides. What came after it here is not looked at.
func (b *Broker) compare(w *work, r fetchRequest, said exported) (any, error) {
	mine, err := b.piece(b.topics[r.Topic], w.at, uint64(len(said.Data)))
	if err != nil {
		return nil, err
	}
	same := 0
	for same < len(mine) && mine[same] == said.Data[same] {
		same++
	}
	w.compared += uint64(bytes.Count(mine[:same], []byte("\n")))
	if same < len(said.Data) {
		return moves.Content{Compared: w.compared, Differs: fmt.Sprintf("offset %d: not the bytes that %s has", w.compared, r.From.ID)}, nil
	}
	w.sum.Write(mine)
	if w.at += uint64(same); w.at < said.Stands.Bytes {
		return nil, nil
	}
	return moves.Content{Compared: w.compared, Hash: "sha256:" + hex.EncodeToString(w.sum.Sum(nil))}, nil
}

// exportRequest asks for a piece of what a move has sealed; without its id, any.
type exportRequest struct {
	Topic string `json:"topic"`
	Move  string `json:"move"`
	At    uint64 `json:"at"`
	Bytes uint64 `json:"bytes"`
}

func (r exportRequest) check() error { return checkTopic(r.Topic) }

// exported is the topic as it is there, and the piece.
type exported struct {
	Stands moves.Extent    `json:"stands"`
	Record json.RawMessage `json:"record,omitempty"`
	Data   []byte          `json:"data"`
}

// export hands out what is sealed here, which does not change.
func (b *Broker) export(r exportRequest) (exported, error) {
	t, err := b.ours(r.Topic)
	switch {
	case err != nil:
	case t == nil:
		err = errNotHere
	case t.Stage != isSealed:
		err = errNotSealed
	case r.Move != "" && r.Move != t.Move: // which a comparison does not say
		err = otherMove(t)
	}
	if err != nil {
		return exported{}, err
	}
	data, err := b.piece(t, r.At, r.Bytes)
	return exported{b.stands(t).Extent, t.Record, data}, err
}

// ask asks the other broker for a piece of what it has sealed.
func (b *Broker) ask(ctx context.Context, r fetchRequest, at, n uint64) (said exported, err error) {
	if r.From.URL == "" {
		return said, refuse(http.StatusConflict, "no_url", r.From.ID+" advertises no URL by which its data can be had: set --broker-url there")
	}
	later := func(err error) error {
		return refuse(http.StatusServiceUnavailable, "unavailable", fmt.Sprintf("ask %s at %q: %v", r.From.ID, r.From.URL, err))
	}
	body, _ := json.Marshal(exportRequest{r.Topic, r.Move, at, n})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(r.From.URL, "/")+exportPath, bytes.NewReader(body))
	if err != nil {
		return said, later(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if b.o.TokenFile != "" { // all of them have the same
		token, err := os.ReadFile(b.o.TokenFile)
		if err != nil {
			return said, err
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := peers.Do(req)
	if err != nil {
		return said, later(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusConflict:
		return said, noFit(fmt.Errorf("%s answers %s", r.From.ID, bytes.TrimSpace(text)))
	case resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("it answers %s", resp.Status)
	default:
		err = json.Unmarshal(text, &said)
	}
	if err == nil && n > 0 && len(said.Data) == 0 && at < said.Stands.Bytes {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return said, later(err)
	}
	return said, noFit(r.Sealed.Fits(&said.Stands, "at "+r.From.ID))
}
