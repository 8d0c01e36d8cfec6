package nats

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	client "github.com/nats-io/nats.go"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/recovery/moves"
)

// What is on its way at once is bounded, whatever the size of a stream.
const (
	chunkSize   = 16 << 10         // of a snapshot, in bytes
	chunksAhead = 64               // unanswered by the target, and ahead of it at the source
	maxAhead    = 32 << 20         // bytes; an older source goes on without an answer, slowly
	chunkWait   = 30 * time.Second // for one chunk, or its answer
	readAhead   = 1 << 20          // bytes of each side, about, and
	maxBatch    = 256              // messages of each side that are compared at once
	pullWait    = 2 * time.Second  // for one of them, before it is asked for by itself
)

// peer connects to another broker, with our own login.
func (b *Broker) peer(ctx context.Context, from brokerapi.Peer) (*Broker, error) {
	url, err := access.ParseServer("the address of "+from.ID, from.URL, adminPort, "it is shown to all", "nats", "tls")
	if err != nil {
		return nil, refuse("%v: set --connect-url there", err)
	}
	if strings.HasPrefix(b.admin, "tls:") && url.Scheme != "tls" { // our password is not for a way that others can read
		return nil, refuse("the address of %s is %s, and ours is with TLS: set --connect-url there to its tls:// address", from.ID, url)
	}
	cfg := b.cfg
	cfg.AdminURL, cfg.Logger = url.String(), nil // its monitoring is asked nothing: that of ours may stand there
	p, err := New(cfg)
	if err != nil {
		return nil, err
	}
	p.at = "broker " + from.ID + " at " + p.admin
	nc, _, err := p.connected(ctx)
	mine, _, ours := b.connected(ctx)
	if err = cmp.Or(err, ours); err == nil {
		name, id := nc.ConnectedServerName(), nc.ConnectedServerId()
		if id == mine.ConnectedServerId() || name != from.ID && name != id && brokerapi.NameFlaw(name) == "" {
			err = refuse("%s: the server there calls itself %q (%s): set --connect-url of %s to its own address", p.at, name, id, from.ID)
		}
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// sealed is a stream that a move has sealed here.
func (b *Broker) sealed(ctx context.Context, topic string) (standing, error) {
	s, err := b.movable(ctx, topic)
	if err == nil && s.mark.state != isSealed {
		err = refuse("%s: stream %s is not sealed, its subjects are %q", b.at, s.name, s.subjects)
	}
	return s, err
}

// Copy implements brokerapi.Mover. The data goes over connections of its own: a server that restores
// reads nothing else from the one which feeds it.
func (b *Broker) Copy(ctx context.Context, topic, move string, from brokerapi.Peer, sealed moves.Extent,
	meter brokerapi.Meter) (e moves.Extent, err error) {
	defer func() {
		if refusal := (*client.APIError)(nil); errors.As(err, &refusal) { // JetStream itself said no
			err = refuse("%v", err)
		}
		if err != nil {
			err = fmt.Errorf("copy %s from %s: %w", topic, from.ID, err)
		}
	}()
	source, err := b.peer(ctx, from)
	if err != nil {
		return e, err
	}
	defer source.Close()
	s, err := source.sealed(ctx, topic)
	if err == nil && s.mark.move != move {
		err = refuse("%s: stream %s is sealed by move %s, and not by this one", source.at, s.name, s.mark.move)
	}
	if err != nil {
		return e, err
	}
	left, err := b.vacant(ctx, topic)
	switch {
	case err != nil:
		return e, err
	case left == mark{isCopied, move}: // one that is damaged since is made anew
		if e, err := b.Extent(ctx, topic); err != nil || sealed.Fits(&e, "here") == nil {
			return e, err
		}
	case left.move > move:
		return e, refuse("%s: move %s came later, and has a copy here", b.at, left.move)
	}
	if err := b.Remove(ctx, topic, left.move); err != nil {
		return e, err
	}
	here, err := New(b.cfg)
	if err != nil {
		return e, err
	}
	defer here.Close()
	if err = here.restore(ctx, s.name, move, source, meter); err == nil {
		err = b.hush(ctx, s.name, true) // those of an older source do not rest yet
	}
	if err == nil {
		s, err = source.look(ctx, topic)
	}
	if err == nil {
		err = b.resubject(ctx, s.name, func(mark, []string) ([]string, error) {
			now, err := b.look(ctx, topic)
			// Also where messages go once they are acknowledged: nobody has acknowledged any here.
			if err == nil && !s.ages() && now.State.Messages < s.State.Messages {
				err = refuse("the copy has %d messages, the source %d", now.State.Messages, s.State.Messages)
			}
			return []string{mark{isCopied, move}.subject(s.name)}, err
		})
	}
	if err == nil {
		e, err = b.Extent(ctx, topic)
	}
	return e, err
}

// restore feeds a snapshot of the source's stream into a restore here, where no such stream is. What
// fails midway leaves a parked stream, or none.
func (b *Broker) restore(ctx context.Context, stream, move string, source *Broker, meter brokerapi.Meter) error {
	out, outLink, err := source.connected(ctx)
	if err != nil {
		return err
	}
	in, inLink, err := b.connected(ctx)
	if err != nil {
		return err
	}
	answers, err := in.SubscribeSync(in.NewInbox())
	if err != nil {
		return err
	}
	chunks, err := out.SubscribeSync(out.NewInbox())
	if err == nil {
		err = chunks.SetPendingLimits(-1, maxAhead)
	}
	if err != nil {
		return err
	}
	var taken struct {
		Config settings        `json:"config"`
		State  json.RawMessage `json:"state"`
	}
	asked := map[string]any{"deliver_subject": chunks.Subject, "chunk_size": chunkSize, "window_size": chunkSize * chunksAhead}
	if err := source.api(ctx, "STREAM.SNAPSHOT."+stream, asked, &taken); err != nil {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	taken.Config["subjects"], _ = json.Marshal([]string{mark{isCopying, move}.subject(stream)})
	var to struct {
		Subject string `json:"deliver_subject"`
	}
	if err := b.api(ctx, "STREAM.RESTORE."+stream, taken, &to); err != nil {
		return fmt.Errorf("begin to restore: %w", err)
	}
	for index, ahead := 1, 0; ; index++ {
		chunk, err := next(ctx, outLink, chunks, chunkWait)
		switch {
		case errors.Is(err, client.ErrSlowConsumer):
			err = fmt.Errorf("it comes faster than it is taken, which an older server does not heed: set a higher --move-rate: %w", err)
		case err != nil:
		case chunk.Reply != "" && !strings.HasSuffix(chunk.Reply, "."+strconv.Itoa(index)):
			err = fmt.Errorf("a part is missing before %.80q", chunk.Reply)
		case len(chunk.Data) > 0:
			err = meter(ctx, len(chunk.Data))
		case chunk.Header.Get("Status") != "" && chunk.Header.Get("Status") != "204":
			err = fmt.Errorf("it ended with %s %s", chunk.Header.Get("Status"), chunk.Header.Get("Description"))
		}
		if err != nil {
			_ = in.PublishRequest(to.Subject, answers.Subject, nil) // half of it is no copy: it ends at once
			return fmt.Errorf("the snapshot of %s: %w", source.at, err)
		}
		if err := in.PublishRequest(to.Subject, answers.Subject, chunk.Data); err != nil {
			return err
		}
		if len(chunk.Data) == 0 { // the last answer takes as long as the target makes its indexes: that is no silence
			for done, until := false, time.Now().Add(time.Hour); err == nil && !done; {
				done, err = b.answer(ctx, inLink, answers, chunkWait/3)
				if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) && time.Now().Before(until) {
					err = meter(ctx, 0)
				}
			}
			return err
		}
		if ahead++; ahead > chunksAhead {
			if _, err := b.answer(ctx, inLink, answers, chunkWait); err != nil {
				return err
			}
		}
		if chunk.Reply != "" {
			if err := out.Publish(chunk.Reply, nil); err != nil {
				return err
			}
		}
	}
}

// answer reads one answer of a restore; done: it is the last one.
func (b *Broker) answer(ctx, link context.Context, answers *client.Subscription, patience time.Duration) (done bool, err error) {
	m, err := next(ctx, link, answers, patience)
	var said struct {
		Error *client.APIError `json:"error"`
	}
	switch {
	case err != nil:
	case m.Header.Get("Status") != "": // no responders
		err = fmt.Errorf("the server has ended it (%s): see its log", m.Header.Get("Status"))
	case len(m.Data) == 0:
		return false, nil
	default:
		if err = json.Unmarshal(m.Data, &said); err == nil && said.Error != nil {
			err = refused(said.Error)
		}
	}
	if err != nil {
		return false, fmt.Errorf("%s: restore: %w", b.at, err)
	}
	return true, nil
}

// next is the next message of a subscription.
func next(ctx, link context.Context, sub *client.Subscription, patience time.Duration) (*client.Msg, error) {
	ctx, done := brokerapi.Bounded(ctx, link, patience)
	defer done()
	m, err := sub.NextMsgWithContext(ctx)
	if err != nil {
		err = cmp.Or(context.Cause(ctx), err)
	}
	return m, err
}

// message is what is kept of one while it is compared; without a sequence there is none.
type message struct {
	sum     [sha256.Size]byte // over all that it consists of
	subject string
	seq     uint64
	size    int
}

func digest(seq uint64, at time.Time, subject string, header client.Header, data []byte) message {
	h := sha256.New()
	fmt.Fprintf(h, "%d %d %q", seq, at.UnixNano(), subject)
	for _, key := range slices.Sorted(maps.Keys(header)) {
		fmt.Fprintf(h, " %q: %q", key, header[key])
	}
	fmt.Fprintf(h, " %d ", len(data))
	h.Write(data)
	return message{[sha256.Size]byte(h.Sum(nil)), subject, seq, len(subject) + len(data)}
}

// message asks for one message of a stream.
func (b *Broker) message(ctx context.Context, stream string, asked map[string]any) (message, error) {
	var a struct {
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	err := b.api(ctx, "STREAM.MSG.GET."+stream, asked, &a)
	if m := a.Message; err == nil {
		var header client.Header
		if len(m.Header) > 0 {
			header, err = client.DecodeHeadersMsg(m.Header)
		}
		return digest(m.Seq, m.Time, m.Subject, header, m.Data), err
	}
	if errors.Is(err, client.ErrMsgNotFound) {
		err = nil
	}
	return message{}, err
}

// reader reads the messages of a stream in the order of their sequence, up to a last one.
type reader struct {
	*Broker
	stream   string
	at, last uint64
	sub      *client.Subscription
	pulls    string // the subject to ask for a batch; empty: one is asked for at a time
	batch    int
	owed     int // of the batch
}

// reader reads what was sealed. Where a consumer would change what the stream keeps, or is refused,
// it does without.
func (b *Broker) reader(ctx context.Context, s standing, sealed moves.Extent) (*reader, error) {
	nc, _, err := b.connected(ctx)
	if err != nil {
		return nil, err
	}
	r := &reader{Broker: b, stream: s.name, at: max(sealed.First, 1) - 1, last: sealed.Last,
		batch: int(min(max(readAhead*sealed.Count/max(sealed.Bytes, 1), 1), maxBatch))}
	if r.sub, err = nc.SubscribeSync(nc.NewInbox()); err != nil || string(s.Config["retention"]) != `"limits"` {
		return r, err
	}
	var made struct {
		Name string `json:"name"`
	}
	err = b.api(ctx, "CONSUMER.CREATE."+s.name, map[string]any{"stream_name": s.name, "config": map[string]any{
		"deliver_policy": "by_start_sequence", "opt_start_seq": r.at + 1, "ack_policy": "none", "replay_policy": "instant",
		"mem_storage": true, "inactive_threshold": time.Minute}}, &made)
	if refusal := (*client.APIError)(nil); errors.As(err, &refusal) {
		return r, nil
	}
	r.pulls = "$JS.API.CONSUMER.MSG.NEXT." + s.name + "." + made.Name
	return r, err
}

// next is the next message; none: that was the last one.
func (r *reader) next(ctx context.Context) (m message, err error) {
	for r.at < r.last && m.seq <= r.at {
		if m, err = r.pulled(ctx); err == nil && m.seq == 0 { // there is none, or it did not come in time
			r.owed = 0
			if m, err = r.message(ctx, r.stream, map[string]any{"seq": r.at + 1, "next_by_subj": ">"}); m.seq == 0 {
				break
			}
		}
		if err != nil {
			break
		}
	}
	if r.at = max(r.at, m.seq); err != nil || m.seq > r.last {
		return message{}, err
	}
	return m, nil
}

// pulled is what the consumer delivers next; none: it does not.
func (r *reader) pulled(ctx context.Context) (m message, err error) {
	nc, link, err := r.connected(ctx)
	if err == nil && r.pulls != "" && r.owed == 0 {
		r.owed = r.batch
		err = nc.PublishRequest(r.pulls, r.sub.Subject, fmt.Appendf(nil, `{"batch":%d,"no_wait":true}`, r.batch))
	}
	if err != nil || r.pulls == "" {
		return m, err
	}
	got, err := next(ctx, link, r.sub, pullWait)
	switch {
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return m, nil
	case err != nil:
		return m, err
	}
	r.owed--
	about, err := got.Metadata()
	if err != nil { // it is a status
		return m, nil
	}
	return digest(about.Sequence.Stream, about.Timestamp, got.Subject, got.Header, got.Data), nil
}

// Compare implements brokerapi.Mover. What producers have appended since is not looked at.
func (b *Broker) Compare(ctx context.Context, topic string, from brokerapi.Peer, sealed moves.Extent,
	meter brokerapi.Meter) (c moves.Content, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("compare %s with %s: %w", topic, from.ID, err)
		}
	}()
	source, err := b.peer(ctx, from)
	if err != nil {
		return c, err
	}
	defer source.Close()
	var there, here *reader
	s, err := source.sealed(ctx, topic)
	if err == nil {
		there, err = source.reader(ctx, s, sealed)
	}
	if err == nil {
		here, err = b.reader(ctx, s, sealed)
	}
	if here != nil { // its connection lives on
		defer func() { _ = here.sub.Unsubscribe() }()
	}
	if err != nil {
		return c, err
	}
	hash := sha256.New()
	t, err := there.next(ctx)
	h, failed := here.next(ctx)
	for err = cmp.Or(err, failed); err == nil && c.Differs == "" && t.seq+h.seq > 0; {
		onlyT, onlyH := h.seq == 0 || t.seq > 0 && t.seq < h.seq, t.seq == 0 || h.seq > 0 && h.seq < t.seq
		size := t.size + h.size
		switch {
		case onlyT:
			c.Gone++
			c.Differs, err = b.missed(ctx, topic, t, sealed)
		case onlyH && sealed.Shrinks:
			c.Gone++
		case onlyH:
			c.Differs = fmt.Sprintf("message %d of %q is at the target only", h.seq, h.subject)
		case t.sum != h.sum:
			c.Differs = fmt.Sprintf("message %d: %d bytes of %q at the source, %d of %q at the target",
				t.seq, t.size, t.subject, h.size, h.subject)
		default:
			c.Compared++
			hash.Write(t.sum[:])
		}
		if !onlyH && err == nil {
			t, err = there.next(ctx)
		}
		if !onlyT && err == nil {
			h, err = here.next(ctx)
		}
		if err == nil {
			err = meter(ctx, size)
		}
	}
	c.Hash = fmt.Sprintf("%x", hash.Sum(nil))
	return c, err
}

// missed says that a message is missing here, and nothing has taken it away: neither the stream's
// limits nor its retention, nor a later message that stands for those before it.
func (b *Broker) missed(ctx context.Context, topic string, m message, sealed moves.Extent) (string, error) {
	now, err := b.look(ctx, topic)
	if err != nil || sealed.Shrinks || m.seq < now.State.First {
		return "", err
	}
	if now.Config.has("max_msgs_per_subject") || now.Config.has("allow_rollup_hdrs") {
		later, err := b.message(ctx, now.name, map[string]any{"last_by_subj": m.subject})
		if err != nil || later.seq > sealed.Last {
			return "", err
		}
	}
	return fmt.Sprintf("message %d of %q is at the source only", m.seq, m.subject), nil
}
