package conformance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi"
	"holdfast/brokerapi/brokertest"
	"holdfast/brokerapi/danube"
	"holdfast/cluster"
	"holdfast/lab/harness"
	standin "holdfast/lab/standin/danube"
)

// danubeEtcd is the stand-in for a Danube broker with etcd, a process, and its etcd. Its
// leader assigns nothing: this test is the one that does.
type danubeEtcd struct {
	*harness.Danube
	lab   *harness.Lab
	etcd  *harness.Etcd
	front *harness.Front // between the broker and etcd
	store *cluster.Client
	keys  harness.Keys
}

func launchDanubeEtcd(t *testing.T, args ...string) *danubeEtcd {
	t.Helper()
	l := harness.ForTest(t)
	e, err := l.StartEtcd(t.Context(), harness.EtcdOptions{})
	do(t, err)
	front, err := harness.NewFront(l, strings.TrimPrefix(e.Endpoint(), "http://"))
	do(t, err)
	store, err := cluster.Open(cluster.Config{Endpoints: []string{e.Endpoint()}}, slog.New(slog.DiscardHandler))
	do(t, err)
	t.Cleanup(func() { store.Close() })
	s := &danubeEtcd{lab: l, etcd: e, front: front, store: store}
	s.Danube, err = l.StartDanube(t.Context(), harness.DanubeOptions{Name: "d1", Etcd: "http://" + front.Addr(), Assign: time.Hour, Args: args})
	do(t, err)
	t.Cleanup(func() { noDisaster(t, s.Danube) })
	return s
}

func noDisaster(t *testing.T, d *harness.Danube) {
	t.Helper()
	all, err := d.Disasters()
	do(t, err)
	for _, disaster := range all {
		t.Errorf("disaster: %+v", disaster)
	}
}

func danubeConfig(d *harness.Danube) danube.Config {
	return danube.Config{AdminURL: "http://" + d.AdminAddr(), LookupURL: "http://" + d.ClientAddr(), MetricsURL: "http://" + d.MetricsAddr()}
}

func (s *danubeEtcd) Open(t *testing.T) brokerapi.Broker {
	t.Helper()
	cfg := danubeConfig(s.Danube)
	cfg.Store = s.store
	b, err := danube.New(cfg)
	do(t, err)
	return b
}

func (s *danubeEtcd) Kill(t *testing.T)   { do(t, s.Danube.Kill()) }
func (s *danubeEtcd) Start(t *testing.T)  { do(t, s.Danube.Start(bound(t))) }
func (s *danubeEtcd) Freeze(t *testing.T) { do(t, s.Danube.Freeze()) }
func (s *danubeEtcd) Thaw(t *testing.T)   { do(t, s.Danube.Thaw()) }

func (s *danubeEtcd) Publish(topic string, data []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	_, err := s.Produce(ctx, topic, data)
	return err
}

func (s *danubeEtcd) Count(topic string) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	n, err := s.Danube.Count(ctx, topic)
	return int(n), err
}

// Assign makes the topic that of the present life: what an earlier one had of it goes to
// this one in the same transaction, as at a restart beside a sidecar.
func (s *danubeEtcd) Assign(t *testing.T, topic string) {
	t.Helper()
	id, err := s.ID(bound(t))
	do(t, err)
	s.assignTo(t, id, topic)
}

func (s *danubeEtcd) assignTo(t *testing.T, id, topic string) {
	t.Helper()
	c := s.etcd.Client()
	do(t, harness.CreateDanubeTopics(bound(t), c, topic))
	ours := s.keys.Assignment(id, topic)
	ops := []clientv3.Op{clientv3.OpPut(ours, "null")}
	found, err := c.Get(bound(t), "/cluster/brokers/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	do(t, err)
	for _, kv := range found.Kvs {
		if strings.HasSuffix(string(kv.Key), topic) && string(kv.Key) != ours && strings.Count(string(kv.Key), "/") == 5 {
			ops = append(ops, clientv3.OpDelete(string(kv.Key)))
		}
	}
	_, err = c.Txn(bound(t)).If(clientv3.Compare(clientv3.CreateRevision(ours), "=", 0)).Then(ops...).Commit()
	do(t, err)
}

// Blind interrupts the broker's connection to etcd, after which its watches do not come
// back.
func (s *danubeEtcd) Blind(t *testing.T) {
	t.Helper()
	s.front.SetDown(true)
	do(t, harness.Await(t.Context(), harness.Patience, "the broker's watches to die", func(ctx context.Context) (bool, string) {
		st, err := s.Status(ctx)
		return err == nil && st.WatchesDied, fmt.Sprintf("%+v, %v", st, err)
	}))
	s.front.SetDown(false)
}

func (s *danubeEtcd) Reassign(t *testing.T, topic string) { s.Assign(t, topic) }

// GiveAway has a second broker of the cluster serve the topic.
func (s *danubeEtcd) GiveAway(t *testing.T, topic string) {
	t.Helper()
	other, err := s.lab.StartDanube(t.Context(), harness.DanubeOptions{Name: "d2", Etcd: s.etcd.Endpoint(), Assign: time.Hour})
	do(t, err)
	t.Cleanup(func() { noDisaster(t, other) })
	id, err := other.ID(bound(t))
	do(t, err)
	s.assignTo(t, id, topic)
	do(t, harness.Await(t.Context(), harness.Patience, "the other broker to serve", func(ctx context.Context) (bool, string) {
		st, err := other.Status(ctx)
		return err == nil && slices.Contains(st.Loaded, topic), fmt.Sprintf("%+v, %v", st, err)
	}))
}

// AddForeign assigns topics to others, as close to this broker's as may be.
func (s *danubeEtcd) AddForeign(t *testing.T) func() error {
	t.Helper()
	id, err := s.ID(bound(t))
	do(t, err)
	c := s.etcd.Client()
	keys := []string{
		"/cluster/brokers/" + id + "0/default/theirs", // another broker, whose id begins like ours
		"/cluster/brokers/1/default/theirs",
		"/cluster/unassigned/default/nobodys",
		"/topics/default/nobodys/delivery",
		"/cluster/register/" + id + "0",
	}
	for _, key := range keys {
		_, err := c.Put(bound(t), key, `"theirs"`)
		do(t, err)
	}
	read := func() (map[string]string, error) {
		got := map[string]string{}
		for _, key := range keys {
			found, err := c.Get(context.Background(), key)
			if err != nil {
				return nil, err
			}
			for _, kv := range found.Kvs {
				got[key] = fmt.Sprint(kv.ModRevision, string(kv.Value))
			}
		}
		return got, nil
	}
	before, err := read()
	do(t, err)
	return func() error {
		after, err := read()
		for _, key := range keys {
			if before[key] != after[key] {
				err = errors.Join(err, fmt.Errorf("%s was %q and is %q", key, before[key], after[key]))
			}
		}
		return err
	}
}

func TestDanubeWithEtcdConforms(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, brokertest.Harness{
		Traits:    danube.Traits(false),
		Launch:    func(t *testing.T) brokertest.Server { return launchDanubeEtcd(t) },
		Many:      500,
		Odd:       danubeOdd,
		Retriable: func(err error) bool { return status.Code(errors.Unwrap(err)) == codes.FailedPrecondition },
	})
}

var danubeOdd = []brokertest.OddTopic{
	{Name: "dots", Topic: "/default/orders.eu.west"},
	{Name: "begins like another", Topic: "/default/orders"},
	{Name: "called state", Topic: "/default/state"},
	{Name: "unicode", Topic: "/default/größe日本語"},
	{Name: "upper case", Topic: "/default/ORDERS"},
	{Name: "long", Topic: "/default/" + strings.Repeat("x", 200)},
}

func TestATopicThatTheBrokerIsAboutToLoadIsNotPutAgain(t *testing.T) {
	s := launchDanubeEtcd(t, "--react-delay", "2s")
	b := s.Open(t)
	t.Cleanup(func() { b.Close() })
	s.Assign(t, "/default/orders")
	if err := b.Serve(bound(t), "/default/orders", nil); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Status(bound(t)); err != nil || st.Loads != 1 {
		t.Errorf("%+v, %v", st, err)
	}
}

// What the stand-in says that must never happen is what every scenario with it is judged by.
func TestTheStandInOfDanubeTellsOfDisasters(t *testing.T) {
	t.Parallel()
	l := harness.ForTest(t)
	e, err := l.StartEtcd(t.Context(), harness.EtcdOptions{})
	do(t, err)
	d, err := l.StartDanube(t.Context(), harness.DanubeOptions{Name: "d1", Etcd: e.Endpoint(), Assign: time.Hour})
	do(t, err)
	id, err := d.ID(bound(t))
	do(t, err)
	const topic = "/default/orders"
	do(t, harness.CreateDanubeTopics(bound(t), e.Client(), topic))
	key := (harness.Keys{}).Assignment(id, topic)
	for _, step := range []struct {
		do            func() error
		loads, loaded int
		told          []standin.Kind
	}{
		{func() error { _, err := e.Client().Put(bound(t), key, "null"); return err }, 1, 1, nil},
		{func() error { _, err := e.Client().Put(bound(t), key, "null"); return err }, 2, 1, []standin.Kind{standin.LoadedTwice}},
		{func() error { _, err := e.Client().Delete(bound(t), key); return err }, 2, 0, []standin.Kind{standin.LoadedTwice, standin.Destroyed}},
	} {
		do(t, step.do())
		do(t, harness.Await(t.Context(), harness.Patience, "the broker to have seen it", func(ctx context.Context) (bool, string) {
			st, err := d.Status(ctx)
			return err == nil && st.Loads == step.loads && len(st.Loaded) == step.loaded, fmt.Sprint(st, err)
		}))
		all, err := d.Disasters()
		do(t, err)
		var told []standin.Kind
		for _, disaster := range all {
			told = append(told, disaster.Kind)
		}
		if !slices.Equal(told, step.told) {
			t.Errorf("told of %v, want %v", all, step.told)
		}
	}
}
