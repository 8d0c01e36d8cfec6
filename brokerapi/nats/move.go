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
	"strings"
	"time"

	client "github.com/nats-io/nats.go"

	"holdfast/brokerapi"
	"holdfast/recovery/moves"
)

// Moving a topic: its stream is parked and its consumers are paused; the target pulls a snapshot
// into a restore of its own, parked and paused as well, and then gives it its subjects.
//
// Guaranteed: what was acknowledged before a stream was parked is in what Seal returns; only what a
// move has parked is ever deleted. Not guaranteed: that consumers rest before nats-server 2.11, which
// cannot pause them: what they acknowledge once the copy is made is delivered again at the target.

var _ brokerapi.Mover = (*Broker)(nil)

// mark is what a move leaves in a stream's subjects, where every server keeps it: how far it came,
// and its ID.
type mark struct{ state, move string }

// The states of a mark. In all but the last the stream is parked.
const (
	isSealed  = "sealed"
	isCopying = "copying"
	isCopied  = "copied"
	isResumed = "resumed"
	moved     = "_HOLDFAST.moved." // in front of the last one's subject, which nobody publishes to either
)

func (m mark) subject(stream string) string {
	front := parked
	if m.state == isResumed {
		front = moved
	}
	return front + stream + "." + m.state + "." + encode(m.move)
}

func markIn(subjects []string) (m mark) {
	for _, s := range subjects {
		if parts := strings.Split(s, "."); len(parts) == 5 && (isParked([]string{s}) || strings.HasPrefix(s, moved)) {
			m = mark{parts[3], decode(parts[4])}
		}
	}
	return m
}

func isParked(subjects []string) bool {
	return slices.ContainsFunc(subjects, func(s string) bool { return strings.HasPrefix(s, parked) })
}

// paused is until when a move pauses consumers: nobody else asks for that moment.
var paused = time.Date(2222, time.February, 22, 0, 0, 0, 0, time.UTC)

// lookPause is how long a sealed stream must stand still. What is routed to it later yet, the handover
// finds. A server writes consumers' positions down at the latest 100 ms after they change: with a
// shorter pause one that is killed behind the seal had forgotten them (2.15.3).
const lookPause = 150 * time.Millisecond

// errOtherStream has JetStream's own code for a message that is meant for another stream.
var errOtherStream = &client.APIError{ErrorCode: 10060}

// refuse is an error after which trying again changes nothing.
func refuse(format string, args ...any) error {
	return brokerapi.Errorf(brokerapi.ErrRefused, format, args...)
}

// settings are a stream's configuration as the server writes it.
type settings map[string]json.RawMessage

// has reports whether something is set that is not the same as nothing.
func (s settings) has(key string) bool {
	return !slices.Contains([]string{"", "null", "false", "0", "-1", `""`, "{}", "[]", `"none"`, `"default"`}, string(s[key]))
}

// standing is what STREAM.INFO says of a stream.
type standing struct {
	Config settings `json:"config"`
	State  struct {
		Messages uint64 `json:"messages"`
		Bytes    uint64 `json:"bytes"`
		First    uint64 `json:"first_seq"`
		Last     uint64 `json:"last_seq"`
	} `json:"state"`
	Cluster struct {
		Name string `json:"name"`
	} `json:"cluster"`
	name     string
	subjects []string
	mark     mark
}

// look reads a topic's stream. The error wraps client.ErrStreamNotFound where there is none.
func (b *Broker) look(ctx context.Context, topic string) (s standing, err error) {
	if s.name, err = streamName(topic); err == nil {
		err = b.api(ctx, "STREAM.INFO."+s.name, nil, &s)
	}
	if raw := s.Config["subjects"]; err == nil && raw != nil {
		err = json.Unmarshal(raw, &s.subjects)
	}
	if err != nil {
		return s, fmt.Errorf("look at stream %s: %w", s.name, err)
	}
	s.mark = markIn(s.subjects)
	return s, nil
}

// movable is look at a stream that can be moved; what cannot is refused.
func (b *Broker) movable(ctx context.Context, topic string) (s standing, err error) {
	s, err = b.look(ctx, topic)
	why := ""
	switch {
	case errors.Is(err, client.ErrStreamNotFound):
		return s, brokerapi.Errorf(errors.Join(brokerapi.ErrRefused, err), "%v: the topic is not here", err)
	case err != nil:
		return s, err
	case s.Cluster.Name != "" || string(s.Config["num_replicas"]) != "1":
		why = "its server is in a JetStream cluster, which moves streams itself ('nats stream edit', 'nats server raft')"
	case string(s.Config["storage"]) != `"file"`:
		why = "it is in memory, and ends with the server's process: make it anew with file storage"
	case s.Config.has("mirror") || s.Config.has("sources"):
		why = "it takes its messages from other streams, which would go on: take mirror and sources out of it"
	case s.Config.has("sealed"):
		why = "it is sealed, which cannot be undone: move it with 'nats stream backup' and 'nats stream restore'"
	case s.Config.has("subject_delete_marker_ttl") || s.Config.has("allow_msg_schedules"):
		why = "the server itself appends to it, parked or not: take subject_delete_marker_ttl and allow_msg_schedules out of it"
	default:
		return s, nil
	}
	return s, refuse("stream %s cannot be moved: %s", s.name, why)
}

// hash is over what was asked for: not over subjects, which say whether it serves, nor over what a
// server adds for itself or writes of what was not set.
func (s settings) hash() (string, error) {
	asked := maps.Clone(s)
	maps.DeleteFunc(asked, func(key string, _ json.RawMessage) bool {
		return key == "subjects" || key == "placement" || key == "metadata" || !s.has(key)
	})
	text, err := json.Marshal(asked)
	sum := sha256.Sum256(text)
	return fmt.Sprintf("%x", sum[:16]), err
}

// consumer is what CONSUMER.LIST says of one.
type consumer struct {
	Name   string `json:"name"`
	Config struct {
		Durable  string        `json:"durable_name"`
		Inactive time.Duration `json:"inactive_threshold"`
		Until    time.Time     `json:"pause_until"`
	} `json:"config"`
	Floor struct {
		Stream uint64 `json:"stream_seq"`
	} `json:"ack_floor"`
	Waiting int  `json:"num_waiting"`
	Bound   bool `json:"push_bound"`
	Paused  bool `json:"paused"`
}

// consumers lists those of a stream, by name.
func (b *Broker) consumers(ctx context.Context, stream string) (map[string]consumer, error) {
	all := map[string]consumer{}
	for offset, total := 0, 1; offset < total; {
		var page struct {
			Total     int        `json:"total"`
			Consumers []consumer `json:"consumers"`
		}
		if err := b.api(ctx, "CONSUMER.LIST."+stream, map[string]int{"offset": offset}, &page); err != nil {
			return nil, fmt.Errorf("list the consumers of %s: %w", stream, err)
		}
		for _, c := range page.Consumers {
			all[c.Name] = c
		}
		total, offset = page.Total, offset+len(page.Consumers)
		if whole := offset >= total; len(page.Consumers) == 0 && !whole || whole && len(all) != total {
			return nil, fmt.Errorf("list the consumers of %s: JetStream listed %d of %d: try again", stream, len(all), total)
		}
	}
	return all, nil
}

// hush pauses a stream's consumers, or ends the pause of those that a move has paused. Who was
// paused by somebody else stays so.
func (b *Broker) hush(ctx context.Context, stream string, pause bool) error {
	nc, _, err := b.connected(ctx)
	if err != nil {
		return err
	}
	var major, minor int
	if n, _ := fmt.Sscanf(nc.ConnectedServerVersion(), "%d.%d", &major, &minor); n == 2 && major == 2 && minor < 11 {
		return nil
	}
	all, err := b.consumers(ctx, stream)
	for _, c := range all {
		var until time.Time // none
		if pause {
			until = paused
		}
		if ours := c.Config.Until.Equal(paused); pause == ours || pause && c.Paused {
			continue
		}
		err = b.api(ctx, "CONSUMER.PAUSE."+stream+"."+c.Name, map[string]time.Time{"pause_until": until}, nil)
		if err != nil && !errors.Is(err, client.ErrConsumerNotFound) { // which went by itself
			return fmt.Errorf("pause consumer %s of %s: %w", c.Name, stream, err)
		}
	}
	return err
}

// Extent implements brokerapi.Mover.
func (b *Broker) Extent(ctx context.Context, topic string) (moves.Extent, error) {
	s, err := b.movable(ctx, topic)
	if err != nil {
		return moves.Extent{}, err
	}
	return b.extent(ctx, s)
}

func (b *Broker) extent(ctx context.Context, s standing) (moves.Extent, error) {
	all, err := b.consumers(ctx, s.name)
	if err != nil {
		return moves.Extent{}, err
	}
	e := moves.Extent{
		Empty: s.State.Last == 0, First: s.State.First, Last: s.State.Last, Count: s.State.Messages, Bytes: s.State.Bytes,
		Floors: map[string]uint64{}, Shrinks: s.ages() || string(s.Config["retention"]) != `"limits"`, Rests: b.rests(ctx, s),
		Served: !isParked(s.subjects),
	}
	if e.Empty {
		e.First = 0 // servers differ
	}
	for _, c := range all {
		if c.Config.Durable != "" && c.Config.Inactive == 0 { // the others go by themselves
			e.Floors[c.Name] = c.Floor.Stream
		}
		if !c.Paused && (c.Bound || c.Waiting > 0) {
			e.Active++
		}
	}
	e.Config, err = s.Config.hash()
	return e, err
}

// ages: messages go by their age.
func (s *standing) ages() bool { return s.Config.has("max_age") || s.Config.has("allow_msg_ttl") }

// rests is on what it rests that an acknowledged message survives the power cut of this host.
func (b *Broker) rests(ctx context.Context, s standing) string {
	v, err := b.varz(ctx)
	switch cfg := v.JetStream.Config; {
	case err != nil || cfg == nil:
		return "it is not known how often JetStream syncs its files: the monitoring port does not say"
	case string(s.Config["persist_mode"]) == `"async"`:
		return "messages are acknowledged before they are written (persist_mode: async): their server's end may lose the last"
	case cfg.SyncAlways:
		return "each message was on disk before it was acknowledged (sync_interval: always)"
	default:
		return fmt.Sprintf("acknowledged messages are on disk at the latest %v later: a power cut of their host until then "+
			"may lose them; to exclude it, set sync_interval: always", cmp.Or(cfg.Sync, 2*time.Minute))
	}
}

// Accept implements brokerapi.Mover.
func (b *Broker) Accept(ctx context.Context, topic string, record []byte, like moves.Extent, from brokerapi.Peer) error {
	v, err := b.varz(ctx)
	cfg := v.JetStream.Config
	switch {
	case err != nil:
		return err
	case cfg == nil:
		return refuse("%s: it has no JetStream: %s", b.at, startJetStream)
	case slices.Contains([]string{"2.15.0", "2.15.1", "2.15.2"}, v.Version):
		return refuse("%s: nats-server %s forgets the IDs of the messages that it restores, and would store one that is sent again: "+
			"upgrade it to 2.15.3", b.at, v.Version)
	case len(v.JetStream.Meta) > 0:
		return refuse("%s: it is in a JetStream cluster, which places streams itself", b.at)
	}
	var account client.AccountInfo
	if err := b.api(ctx, "INFO", nil, &account); err != nil {
		return err
	}
	free := cfg.MaxStorage - v.JetStream.Stats.Storage
	if most := account.Limits.MaxStore; most >= 0 {
		free = min(free, most-int64(account.Store))
	}
	if free = max(free, 0); like.Bytes > uint64(free) {
		return refuse("%s: JetStream has room for %d bytes, %s has %d: raise max_file_store or the account's max_storage, or make room",
			b.at, free, topic, like.Bytes)
	}
	if _, err := b.vacant(ctx, topic); err != nil {
		return err
	}
	source, err := b.peer(ctx, from)
	if err != nil {
		return err
	}
	source.Close()
	wanted, err := configOf(strings.TrimSuffix(b.cfg.KeyPrefix, "/"), topic, record)
	if err != nil {
		return err
	}
	for _, subject := range wanted.Subjects {
		topics, others, err := b.list(ctx, subject)
		if err != nil {
			return err
		}
		delete(topics, topic)
		if others = slices.AppendSeq(others, maps.Keys(topics)); len(others) > 0 {
			return refuse("%s: %s takes messages of %q, which are %s's: change the subjects of one", b.at, others[0], subject, topic)
		}
	}
	return nil
}

// vacant looks what is in a copy's place. It refuses all but a copy that was never resumed.
func (b *Broker) vacant(ctx context.Context, topic string) (left mark, err error) {
	s, err := b.look(ctx, topic)
	switch {
	case errors.Is(err, client.ErrStreamNotFound):
		return mark{}, nil
	case err != nil || s.mark.state == isCopying || s.mark.state == isCopied:
		return s.mark, err
	}
	return mark{}, refuse("%s: stream %s is here already, with %d messages: see 'nats stream info %[2]s'; "+
		"if nobody needs it, 'nats stream rm %[2]s'", b.at, s.name, s.State.Messages)
}

// Seal implements brokerapi.Mover. What was routed to the stream before its subjects went is stored
// after that: the end of it is waited for.
func (b *Broker) Seal(ctx context.Context, topic, move string, force bool) (e moves.Extent, err error) {
	ours := mark{isSealed, move}
	s, err := b.movable(ctx, topic)
	if err == nil {
		e, err = b.extent(ctx, s)
	}
	if err == nil {
		err = b.resubject(ctx, s.name, func(m mark, now []string) ([]string, error) {
			switch {
			case m == ours:
				return now, nil
			case m.state == isResumed && m.move >= move: // it was called off, or is over
				return nil, refuse("move %s has resumed it, and this one did not come later: unload it anew", m.move)
			case m.state != "" && m.state != isResumed:
				return nil, refuse("move %s has it (%s): wait for its end ('holdfast moves %[1]s'), or call it off", m.move, m.state)
			case !force && e.Active > 0:
				return nil, refuse("consumers of it are at work (%d): stop them, or use --force: what they acknowledge late comes again", e.Active)
			}
			return []string{ours.subject(s.name)}, nil
		})
	}
	if err == nil {
		err = b.hush(ctx, s.name, true)
	}
	for last := ^uint64(0); err == nil; last = e.Last {
		if !s.Config.has("no_ack") { // else it answers nobody, and promises nothing
			err = b.settle(ctx, ours.subject(s.name))
		}
		if err == nil {
			e, err = b.Extent(ctx, topic)
		}
		if err == nil && e.Last == last {
			return e, nil
		}
		select {
		case <-time.After(lookPause):
		case <-ctx.Done():
			err = cmp.Or(err, context.Cause(ctx))
		}
	}
	return moves.Extent{}, fmt.Errorf("seal %s: %w", topic, err)
}

// settle returns when all that is on its way to a stream is stored: a message that is meant for no
// stream goes behind it, which JetStream refuses in its turn.
func (b *Broker) settle(ctx context.Context, subject string) error {
	last := client.NewMsg(subject)
	last.Header.Set(client.ExpectedStreamHdr, "none")
	if err := b.ask(ctx, last, nil); !errors.Is(err, errOtherStream) {
		return fmt.Errorf("wait for what is on its way: our user must be allowed to publish to %s: %w", parkedFilter, err)
	}
	return nil
}

// Resume implements brokerapi.Mover.
func (b *Broker) Resume(ctx context.Context, topic, move string, record []byte, sealed *moves.Extent) (e moves.Extent, err error) {
	s, err := b.movable(ctx, topic)
	if err == nil {
		e, err = b.extent(ctx, s)
	}
	if err == nil {
		err = resumable(s, e, move, sealed)
	}
	if err == nil || sealed == nil && errors.Is(err, client.ErrStreamNotFound) {
		err = b.Serve(ctx, topic, record)
	}
	if err != nil {
		return e, fmt.Errorf("resume %s: %w", topic, err)
	}
	return b.Extent(ctx, topic)
}

// resumable refuses what bears another move's mark, or does not stand where it was sealed. What was
// resumed may have gone on.
func resumable(s standing, e moves.Extent, move string, sealed *moves.Extent) (err error) {
	switch m := s.mark; {
	case m.move != move && (sealed != nil || m.state != "" && m.state != isResumed):
		err = fmt.Errorf("it bears the mark of move %q, and not of %q", m.move, move)
	case m.state == isCopying:
		err = errors.New("it is half a copy")
	case sealed != nil && m.state != isResumed:
		err = sealed.Fits(&e, "here")
	case sealed != nil && e.Last < sealed.Last:
		err = fmt.Errorf("its last message is %d, sealed was %d", e.Last, sealed.Last)
	}
	if err != nil {
		return refuse("stream %s: %v", s.name, err)
	}
	return nil
}

// Remove implements brokerapi.Mover.
func (b *Broker) Remove(ctx context.Context, topic, move string) error {
	s, err := b.look(ctx, topic)
	switch {
	case err == nil && !isParked(s.subjects):
		err = refuse("stream %s serves here, with the subjects %q: it stays", s.name, s.subjects)
	case err == nil && (s.mark.move != move || s.mark.state == isResumed):
		err = refuse("stream %s was not sealed or copied by this move: it stays", s.name)
	case err == nil:
		err = b.api(ctx, "STREAM.DELETE."+s.name, nil, nil)
	}
	if err == nil || errors.Is(err, client.ErrStreamNotFound) {
		return nil
	}
	return fmt.Errorf("remove %s: %w", topic, err)
}
