package harness

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/standin/danube"
)

const danubeTopic = "/default/orders"

// assignDanube gives the topic to the broker and waits until it is loaded.
func assignDanube(t *testing.T, e *Etcd, d *Danube, topic string) (id string) {
	t.Helper()
	ctx := t.Context()
	id, err := d.ID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := CreateDanubeTopics(ctx, e.Client(), topic); err != nil {
		t.Fatal(err)
	}
	if err := (Keys{}).Assign(ctx, e.Client(), id, topic); err != nil {
		t.Fatal(err)
	}
	awaitServed(t, d, topic)
	return id
}

func awaitServed(t *testing.T, d *Danube, topic string) {
	t.Helper()
	if err := Await(t.Context(), Patience, topic+" to be served", func(ctx context.Context) (bool, string) {
		_, err := d.Count(ctx, topic)
		return err == nil, fmt.Sprint(err)
	}); err != nil {
		t.Fatal(err)
	}
}

func TestADanubeBrokerComesBackOnItsDataAndPortsUnderAnotherID(t *testing.T) {
	ctx := t.Context()
	l := ForTest(t)
	e, err := l.StartEtcd(ctx, EtcdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.StartDanube(ctx, DanubeOptions{Name: "d1", Etcd: e.Endpoint()})
	if err != nil {
		t.Fatal(err)
	}
	first := assignDanube(t, e, d, danubeTopic)
	for i := range 5 {
		if at, err := d.Produce(ctx, danubeTopic, []byte("m")); err != nil || at != uint64(i) {
			t.Fatalf("message %d at offset %d: %v", i, at, err)
		}
	}
	if got, err := d.Consume(ctx, danubeTopic, "sub", 2); err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	if err := d.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Produce(ctx, danubeTopic, nil); err == nil {
		t.Error("a killed broker took a message")
	}
	if err := d.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Produce(ctx, danubeTopic, nil); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("served without an assignment that was put since the start: %v", err)
	}
	if second := assignDanube(t, e, d, danubeTopic); second == first {
		t.Error("the id is that of the life before")
	}
	if n, err := d.Count(ctx, danubeTopic); err != nil || n.Here != 5 {
		t.Errorf("%+v after kill -9, %v; want 5 messages", n, err)
	}
	if got, err := d.Consume(ctx, danubeTopic, "sub", 10); err != nil || len(got) != 3 || got[0].Offset != 2 {
		t.Errorf("the consumer went on with %v, %v", got, err)
	}
	if all, err := d.Disasters(); err != nil || len(all) > 0 {
		t.Errorf("disasters %v, %v", all, err)
	}
}

func TestAFrozenDanubeBrokerAnswersNothingAndDestroysWhenItThawsTooLate(t *testing.T) {
	ctx := t.Context()
	l := ForTest(t)
	e, err := l.StartEtcd(ctx, EtcdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const ttl = 2 * time.Second
	start := func(name string) *Danube {
		d, err := l.StartDanube(ctx, DanubeOptions{Name: name, Etcd: e.Endpoint(), TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	leader := start("leader")
	if err := Await(ctx, Patience, "a leader", func(ctx context.Context) (bool, string) {
		st, err := leader.Status(ctx)
		return st.Leads, fmt.Sprint(err)
	}); err != nil {
		t.Fatal(err)
	}
	d := start("frozen")
	assignDanube(t, e, d, danubeTopic)
	if err := d.Freeze(); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, err := d.Produce(short, danubeTopic, nil); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a frozen broker answered %v", err)
	}
	awaitServed(t, leader, danubeTopic) // its registration ran out
	if err := d.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := Await(ctx, Patience, "the disaster", func(context.Context) (bool, string) {
		all, err := d.Disasters()
		return len(all) == 1 && all[0].Kind == danube.Destroyed && all[0].Topic == danubeTopic, fmt.Sprint(all, err)
	}); err != nil {
		t.Fatal(err)
	}
}

func TestADanubeBrokerWithRaftKeepsItsIDAndItsTopics(t *testing.T) {
	ctx := t.Context()
	l := ForTest(t)
	m, err := l.StartDanubeMetadata()
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.StartDanube(ctx, DanubeOptions{Name: "d1", Metadata: m.Addr})
	if err != nil {
		t.Fatal(err)
	}
	first, err := d.ID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := Await(ctx, Patience, d.Name+" to lead", func(ctx context.Context) (bool, string) {
		st, err := d.Status(ctx) // who leads later does not look at what came before
		return err == nil && st.Leads, fmt.Sprintf("%+v, %v", st, err)
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Topics.CreateTopic(ctx, &danubepb.NewTopicRequest{Name: danubeTopic, DispatchStrategy: danubepb.DispatchStrategy_Reliable}); err != nil {
		t.Fatal(err)
	}
	awaitServed(t, d, danubeTopic)
	if _, err := d.Produce(ctx, danubeTopic, []byte("m")); err != nil {
		t.Fatal(err)
	}
	if err := d.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if second, err := d.ID(ctx); err != nil || second != first {
		t.Errorf("id %s, then %s, %v", first, second, err)
	}
	if n, err := d.Count(ctx, danubeTopic); err != nil || n.Here != 1 {
		t.Errorf("%+v, %v; want what was there before the kill", n, err)
	}
}

func TestADanubeBrokerThatCannotReachItsStoreEnds(t *testing.T) {
	l := ForTest(t)
	port, err := l.Port()
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.NewDanube(DanubeOptions{Name: "d1", Etcd: fmt.Sprintf("http://127.0.0.1:%d", port)})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Launch(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.Exited():
	case <-time.After(Patience):
		t.Fatal("it runs on")
	}
	if code, err := d.ExitCode(); err != nil || code != 1 {
		t.Errorf("exit code %d, %v; want 1:\n%s", code, err, d.LogTail(5))
	}
}
