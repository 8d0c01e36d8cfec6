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

// paused is until when a move pauses consumers: nobody else asks for that moment.
var paused = time.Date(2222, time.February, 22, 0, 0, 0, 0, time.UTC)

// lookPause is how long a sealed stream must stand still. What is routed to it later yet, the handover
// finds. A server writes consumers' positions down at the latest 100 ms after they change: with a
// shorter pause one that is killed behind the seal had forgotten them (2.15.3).
const lookPause = 150 * time.Millisecond

// These have JetStream's own codes: for a message that is meant for another stream, and for a consumer
// too many.
var (
	errOtherStream  = &client.APIError{ErrorCode: 10060}
	errMaxConsumers = &client.APIError{ErrorCode: 10026}
)

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
	Config   settings            `json:"config"`
	State    client.StreamState  `json:"state"`
	Cluster  *client.ClusterInfo `json:"cluster"`
	name     string
	subjects []string
	mark     mark
	parked   bool
}

// look reads a topic's stream. The error wraps client.ErrStreamNotFound where there is none.
func (b *Broker) look(ctx context.Context, topic string) (s standing, err error) {
	if s.name, err = streamName(topic); err != nil {
		return s, err
	}
	err = b.api(ctx, "STREAM.INFO."+s.name, nil, &s)
	if err == nil && s.Config == nil {
		err = errors.New("JetStream answered without its configuration")
	}
	if raw := s.Config["subjects"]; err == nil && raw != nil {
		err = json.Unmarshal(raw, &s.subjects)
	}
	if err != nil {
		return s, fmt.Errorf("read stream %s: %w", s.name, err)
	}
	for _, subject := range s.subjects {
		s.parked = s.parked || strings.HasPrefix(subject, parked)
		if parts := strings.Split(subject, "."); len(parts) == 5 && parts[0] == "_HOLDFAST" {
			s.mark = mark{parts[3], decode(parts[4])}
		}
	}
	return s, nil
}

// movable is look at a stream that can be moved; what cannot is refused.
func (b *Broker) movable(ctx context.Context, topic string) (s standing, e moves.Extent, err error) {
	s, err = b.look(ctx, topic)
	why := ""
	switch {
	case errors.Is(err, client.ErrStreamNotFound):
		return s, e, brokerapi.Errorf(errors.Join(brokerapi.ErrRefused, err), "%v: the topic is not here", err)
	case err != nil:
		return s, e, err
	case s.Cluster != nil && s.Cluster.Name != "" || string(s.Config["num_replicas"]) != "1":
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
		e, err = b.extent(ctx, s)
		return s, e, err
	}
	return s, e, refuse("stream %s cannot be moved: %s", s.name, why)
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
	Floor   client.SequenceInfo `json:"ack_floor"`
	Waiting int                 `json:"num_waiting"`
	Bound   bool                `json:"push_bound"`
	Paused  bool                `json:"paused"`
}

// consumers lists those of a stream.
func (b *Broker) consumers(ctx context.Context, stream string) (all []consumer, err error) {
	for total := 1; len(all) < total; {
		var page struct {
			Total     int        `json:"total"`
			Consumers []consumer `json:"consumers"`
		}
		if err := b.api(ctx, "CONSUMER.LIST."+stream, map[string]int{"offset": len(all)}, &page); err != nil {
			return nil, fmt.Errorf("list the consumers of %s: %w", stream, err)
		}
		if total = page.Total; len(page.Consumers) == 0 && len(all) < total {
			return nil, fmt.Errorf("list the consumers of %s: JetStream listed %d of %d: try again", stream, len(all), total)
		}
		all = append(all, page.Consumers...)
	}
	return all, nil
}

// hush pauses a stream's consumers, or ends the pause of those that a move has paused: until is paused,
// or zero. Who was paused by somebody else stays so.
func (b *Broker) hush(ctx context.Context, stream string, until time.Time) error {
	nc, _, err := b.connected(ctx)
	if err != nil {
		return err
	}
	if v := nc.ConnectedServerVersion(); strings.HasPrefix(v, "2.9.") || strings.HasPrefix(v, "2.10.") {
		return nil
	}
	all, err := b.consumers(ctx, stream)
	for _, c := range all {
		if ours := c.Config.Until.Equal(paused); ours == until.Equal(paused) || c.Paused && !ours {
			continue
		}
		err := b.api(ctx, "CONSUMER.PAUSE."+stream+"."+c.Name, map[string]time.Time{"pause_until": until}, nil)
		if err != nil && !errors.Is(err, client.ErrConsumerNotFound) { // which went by itself
			return fmt.Errorf("pause consumer %s of %s: %w", c.Name, stream, err)
		}
	}
	return err
}

// Extent implements brokerapi.Mover.
func (b *Broker) Extent(ctx context.Context, topic string) (e moves.Extent, err error) {
	_, e, err = b.movable(ctx, topic)
	return e, err
}

func (b *Broker) extent(ctx context.Context, s standing) (e moves.Extent, err error) {
	all, err := b.consumers(ctx, s.name)
	if err != nil {
		return e, err
	}
	e = moves.Extent{
		Empty: s.State.LastSeq == 0, First: s.State.FirstSeq, Last: s.State.LastSeq, Count: s.State.Msgs, Bytes: s.State.Bytes,
		Floors: map[string]uint64{}, Shrinks: s.ages() || s.consumes(), Rests: b.rests(ctx, s), Served: !s.parked,
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

// consumes: messages go once they are acknowledged.
func (s *standing) consumes() bool { return string(s.Config["retention"]) != `"limits"` }

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
			"may lose them; to exclude it, set sync_interval: always, which nats-server has from 2.10 on", cmp.Or(cfg.Sync, 2*time.Minute))
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
	wanted, err := configOf(b.recordKey(topic), topic, record)
	if err != nil {
		return refuse("%v", err)
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
		"if nobody needs it, 'nats stream rm %[2]s'", b.at, s.name, s.State.Msgs)
}

// Seal implements brokerapi.Mover. What was routed to the stream before its subjects went is stored
// after that: the end of it is waited for.
func (b *Broker) Seal(ctx context.Context, topic, move string, force bool) (moves.Extent, error) {
	ours := mark{isSealed, move}
	s, e, err := b.movable(ctx, topic)
	if err == nil {
		err = b.resubject(ctx, topic, func(now standing) ([]string, error) {
			switch m := now.mark; {
			case m == ours:
				return now.subjects, nil
			case m.state == isResumed && m.move >= move: // it was called off, or is over
				return nil, refuse("move %s has resumed it, and this one did not come later: unload it anew", m.move)
			case m.state != "" && m.state != isResumed:
				return nil, refuse("move %s has it (%s): wait for its end ('holdfast moves %[1]s'), or call it off", m.move, m.state)
			case !force && e.Active > 0:
				return nil, refuse("consumers of it are at work (%d): stop them, or use --force: what they acknowledge late comes again", e.Active)
			}
			return []string{ours.subject(now.name)}, nil
		})
	}
	if err == nil {
		err = b.hush(ctx, s.name, paused)
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
		if err == nil {
			err = brokerapi.Sleep(ctx, lookPause)
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

// Resume implements brokerapi.Mover. It refuses what bears another move's mark, or does not stand
// where it was sealed; Serve refuses half a copy. What was resumed may have gone on.
func (b *Broker) Resume(ctx context.Context, topic, move string, record []byte, sealed *moves.Extent) (moves.Extent, error) {
	s, e, err := b.movable(ctx, topic)
	switch m := s.mark; {
	case sealed == nil && errors.Is(err, client.ErrStreamNotFound):
		err = nil
	case err != nil:
	case m.move != move && (sealed != nil || m.state != "" && m.state != isResumed):
		err = refuse("stream %s bears the mark of move %q, and not of %q", s.name, m.move, move)
	case sealed != nil && m.state == isResumed && e.Last < sealed.Last:
		err = refuse("stream %s: its last message is %d, sealed was %d", s.name, e.Last, sealed.Last)
	case sealed != nil && m.state != isResumed:
		if err = sealed.Fits(&e, "here"); err != nil {
			err = refuse("stream %s: %v", s.name, err)
		}
	}
	if err == nil {
		err = b.Serve(ctx, topic, record)
	}
	if err != nil {
		return e, fmt.Errorf("resume %s: %w", topic, err)
	}
	return b.Extent(ctx, topic)
}

// Remove implements brokerapi.Mover.
func (b *Broker) Remove(ctx context.Context, topic, move string) error {
	s, err := b.look(ctx, topic)
	if err == nil && (!s.parked || s.mark.move != move || s.mark.state == isResumed) {
		err = refuse("stream %s serves here, or was not sealed or copied by this move: it stays, with the subjects %q", s.name, s.subjects)
	}
	if err == nil {
		err = b.api(ctx, "STREAM.DELETE."+s.name, nil, nil)
	}
	if err == nil || errors.Is(err, client.ErrStreamNotFound) {
		return nil
	}
	return fmt.Errorf("remove %s: %w", topic, err)
}
