package danube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"holdfast/brokerapi"
	"holdfast/brokerapi/danube/danubepb"
)

// raftVersion stands for a version: nothing that the broker says tells it.
const raftVersion = "0.8+ (Raft)"

// raftBroker is a broker that keeps its metadata among its like.
type raftBroker struct {
	*node
	dataDir string // empty: not compared

	mu     sync.Mutex
	who    brokerapi.Identity
	whose  time.Time // when the connection was made that who was found on
	quorum quorum
}

var (
	_ brokerapi.Broker     = (*raftBroker)(nil)
	_ brokerapi.Unloader   = (*raftBroker)(nil)
	_ brokerapi.ModeSetter = (*raftBroker)(nil)
)

func newRaft(n *node, dataDir string) *raftBroker { return &raftBroker{node: n, dataDir: dataDir} }

// Capabilities implements brokerapi.Broker.
func (b *raftBroker) Capabilities() brokerapi.Capabilities {
	return brokerapi.Capabilities{Unload: true, StableName: true, Steer: true, Assigns: true, Peers: true}
}

// status is the Raft cluster as the broker sees it. The broker must know its own number.
func (b *raftBroker) status(ctx context.Context) (*danubepb.ClusterStatusResponse, error) {
	s, err := b.clusterStatus(ctx)
	switch {
	case code(err) == codes.Unimplemented:
		return nil, identityErrorf("--broker-admin %s: no Danube broker with Raft (0.8 or later) answers there: if it keeps its metadata in etcd (0.7), set --registration to adopt", b.at.admin)
	case err != nil:
		return nil, err
	case s.GetSelfNodeId() == 0:
		return nil, fmt.Errorf("--broker-admin %s: ClusterStatus answered without the broker's own node id: see the broker's log", b.at.admin)
	}
	return s, nil
}

// Identify implements brokerapi.Broker. Name is the node id, which the broker keeps in
// its data directory. Instance adds when the process started, as the metrics tell; if
// they do not, when the connection to it was made.
func (b *raftBroker) Identify(ctx context.Context) (brokerapi.Identity, error) {
	since := b.adminLink.since()
	s, err := b.status(ctx)
	if now := b.adminLink.since(); err == nil && !now.Equal(since) { // it may have been another process
		since = now
		s, err = b.status(ctx)
	}
	if err != nil {
		return brokerapi.Identity{}, err
	}
	id := strconv.FormatUint(s.GetSelfNodeId(), 10)
	if err := b.sameDataDir(id); err != nil {
		return brokerapi.Identity{}, err
	}
	seen, err := b.scrape(ctx)
	if err == nil && len(seen.Brokers) > 0 && !slices.Contains(seen.Brokers, id) {
		return brokerapi.Identity{}, identityErrorf("--broker-admin %s is broker %s, and --danube-metrics %s is broker %s: set both to ports of the same broker",
			b.at.admin, id, b.at.metrics, shown(seen.Brokers[0]))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.who.Name == id && b.whose.Equal(since) {
		return b.who, nil // the same connection is the same process
	}
	start, supposed := seen.StartedAt, ""
	if start.IsZero() {
		start = since
		supposed = fmt.Sprintf("--danube-metrics %s: does not tell when the broker started, so each new connection to it is taken for a new start: set it to the broker's metrics port (%s)",
			b.at.metrics, metricsPort)
	}
	b.whose = since
	b.who = brokerapi.Identity{
		Name: id, Instance: fmt.Sprintf("%s@%d", id, start.UnixMilli()), Supposed: supposed, StartedAt: seen.StartedAt, Version: raftVersion,
	}
	return b.who, nil
}

// sameDataDir compares the broker with the one that the data directory belongs to. One
// that has not been written yet, or that we may not read, says nothing.
func (b *raftBroker) sameDataDir(id string) error {
	if b.dataDir == "" {
		return nil
	}
	file, err := os.Open(filepath.Join(b.dataDir, "node_id"))
	if err != nil {
		return nil
	}
	defer file.Close()
	text := make([]byte, 64)
	n, _ := file.Read(text)
	owner := strings.TrimSpace(string(text[:n]))
	if number(owner) && owner != id {
		return identityErrorf("--data-dir %s belongs to broker %s, and the broker at --broker-admin %s is %s: give the data directory of that broker, or point --broker-admin at the right one",
			b.dataDir, owner, b.at.admin, id)
	}
	return nil
}

// self finds the broker in its own list of brokers.
func (b *raftBroker) self(ctx context.Context) (*danubepb.BrokerInfo, error) {
	s, err := b.status(ctx)
	if err != nil {
		return nil, err
	}
	list, err := b.listBrokers(ctx)
	if err != nil {
		return nil, err
	}
	id := strconv.FormatUint(s.GetSelfNodeId(), 10)
	for _, info := range list {
		if info.GetBrokerId() == id {
			if info.GetBrokerAddr() != "" {
				b.advertised.Store(info.GetBrokerAddr())
			}
			return info, nil
		}
	}
	return nil, fmt.Errorf("--broker-admin %s: broker %s is not in its own list of brokers: it has not registered yet, or its registration has run out", b.at.admin, id)
}

// Health implements brokerapi.Broker: the broker is a member of the Raft cluster, which
// the admin port answers before it is true, and its client port looks up a topic.
func (b *raftBroker) Health(ctx context.Context) error {
	s, err := b.status(ctx)
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.quorum.saw(s, b.adminLink.since(), time.Now())
	b.mu.Unlock()
	if id := s.GetSelfNodeId(); !slices.Contains(s.GetVoters(), id) && !slices.Contains(s.GetLearners(), id) {
		return fmt.Errorf("--broker-admin %s: broker %d is no member of its Raft cluster yet: have it join, or see its log", b.at.admin, id)
	}
	return b.clientPortAnswers(ctx)
}

// Topics implements brokerapi.Broker: of the topics that the broker believes to have,
// those that it has loaded. None is ever quiesced.
func (b *raftBroker) Topics(ctx context.Context) (brokerapi.Held, error) {
	info, err := b.self(ctx)
	if err != nil {
		return brokerapi.Held{}, fmt.Errorf("list topics: %w", err)
	}
	believed, unreadable, err := b.listTopics(ctx, info.GetBrokerId())
	if err != nil {
		return brokerapi.Held{}, fmt.Errorf("list topics: %w", err)
	}
	loaded, err := b.served(ctx, union(believed, nil))
	if err != nil {
		return brokerapi.Held{}, fmt.Errorf("list topics: %w", err)
	}
	return brokerapi.Held{Serving: loaded, Unreadable: unreadable}, nil
}

// Load implements brokerapi.Broker. The brokers assign topics themselves: it waits until
// one of them serves the topic, which is nothing that it could bring about.
func (b *raftBroker) Load(ctx context.Context, topic string, _ []byte) error {
	if err := checkTopic("load", topic); err != nil {
		return err
	}
	err := b.await(ctx, topic, func(at place) (bool, error) {
		if at == elsewhere {
			return false, brokerapi.ErrElsewhere
		}
		return at == here, nil
	})
	if err != nil && isOver(ctx) {
		err = fmt.Errorf("no broker serves it, and the brokers assign topics themselves: see whether it exists: %w", err)
	}
	if err != nil {
		return fmt.Errorf("load %s: %w", topic, err)
	}
	return nil
}

// alone explains the refusal of a broker that is the only active one.
func alone(err error) error {
	if code(err) == codes.FailedPrecondition {
		return fmt.Errorf("%w: it gives up topics only to another active broker: start or activate one", err)
	}
	return err
}

// Unload implements brokerapi.Unloader: another broker gets the topic.
func (b *raftBroker) Unload(ctx context.Context, topic string) error {
	if err := checkTopic("unload", topic); err != nil {
		return err
	}
	if err := b.unload(ctx, topic); err != nil {
		return fmt.Errorf("unload %s: %w", topic, err)
	}
	return nil
}

func (b *raftBroker) unload(ctx context.Context, topic string) error {
	if at, err := b.lookup(ctx, topic); err != nil || at != here {
		return err
	}
	var answer *danubepb.TopicResponse
	err := b.adminLink.order(ctx, "UnloadTopic", func(ctx context.Context) (err error) {
		answer, err = b.topics.UnloadTopic(ctx, &danubepb.TopicRequest{Name: topic})
		return err
	})
	if err != nil && code(err) != codes.NotFound { // gone meanwhile
		return alone(err)
	}
	if err == nil && !answer.GetSuccess() {
		return fmt.Errorf("--broker-admin %s: UnloadTopic answered that it had no success: see the broker's log", b.at.admin)
	}
	return b.await(ctx, topic, func(at place) (bool, error) { return at != here, nil })
}

// SetMode implements brokerapi.ModeSetter. Draining ends when the broker calls itself
// drained, which takes another active broker unless it has no topics.
func (b *raftBroker) SetMode(ctx context.Context, mode brokerapi.Mode, reason string) error {
	if mode != brokerapi.Active && mode != brokerapi.Drained {
		return fmt.Errorf("steer the broker: unknown mode %q", mode)
	}
	if err := b.steer(ctx, mode, reason); err != nil {
		return fmt.Errorf("make the broker %s: %w", mode, err)
	}
	return nil
}

func (b *raftBroker) steer(ctx context.Context, mode brokerapi.Mode, reason string) error {
	info, err := b.self(ctx)
	if err != nil || is(info, mode) {
		return err
	}
	progress := ""
	if mode == brokerapi.Active {
		err = b.activate(ctx, info.GetBrokerId(), reason)
	} else {
		draining, cancel := outlast(ctx, drainOutlasts)
		progress, err = b.drain(draining, info.GetBrokerId())
		cancel()
	}
	if err != nil {
		return err
	}
	for {
		now, err := b.self(ctx)
		switch {
		case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded): // the broker may notice it first
			return fmt.Errorf("it is still %s%s: %w", shown(info.GetBrokerStatus()), progress, cmp.Or(context.Cause(ctx), err))
		case err != nil || is(now, mode):
			return err
		}
		info = now
		timer := time.NewTimer(100 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		case <-b.life.Done():
			timer.Stop()
			return errClosed
		}
	}
}

// drainOutlasts is how much longer an order to drain is waited for that nobody wants any more. Cut
// short it may be carried out after the order to be active that follows.
const drainOutlasts = time.Second / 2

// outlast ends with the time of ctx, and that long after ctx if that is cancelled before.
func outlast(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	whole := context.WithoutCancel(ctx)
	later, end := context.WithCancel(whole)
	if deadline, ok := ctx.Deadline(); ok { // it is told to the broker, too
		end()
		later, end = context.WithDeadline(whole, deadline)
	}
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(by, end) })
	return later, func() { stop(); end() }
}

func is(info *danubepb.BrokerInfo, mode brokerapi.Mode) bool {
	return strings.EqualFold(info.GetBrokerStatus(), string(mode))
}

func (b *raftBroker) activate(ctx context.Context, id, reason string) error {
	var answer *danubepb.ActivateBrokerResponse
	err := b.adminLink.order(ctx, "ActivateBroker", func(ctx context.Context) (err error) {
		answer, err = b.brokers.ActivateBroker(ctx, &danubepb.ActivateBrokerRequest{BrokerId: id, Reason: shown(reason)})
		return err
	})
	if err == nil && !answer.GetSuccess() {
		err = fmt.Errorf("--broker-admin %s: ActivateBroker answered that it had no success: see the broker's log", b.at.admin)
	}
	return err
}

// drain asks for all topics to be unloaded. progress is what the answer says of them, for
// messages; it is an error when there are some that nobody is working on any more.
func (b *raftBroker) drain(ctx context.Context, id string) (progress string, err error) {
	request := &danubepb.UnloadBrokerRequest{BrokerId: id}
	if deadline, ok := ctx.Deadline(); ok {
		request.TimeoutSeconds = uint32(min(max(time.Until(deadline)/time.Second, 1), time.Hour/time.Second))
	}
	var answer *danubepb.UnloadBrokerResponse
	err = b.adminLink.order(ctx, "UnloadBroker", func(ctx context.Context) (err error) {
		answer, err = b.brokers.UnloadBroker(ctx, request)
		return err
	})
	if err != nil {
		return "", alone(err)
	}
	progress = fmt.Sprintf(" (of %d topics %d are unloaded, %d pending, %d failed%s)",
		answer.GetTotal(), answer.GetSucceeded(), answer.GetPending(), answer.GetFailed(), some(answer.GetFailedTopics()))
	switch {
	case !answer.GetStarted():
		return "", errors.New("the broker did not start to unload its topics" + progress + ": see its log")
	case answer.GetFailed() > 0 && answer.GetPending() == 0:
		return "", errors.New("some topics could not be unloaded" + progress + ": see the broker's log")
	}
	return progress, nil
}

// some names a few of the topics that failed.
func some(topics []string) string {
	const few = 5
	if len(topics) == 0 {
		return ""
	}
	text := ": " + shown(strings.Join(topics[:min(few, len(topics))], ", "))
	if len(topics) > few {
		text += ", …"
	}
	return text
}
