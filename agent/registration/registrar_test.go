package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
	"holdfast/recovery"
)

// directLine is a renewals' line that goes to the client that it has.
type directLine struct{ client *cluster.Client }

func (l directLine) KeepAlive(ctx context.Context, id int64, _ bool) (lease.Renewal, error) {
	renewal, err := l.client.KeepAlive(ctx, id)
	return lease.Renewal(renewal), LeaseError(err)
}
func (l directLine) Revoke(ctx context.Context, id int64) error { return l.client.Revoke(ctx, id) }
func (l directLine) Client() *cluster.Client                    { return l.client }
func (l directLine) AwaitReconnect(ctx context.Context) error   { <-ctx.Done(); return ctx.Err() }
func (l directLine) Close() error                               { return nil }

// outage is a registrar whose broker was registered and active, beside a peer, on an
// etcd in memory, and lost its registration.
type outage struct {
	*Registrar
	t        *testing.T
	store    *etcd.Server
	client   *cluster.Client
	first    lease.Grant
	held     int64 // by the sidecar
	past     Life
	outcomes []Outcome
	onPause  bool
}

func newOutage(t *testing.T, policy string) *outage {
	t.Helper()
	o := &outage{t: t, store: etcd.New(etcd.Config{})}
	o.client = cluster.Over(cluster.Config{}, o.store.Conn(nil), slog.New(slog.DiscardHandler))
	c := natsSettings()
	c.SessionExpiredPolicy = policy
	began, boot := time.Now(), lease.BootClock()
	clock := func() lease.Instant { return boot.Add(time.Since(began)) } // in a bubble its time
	o.past = Life{Name: "n1", Past: Past{Incarnation: "mine"}, Instance: "process-1", Value: []byte(`{"incarnation":"mine"}`)}
	o.begins(c, clock)
	o.first = o.establish(0)
	o.takeUp()
	o.peer("n2")
	o.past.Past.ConfirmedAt = o.snapshot().Revision // by a renewal
	return o
}

func natsSettings() config.Config {
	c := config.Default()
	c.Driver = "nats"
	return c
}

// begins has a sidecar start.
func (o *outage) begins(c config.Config, clock func() lease.Instant) {
	o.Registrar = New(Deps{Config: c.Effective(), Line: directLine{o.client}, Clock: clock, Log: slog.New(slog.DiscardHandler), Life: o.now,
		Deliver: func(_ context.Context, out Outcome) error { o.outcomes = append(o.outcomes, out); return nil }})
}

// now is what is known.
func (o *outage) now() Life {
	l := o.past
	if o.onPause {
		l.PauseEnds = time.Now().Add(time.Minute)
	}
	return l
}

// takeUp remembers the last outcome, as the loop does.
func (o *outage) takeUp() {
	out := o.outcomes[len(o.outcomes)-1]
	m := &o.past.Past
	m.FirstBootDone, m.Instance = true, out.Instance
	m.LeaseID, m.Epoch, m.Revision, m.ConfirmedAt = out.Grant.LeaseID, out.Grant.Epoch, out.Grant.Revision, out.Grant.Revision
	o.past.Mode = out.Decision.Mode
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
	leaseID, _, err := o.client.Grant(o.t.Context(), o.Config.LeaseTTL)
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
			o.Config.OwnershipLocks = locks
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
		{"reconnect, the retries used up", "reconnect", func(o *outage) { o.past.RetriesUsed = true }, "", ""},
		{"shutdown", "shutdown", nil, "", ""},
		{"shutdown, nobody else alive", "shutdown", func(o *outage) { o.everybodyElseGoes() }, "active", "fleet_expired"},
		{"reconnect, nobody else alive, the retries used up", "reconnect", func(o *outage) { o.past.RetriesUsed = true; o.everybodyElseGoes() }, "active", "fleet_expired"},
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
				var end *SessionEnd
				if !errors.As(err, &end) || !errors.Is(err, lease.ErrShutdown) || end.Reason != recovery.ReasonSessionExpired {
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
	o.past.Mode = recovery.ModeRecord{Mode: recovery.Drained, Reason: recovery.ReasonJoin, By: recovery.ByHoldfast}
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
	if m := o.outcomes[len(o.outcomes)-1].Decision.Mode; m.Mode != recovery.Drained {
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
	if _, err := o.Establish(t.Context(), 0, false); cluster.Classify(err) != cluster.ClassNoSpace {
		t.Errorf("%v of class %q", err, cluster.Classify(err))
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
	o.Line = directLine{client}
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
	if m := o.outcomes[len(o.outcomes)-1].Decision.Mode; m.Mode != recovery.Active || m.Reason != recovery.ReasonFleetExpired {
		t.Errorf("%s (%s), want active: nobody was registered when it registered", m.Mode, m.Reason)
	}
}

// What the registrar would do about a loss waits, and is done when the pause ends.
func TestTheRegistrarWaitsForTheEndOfThePause(t *testing.T) {
	r := New(Deps{Config: natsSettings().Effective()})
	now := Life{Name: "n1", Instance: "process-1", Mode: recovery.ModeRecord{Mode: recovery.Active, Reason: recovery.ReasonBoot, By: recovery.ByHoldfast},
		Past: Past{Incarnation: "mine", Instance: "process-1", Mode: "active", Epoch: 5, Revision: 5}, PauseEnds: time.Now().Add(time.Minute)}
	seen := cluster.Snapshot{Process: cluster.Process{BrokerID: "n1", State: &cluster.State{Mode: "active", Reason: "boot", By: "holdfast"}}, Revision: 9, Era: cluster.Era{N: 1}, Peer: cluster.Peer{CreateRevision: 3}, AnyRegistered: true,
		Member: &cluster.Member{Era: 1, ModRevision: 5}}
	out := r.decide(seen, now)
	if err := r.deferred(&out, now); err == nil || !strings.Contains(err.Error(), "register drained (registration_expired)") {
		t.Errorf("while paused: %v", err)
	}
	if s := fmt.Sprint(out.Decision); s != "register drained (registration_expired)" {
		t.Error(s)
	}
	now.PauseEnds = time.Time{}
	if err := r.deferred(&out, now); err != nil {
		t.Errorf("after the pause: %v", err)
	}
}

func TestWhatIsKnownAfterTheLookHoldsATakeUpBack(t *testing.T) {
	keep, lost := Outcome{Instance: "a", Decision: recovery.Decision{Step: recovery.Keep}}, Outcome{Instance: "a", Decision: recovery.Decision{Step: recovery.Register}}
	boot, conflict := lost, lost
	boot.Boot, conflict.Decision.Step = recovery.Restart, recovery.Conflict
	for _, row := range []struct {
		name string
		out  Outcome
		now  Life
		says string // empty: nothing does
	}{
		{"nothing is new", lost, Life{Instance: "a"}, ""},
		{"its process has ended", keep, Life{Instance: "a", Gone: true}, "has ended"},
		{"its process has ended, and another has the registration", conflict, Life{Instance: "a", Gone: true, Leaves: true}, ""},
		{"lost, and it is silent", lost, Life{Instance: "a", Silent: true}, "still the same process is not known"},
		{"lost, and another process answers", lost, Life{Instance: "b"}, "still the same process is not known"},
		{"kept, and it is silent", keep, Life{Instance: "a", Silent: true}, ""},
		{"a new process, which is silent", boot, Life{Instance: "a", Silent: true}, ""},
		{"it leaves", keep, Life{Instance: "a", Leaves: true}, "leaves on purpose"},
	} {
		err := outdated(row.out, row.now)
		if (err != nil) != (row.says != "") || err != nil && (!errors.Is(err, lease.ErrDeferred) || !strings.Contains(err.Error(), row.says)) {
			t.Errorf("%s: %v, want %q", row.name, err, row.says)
		}
	}
}

// putUnder has somebody else write the registration as it is, or with another value, under that lease.
func (o *outage) putUnder(lease int64, value string) {
	o.t.Helper()
	if value == "" {
		value = string(o.snapshot().Registration.Value)
	}
	if _, err := o.store.Put(o.t.Context(), &etcdserverpb.PutRequest{Key: []byte(o.client.Keys().Registration("n1")), Value: []byte(value), Lease: lease}); err != nil {
		o.t.Fatal(err)
	}
}

func (o *outage) another() (id int64) {
	o.t.Helper()
	id, _, err := o.client.Grant(o.t.Context(), o.Config.LeaseTTL)
	if err != nil {
		o.t.Fatal(err)
	}
	return id
}

func TestARegistrationThatStandsIsMendedAndKept(t *testing.T) {
	const theirs = `{"incarnation":"mine","admin_addr":"elsewhere"}`
	for _, c := range []struct {
		name     string
		change   func(o *outage)
		repaired string
		stays    bool   // under the lease that is held
		lives    bool   // that lease, afterwards
		value    string // afterwards; empty: ours
	}{
		{"nothing is wrong", func(*outage) {}, "", true, true, ""},
		{"a sidecar that was restarted", func(o *outage) { o.held = 0 }, "", true, true, ""},
		{"without a lease", func(o *outage) { o.putUnder(0, "") }, "no lease", true, true, ""},
		{"without a lease, after a restart", func(o *outage) { o.putUnder(0, ""); o.held = 0 }, "no lease", false, true, ""},
		{"under a lease of others", func(o *outage) { o.putUnder(o.another(), "") }, "foreign lease", true, true, ""},
		{"under a lease of others, and ours has ended", func(o *outage) { o.putUnder(o.another(), ""); o.lose() }, "foreign lease", false, false, ""},
		{"with another value", func(o *outage) { o.putUnder(o.first.LeaseID, theirs) }, "value changed", true, true, ""},
		{"with the value of the sidecar before", func(o *outage) {
			o.putUnder(o.first.LeaseID, `{"incarnation":"mine","run":"before"}`)
			o.held, o.stood = 0, false
		}, "", true, true, ""},
		{"with another TTL", func(o *outage) { o.Config.LeaseTTL *= 2; o.granted = 0 }, "other TTL", false, false, ""},
		{"with another TTL, and locks under the lease", func(o *outage) { o.Config.LeaseTTL *= 2; o.granted, o.Config.OwnershipLocks = 0, "on" }, "other TTL", false, true, ""},
		{"adopted, by its broker alone", func(o *outage) {
			o.Config.Registration, o.held = "adopt", 0
			o.putUnder(o.another(), theirs)
		}, UnderItsOwn, false, true, theirs},
		{"adopted, and held", func(o *outage) { o.Config.Registration = "adopt" }, "", true, true, ""},
		{"adopted, and written by its broker anew", func(o *outage) {
			o.Config.Registration = "adopt"
			o.putUnder(o.another(), theirs)
		}, "foreign lease", true, true, theirs},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			o.held = o.first.LeaseID
			c.change(o)
			before := o.snapshot()
			g := o.establish(o.held)
			after, out := o.snapshot(), o.outcomes[len(o.outcomes)-1]
			if out.Repaired != c.repaired || (g.LeaseID == o.first.LeaseID) != c.stays || g.Epoch != o.first.Epoch {
				t.Errorf("%q was wrong; granted %+v after %+v", out.Repaired, g, o.first)
			}
			want := cmp.Or(c.value, `{"incarnation":"mine"}`)
			if reg := after.Registration; reg.LeaseID != g.LeaseID || string(reg.Value) != want || string(out.Value) != want || out.SeenAt < reg.ModRevision {
				t.Errorf("registered %+v with %s, and told %s at %d", reg, reg.Value, out.Value, out.SeenAt)
			}
			if wrote := after.Revision != before.Revision; wrote == (c.repaired == "" && string(before.Registration.Value) == want) {
				t.Errorf("written: %t", wrote)
			}
			if left, err := o.client.LeaseLeft(t.Context(), o.first.LeaseID); err != nil || left.Found != c.lives {
				t.Errorf("the lease of before is there: %t, %v", left.Found, err)
			}
			if mode := out.Decision.Mode.Mode; mode != recovery.Active || out.StateRevision != after.StateRevision {
				t.Errorf("%s at %d, the state key is at %d", mode, out.StateRevision, after.StateRevision)
			}
		})
	}
}

// deadLine carries everything but renewals.
type deadLine struct{ directLine }

func (l deadLine) KeepAlive(context.Context, int64, bool) (lease.Renewal, error) {
	return lease.Renewal{}, errors.New("no answer")
}

func TestAFreshWayIsProvenByAnyAnswer(t *testing.T) {
	o := newOutage(t, "drain")
	o.Line = deadLine{directLine{o.client}}
	if _, err := o.Establish(t.Context(), o.first.LeaseID, true); err != nil {
		t.Errorf("a way that carries no renewal: %v", err)
	}
	o.store.LoseLeader()
	if _, err := o.Establish(t.Context(), o.first.LeaseID, true); err == nil || err.Error() != "no answer" {
		t.Errorf("a way that carries nothing: %v", err)
	}
}
