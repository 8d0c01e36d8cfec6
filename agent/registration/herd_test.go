package registration

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"holdfast/agent/lease"
	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
	"holdfast/internal/testseed"
	"holdfast/recovery"
)

// asked counts what a herd asks of etcd.
type asked struct {
	grpc.ClientConnInterface
	mu     *sync.Mutex
	counts map[string]int
}

func (a asked) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if txn, ok := args.(*pb.TxnRequest); ok && txn.Success[0].GetRequestPut() == nil {
		method = "read"
	}
	a.mu.Lock()
	a.counts[method]++
	a.mu.Unlock()
	return a.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// Whoever saw nobody registered was decided about on that, so all but the first look again.
// They do so once, and ask for no other lease.
func TestAClusterThatStartsAtOnceLooksTwiceAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const herd = 200
		ways := testseed.New(t)
		store := etcd.New(etcd.Config{})
		a := asked{mu: &sync.Mutex{}, counts: map[string]int{}}
		var all sync.WaitGroup
		for i := range herd {
			id := fmt.Sprintf("n%d", i)
			o := &outage{t: t, store: store}
			near := cluster.Over(cluster.Config{}, store.Conn(nil), slog.New(slog.DiscardHandler))
			registerOnce(t, near, id)

			link := etcd.NewLink()
			delays := rand.New(rand.NewPCG(ways.Uint64(), 0))
			link.SetDelay(func(etcd.Direction) time.Duration { return time.Duration(1 + delays.IntN(int(20*time.Millisecond))) })
			way := a
			way.ClientConnInterface = store.Conn(link)
			o.client = cluster.Over(cluster.Config{}, way, slog.New(slog.DiscardHandler))
			o.past = Life{Name: "n1", Past: Past{Incarnation: "mine", FirstBootDone: true, Revision: 1,
				Deadline: time.Now().Add(-time.Hour + time.Duration(ways.IntN(int(30*time.Second))))}, Instance: "process-2", Value: []byte(`{"incarnation":"mine"}`),
				Boot: recovery.BootFacts{OldestMarker: time.Now().Add(-time.Hour), MarkerPath: "data", BrokerStartedAt: time.Now()}}
			o.past.Name = id
			o.begins(natsSettings(), lease.BootClock)
			defer func() {
				if d := o.outcomes[0].Decision; d.Mode.Mode != recovery.Active || d.Mode.Reason != recovery.ReasonFullClusterRestart {
					t.Errorf("%s: %s: %s", id, d, d.Detail)
				}
			}()
			all.Go(func() { o.establish(0) })
		}
		era := eraOf(t, store)
		all.Wait()
		if now := eraOf(t, store); now != era+1 {
			t.Errorf("era went from %d to %d", era, now)
		}
		for what, most := range map[string]int{
			"read":                              2*herd - 1,
			pb.KV_Txn_FullMethodName:            2*herd - 1,
			pb.Lease_LeaseGrant_FullMethodName:  herd,
			pb.Lease_LeaseRevoke_FullMethodName: 0,
		} {
			if n := a.counts[what]; n > most {
				t.Errorf("%s: asked %d times by %d, want at most %d", what, n, herd, most)
			}
		}
	})
}

// registerOnce has a broker be registered, and gone again.
func registerOnce(t *testing.T, c *cluster.Client, id string) {
	t.Helper()
	seen, err := c.Snapshot(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	under, _, err := c.Grant(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Register(t.Context(), cluster.RegisterRequest{LeaseID: under, Value: []byte(`{}`), Seen: seen}); err != nil {
		t.Fatal(err)
	}
	if err := c.Revoke(t.Context(), under); err != nil {
		t.Fatal(err)
	}
}

func eraOf(t *testing.T, store *etcd.Server) int64 {
	t.Helper()
	c := cluster.Over(cluster.Config{}, store.Conn(nil), slog.New(slog.DiscardHandler))
	seen, err := c.Snapshot(t.Context(), "nobody")
	if err != nil {
		t.Fatal(err)
	}
	return seen.Era.N
}

func TestASpareLeaseIsUsedWhileItIsYoungAndGivenBackOtherwise(t *testing.T) {
	for name, c := range map[string]struct {
		age      time.Duration
		occupied bool
		used     bool
	}{
		"young":                       {time.Second, false, true},
		"half of its life is over":    {16 * time.Second, false, false},
		"somebody else is registered": {time.Second, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := installed(t)
			if c.occupied {
				o.peer("n1")
			}
			id, ttl, err := o.client.Grant(t.Context(), o.Config.LeaseTTL)
			if err != nil {
				t.Fatal(err)
			}
			o.spare = lease.Grant{LeaseID: id, SentAt: o.Clock().Add(-c.age), TTL: ttl}
			g, err := o.Establish(t.Context(), 0, false)
			if (err != nil) != c.occupied {
				t.Fatal(err)
			}
			if reg := o.snapshot().Registration; (g.LeaseID == id) != c.used || (reg.LeaseID == id) != c.used {
				t.Errorf("granted %+v and registered under lease %x; the spare one is %x", g, reg.LeaseID, id)
			}
			if _, err := o.client.KeepAlive(t.Context(), id); (err == nil) != c.used {
				t.Errorf("renewing the spare lease: %v", err)
			}
			if o.spare.LeaseID != 0 {
				t.Error("the spare lease is still there")
			}
		})
	}
}
