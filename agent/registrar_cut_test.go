package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// amongThree is an outage of n1 among n2 and n3, which were registered when it was confirmed for
// the last time. Its clock stands until it is told to go on.
func amongThree(t *testing.T, policy string) (o *outage, later func(time.Duration)) {
	o = newOutage(t, policy)
	o.hasty = true // the leases of the others are no matter here
	o.peer("n3")
	o.past.memory.ConfirmedAt = o.snapshot().Revision
	now := lease.BootClock()
	o.clock = func() lease.Instant { return now }
	o.lose()
	return o, func(d time.Duration) { now = now.Add(d) }
}

// ends ends the registration of a peer.
func (o *outage) ends(id string) {
	o.t.Helper()
	seen, err := o.client.Snapshot(o.t.Context(), id)
	if err == nil {
		err = o.client.Revoke(o.t.Context(), seen.Registration.LeaseID)
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// wasCut has a peer note that it was cut off and is back, as its sidecar does.
func (o *outage) wasCut(id string) {
	o.t.Helper()
	seen, err := o.client.Snapshot(o.t.Context(), id)
	if err != nil {
		o.t.Fatal(err)
	}
	m := *seen.Member
	// Its clock is five minutes ahead.
	m.Cut = &cluster.Cut{From: time.Now().Add(4 * time.Minute), Until: time.Now().Add(5 * time.Minute), Revision: seen.Revision}
	if _, err := o.client.Keep(o.t.Context(), cluster.RegisterRequest{Seen: seen, Member: m}); err != nil {
		o.t.Fatal(err)
	}
}

// leaves has a peer stop on purpose.
func (o *outage) leaves(id string) {
	o.t.Helper()
	seen, err := o.client.Snapshot(o.t.Context(), id)
	if err == nil {
		epoch := seen.Registration.CreateRevision
		_, err = o.client.Leave(o.t.Context(), cluster.LeaveRequest{Seen: seen, Epoch: epoch, LeaseID: seen.Registration.LeaseID,
			Left: cluster.Left{At: time.Now(), Epoch: epoch, Instance: "p", Revision: seen.Revision}})
	}
	if err != nil {
		o.t.Fatal(err)
	}
	o.ends(id)
}

func (o *outage) decided() recovery.Decision { return o.outcomes[len(o.outcomes)-1].decision }

// confirmedBefore has the last renewal confirmed so long ago.
func (o *outage) confirmedBefore(d time.Duration) {
	o.past.memory.Deadline = time.Now().Add(32*time.Second - d)
	o.before.Deadline = o.past.memory.Deadline
}

// restarted is the sidecar after this one.
func (o *outage) restarted() {
	o.stood = false
	o.confirmedBefore(40 * time.Second)
	o.before.Revision = o.past.memory.ConfirmedAt
}

func (o *outage) brokerRestarted() {
	o.past.instance, o.past.boot = "process-2", recovery.BootFacts{StateFile: true}
	o.confirmedBefore(40 * time.Second)
}

func TestALossThatOthersShareDrainsNobody(t *testing.T) {
	for _, c := range []struct {
		name   string
		others func(o *outage)
		waits  bool // for what others may note yet
		row    recovery.Reason
		says   string
	}{
		{"both live", func(o *outage) {}, true, recovery.ReasonRegistrationExpired, "of 2 that were registered beside it 0"},
		{"both were cut off, and kept their registrations", func(o *outage) { o.wasCut("n2"); o.wasCut("n3") }, false, recovery.ReasonFleetExpired, "of 2 that were registered beside it 2"},
		{"one was cut off", func(o *outage) { o.wasCut("n3") }, false, recovery.ReasonFleetExpired, "(n3)"},
		{"one lost its own, too, and is not back", func(o *outage) { o.ends("n3") }, true, recovery.ReasonRegistrationExpired, "of 1 that were registered beside it 0"},
		{"one is back already", func(o *outage) { o.ends("n3"); o.peer("n3") }, false, recovery.ReasonFleetExpired, "(n3)"},
		{"one left on purpose", func(o *outage) { o.leaves("n3") }, true, recovery.ReasonRegistrationExpired, "of 1 that were registered beside it 0"},
		{"one left on purpose, and is back", func(o *outage) { o.leaves("n3"); o.peer("n3") }, true, recovery.ReasonRegistrationExpired, "of 1 that were registered beside it 0"},
		{"one joined since", func(o *outage) { o.peer("n4"); o.ends("n4") }, true, recovery.ReasonRegistrationExpired, "of 2 that were registered beside it 0"},
		{"one was cut off before we were", func(o *outage) { o.wasCut("n3"); o.past.memory.ConfirmedAt = o.snapshot().Revision }, true, recovery.ReasonRegistrationExpired, "of 2 that were registered beside it 0"},
		{"it asks for more than half", func(o *outage) { o.cfg.FleetLossShare = 0.6; o.ends("n3"); o.peer("n3") }, true, recovery.ReasonRegistrationExpired, "1 lost their registrations, or were cut off from etcd, at the same time (n3), fewer than --fleet-loss-share 0.6"},
		{"it judges each loss alone", func(o *outage) { o.cfg.FleetLossShare = 0; o.ends("n3") }, false, recovery.ReasonRegistrationExpired, "other brokers are registered"},
		{"a record is garbled", func(o *outage) { o.garble("n3") }, true, recovery.ReasonRegistrationExpired, "the record of n3 cannot be read: \"torn\" at key /cluster/members/n3"},
		{"etcd does not show the records", func(o *outage) { o.line = directLine{o.without("/cluster/members/")} }, false, recovery.ReasonRegistrationExpired, "grant this user read on /cluster/members/"},
		{"the sidecar was started since, and both live", func(o *outage) { o.restarted() }, true, recovery.ReasonRegistrationExpired, "of 2 that were registered beside it 0"},
		{"the sidecar was started since", func(o *outage) { o.restarted(); o.ends("n3"); o.peer("n3") }, false, recovery.ReasonFleetExpired, "(n3)"},
		{"the same, and when it was confirmed last was not noted", func(o *outage) { o.restarted(); o.before.Deadline = time.Time{}; o.ends("n3") }, false, recovery.ReasonRegistrationExpired, "other brokers are registered"},
		{"the same, and that was not noted last", func(o *outage) { o.restarted(); o.before.Revision--; o.ends("n3") }, false, recovery.ReasonRegistrationExpired, "other brokers are registered"},
		{"the same, more than two TTLs after it", func(o *outage) { o.restarted(); o.confirmedBefore(65 * time.Second); o.ends("n3") }, false, recovery.ReasonRegistrationExpired, "other brokers are registered"},
		{"the same, before it", func(o *outage) { o.restarted(); o.confirmedBefore(-time.Second); o.ends("n3") }, false, recovery.ReasonRegistrationExpired, "other brokers are registered"},
		{"the broker was restarted, and both live", func(o *outage) { o.brokerRestarted() }, false, recovery.ReasonStaleRestart, "of 2 that were registered beside it 0"},
		{"the broker was restarted", func(o *outage) { o.brokerRestarted(); o.ends("n3"); o.peer("n3") }, false, recovery.ReasonFleetExpired, "(n3)"},
		{"the broker was restarted, more than two TTLs later", func(o *outage) { o.brokerRestarted(); o.confirmedBefore(65 * time.Second); o.ends("n3") }, false, recovery.ReasonStaleRestart, "other brokers are registered"},
		{"the broker was restarted after a planned stop", func(o *outage) { o.brokerRestarted(); o.past.memory.Released = true; o.ends("n3") }, false, recovery.ReasonStaleRestart, "other brokers are registered"},
		{"the host was", func(o *outage) { o.brokerRestarted(); o.restarted(); o.ends("n3"); o.peer("n3") }, false, recovery.ReasonFleetExpired, "(n3)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, later := amongThree(t, "drain")
			c.others(o)
			_, err := o.Establish(t.Context(), 0, false)
			if waits := errors.Is(err, lease.ErrDeferred); waits != c.waits || err != nil && !waits {
				t.Fatal(err)
			}
			if c.waits {
				later(o.lossWait())
				o.establish(0)
			}
			if d := o.decided(); d.Row != c.row || !strings.Contains(d.Detail, c.says) {
				t.Errorf("%s by %s: %s", d, d.Row, d.Detail)
			}
		})
	}
}

// What befell everybody drains nobody, and who was restarted meanwhile waits, too, for what
// others may note yet.
func TestABrokerThatIsRestartedInACutOfTheFleetIsNotDrained(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration // n3 notes that it was cut off; 0: it was not
		row   recovery.Reason
	}{
		{"it was cut off, too", 3 * time.Second, recovery.ReasonFleetExpired},
		{"it was not", 0, recovery.ReasonStaleRestart},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			o, _ := newDead(t)
			o.peer("n3")
			o.past.memory.ConfirmedAt = o.snapshot().Revision
			o.restarted()
			cut := false
			d, err := o.wait(time.Minute, func(elapsed time.Duration) {
				o.renewPeers()
				if c.after != 0 && elapsed >= c.after && !cut {
					cut = true
					o.wasCut("n3")
				}
			})
			if err != nil || d.Row != c.row {
				t.Errorf("%s by %s: %s (%v)", d, d.Row, d.Detail, err)
			}
		})
	}
}

// Else the fleet would not know of those that were restarted in a cut and kept theirs.
func TestASidecarThatWasRestartedInACutNotesIt(t *testing.T) {
	for name, c := range map[string]struct {
		ago   time.Duration // the last renewal of the one before
		noted bool
	}{
		"after the fence point":  {25 * time.Second, true},
		"before the fence point": {15 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutage(t, "drain")
			o.restarted()
			o.confirmedBefore(c.ago)
			before := o.snapshot()
			o.run, o.past.value = "2", []byte(`{"incarnation":"mine","run":"2"}`)
			if g := o.establish(o.first.LeaseID); g.Epoch != o.first.Epoch {
				t.Fatalf("registered anew: %+v", g)
			}
			cut := o.snapshot().Member.Cut
			if noted := cut != nil; noted != c.noted || noted && (cut.Revision != before.Revision || !cut.From.Equal(o.before.Deadline.Add(-o.cfg.LeaseTTL))) {
				t.Errorf("noted %+v", cut)
			}
		})
	}
}

// A broker that kept its registration notes that it was cut off when etcd answers it again,
// which may be a little later than etcd answers us.
func TestALossIsComparedAgainOneRenewalLater(t *testing.T) {
	for _, policy := range []string{"drain", "shutdown"} {
		t.Run(policy, func(t *testing.T) {
			o, later := amongThree(t, policy)
			for range 3 {
				if _, err := o.Establish(t.Context(), 0, false); !errors.Is(err, lease.ErrDeferred) {
					t.Fatal(err)
				}
				later(o.cfg.RenewInterval / 4)
			}
			o.wasCut("n2")
			if _, err := o.Establish(t.Context(), 0, false); !errors.Is(err, lease.ErrDeferred) {
				t.Fatalf("it looked at the others again too early: %v", err)
			}
			later(o.cfg.RenewInterval / 4)
			o.establish(0)
			if d := o.decided(); d.Row != recovery.ReasonFleetExpired || d.Mode.Mode != recovery.Active {
				t.Errorf("%s: %s", d, d.Detail)
			}
			o.takeUp()
			o.first = lease.Grant{LeaseID: o.outcomes[len(o.outcomes)-1].grant.LeaseID}
			o.lose()
			if _, err := o.Establish(t.Context(), 0, false); !errors.Is(err, lease.ErrDeferred) {
				t.Errorf("the next loss was compared with what is known of this one: %v", err)
			}
		})
	}
}

func TestWhoWasCutOffAndKeptItsRegistrationNotesIt(t *testing.T) {
	o := newOutage(t, "drain")
	o.past.cutFrom = time.Now().Add(-30 * time.Second)
	before := o.snapshot()
	if g := o.establish(o.first.LeaseID); g.Epoch != o.first.Epoch {
		t.Fatalf("registered anew: %+v, before %+v", g, o.first)
	}
	after := o.snapshot()
	if c := after.Member.Cut; c == nil || !c.From.Equal(o.past.cutFrom) || time.Since(c.Until) > time.Minute || c.Revision != before.Revision {
		t.Fatalf("noted %+v", c)
	}
	if r := after.Registration; r.ModRevision != before.Registration.ModRevision || after.StateRevision != before.StateRevision {
		t.Errorf("more was written: %+v, was %+v", after, before)
	}
	o.past.cutFrom = time.Time{} // the loop took it up
	o.establish(o.first.LeaseID)
	if again := o.snapshot(); again.Revision != after.Revision {
		t.Error("it was noted twice")
	}
	o.past.data = "8:1" // the record is written again
	o.past.memory.Data = "8:1"
	o.establish(o.first.LeaseID)
	if again := o.snapshot(); again.Revision == after.Revision || again.Member.Cut == nil || again.Member.Cut.Revision != before.Revision {
		t.Errorf("the note went with the next write of the record: %+v", again.Member)
	}
	o.past.cutFrom = time.Now()
	o.lose()
	o.everybodyElseGoes()
	o.establish(0)
	if m := o.snapshot().Member; m.Cut != nil {
		t.Errorf("%+v is noted of a registration that is new", m.Cut)
	}
}

func (o *outage) garble(id string) {
	o.t.Helper()
	if _, err := o.store.Put(o.t.Context(), &etcdserverpb.PutRequest{Key: []byte(o.client.Keys().Member(id)), Value: []byte("torn")}); err != nil {
		o.t.Fatal(err)
	}
}

// narrow is a connection of a user who may not read what is below a prefix, but single keys.
type narrow struct {
	grpc.ClientConnInterface
	prefix string
}

func (n narrow) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if txn, ok := args.(*etcdserverpb.TxnRequest); ok {
		for _, op := range txn.Success {
			if r := op.GetRequestRange(); len(r.GetRangeEnd()) > 0 && strings.HasPrefix(string(r.Key), n.prefix) {
				return status.Error(codes.PermissionDenied, "etcdserver: permission denied")
			}
		}
	}
	return n.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func (o *outage) without(prefix string) *cluster.Client {
	return cluster.Over(cluster.Config{}, narrow{o.store.Conn(nil), prefix}, slog.New(slog.DiscardHandler))
}

func TestACutIsNotNotedOfARegistrationThatIsNew(t *testing.T) {
	o := newOutage(t, "drain")
	o.hasty, o.cfg.FleetLossShare = true, 0
	o.past.cutFrom = time.Now()
	o.lose()
	o.establish(0) // and its answer does not reach the loop, which knows the one before
	o.establish(o.outcomes[len(o.outcomes)-1].grant.LeaseID)
	if m := o.snapshot().Member; m.Cut != nil {
		t.Errorf("noted %+v", m.Cut)
	}
}

func TestADetachmentIsNotedUntilTheRegistrarHasWrittenIt(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		noted := func() time.Time { return l.life.Load().cutFrom }
		if at := noted(); !at.IsZero() {
			t.Errorf("cut off since %v, and attached", at)
		}
		l.set(func() { l.away = true })
		l.until(9*time.Second + l.cfg.LeaseTTL - time.Second)
		at := noted()
		if l.state() != recovery.Detached || at.IsZero() || at.After(l.born.Add(9*time.Second)) || at.Before(l.born.Add(9*time.Second-2*l.cfg.RenewInterval)) {
			t.Fatalf("%s, cut off since %v; the last renewal was confirmed before %v", l.state(), at, l.born.Add(9*time.Second))
		}
		l.deliverOutcome(t, outcome{}) // of a question from before the detachment
		if !noted().Equal(at) {
			t.Error("it is forgotten before it was written")
		}
		l.deliverOutcome(t, outcome{cutFrom: at})
		if now := noted(); !now.IsZero() {
			t.Errorf("still to be written: %v", now)
		}
	})
}

// deliverOutcome has the loop take up that the registration survived.
func (l *sidecarLife) deliverOutcome(t *testing.T, o outcome) {
	t.Helper()
	mode := recovery.ModeRecord{Mode: recovery.Active, Reason: recovery.ReasonBoot, By: recovery.ByHoldfast}
	o.decision, o.instance = recovery.Decision{Step: recovery.Keep, Mode: mode}, "process-1"
	o.grant = lease.Grant{LeaseID: 1, SentAt: l.clock().Add(-l.cfg.LeaseTTL), TTL: l.cfg.LeaseTTL, Epoch: 1, Revision: 10}
	if err := l.deliver(context.Background(), o); err != nil {
		t.Fatal(err)
	}
}

// Or a companion that was cut off after its planned restart would count as one that lost its
// registration.
func TestAKeptRegistrationRemembersThePlannedStopBeforeIt(t *testing.T) {
	o := newOutage(t, "drain")
	before := o.first.Epoch
	o.leave()
	o.lose()
	o.backAs(func(m *memory) { m.LeaseID, m.Released = 0, true })
	o.first = o.establish(0)
	o.takeUp()
	if m := o.snapshot().Member; m.Planned != before {
		t.Fatalf("registered again: %+v, want that registration %d was given up on purpose", m, before)
	}
	o.past.cutFrom = time.Now()
	o.establish(o.first.LeaseID)
	if m := o.snapshot().Member; m.Cut == nil || m.Planned != before {
		t.Errorf("kept: %+v", m)
	}
}

// A detachment may come between a look at the registration and its answer, and a pause may hold
// the note back: whoever compares losses must not take its end for later than it was.
func TestACutThatIsNotedLateEndsWhenItEnded(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.until(l.age() + 10*time.Second)
		l.inLoop(func() {
			l.noteCutOver()
			if l.cutOver != 0 {
				t.Error("a cut is over, and none began")
			}
			l.noteCut(recovery.WhyFencePoint)
			l.noteCutOver()
			if back := l.keeper.View().Grant.Revision; l.cutOver != back || back == 0 {
				t.Errorf("back at %d, want %d", l.cutOver, back)
			}
			l.noteCut(recovery.WhyFencePoint)
			if l.cutOver != 0 {
				t.Error("the cut is over, and it is cut off again")
			}
		})
	})
	o := newOutage(t, "drain")
	back := o.snapshot().Revision
	o.past.cutFrom, o.past.cutOver = time.Now(), back
	if _, err := o.store.Put(t.Context(), &etcdserverpb.PutRequest{Key: []byte("life")}); err != nil {
		t.Fatal(err)
	}
	o.establish(o.first.LeaseID)
	if c := o.snapshot().Member.Cut; c == nil || c.Revision != back {
		t.Errorf("noted %+v, want the end at revision %d", c, back)
	}
}
