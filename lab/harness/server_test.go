package harness

import (
	"context"
	"errors"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func connect(t *testing.T, n *NATS) *nats.Conn {
	t.Helper()
	c, err := n.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func makeStream(t *testing.T, c *nats.Conn, topic string) {
	t.Helper()
	js, err := jetstream.New(c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{Subject(topic)}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEtcdComesBackOnItsDataAndPorts(t *testing.T) {
	ctx := t.Context()
	l := ForTest(t)
	e, err := l.StartEtcd(ctx, EtcdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := put(ctx, e.Client(), Patience, "/k"); err != nil {
		t.Fatal(err)
	}
	for _, end := range []struct {
		name string
		how  func() error
	}{
		{"kill -9", e.Kill},
		{"stop", func() error { return e.Stop(ctx) }},
	} {
		if err := end.how(); err != nil {
			t.Fatalf("%s: %v", end.name, err)
		}
		if err := e.Start(ctx); err != nil {
			t.Fatalf("start after %s: %v", end.name, err)
		}
		res, err := e.Client().Get(ctx, "/k")
		if err != nil || res.Count != 1 {
			t.Fatalf("after %s: %d keys, %v; want 1", end.name, res.Count, err)
		}
	}
}

func TestFrozenEtcdAnswersNobodyUntilThawed(t *testing.T) {
	ctx := t.Context()
	l := ForTest(t)
	e, err := l.StartEtcd(ctx, EtcdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := put(ctx, e.Client(), 500*time.Millisecond, "/k"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("put to a frozen etcd: %v, want a deadline that passed", err)
	}
	if err := e.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := put(ctx, e.Client(), Patience, "/k"); err != nil {
		t.Fatalf("put after the thaw: %v", err)
	}
}

func TestEtcdWithAuthRefusesStrangersAndOtherPrefixes(t *testing.T) {
	ctx := t.Context()
	l := ForTest(t)
	e, err := l.StartEtcd(ctx, EtcdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.EnableAuth(ctx, "rootpw", "holdfast", "pw", "/prod/"); err != nil {
		t.Fatal(err)
	}
	for _, who := range []struct {
		name, user, password, key string
		works                     bool
	}{
		{"right password", "holdfast", "pw", "/prod/k", true},
		{"other prefix", "holdfast", "pw", "/dev/k", false},
		{"wrong password", "holdfast", "no", "/prod/k", false},
		{"no user", "", "", "/prod/k", false},
	} {
		t.Run(who.name, func(t *testing.T) {
			c, err := e.Connect(who.user, who.password)
			if err == nil {
				defer c.Close()
				err = put(ctx, c, Patience, who.key)
			}
			if (err == nil) != who.works {
				t.Fatalf("put: %v", err)
			}
		})
	}
	if err := put(ctx, e.Client(), Patience, "/anything"); err != nil {
		t.Fatalf("the lab's own client: %v", err)
	}
}

func TestNATSKilledComesBackWithItsStreams(t *testing.T) {
	ctx := t.Context()
	l := ForTest(t)
	n, err := l.StartNATS(ctx, NATSOptions{Name: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, n)
	makeStream(t, c, "/default/orders")
	first, err := Publish(ctx, c, "/default/orders", []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Publish(ctx, c, "/default/nobody", nil); !errors.Is(err, nats.ErrNoResponders) {
		t.Fatalf("publish to a topic that is not served: %v, want no responders", err)
	}
	pid := n.PID()
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if n.PID() == pid {
		t.Fatalf("process id %d did not change", pid)
	}
	if _, err := os.Stat(n.PIDFile); err != nil {
		t.Fatal(err)
	}
	c2 := connect(t, n)
	second, err := Publish(ctx, c2, "/default/orders", []byte("2"))
	if err != nil {
		t.Fatal(err)
	}
	if second != first+1 {
		t.Fatalf("sequence %d after %d: the stream did not survive", second, first)
	}
}

func TestHistoryShowsWhatOneTransactionWrote(t *testing.T) {
	ctx := t.Context()
	l := ForTest(t)
	e, err := l.StartEtcd(ctx, EtcdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := l.Watch(ctx, e, "/cluster/")
	if err != nil {
		t.Fatal(err)
	}
	k := Keys{}
	res, err := e.Client().Txn(ctx).Then(
		clientv3.OpPut(k.Registration("n1"), "r"),
		clientv3.OpPut(k.State("n1"), `{"mode":"drained","reason":"stale_restart"}`),
	).Commit()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Await(ctx, Patience, "registration", h.From, PutKey(k.Registration("n1"))); err != nil {
		t.Fatal(err)
	}
	if got := h.At(res.Header.Revision); len(got) != 2 {
		t.Fatalf("revision %d has %v, want registration and state", res.Header.Revision, got)
	}
	state, err := k.ReadState(ctx, e.Client(), "n1")
	if err != nil || state.Mode != "drained" || state.ModRevision != res.Header.Revision {
		t.Fatalf("state %+v, %v", state, err)
	}
	if _, err := e.Client().Delete(ctx, k.Registration("n1")); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Await(ctx, Patience, "deletion", h.From, DeletedKey(k.Registration("n1"))); err != nil {
		t.Fatal(err)
	}
	reg, err := k.ReadRegistration(ctx, e.Client(), "n1")
	if err != nil || reg.CreateRevision != 0 {
		t.Fatalf("registration %+v, %v; want none", reg, err)
	}
	if err := e.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := put(ctx, e.Client(), Patience, k.Registration("n2")); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Await(ctx, Patience, "a change after etcd's restart", h.From, PutKey(k.Registration("n2"))); err != nil {
		t.Fatal(err)
	}
}

func TestPortsStayReservedForOneLab(t *testing.T) {
	l := ForTest(t)
	seen := map[int]bool{}
	for range 50 {
		port, err := l.Port()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] {
			t.Fatalf("port %d was given twice", port)
		}
		seen[port] = true
	}
}

func TestProbesAreAskedInsideThePlace(t *testing.T) {
	if err := CanDropPackets(); err != nil {
		t.Skip(err)
	}
	ctx := t.Context()
	l := ForTest(t)
	link, err := NewNetnsLink(l, &Etcd{Port: 1})
	if err != nil {
		t.Fatal(err)
	}
	n, err := l.StartNATS(ctx, NATSOptions{Name: "n1", Place: link.Place()})
	if err != nil {
		t.Fatal(err)
	}
	inside := httpClient(link.Place().DialContext, time.Second)
	outside := httpClient(Place{}.DialContext, time.Second)
	if code, _, err := httpGet(ctx, inside, n.MonitorURL()+"/healthz"); err != nil || code != http.StatusOK {
		t.Fatalf("from inside: %d, %v", code, err)
	}
	if code, _, err := httpGet(ctx, outside, n.MonitorURL()+"/healthz"); err == nil {
		t.Fatalf("from outside the same address answered %d", code)
	}
}
