package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi"
	"holdfast/brokerapi/brokertest"
	"holdfast/brokerapi/danube"
	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/harness"
)

// danubeRaft is the stand-in for a Danube broker with Raft, a process, beside a second
// one: without it the first gives up nothing.
type danubeRaft struct {
	*harness.Danube
	other    *harness.Danube
	metadata *harness.Etcd // that nobody else knows
}

func launchDanubeRaft(t *testing.T) *danubeRaft {
	t.Helper()
	l := harness.ForTest(t)
	m, err := l.StartEtcd(t.Context(), harness.EtcdOptions{})
	do(t, err)
	s := &danubeRaft{metadata: m}
	objects := t.TempDir()
	for name, d := range map[string]**harness.Danube{"d1": &s.Danube, "d2": &s.other} {
		*d, err = l.StartDanube(t.Context(), harness.DanubeOptions{Name: name, Etcd: m.Endpoint(), Raft: true, Objects: objects, Assign: 50 * time.Millisecond})
		do(t, err)
		t.Cleanup(func() { noDisaster(t, *d) })
	}
	s.awaitCluster(t)
	return s
}

// awaitCluster waits until both brokers know of each other.
func (s *danubeRaft) awaitCluster(t *testing.T) {
	t.Helper()
	for _, d := range []*harness.Danube{s.Danube, s.other} {
		do(t, harness.Await(t.Context(), harness.Patience, "the brokers to see each other", func(ctx context.Context) (bool, string) {
			list, err := d.Brokers.ListBrokers(ctx, &danubepb.Empty{})
			return len(list.GetBrokers()) == 2, fmt.Sprintf("%v, %v", list, err)
		}))
	}
}

func (s *danubeRaft) Open(t *testing.T) brokerapi.Broker {
	t.Helper()
	cfg := danubeConfig(s.Danube)
	cfg.Raft, cfg.DataDir = true, s.DataDir
	b, err := danube.New(cfg)
	do(t, err)
	return b
}

func (s *danubeRaft) Kill(t *testing.T) { do(t, s.Danube.Kill()) }
func (s *danubeRaft) Start(t *testing.T) {
	do(t, s.Danube.Start(bound(t)))
	s.awaitCluster(t)
}
func (s *danubeRaft) Freeze(t *testing.T) { do(t, s.Danube.Freeze()) }
func (s *danubeRaft) Thaw(t *testing.T)   { do(t, s.Danube.Thaw()) }

// serves reports whether the broker has loaded the topic.
func serves(ctx context.Context, d *harness.Danube, topic string) bool {
	st, err := d.Status(ctx)
	return err == nil && slices.Contains(st.Loaded, topic)
}

// Publish is a client that goes where the topic is, and waits while it is on its way.
func (s *danubeRaft) Publish(topic string, data []byte) error {
	return s.where(topic, func(ctx context.Context, d *harness.Danube) error {
		_, err := d.Produce(ctx, topic, data)
		return err
	})
}

func (s *danubeRaft) Count(topic string) (n int, err error) {
	err = s.where(topic, func(ctx context.Context, d *harness.Danube) error {
		count, err := d.Client.Count(ctx, topic)
		n = int(count)
		return err
	})
	return n, err
}

func (s *danubeRaft) where(topic string, do func(context.Context, *harness.Danube) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	for {
		var all error
		for _, d := range []*harness.Danube{s.Danube, s.other} {
			err := do(ctx, d)
			if err == nil {
				return nil
			}
			all = errors.Join(all, err)
		}
		select {
		case <-ctx.Done():
			return all
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Assign makes the topic and has the cluster give it to the first broker.
func (s *danubeRaft) Assign(t *testing.T, topic string) {
	t.Helper()
	s.moveTo(t, s.Danube, s.other, topic)
}

// Place implements brokertest.Placer: a topic is served once it is made.
func (s *danubeRaft) Place(t *testing.T, topic string) { s.Assign(t, topic) }

// GiveAway has the cluster give it to the second one.
func (s *danubeRaft) GiveAway(t *testing.T, topic string) {
	t.Helper()
	s.moveTo(t, s.other, s.Danube, topic)
}

// has says whether the key is in the brokers' own metadata.
func (s *danubeRaft) has(ctx context.Context, key string) bool {
	found, err := s.metadata.Client().Get(ctx, key)
	return err == nil && found.Count > 0
}

func (s *danubeRaft) moveTo(t *testing.T, to, from *harness.Danube, topic string) {
	t.Helper()
	if !s.has(bound(t), "/topics"+topic+"/delivery") {
		_, err := s.Topics.CreateTopic(bound(t), &danubepb.NewTopicRequest{Name: topic, DispatchStrategy: danubepb.DispatchStrategy_Reliable})
		do(t, err)
	}
	do(t, harness.Await(t.Context(), harness.Patience, topic+" to be where it is wanted", func(ctx context.Context) (bool, string) {
		if serves(ctx, to, topic) {
			return true, ""
		}
		// An unload while the leader still assigns it is one of which nobody knows: destroyed.
		if !s.has(ctx, "/cluster/unassigned"+topic) && serves(ctx, from, topic) {
			if _, err := from.Topics.UnloadTopic(ctx, &danubepb.TopicRequest{Name: topic}); err != nil {
				return false, err.Error()
			}
			_ = harness.Await(ctx, time.Second, "it to leave", func(ctx context.Context) (bool, string) { return !serves(ctx, from, topic), "" })
		}
		return false, "on its way"
	}))
}

// AddForeign has nothing to add: what the brokers serve is their cluster's.
func (s *danubeRaft) AddForeign(*testing.T) func() error { return func() error { return nil } }

func TestDanubeWithRaftConforms(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, brokertest.Harness{
		Traits:    danube.Traits(true),
		Launch:    func(t *testing.T) brokertest.Server { return launchDanubeRaft(t) },
		Many:      50,
		Odd:       danubeOdd,
		Retriable: func(err error) bool { return status.Code(errors.Unwrap(err)) == codes.FailedPrecondition },
	})
}

func TestADriverOfTheOtherKindOfDanubeIsRefused(t *testing.T) {
	withRaft, withEtcd := launchDanubeRaft(t), launchDanubeEtcd(t)
	cfg := danubeConfig(withRaft.Danube)
	cfg.Store = withEtcd.store
	for name, c := range map[string]danube.Config{"adopt, with Raft": cfg, "own, with etcd": func() danube.Config {
		c := danubeConfig(withEtcd.Danube)
		c.Raft = true
		return c
	}()} {
		b, err := danube.New(c)
		do(t, err)
		t.Cleanup(func() { b.Close() })
		if _, err := b.Probe(bound(t)); !errors.Is(err, brokerapi.ErrIdentity) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
