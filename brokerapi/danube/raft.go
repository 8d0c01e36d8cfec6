package danube

import (
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
	"google.golang.org/grpc/status"

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
	quorum quorum
}

var (
	_ brokerapi.Broker     = (*raftBroker)(nil)
	_ brokerapi.ModeSetter = (*raftBroker)(nil)
)

// status is the Raft cluster as the broker sees it, and the broker's own number in it.
func (b *raftBroker) status(ctx context.Context) (*danubepb.ClusterStatusResponse, string, error) {
	s, err := b.cluster.ClusterStatus(ctx, &danubepb.Empty{})
	switch {
	case status.Code(err) == codes.Unimplemented:
		err = brokerapi.Errorf(brokerapi.ErrIdentity, "--broker-admin %s: no Danube broker with Raft (0.8 or later) answers there: if it keeps its metadata in etcd (0.7), set --registration to adopt", b.admin.url)
	case err == nil && s.GetSelfNodeId() == 0:
		err = fmt.Errorf("--broker-admin %s: ClusterStatus answered without the broker's own node id: see the broker's log", b.admin.url)
	}
	return s, strconv.FormatUint(s.GetSelfNodeId(), 10), err
}

// Probe implements brokerapi.Broker: the broker is a member of the Raft cluster, which
// the admin port answers before it is true, and its client port looks up a topic.
func (b *raftBroker) Probe(ctx context.Context) (who brokerapi.Report, err error) {
	s, id, err := b.status(ctx)
	if err == nil {
		who, err = b.once(b.admin, func(since time.Time) (brokerapi.Report, error) { return b.identify(ctx, id, since) })
	}
	b.mu.Lock()
	if s != nil {
		b.quorum.saw(s, b.admin.since(), time.Now())
	}
	who.MustGo = b.quorum.lost()
	b.mu.Unlock()
	if err != nil {
		return who, err
	}
	if own := s.GetSelfNodeId(); !slices.Contains(s.GetVoters(), own) && !slices.Contains(s.GetLearners(), own) {
		return who, fmt.Errorf("--broker-admin %s: broker %s is no member of its Raft cluster yet: have it join, or see its log", b.admin.url, id)
	}
	if _, err = b.where(ctx, "/holdfast/health"); err != nil || s.GetLeaderId() == 0 { // which is nowhere
		return who, err
	}
	if _, others, unlisted := b.self(ctx); unlisted == nil { // else it has not heard of them lately
		who.Others = &others
	}
	return who, nil
}

// identify finds out who answers on a connection. Name is the node id, which the broker keeps in
// its data directory. Instance adds when the process started, as the metrics tell; if they do
// not, when the connection to it was made.
func (b *raftBroker) identify(ctx context.Context, id string, since time.Time) (who brokerapi.Report, err error) {
	// One that has not been written yet, or that we may not read, says nothing.
	text, _ := os.ReadFile(filepath.Join(b.dataDir, "node_id"))
	if owner := strings.TrimSpace(string(text)); b.dataDir != "" && number(owner) && owner != id {
		return who, brokerapi.Errorf(brokerapi.ErrIdentity, "--data-dir %s belongs to broker %s, and the broker at --broker-admin %s is %s: give the data directory of that broker, or point --broker-admin at the right one",
			b.dataDir, owner, b.admin.url, id)
	}
	labels, start, _ := b.scrape(ctx)
	if len(labels) > 0 && !slices.Contains(labels, id) {
		return who, brokerapi.Errorf(brokerapi.ErrIdentity, "--broker-admin %s is broker %s, and --danube-metrics %s is broker %.50q: set both to ports of the same broker",
			b.admin.url, id, b.metrics.URL(), labels[0])
	}
	who = brokerapi.Report{Name: id, Version: raftVersion, StartedAt: start}
	if start.IsZero() {
		start = since
		who.Notes = []brokerapi.Note{{Kind: "instance", Text: fmt.Sprintf("--danube-metrics %s: does not tell when the broker started, so each new connection to it is taken for a new start: "+
			"set it to the broker's metrics port (%s), or have its process watched by --broker-pid-file", b.metrics.URL(), metricsPort)}}
	}
	who.Instance = fmt.Sprintf("%s@%d", id, start.UnixMilli())
	return who, nil
}

// self finds the broker in its own list of brokers, and how many others are active.
func (b *raftBroker) self(ctx context.Context) (own *danubepb.BrokerInfo, others int, err error) {
	_, id, err := b.status(ctx)
	if err != nil {
		return nil, 0, err
	}
	list, err := b.brokers.ListBrokers(ctx, &danubepb.Empty{})
	for _, info := range list.GetBrokers() {
		if info.GetBrokerId() == id {
			own = info
		} else if is(info, brokerapi.Active) {
			others++
		}
	}
	if err == nil && own == nil {
		err = fmt.Errorf("--broker-admin %s: broker %s is not in its own list of brokers: it has not registered yet, or its registration has run out", b.admin.url, id)
	}
	return own, others, err
}

// Topics implements brokerapi.Broker: of the topics that the broker believes to have,
// those that it has loaded. None is ever withdrawn.
func (b *raftBroker) Topics(ctx context.Context) (held brokerapi.Held, err error) {
	var believed []string
	_, id, err := b.status(ctx)
	if err == nil {
		believed, held.Unreadable, err = b.listTopics(ctx, id)
	}
	if err == nil {
		held.Serving, err = b.served(ctx, union(believed, nil))
	}
	if err != nil {
		return brokerapi.Held{}, fmt.Errorf("list topics: %w", err)
	}
	return held, nil
}

// Serve implements brokerapi.Broker.
func (b *raftBroker) Serve(_ context.Context, topic string, _ []byte) error {
	return fmt.Errorf("load %s: the brokers assign topics themselves: %w", topic, errors.ErrUnsupported)
}

// refusal explains the one of a broker that is the only active one.
func refusal(err error) error {
	if status.Code(err) == codes.FailedPrecondition {
		return fmt.Errorf("%w: it gives up topics only to another active broker: start or activate one", err)
	}
	return err
}

// Withdraw implements brokerapi.Broker: another broker gets the topic.
func (b *raftBroker) Withdraw(ctx context.Context, topic string) error {
	asked := false
	err := b.await(ctx, topic, func(at place) (bool, error) {
		if at != here || asked {
			return at != here, nil
		}
		asked = true
		_, err := b.topics.UnloadTopic(ctx, &danubepb.TopicRequest{Name: topic})
		if status.Code(err) == codes.NotFound { // gone meanwhile
			err = nil
		}
		return false, refusal(err)
	})
	return ended(ctx, "unload", topic, "the broker has not given it up: see the broker's log", err)
}

// SetMode implements brokerapi.ModeSetter. Draining ends when the broker calls itself
// drained, which takes another active broker unless it has no topics.
func (b *raftBroker) SetMode(ctx context.Context, mode brokerapi.Mode, reason string) error {
	info, _, err := b.self(ctx)
	answer := ""
	switch id := info.GetBrokerId(); {
	case err != nil || is(info, mode):
	case mode == brokerapi.Active:
		_, err = b.brokers.ActivateBroker(ctx, &danubepb.ActivateBrokerRequest{BrokerId: id, Reason: strings.ToValidUTF8(reason, ".")})
	case mode == brokerapi.Drained:
		answer, err = b.drain(ctx, id)
	default:
		err = errors.New("it knows no such mode")
	}
	for err == nil && !is(info, mode) {
		if err = brokerapi.Sleep(ctx, 100*time.Millisecond); err == nil {
			info, _, err = b.self(ctx)
		}
		if err != nil && isOver(ctx) {
			err = fmt.Errorf("it is not %s yet%s: %w", mode, answer, err)
		}
	}
	if err != nil {
		return fmt.Errorf("make the broker %s: %w", mode, err)
	}
	return nil
}

func is(info *danubepb.BrokerInfo, mode brokerapi.Mode) bool {
	return strings.EqualFold(info.GetBrokerStatus(), string(mode))
}

// drain asks for all topics to be unloaded. answer is for messages; it is an error when there
// are topics that nobody is working on any more.
//
// An order that is cut short may be carried out after the order to be active that follows: one
// that nobody wants any more is waited for a moment longer.
func (b *raftBroker) drain(ctx context.Context, id string) (answer string, err error) {
	left := orderTimeout
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
	}
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), left)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(drainOutlasts, cancel) })()
	a, err := b.brokers.UnloadBroker(draining, &danubepb.UnloadBrokerRequest{BrokerId: id, TimeoutSeconds: uint32(max(left/time.Second, 1))})
	if err != nil {
		return "", refusal(err)
	}
	answer = fmt.Sprintf(" (of %d topics %d are unloaded, %d pending, %d failed: %.200q)", a.GetTotal(), a.GetSucceeded(), a.GetPending(), a.GetFailed(), a.GetFailedTopics())
	if !a.GetStarted() || a.GetFailed() > 0 && a.GetPending() == 0 {
		return "", errors.New("the broker does not unload all its topics" + answer + ": see its log")
	}
	return answer, nil
}

// drainOutlasts is short enough for every bound on a call.
const drainOutlasts = time.Second / 2

// quorumPatience is how long a broker may be without its quorum. After 32 s the others have declared
// it dead, and healed it deletes what they serve.
const quorumPatience = 20 * time.Second

// steadyAdvances is how often what was applied must have grown in time before it counts when it
// stands. Each broker writes every 10 s.
const steadyAdvances = 3

// unwatchedMost is the longest pause between two answers that counts as watched: what a broker
// was that did not answer, nobody knows.
const unwatchedMost = 5 * time.Second

// quorum is what one process of the broker showed of its quorum.
type quorum struct {
	of      time.Time // when the connection to it was made
	led     bool      // it knew a leader
	applied uint64
	grewAt  time.Time
	steady  int
	ledAt   time.Time
	seenAt  time.Time
}

// saw is called at each answer.
func (q *quorum) saw(s *danubepb.ClusterStatusResponse, connection, now time.Time) {
	if !q.of.Equal(connection) {
		*q = quorum{of: connection, applied: s.GetLastApplied(), grewAt: now}
	}
	if now.Sub(q.seenAt) > unwatchedMost {
		q.ledAt, q.grewAt = now, now
	}
	q.seenAt = now
	if s.GetLeaderId() != 0 {
		q.led, q.ledAt = true, now
	}
	if s.GetLastApplied() == q.applied {
		return
	}
	if q.applied = s.GetLastApplied(); now.Sub(q.grewAt) < quorumPatience {
		q.steady++
	} else {
		q.steady = 0
	}
	q.grewAt = now
}

// cutOff is what follows.
const cutOff = ": it is cut off from the others, and would delete their topics' data when it is not any more"

// lost says why the quorum that this process had is gone; empty: it is not, or nobody can tell.
func (q *quorum) lost() string {
	switch {
	case q.led && q.seenAt.Sub(q.ledAt) >= quorumPatience:
		return fmt.Sprintf("the broker has known no leader of its Raft cluster for %s"+cutOff, quorumPatience)
	case q.steady >= steadyAdvances && q.seenAt.Sub(q.grewAt) >= quorumPatience:
		return fmt.Sprintf("the broker has applied nothing of its Raft cluster for %s"+cutOff, quorumPatience)
	}
	return ""
}
