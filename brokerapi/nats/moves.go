package nats

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	client "github.com/nats-io/nats.go"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/recovery/moves"
)

// What is on its way at once is bounded, whatever the size of a stream.
const (
	chunkSize    = 16 << 10         // of a snapshot, in bytes
	chunksAhead  = 64               // unanswered by the target, and ahead of it at the source
	maxAhead     = 32 << 20         // bytes; an older source goes on without an answer, slowly
	restoreAlone = 4 << 20          // bytes of a restore, after which its stream is surely there
	chunkWait    = 30 * time.Second // for one chunk, or message
	comparisons  = 4                // at once, each with so many of each side:
	readAhead    = 262_139          // bytes, or one message; a prime
	maxBatch     = 1024             // messages
)

// peer connects to another broker, with our own login.
func (b *Broker) peer(ctx context.Context, from brokerapi.Peer) (*Broker, error) {
	url, err := access.ParseServer("the address of "+from.ID, from.URL, adminPort, "nats", "tls")
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

// sealedAt is another broker and the stream that a move has sealed there; without an ID any move.
func (b *Broker) sealedAt(ctx context.Context, from brokerapi.Peer, topic, move string) (source *Broker, s standing, err error) {
	if source, err = b.peer(ctx, from); err != nil {
		return nil, s, err
	}
	s, err = source.look(ctx, topic)
	if err == nil && (s.mark.state != isSealed || move != "" && s.mark.move != move) {
		err = refuse("%s: stream %s is not sealed by this move, its subjects are %q", source.at, s.name, s.subjects)
	}
	if err != nil {
		source.Close()
	}
	return source, s, err
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
	source, s, err := b.sealedAt(ctx, from, topic, move)
	if err != nil {
		return e, err
	}
	defer source.Close()
	left, err := b.vacant(ctx, topic)
	if err == nil && left == (mark{isCopied, move}) { // one that is damaged since is made anew
		if e, err = b.Extent(ctx, topic); err == nil && sealed.Fits(&e, "here") == nil {
			return e, nil
		}
	}
	if err == nil && left.move > move {
		err = refuse("%s: move %s came later, and has a copy here", b.at, left.move)
	}
	if err == nil {
		err = b.Remove(ctx, topic, left.move)
	}
	if err != nil {
		return e, err
	}
	here, err := New(b.cfg)
	if err != nil {
		return e, err
	}
	defer here.Close()
	// One restore at a time makes its stream. A nats-server to 2.15.3 ends with "concurrent map iteration
	// and map write" where one begins meanwhile.
	made, err := patiently(ctx, b.restoring, meter)
	if err != nil {
		return e, err
	}
	defer made()
	fed := 0
	err = here.restore(ctx, s.name, move, source, func(ctx context.Context, n int) error {
		if fed += n; fed > restoreAlone {
			made()
		}
		return meter(ctx, n)
	})
	if made(); err == nil {
		err = b.hush(ctx, s.name, paused) // those of an older source do not rest yet
	}
	if err == nil {
		err = b.resubject(ctx, topic, func(now standing) ([]string, error) {
			// Also where messages go once they are acknowledged: nobody has acknowledged any here.
			then, err := source.look(ctx, topic)
			if err == nil && !then.ages() && now.State.Msgs < then.State.Msgs {
				err = refuse("the copy has %d messages, the source %d", now.State.Msgs, then.State.Msgs)
			}
			return []string{mark{isCopied, move}.subject(now.name)}, err
		})
	}
	if err == nil {
		e, err = b.Extent(ctx, topic)
	}
	return e, err
}

// patiently waits for a turn as long as it takes, and says meanwhile that the act lives.
func patiently(ctx context.Context, turn chan struct{}, meter brokerapi.Meter) (done func(), err error) {
	for {
		select {
		case turn <- struct{}{}:
			return sync.OnceFunc(func() { <-turn }), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(chunkWait / 3):
			if err := meter(ctx, 0); err != nil {
				return nil, err
			}
		}
	}
}

// restore feeds a snapshot of the source's stream into a restore here, where no such stream is. What
// fails midway leaves a parked stream, or none.
func (b *Broker) restore(ctx context.Context, stream, move string, source *Broker, meter brokerapi.Meter) error {
	chunks, err := source.inbox(ctx)
	if err != nil {
		return err
	}
	answers, err := b.inbox(ctx)
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
	if err := source.api(ctx, "STREAM.SNAPSHOT."+stream, asked, &taken); err != nil || taken.Config == nil {
		return fmt.Errorf("take a snapshot: %w", cmp.Or(err, errors.New("it was answered without a configuration")))
	}
	taken.Config["subjects"], _ = json.Marshal([]string{mark{isCopying, move}.subject(stream)})
	var to struct {
		Subject string `json:"deliver_subject"`
	}
	if err := b.api(ctx, "STREAM.RESTORE."+stream, taken, &to); err != nil {
		return fmt.Errorf("begin to restore: %w", err)
	}
	for ahead, last := 0, false; !last; {
		chunk, err := chunks.next(ctx, chunkWait)
		switch {
		case errors.Is(err, client.ErrSlowConsumer):
			err = fmt.Errorf("it comes faster than it is taken, which an older server does not heed: set a higher --move-rate: %w", err)
		case err != nil:
		case len(chunk.Data) > 0:
			err = meter(ctx, len(chunk.Data))
		case chunk.Header.Get("Status") != "" && chunk.Header.Get("Status") != "204":
			err = fmt.Errorf("it ended with %s %s", chunk.Header.Get("Status"), chunk.Header.Get("Description"))
		}
		if err != nil {
			_ = answers.nc.PublishRequest(to.Subject, answers.Subject, nil) // half of it is no copy: it ends at once
			return fmt.Errorf("the snapshot of %s: %w", source.at, err)
		}
		err = answers.nc.PublishRequest(to.Subject, answers.Subject, chunk.Data)
		for ahead++; err == nil && !last && (ahead > chunksAhead || len(chunk.Data) == 0); ahead-- {
			last, err = b.answer(ctx, answers, meter)
		}
		if err == nil && chunk.Reply != "" {
			err = chunk.Respond(nil)
		}
		if err != nil {
			return fmt.Errorf("%s: restore: %w", b.at, err)
		}
	}
	return nil
}

// answer reads the answer to a chunk, the last one when all is restored: that takes as long as the
// target makes its indexes, and is no silence.
func (b *Broker) answer(ctx context.Context, answers inbox, meter brokerapi.Meter) (last bool, err error) {
	m, err := answers.next(ctx, chunkWait/3)
	for until := time.Now().Add(time.Hour); errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && time.Now().Before(until); {
		if err = meter(ctx, 0); err == nil {
			m, err = answers.next(ctx, chunkWait/3)
		}
	}
	if err != nil || len(m.Data) == 0 {
		return false, err
	}
	var said struct{ Error *client.APIError }
	if err = json.Unmarshal(m.Data, &said); err == nil && said.Error != nil {
		err = refused(said.Error)
	}
	return true, err
}

// inbox is where a server sends what was asked for, over one connection.
type inbox struct {
	*client.Subscription
	nc   *client.Conn
	link context.Context
}

func (b *Broker) inbox(ctx context.Context) (in inbox, err error) {
	if in.nc, in.link, err = b.connected(ctx); err == nil {
		in.Subscription, err = in.nc.SubscribeSync(in.nc.NewInbox())
	}
	return in, err
}

func (in inbox) next(ctx context.Context, patience time.Duration) (*client.Msg, error) {
	ctx, done := brokerapi.Bounded(ctx, in.link, patience)
	defer done()
	m, err := in.NextMsgWithContext(ctx)
	if err != nil {
		err = cmp.Or(context.Cause(ctx), err)
	}
	return m, err
}

// pull reads a consumer's messages ahead, by requests one after the other.
type pull struct {
	inbox
	consumer string
	due      int // messages that the last request may bring yet
}

func (p *pull) ask(batch int, more string) {
	p.due = batch
	request := fmt.Appendf(nil, `{"batch":%d,"expires":%d%s}`, batch, time.Second, more)
	_ = p.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+p.consumer, p.Subject, request)
}

// message is the next one. A server says how a request has ended, but an older one nothing where all its
// bytes are used up; equal messages never bring that about.
func (p *pull) message(ctx context.Context) (*client.Msg, error) {
	const larger, completed = "Message Size Exceeds MaxBytes", "Batch Completed"
	for until := time.Now().Add(chunkWait); ; {
		if p.due == 0 {
			p.ask(maxBatch, fmt.Sprintf(`,"max_bytes":%d`, readAhead))
		}
		m, err := p.next(ctx, 2*time.Second)
		mayCome := ctx.Err() == nil && time.Now().Before(until)
		if errors.Is(err, context.DeadlineExceeded) && mayCome {
			p.due = 0
			continue
		}
		if err != nil {
			return nil, err
		}
		if m.Reply != "" {
			p.due--
			return m, nil
		}
		switch said := m.Header.Get("Description"); {
		case said == completed && p.due == maxBatch: // of the request before
		case said == larger && p.due == maxBatch:
			p.ask(1, "")
		case said == completed, said == larger, m.Header.Get("Status") == "408" && mayCome:
			p.due = 0
		default:
			return nil, fmt.Errorf("it ended with %s %s", m.Header.Get("Status"), said)
		}
	}
}

// message is what is kept of one while it is compared.
type message struct {
	seq  uint64 // noMore: there is none
	msg  *client.Msg
	head []byte // all that it consists of beside its data
}

const noMore = ^uint64(0)

// read yields the messages that were sealed, in their order, and noMore.
func (b *Broker) read(ctx context.Context, stream string, sealed moves.Extent, meter brokerapi.Meter) iter.Seq2[message, error] {
	return func(yield func(message, error) bool) {
		in, err := b.inbox(ctx)
		if err != nil {
			yield(message{}, err)
			return
		}
		var made client.ConsumerInfo
		err = b.api(ctx, "CONSUMER.CREATE."+stream, map[string]any{"stream_name": stream, "config": client.ConsumerConfig{
			DeliverPolicy: client.DeliverByStartSequencePolicy, OptStartSeq: max(sealed.First, 1), AckPolicy: client.AckNonePolicy,
			MemoryStorage: true, InactiveThreshold: time.Hour}}, &made)
		p := pull{inbox: in, consumer: stream + "." + made.Name}
		defer func() { // the connection lives on
			_ = in.nc.PublishRequest("$JS.API.CONSUMER.DELETE."+p.consumer, in.Subject, nil)
			_ = in.Unsubscribe()
		}()
		for read, left := uint64(0), made.NumPending; err == nil && left > 0; read++ {
			m, failed := p.message(ctx)
			about := &client.MsgMetadata{}
			if err = failed; err == nil {
				about, err = m.Metadata()
			}
			seq := about.Sequence.Stream
			switch left = about.NumPending; {
			case err != nil:
			case about.Sequence.Consumer != read+1:
				err = errors.New("a message was lost on its way")
			case seq > sealed.Last:
				left = 0
			default:
				head := fmt.Appendf(nil, "%d %d %q %q %d ", seq, about.Timestamp.UnixNano(), m.Subject, m.Header, len(m.Data))
				if err = meter(ctx, len(head)+len(m.Data)); err == nil && !yield(message{seq, m, head}, nil) {
					return
				}
			}
		}
		if err != nil {
			err = fmt.Errorf("%s: read stream %s: %w", b.at, stream, err)
		}
		yield(message{seq: noMore}, err)
	}
}

// Compare implements brokerapi.Mover. What producers have appended since is not looked at. Where messages
// cannot be read, or go when they are, none is.
func (b *Broker) Compare(ctx context.Context, topic string, from brokerapi.Peer, sealed moves.Extent,
	meter brokerapi.Meter) (c moves.Content, err error) {
	done, err := patiently(ctx, b.comparing, meter)
	if err != nil {
		return c, err
	}
	defer done()
	source, s, err := b.sealedAt(ctx, from, topic, "")
	if err != nil {
		return c, err
	}
	defer source.Close()
	const unread = "no message was read, as %s: number, bytes, first and last sequence and acknowledgements agreed before the handover"
	if s.consumes() {
		return moves.Content{Observed: fmt.Sprintf(unread, "the stream's retention is not limits")}, nil
	}
	nextT, stopT := iter.Pull2(source.read(ctx, s.name, sealed, meter))
	defer stopT()
	nextH, stopH := iter.Pull2(b.read(ctx, s.name, sealed, meter))
	defer stopH()
	hash := sha256.New()
	for t, h := (message{}), (message{}); c.Differs == "" && err == nil; {
		goesT, goesH := t.seq <= h.seq, h.seq <= t.seq
		if goesT {
			t, err, _ = nextT()
		}
		if goesH && err == nil {
			h, err, _ = nextH()
		}
		switch {
		case errors.Is(err, errMaxConsumers):
			return moves.Content{Observed: fmt.Sprintf(unread, "the stream has all the consumers that it may have")}, nil
		case err != nil:
		case t.seq < h.seq:
			c.Gone++
			c.Differs, err = b.missed(ctx, topic, t, sealed)
		case t.seq > h.seq && sealed.Shrinks:
			c.Gone++
		case t.seq > h.seq:
			c.Differs = fmt.Sprintf("message %d of %q is at the target only", h.seq, h.msg.Subject)
		case t.seq == noMore:
			c.Hash = fmt.Sprintf("%x", hash.Sum(nil))
			return c, nil
		case !bytes.Equal(t.head, h.head) || !bytes.Equal(t.msg.Data, h.msg.Data):
			c.Differs = fmt.Sprintf("message %d: %d bytes of %q at the source, %d of %q at the target",
				t.seq, len(t.msg.Data), t.msg.Subject, len(h.msg.Data), h.msg.Subject)
		default:
			c.Compared++
			hash.Write(t.head)
			hash.Write(t.msg.Data)
		}
	}
	return c, err
}

// missed says that a message is missing here, and nothing has taken it away: neither the stream's
// limits, nor a later message that stands for those before it.
func (b *Broker) missed(ctx context.Context, topic string, m message, sealed moves.Extent) (string, error) {
	now, err := b.look(ctx, topic)
	if err != nil || now.Config.has("allow_msg_ttl") || m.seq < now.State.FirstSeq { // by max_age they go in their order
		return "", err
	}
	var later struct{ Message struct{ Seq uint64 } }
	if now.Config.has("max_msgs_per_subject") || now.Config.has("allow_rollup_hdrs") {
		err = b.api(ctx, "STREAM.MSG.GET."+now.name, map[string]string{"last_by_subj": m.msg.Subject}, &later)
	}
	if later.Message.Seq > sealed.Last || err != nil && !errors.Is(err, client.ErrMsgNotFound) {
		return "", err
	}
	return fmt.Sprintf("message %d of %q is at the source only", m.seq, m.msg.Subject), nil
}
