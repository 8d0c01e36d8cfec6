package reference

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A broker that moves topics has storage of its own here, so the target asks the source for what it
// has sealed, by a path that is no part of Holdfast's contract.

const (
	exportPath = "/peer/export"
	patience   = 2 * time.Second // until a call that is not done is answered 202
)

// stands is where a topic stands. Offsets are those of its lines.
func (b *Broker) stands(t *topic) extent {
	empty := t.messages == 0
	e := extent{Empty: &empty, Messages: number(t.messages), Bytes: number(t.bytes), Positions: maps.Clone(t.Cursors), RestsOn: "what is sealed is synced to disk, and what was published before is not"}
	if !empty {
		first, last := number(0), number(t.messages-1)
		e.First, e.Last = &first, &last
	}
	if t.Record != nil {
		text, _ := json.Marshal(t.Record) // as it is kept
		sum := sha256.Sum256(text)
		e.Config = hex.EncodeToString(sum[:8])
	}
	for _, n := range b.active[t.Name] {
		e.Active += number(n)
	}
	return e
}

// differs says how what is here is not what was sealed; empty: it is.
func (e extent) differs(sealed *extent) string {
	switch {
	case *e.Empty != *sealed.Empty, !*e.Empty && *e.Last != *sealed.Last, e.Messages != sealed.Messages, e.Bytes != sealed.Bytes:
		return fmt.Sprintf("%d messages with %d bytes, sealed were %d with %d", e.Messages, e.Bytes, sealed.Messages, sealed.Bytes)
	case e.Config != sealed.Config:
		return fmt.Sprintf("configuration %q, sealed was %q", e.Config, sealed.Config)
	}
	for name, at := range sealed.Positions {
		if got, ok := e.Positions[name]; !ok || got < at {
			return fmt.Sprintf("subscription %q at %d, sealed at %d", name, got, at)
		}
	}
	return ""
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
	if free := number(disk.Bavail) * number(disk.Bsize); err == nil && free < r.Like.Bytes {
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
		return noFit("what is here is a copy: say where it was sealed")
	case r.Sealed == nil:
		return nil
	}
	now := b.stands(t)
	if t.Stage == isResumed && now.Messages >= r.Sealed.Messages { // it may have gone on
		return nil
	}
	if differs := now.differs(r.Sealed); differs != "" {
		return noFit("here are %s", differs)
	}
	return nil
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
	if w := b.works[r.Topic]; w != nil {
		w.end()
		delete(b.works, r.Topic)
	}
	return state{absent}, b.remove(r.Topic)
}

// work is what takes longer than one call: a copy, or a comparison. It reads from another broker no
// more than it was let.
type work struct {
	asked string // what it is for: a call that asks the same finds it
	life  context.Context
	end   context.CancelFunc

	mu          sync.Mutex
	moved       chan struct{} // closed and made anew when something below has changed
	bytes, upTo number
	done        bool
	answer      any
	err         error
}

func (w *work) change(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
	close(w.moved)
	w.moved = make(chan struct{})
}

// await returns when it is so, or with the context's error.
func (w *work) await(ctx context.Context, so func() bool) error {
	for {
		w.mu.Lock()
		is, moved := so(), w.moved
		w.mu.Unlock()
		if is {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// metered reads as far as the work may go.
type metered struct {
	*work
	from io.Reader
}

func (m metered) Read(p []byte) (int, error) {
	if err := m.await(m.life, func() bool { return m.upTo > m.bytes }); err != nil {
		return 0, err
	}
	m.mu.Lock()
	let := m.upTo - m.bytes
	m.mu.Unlock()
	n, err := m.from.Read(p[:min(number(len(p)), let)])
	m.change(func() { m.bytes += number(n) })
	return n, err
}

// fetch is a call that takes long. start looks whether it can be begun, and says what is to be done; or
// what came of it, if it was.
func (b *Broker) fetch(start func(fetchRequest) (do func(*work) (any, error), was any, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in fetchRequest
		if err := asked(w, r, &in); err != nil {
			answer(w, nil, err)
			return
		}
		upTo := ^number(0)
		if in.UpTo != nil {
			upTo, in.UpTo = *in.UpTo, nil
		}
		on, was, err := b.begin(r.URL.Path, in, start)
		if on == nil {
			answer(w, was, err)
			return
		}
		on.change(func() { on.upTo = max(on.upTo, upTo) })
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		_ = on.await(ctx, func() bool { return on.done || on.bytes >= on.upTo && on.bytes < in.Sealed.Bytes })
		on.mu.Lock()
		bytes, done := on.bytes, on.done
		on.mu.Unlock()
		if !done {
			answerWith(w, http.StatusAccepted, progress{bytes}, nil)
			return
		}
		answer(w, on.answer, on.err)
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.works[in.Topic] == on {
			delete(b.works, in.Topic) // asked again, it is begun anew
		}
	}
}

// begin finds what goes on for the same request, or starts it in the place of any other.
func (b *Broker) begin(path string, in fetchRequest, start func(fetchRequest) (func(*work) (any, error), any, error)) (*work, any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key, _ := json.Marshal(in)
	on := b.works[in.Topic]
	if on != nil && on.asked == path+string(key) {
		return on, nil, nil
	}
	do, was, err := start(in)
	if do == nil || err != nil {
		return nil, was, err
	}
	if on != nil {
		on.end()
	}
	on = &work{asked: path + string(key), moved: make(chan struct{})}
	on.life, on.end = context.WithCancel(context.Background())
	b.works[in.Topic] = on
	go func() {
		defer on.end()
		go func() {
			select {
			case <-b.stopping:
				on.end()
			case <-on.life.Done():
			}
		}()
		answer, err := do(on)
		on.change(func() { on.done, on.answer, on.err = true, answer, err })
	}()
	return on, nil, nil
}

func (b *Broker) startCopy(r fetchRequest) (func(*work) (any, error), any, error) {
	t, err := b.ours(r.Topic)
	switch {
	case err != nil:
		return nil, nil, err
	case r.Move == "":
		return nil, nil, bad("move is missing")
	case b.mode.Mode != "active":
		return nil, nil, errDrained
	case taken(t):
		return nil, nil, errExists
	case t != nil && t.Move > r.Move:
		return nil, nil, otherMove(t)
	case t != nil && t.Stage == isCopied && t.Move == r.Move:
		return nil, b.stands(t), nil
	}
	return func(w *work) (any, error) { return b.copy(w, r) }, nil, nil
}

// copy brings what another broker has sealed. What is here is half of a copy until all of it is.
func (b *Broker) copy(w *work, r fetchRequest) (any, error) {
	t, data, err := b.ask(w.life, r)
	if err != nil {
		return nil, err
	}
	defer data.Close()
	if err := b.ifStill(w, r, func() error {
		_, err := b.keep(&topic{Name: r.Topic, Move: r.Move, Stage: isCopying})
		return err
	}); err != nil {
		return nil, err
	}
	f, err := b.incoming()
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	_, err = io.CopyN(f, metered{w, data}, int64(t.bytes))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, refuse(http.StatusServiceUnavailable, "unavailable", fmt.Sprintf("copy from %s: %v", r.From.ID, err))
	}
	t.Loaded, t.Parked, t.Move, t.Stage = true, true, r.Move, isCopied
	var now extent
	err = b.ifStill(w, r, func() error { now = b.stands(t); return b.arrive(t, f.Name()) })
	return now, err
}

// ifStill changes something unless the work was ended in the meantime.
func (b *Broker) ifStill(w *work, r fetchRequest, do func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.works[r.Topic] != w {
		return refuse(http.StatusServiceUnavailable, "unavailable", "another copy was begun, or the topic was removed")
	}
	return do()
}

func (b *Broker) startCompare(r fetchRequest) (func(*work) (any, error), any, error) {
	t, err := b.whole(r.Topic)
	if err == nil && r.Move != "" {
		err = bad("a comparison has no move")
	}
	return func(w *work) (any, error) { return b.compare(w, t, r) }, nil, err
}

// compare reads what was sealed on both sides. What came after it here is not looked at.
func (b *Broker) compare(w *work, t *topic, r fetchRequest) (any, error) {
	_, data, err := b.ask(w.life, r)
	if err != nil {
		return nil, err
	}
	defer data.Close()
	mine, err := b.messagesOf(t)
	if err != nil {
		return nil, err
	}
	defer mine.Close()
	here, there := bufio.NewReader(mine), bufio.NewReader(metered{w, data})
	found, sum := content{}, sha256.New()
	for at := range r.Sealed.Messages {
		theirs, err := there.ReadBytes('\n')
		if err != nil {
			return nil, refuse(http.StatusServiceUnavailable, "unavailable", fmt.Sprintf("read from %s: %v", r.From.ID, err))
		}
		ours, err := here.ReadBytes('\n')
		if err != nil || !bytes.Equal(ours, theirs) {
			found.Differs = fmt.Sprintf("offset %d: not the bytes that %s has", at, r.From.ID)
			return found, nil
		}
		sum.Write(ours)
		found.Compared++
	}
	found.Hash = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	return found, nil
}

// exportRequest asks for what a move has sealed; without its id, any.
type exportRequest removeRequest

func (r exportRequest) check() error { return checkTopic(r.Topic) }

// exported is the first line of what a broker answers another; the messages follow, as they are.
type exported struct {
	Stands  extent            `json:"stands"`
	Record  json.RawMessage   `json:"record,omitempty"`
	Cursors map[string]number `json:"cursors"`
}

// export hands out what is sealed here. That does not change, so it is read without holding others up.
func (b *Broker) export(w http.ResponseWriter, r *http.Request) {
	var in exportRequest
	err := asked(w, r, &in)
	var said exported
	var data io.ReadCloser
	if err == nil {
		b.mu.Lock()
		var t *topic
		t, err = b.ours(in.Topic)
		switch {
		case err != nil:
		case t == nil:
			err = errNotHere
		case t.Stage != isSealed:
			err = errNotSealed
		case in.Move != "" && in.Move != t.Move: // which a comparison does not say
			err = otherMove(t)
		default:
			said = exported{b.stands(t), t.Record, t.Cursors}
			data, err = b.messagesOf(t)
		}
		b.mu.Unlock()
	}
	if err != nil {
		answer(w, nil, err)
		return
	}
	defer data.Close()
	_ = json.NewEncoder(w).Encode(said)
	_, _ = io.Copy(w, data) // the other side has gone
}

// ask asks the other broker for what it has sealed: the topic as it is there, and its messages.
func (b *Broker) ask(ctx context.Context, r fetchRequest) (*topic, io.ReadCloser, error) {
	later := func(err error) error {
		return refuse(http.StatusServiceUnavailable, "unavailable", fmt.Sprintf("ask %s at %q: %v", r.From.ID, r.From.URL, err))
	}
	if r.From.URL == "" {
		return nil, nil, refuse(http.StatusConflict, "no_url", r.From.ID+" advertises no URL by which its data can be had: set --broker-url there")
	}
	body, _ := json.Marshal(exportRequest{r.Topic, r.Move})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(r.From.URL, "/")+exportPath, bytes.NewReader(body))
	if err != nil {
		return nil, nil, later(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if b.o.TokenFile != "" { // all of them have the same
		token, err := os.ReadFile(b.o.TokenFile)
		if err != nil {
			return nil, nil, err
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, later(err)
	}
	lines := bufio.NewReader(resp.Body)
	first, err := lines.ReadBytes('\n')
	var said exported
	switch {
	case err != nil:
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusConflict:
		err = noFit("%s answers %s", r.From.ID, bytes.TrimSpace(first))
	case resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("it answers %s", resp.Status)
	default:
		err = json.Unmarshal(first, &said)
	}
	var final *refusal
	if err != nil && !errors.As(err, &final) {
		err = later(err)
	}
	if err == nil {
		if differs := said.Stands.differs(r.Sealed); differs != "" {
			err = noFit("%s has %s", r.From.ID, differs)
		}
	}
	if err != nil {
		resp.Body.Close()
		return nil, nil, err
	}
	t := &topic{Name: r.Topic, Record: said.Record, Cursors: said.Cursors, messages: int(said.Stands.Messages), bytes: int(said.Stands.Bytes)}
	return t, struct {
		io.Reader
		io.Closer
	}{lines, resp.Body}, nil
}
