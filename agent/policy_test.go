package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/agent/lease"
	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
	"holdfast/recovery"
)

// directLine is a renewals' line that goes to the client that it has.
type directLine struct{ client *cluster.Client }

func (l directLine) KeepAlive(ctx context.Context, id int64, _ bool) (lease.Renewal, error) {
	renewal, err := l.client.KeepAlive(ctx, id)
	return lease.Renewal(renewal), leaseError(err)
}
func (l directLine) Revoke(ctx context.Context, id int64) error { return l.client.Revoke(ctx, id) }
func (l directLine) Client() *cluster.Client                    { return l.client }
func (l directLine) AwaitReconnect(ctx context.Context) error   { <-ctx.Done(); return ctx.Err() }
func (l directLine) Close() error                               { return nil }

// outage is a registrar whose broker was registered and active, beside a peer, on an
// etcd in memory, and lost its registration.
type outage struct {
	*registrar
	t        *testing.T
	store    *etcd.Server
	client   *cluster.Client
	first    lease.Grant
	past     life
	outcomes []outcome
	onPause  bool
}

func newOutage(t *testing.T, policy string) *outage {
	t.Helper()
	o := &outage{t: t, store: etcd.New(etcd.Config{})}
	o.client = cluster.Over(cluster.Config{}, o.store.Conn(nil), slog.New(slog.DiscardHandler))
	c := natsDefaults()
	c.SessionExpiredPolicy = policy
	began, boot := time.Now(), lease.BootClock()
	clock := func() lease.Instant { return boot.Add(time.Since(began)) } // in a bubble its time
	o.past = life{memory: memory{Format: memoryFormat, Incarnation: "mine"}, instance: "process-1", value: []byte(`{"incarnation":"mine"}`)}
	o.registrar = &registrar{cfg: c.Effective(), brokerID: "n1", line: directLine{o.client}, clock: clock,
		log: slog.New(slog.DiscardHandler), life: func() life { return o.past }, paused: func() bool { return o.onPause },
		deliver: func(_ context.Context, out outcome) error { o.outcomes = append(o.outcomes, out); return nil }}
	o.first = o.establish(0)
	o.takeUp()
	o.peer("n2")
	o.past.memory.ConfirmedAt = o.snapshot().Revision // by a renewal
	return o
}

// takeUp remembers the last outcome, as the loop does.
func (o *outage) takeUp() {
	out := o.outcomes[len(o.outcomes)-1]
	m := &o.past.memory
	m.BrokerID, m.FirstBootDone, m.Instance = "n1", true, out.instance
	m.LeaseID, m.Epoch, m.Revision, m.ConfirmedAt = out.grant.LeaseID, out.grant.Epoch, out.grant.Revision, out.grant.Revision
	o.past.mode = out.decision.Mode
}

func (o *outage) establish(held int64) lease.Grant {
	o.t.Helper()
	g, err := o.Establish(o.t.Context(), held, false)
	if err != nil {
		o.t.Fatal(err)
	}
	return g
}

// peer registers another broker, for as long as ours.
func (o *outage) peer(id string) {
	o.t.Helper()
	leaseID, _, err := o.client.Grant(o.t.Context(), o.cfg.LeaseTTL)
	if err != nil {
		o.t.Fatal(err)
	}
	seen, err := o.client.Snapshot(o.t.Context(), id)
	if err != nil {
		o.t.Fatal(err)
	}
	if _, err := o.client.Register(o.t.Context(), cluster.RegisterRequest{LeaseID: leaseID, Value: []byte("{}"), Seen: seen, Member: cluster.Member{Incarnation: id, At: time.Now()}}); err != nil {
		o.t.Fatal(err)
	}
}

// lose ends the lease of the registration.
func (o *outage) lose() {
	o.t.Helper()
	if err := o.client.Revoke(o.t.Context(), o.first.LeaseID); err != nil {
		o.t.Fatal(err)
	}
}

// holds is the store's revision and how many leases there are.
func (o *outage) holds() (revision int64, leases int) {
	o.store.Inspect(func(v etcd.View) { revision, leases = v.Revision(), len(v.Leases()) })
	return revision, leases
}

func (o *outage) snapshot() cluster.Snapshot {
	o.t.Helper()
	seen, err := o.client.Snapshot(o.t.Context(), "n1")
	if err != nil {
		o.t.Fatal(err)
	}
	return seen
}

func inBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

func TestLocksOutliveARegistrationThatSomebodyDeleted(t *testing.T) {
	for _, locks := range []string{"on", "off"} {
		t.Run("locks "+locks, func(t *testing.T) {
			o := newOutage(t, "reconnect")
			o.cfg.OwnershipLocks = locks
			who := cluster.Claimant{BrokerID: "n1", Incarnation: "mine", Epoch: o.first.Epoch, LeaseID: o.first.LeaseID}
			if got, err := o.client.Lock(t.Context(), who, []cluster.LockRequest{{Act: cluster.Take, Topic: "/n/t"}}); err != nil || !got[0].Current(who) {
				t.Fatal(got, err)
			}
			gone := &etcdserverpb.DeleteRangeRequest{Key: []byte(o.client.Keys().Registration("n1"))}
			if _, err := o.store.DeleteRange(t.Context(), gone); err != nil {
				t.Fatal(err)
			}
			next := o.establish(o.first.LeaseID)
			owners, err := o.client.Owners(t.Context(), []string{"/n/t"})
			if err != nil {
				t.Fatal(err)
			}
			if held := !owners["/n/t"].Free(); next.LeaseID == o.first.LeaseID || held != (locks == "on") {
				t.Errorf("lock held: %t, lease %x after %x", held, next.LeaseID, o.first.LeaseID)
			}
		})
	}
}

func TestSessionPoliciesOnAnEtcd(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy string
		change func(o *outage)
		mode   string // empty: stopped, and nothing was written
		reason string
	}{
		{"drain", "drain", nil, "drained", "registration_expired"},
		{"reconnect", "reconnect", nil, "active", "boot"},
		{"reconnect, the retries used up", "reconnect", func(o *outage) { o.past.retriesUsed = true }, "", ""},
		{"shutdown", "shutdown", nil, "", ""},
		{"shutdown, nobody else alive", "shutdown", func(o *outage) { o.everybodyElseGoes() }, "active", "fleet_expired"},
		{"reconnect, nobody else alive, the retries used up", "reconnect", func(o *outage) { o.past.retriesUsed = true; o.everybodyElseGoes() }, "active", "fleet_expired"},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			o := newOutage(t, c.policy)
			o.lose()
			if c.change != nil {
				c.change(o)
			}
			revision, leases := o.holds()
			g, err := o.Establish(t.Context(), 0, false)
			if c.mode == "" {
				var end *sessionEnd
				if !errors.As(err, &end) || !errors.Is(err, lease.ErrShutdown) || end.reason != recovery.ReasonSessionExpired {
					t.Errorf("got %v", err)
				}
				if r, n := o.holds(); r != revision || n != leases {
					t.Errorf("revision %d and %d leases, before %d and %d: something was written", r, n, revision, leases)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			seen := o.snapshot()
			if seen.State.Mode != c.mode || seen.State.Reason != c.reason {
				t.Errorf("%s (%s)", seen.State.Mode, seen.State.Reason)
			}
			if seen.Registration.CreateRevision != g.Epoch || seen.StateRevision != g.Epoch || g.Epoch <= o.first.Epoch || seen.Revision != revision+1 {
				t.Errorf("registered in %d, state in %d, now %d, before %d: not one transaction", g.Epoch, seen.StateRevision, seen.Revision, revision)
			}
		})
	}
}

func (o *outage) everybodyElseGoes() {
	o.t.Helper()
	var ids []int64
	o.store.Inspect(func(v etcd.View) {
		for _, l := range v.Leases() {
			ids = append(ids, l.ID)
		}
	})
	for _, id := range ids {
		if err := o.client.Revoke(o.t.Context(), id); err != nil {
			o.t.Fatal(err)
		}
	}
}

// Whatever the policy would do about a loss is done after the pause, and not before.
func TestALossWaitsForTheEndOfThePause(t *testing.T) {
	for _, policy := range []string{"drain", "reconnect", "shutdown"} {
		inBubble(t, policy, func(t *testing.T) {
			o := newOutage(t, policy)
			o.lose()
			o.onPause = true
			revision, leases := o.holds()
			for range 3 {
				if _, err := o.Establish(t.Context(), 0, false); !errors.Is(err, lease.ErrDeferred) {
					t.Errorf("while paused: %v", err)
				}
			}
			if r, n := o.holds(); r != revision || n != leases {
				t.Errorf("revision %d and %d leases, before %d and %d: something was written", r, n, revision, leases)
			}
			o.onPause = false
			_, err := o.Establish(t.Context(), 0, false)
			if stopped := errors.Is(err, lease.ErrShutdown); stopped != (policy == "shutdown") || err != nil && !stopped {
				t.Errorf("after the pause: %v", err)
			}
		})
	}
}

func TestARegistrationThatStandsIsKeptDuringAPauseAndItsStateIsWrittenAfterIt(t *testing.T) {
	o := newOutage(t, "drain")
	seen := o.snapshot()
	if _, err := o.client.PutState(t.Context(), "n1", cluster.State{Mode: "gone", By: "x"}, seen.StateRevision); err != nil {
		t.Fatal(err)
	}
	o.past.mode = recovery.ModeRecord{Mode: recovery.Drained, Reason: recovery.ReasonJoin, By: recovery.ByHoldfast}
	if _, err := o.client.PutState(t.Context(), "n1", cluster.State{Mode: "active", Reason: "boot", By: "broker"}, o.snapshot().StateRevision); err != nil {
		t.Fatal(err)
	}
	o.onPause = true
	revision, _ := o.holds()
	if g := o.establish(o.first.LeaseID); g.LeaseID != o.first.LeaseID || g.Epoch != o.first.Epoch {
		t.Errorf("kept %+v, want %+v", g, o.first)
	}
	if r, _ := o.holds(); r != revision {
		t.Errorf("revision %d, before %d: something was written", r, revision)
	}
	if m := o.outcomes[len(o.outcomes)-1].decision.Mode; m.Mode != recovery.Drained {
		t.Errorf("the broker is %s here", m.Mode)
	}
	o.onPause = false
	o.establish(o.first.LeaseID)
	if s := o.snapshot().State; s.Mode != "drained" || s.Reason != "join" {
		t.Errorf("after the pause: %+v", s)
	}
}

func TestAFullEtcdIsWaitedForWithoutALeaseLeftOver(t *testing.T) {
	o := newOutage(t, "reconnect")
	o.lose()
	_, leases := o.holds()
	transactions := 0
	o.store.SetFault(func(method string) error {
		if method != "/etcdserverpb.KV/Txn" {
			return nil
		}
		if transactions++; transactions == 2 { // the first one only reads
			return etcd.ErrNoSpace
		}
		return nil
	})
	if _, err := o.Establish(t.Context(), 0, false); classify(err) != string(recovery.FailureNoSpace) {
		t.Errorf("%v of class %q", err, classify(err))
	}
	o.store.SetFault(nil)
	if _, n := o.holds(); n != leases || transactions != 2 {
		t.Errorf("%d leases after %d transactions, before %d", n, transactions, leases)
	}
	o.establish(0)
}

// deafConn loses the answer to the next transaction that writes.
type deafConn struct {
	*etcd.Conn
	lose bool
}

func (c *deafConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := c.Conn.Invoke(ctx, method, args, reply, opts...)
	if txn, ok := args.(*etcdserverpb.TxnRequest); ok && c.lose && len(txn.Compare) > 0 {
		c.lose = false
		return status.Error(codes.Unavailable, "transport is closing")
	}
	return err
}

func TestARegistrationWhoseAnswerWasLostIsFoundAndNotTakenBack(t *testing.T) {
	o := newOutage(t, "drain")
	conn := &deafConn{Conn: o.store.Conn(nil)}
	client := cluster.Over(cluster.Config{}, conn, slog.New(slog.DiscardHandler))
	o.line = directLine{client}
	var fleet []etcd.Lease
	o.store.Inspect(func(v etcd.View) { fleet = v.Leases() })
	for _, l := range fleet {
		if err := o.client.Revoke(t.Context(), l.ID); err != nil {
			t.Fatal(err)
		}
	}
	o.peer("n2") // the first to come back: the era grows
	conn.lose = true
	if _, err := o.Establish(t.Context(), 0, false); err == nil {
		t.Fatal("established without an answer")
	}
	g := o.establish(0)
	seen := o.snapshot()
	if seen.Registration == nil || seen.Registration.CreateRevision != g.Epoch || seen.Registration.LeaseID != g.LeaseID {
		t.Fatalf("holds %+v, registered %+v", g, seen.Registration)
	}
	if m := o.outcomes[len(o.outcomes)-1].decision.Mode; m.Mode != recovery.Active || m.Reason != recovery.ReasonFleetExpired {
		t.Errorf("%s (%s), want active: nobody was registered when it registered", m.Mode, m.Reason)
	}
}
