package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
)

// unsteady does not answer while it is away.
type unsteady struct {
	grpc.ClientConnInterface
	away atomic.Bool
}

func (u *unsteady) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if u.away.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return u.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func TestARegistrationThatNothingEndsIsReportedUntilItIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet := slog.New(slog.DiscardHandler)
		store := etcd.New(etcd.Config{})
		way := &unsteady{ClientConnInterface: store.Conn(nil)}
		a := &agent{log: quiet, main: cluster.Over(cluster.Config{}, way, quiet), journal: openJournal(t.TempDir(), quiet)}
		defer a.journal.close()
		a.view.Store(&snapshot{brokerID: "n1", registeredAs: "n1"})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.watchOutlived(ctx) }()

		told := 0
		expect := func(lingers bool, words ...string) {
			t.Helper()
			events, _ := a.journal.since(0)
			var got []string
			for _, e := range events[told:] {
				got = append(got, e.To+": "+e.Detail)
			}
			told = len(events)
			if a.lingers.Load() != lingers || !slices.Equal(got, words) {
				t.Errorf("lingers %v, told %q; want %v and %q", a.lingers.Load(), got, lingers, words)
			}
		}
		looks := func(n int) { time.Sleep(time.Duration(n) * outlivedEvery); synctest.Wait() }
		put := func(id string, under int64) {
			t.Helper()
			if _, err := store.Put(t.Context(), &pb.PutRequest{Key: []byte("/cluster/register/" + id), Lease: under}); err != nil {
				t.Fatal(err)
			}
		}
		granted, err := store.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 86400})
		if err != nil {
			t.Fatal(err)
		}
		put("n1", granted.ID)
		put("n3", granted.ID)
		looks(3)
		expect(false)
		put("n2", 0)
		looks(1)
		expect(false) // it may be about to end
		looks(1)
		expect(true, "outlives_lease: /cluster/register/n2 has no lease")
		looks(5)
		expect(true)
		way.away.Store(true)
		looks(5)
		expect(true) // nobody said that it is gone
		way.away.Store(false)
		put("n2", granted.ID)
		looks(2)
		expect(false, "outlived_gone: /cluster/register/n2 has no lease")
		for i := range 5 { // somebody writes it anew each time
			put("n2", 0)
			looks(1)
			if i == 4 {
				expect(false)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestOnlyWhatTwoLooksFindUnchangedOutlivesItsLease(t *testing.T) {
	reg := func(id string, lease, revision int64) cluster.Registration {
		return cluster.Registration{BrokerID: id, LeaseID: lease, ModRevision: revision}
	}
	for name, c := range map[string]struct{ before, now, both []cluster.Registration }{
		"nothing":        {},
		"new":            {nil, []cluster.Registration{reg("a", 1, 5)}, nil},
		"gone":           {[]cluster.Registration{reg("a", 1, 5)}, nil, nil},
		"unchanged":      {[]cluster.Registration{reg("a", 1, 5)}, []cluster.Registration{reg("a", 1, 5)}, []cluster.Registration{reg("a", 1, 5)}},
		"written anew":   {[]cluster.Registration{reg("a", 1, 5)}, []cluster.Registration{reg("a", 2, 6)}, nil},
		"another's":      {[]cluster.Registration{reg("a", 1, 5)}, []cluster.Registration{reg("b", 1, 5)}, nil},
		"one of several": {[]cluster.Registration{reg("a", 1, 5), reg("b", 0, 6)}, []cluster.Registration{reg("b", 0, 6), reg("c", 0, 7)}, []cluster.Registration{reg("b", 0, 6)}},
	} {
		if both := inBoth(c.before, c.now); fmt.Sprint(both) != fmt.Sprint(c.both) {
			t.Errorf("%s: %+v, want %+v", name, both, c.both)
		}
	}
}

func TestTheLooksOfAFleetAreSpread(t *testing.T) {
	var phases []time.Duration
	for i := range 1000 {
		phases = append(phases, outlivedPhase(fmt.Sprintf("nats-%d", i)))
	}
	slices.Sort(phases)
	for tenth := range 10 {
		from, _ := slices.BinarySearch(phases, time.Duration(tenth)*outlivedEvery/10)
		to, _ := slices.BinarySearch(phases, time.Duration(tenth+1)*outlivedEvery/10)
		if n := to - from; n < 50 || n > 200 {
			t.Errorf("%d of 1000 look in tenth %d", n, tenth)
		}
	}
}
