package registration

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/agent/note"
	"holdfast/cluster"
	"holdfast/recovery"
)

// writes has a peer change its member record, as its sidecar does.
func (o *outage) writes(id string, change func(m *cluster.Member)) {
	o.t.Helper()
	seen, err := o.client.Snapshot(o.t.Context(), id)
	if err != nil {
		o.t.Fatal(err)
	}
	m := *seen.Member
	change(&m)
	if _, err := o.client.Keep(o.t.Context(), cluster.RegisterRequest{Seen: seen, Member: m}); err != nil {
		o.t.Fatal(err)
	}
}

// leaves has a peer stop on purpose, or crash, which is noted.
func (o *outage) leaves(id string, crash bool) {
	o.t.Helper()
	seen, err := o.client.Snapshot(o.t.Context(), id)
	if err == nil {
		epoch := seen.Registration.CreateRevision
		_, err = o.client.Leave(o.t.Context(), cluster.LeaveRequest{Seen: seen, Epoch: epoch, LeaseID: seen.Registration.LeaseID,
			Left: cluster.Left{At: time.Now(), Epoch: epoch, Instance: "p", Revision: seen.Revision, Crash: crash}})
	}
	if err != nil {
		o.t.Fatal(err)
	}
	o.unregister(id)
}

func (o *outage) decided() recovery.Decision { return o.outcomes[len(o.outcomes)-1].Decision }

// restartsAs is another process of the broker, with its data.
func (o *outage) restartsAs(instance string) {
	o.past.Instance, o.past.Mode = instance, recovery.ModeRecord{}
	o.past.Boot = recovery.BootFacts{OldestMarker: time.Now().Add(-time.Hour), MarkerPath: "data", BrokerStartedAt: time.Now()}
}

func (o *outage) writeEra(value string) { o.putValue(o.client.Keys().Era(), value) }

func (o *outage) putValue(key, value string) {
	o.t.Helper()
	if _, err := o.store.Put(o.t.Context(), &etcdserverpb.PutRequest{Key: []byte(key), Value: []byte(value)}); err != nil {
		o.t.Fatal(err)
	}
}

func (o *outage) deletes(key string) {
	o.t.Helper()
	if _, err := o.store.DeleteRange(o.t.Context(), &etcdserverpb.DeleteRangeRequest{Key: []byte(key)}); err != nil {
		o.t.Fatal(err)
	}
}

func (o *outage) garble(id string) { o.putValue(o.client.Keys().Member(id), "torn") }

// hidden is a connection of a user who may not read that key, nor list what is below it.
type hidden struct {
	grpc.ClientConnInterface
	prefix string
}

func (n hidden) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if txn, ok := args.(*etcdserverpb.TxnRequest); ok {
		for _, op := range slices.Concat(txn.Success, txn.Failure) {
			if r := op.GetRequestRange(); r != nil && (string(r.Key) == n.prefix || len(r.RangeEnd) > 0 && strings.HasPrefix(string(r.Key), n.prefix)) {
				return status.Error(codes.PermissionDenied, "etcdserver: permission denied")
			}
		}
	}
	return n.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func (o *outage) without(prefix string) *cluster.Client {
	return cluster.Over(cluster.Config{}, hidden{o.store.Conn(nil), prefix}, slog.New(slog.DiscardHandler))
}

// suspicious is n1, which was lost while n2 and n3 stood registered. again: its broker was restarted
// meanwhile.
func suspicious(t *testing.T, again bool) *outage {
	o := newOutage(t, "drain")
	o.peer("n3")
	o.past.Past.ConfirmedAt = o.snapshot().Revision
	o.past.Past.Deadline = time.Now().Add(o.ttl())
	o.lose()
	if again {
		o.stood, o.Before = false, note.Confirmed{Revision: o.past.Past.ConfirmedAt, Deadline: o.past.Past.Deadline}
		o.restartsAs("process-2")
	}
	return o
}

// goesOn has the sidecar renew, and look again, for so long; in the end of each second meanwhile is
// called. It returns when the member record said first that no suspicion is open; 0: it never did.
func (o *outage) goesOn(d time.Duration, meanwhile func(second int)) (over time.Duration) {
	o.t.Helper()
	began, held := time.Now(), int64(0)
	for second := 0; time.Since(began) < d; second++ {
		if second%4 == 0 {
			held = o.establish(held).LeaseID
			o.takeUp()
		}
		if over == 0 && !suspect(o.snapshot()) {
			over = time.Since(began)
		}
		if _, err := o.client.KeepAlive(o.t.Context(), held); err != nil {
			o.t.Fatal(err)
		}
		if meanwhile != nil {
			meanwhile(second)
		}
		time.Sleep(time.Second)
	}
	return over
}

// renew renews the registrations of peers that stand.
func (o *outage) renewPeers(ids ...string) {
	o.t.Helper()
	for _, id := range ids {
		if reg, _, err := o.client.Registered(o.t.Context(), id); err == nil && reg != nil {
			if _, err := o.client.KeepAlive(o.t.Context(), reg.LeaseID); err != nil {
				o.t.Fatal(err)
			}
		}
	}
}

func TestWhoeverIsLostWhileOthersStandIsASuspectUntilItIsKnownWhetherTheyLivedOn(t *testing.T) {
	const (
		proof = 46 * time.Second // 1.25 TTL, 5 s
		anew  = "its registration is lost again, and both only linger"
	)
	at := func(when int, do func(o *outage)) func(*outage, int) {
		return func(o *outage, second int) {
			if o.renewPeers("n2", "n3"); second == when {
				do(o)
			}
		}
	}
	still := func(when int, do func(o *outage)) func(*outage, int) { // and nobody renews
		return func(o *outage, second int) {
			if second == when {
				do(o)
			}
		}
	}
	both := func(o *outage, _ int) { o.renewPeers("n2", "n3") }
	for _, c := range []struct {
		name      string
		meanwhile func(o *outage, second int)
		mode      string
		by        string
		least     time.Duration // it is open for so long
		most      time.Duration
	}{
		{"both live", both, "drained", "holdfast", proof - 2*time.Second, proof + 8*time.Second},
		{"both only linger", nil, "active", "holdfast", 30 * time.Second, 4 * proof},
		{"one lingers and one lives", func(o *outage, _ int) { o.renewPeers("n2") }, "drained", "holdfast", proof, 3 * proof},
		{"one leaves as planned and the other ends", func(o *outage, second int) {
			if o.renewPeers("n2"); second == 10 {
				o.leaves("n2", false)
			}
		}, "drained", "holdfast", proof, 5 * proof},
		{"one crashes, which is noted, and the other ends", func(o *outage, second int) {
			if o.renewPeers("n2"); second == 10 {
				o.leaves("n2", true)
			}
		}, "active", "holdfast", proof, 5 * proof},
		{"a leader is elected", at(20, func(o *outage) { o.store.ChangeLeader(0) }), "drained", "holdfast", proof + 18*time.Second, 2 * proof},
		{"one was cut off at the same time, and kept its registration", at(1, func(o *outage) {
			o.writes("n2", func(m *cluster.Member) {
				m.Cut = &cluster.Cut{From: o.past.Past.Deadline.Add(-o.ttl()), Until: time.Now(), Revision: 1}
			})
		}), "active", "holdfast", 4 * time.Second, 9 * time.Second},
		{"one was cut off long before", at(1, func(o *outage) {
			o.writes("n2", func(m *cluster.Member) {
				m.Cut = &cluster.Cut{From: time.Now().Add(-time.Hour), Until: time.Now().Add(-time.Hour), Revision: 1}
			})
		}), "drained", "holdfast", proof - 2*time.Second, proof + 8*time.Second},
		{"for a moment nobody is registered", func(o *outage, second int) {
			if o.renewPeers("n2", "n3"); second == 10 {
				o.writeEra(`{"era":2}`)
			}
		}, "active", "holdfast", 9 * time.Second, 14 * time.Second},
		{"an operator activates", at(6, func(o *outage) { o.operator("active") }), "active", "ops", 5 * time.Second, 9 * time.Second},
		{"an operator drains", at(6, func(o *outage) { o.operator("drained") }), "drained", "ops", 5 * time.Second, 9 * time.Second},
		{"the records of both cannot be read, and both live", at(1, func(o *outage) { o.garble("n2"); o.garble("n3") }), "drained", "holdfast", proof - 2*time.Second, proof + 8*time.Second},
		{"both live among the records of hundreds that are gone", at(0, func(o *outage) {
			for i := range 300 {
				o.putValue(o.client.Keys().Member(fmt.Sprintf("a%03d", i)), `{"era":1}`)
			}
		}), "drained", "holdfast", proof - 2*time.Second, proof + 8*time.Second},
		{"recovery is paused meanwhile, and both only linger", func(o *outage, second int) { o.onPause = second < 140 }, "active", "holdfast", 140 * time.Second, 5 * proof},
		{"its own record is spoiled, and both only linger", still(6, func(o *outage) { o.garble("n1") }), "active", "holdfast", 6 * time.Second, 4 * proof},
		{"the era's key is written again with the same number", at(6, func(o *outage) { o.writeEra(`{"era":1}`) }), "drained", "holdfast", proof - 2*time.Second, proof + 8*time.Second},
		{"its state key is deleted, and the sidecar restarted with an older state file", func(o *outage, second int) {
			if o.renewPeers("n2", "n3"); second == 6 {
				o.deletes(o.client.Keys().State("n1"))
				o.asks, o.stood, o.past.Mode, o.past.Instance = nil, false, recovery.ModeRecord{}, "process-3"
			}
		}, "drained", "holdfast", proof, proof + 16*time.Second},
		{anew, still(6, func(o *outage) { o.deletes(o.client.Keys().Registration("n1")) }), "active", "holdfast", 30 * time.Second, 4 * proof},
		{"the sidecar is restarted", at(6, func(o *outage) { o.asks, o.stood = nil, false }), "drained", "holdfast", proof + 4*time.Second, proof + 16*time.Second},
		{"the sidecar is restarted, and both only linger", still(6, func(o *outage) { o.asks, o.stood = nil, false }), "active", "holdfast", 30 * time.Second, 4 * proof},
	} {
		for _, again := range []bool{false, true} {
			name, reason := c.name, "registration_expired"
			if again {
				name, reason = c.name+", the broker was restarted", "stale_restart"
			}
			inBubble(t, name, func(t *testing.T) {
				o := suspicious(t, again)
				o.establish(0)
				o.takeUp()
				seen := o.snapshot()
				if s := seen.State; s.Mode != "drained" || s.Reason != reason || !suspect(seen) || seen.StateRevision != seen.Registration.CreateRevision || seen.Member.ModRevision != seen.StateRevision {
					t.Fatalf("at first %+v, record %+v", s, seen.Member)
				}
				over := o.goesOn(5*proof, func(second int) {
					if c.meanwhile != nil {
						c.meanwhile(o, second)
					}
				})
				after := o.snapshot()
				if s := after.State; s.Mode != c.mode || s.By != c.by || suspect(after) || over < c.least || over > c.most {
					t.Errorf("%+v after %v by %s: %s; want %s by %s after %v to %v", s, over, o.decided().Row, o.decided().Detail, c.mode, c.by, c.least, c.most)
				}
				if (after.Registration.CreateRevision != seen.Registration.CreateRevision) != (c.name == anew) {
					t.Errorf("registered at %d, and at %d before", after.Registration.CreateRevision, seen.Registration.CreateRevision)
				}
			})
		}
	}
}

// operator changes the mode by hand, and the watch shows it to the loop.
func (o *outage) operator(mode string) {
	o.t.Helper()
	if _, err := o.client.PutState(o.t.Context(), "n1", cluster.State{Mode: mode, Reason: "disk swap", By: "ops", At: time.Now()}, o.snapshot().StateRevision); err != nil {
		o.t.Fatal(err)
	}
	o.past.Mode = recovery.ModeRecord{Mode: recovery.Mode(mode), Reason: "disk swap", By: "ops"}
}

// A state file that is older than it should be knows of a renewal from before the others came. That our
// registration stood when they did is in etcd's past.
func TestAnOldStateFileDoesNotMakeThoseYoungerThatLivedOn(t *testing.T) {
	for name, lost := range map[string]bool{"they came before the loss": false, "they came after the loss": true} {
		inBubble(t, name, func(t *testing.T) {
			o := newOutage(t, "drain")
			o.unregister("n2")
			o.past.Past.ConfirmedAt, o.past.Past.Deadline = o.first.Epoch, time.Now().Add(o.ttl())
			if lost {
				o.lose()
			}
			o.peer("n2")
			o.peer("n3")
			if !lost {
				o.lose()
			} else {
				o.writeEra(`{"era":1}`) // as if they had not begun one
			}
			o.establish(0)
			o.takeUp()
			o.goesOn(2*time.Minute, func(int) { o.renewPeers("n2", "n3") })
			if s := o.snapshot().State; (s.Mode == cluster.ModeActive) != lost {
				t.Errorf("%+v, decided by %s: %s", s, o.decided().Row, o.decided().Detail)
			}
		})
	}
}

func TestASuspicionStaysOpenWhereEtcdDoesNotShowTheOthers(t *testing.T) {
	for name, of := range map[string]func(cluster.Keys) string{"who they are": cluster.Keys.Members, "one record": func(k cluster.Keys) string { return k.Member("n2") }} {
		inBubble(t, name, func(t *testing.T) {
			o := suspicious(t, false)
			o.Line = directLine{o.without(of(o.client.Keys()))}
			if over := o.goesOn(3*time.Minute, nil); over != 0 {
				t.Errorf("over after %v", over)
			}
			if s := o.snapshot().State; s.Mode != "drained" {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A state file may be older than it should be: then the others would all seem to have come later.
func TestWhoRegisteredWhileWeStoodLivedOnWhateverIsRemembered(t *testing.T) {
	for _, forgotten := range []bool{false, true} {
		inBubble(t, fmt.Sprintf("etcd has forgotten: %t", forgotten), func(t *testing.T) {
			o := suspicious(t, false)
			o.past.Past.ConfirmedAt = o.first.Epoch
			if forgotten {
				if _, err := o.store.Compact(t.Context(), &etcdserverpb.CompactionRequest{Revision: o.snapshot().Revision}); err != nil {
					t.Fatal(err)
				}
			}
			o.establish(0)
			o.takeUp()
			over := o.goesOn(2*time.Minute, func(int) { o.renewPeers("n2", "n3") })
			if s := o.snapshot().State; s.Mode != "drained" || over == 0 {
				t.Errorf("%+v, over after %v: %s", s, over, o.decided().Detail)
			}
		})
	}
}

// What others may ask of a broker later is in its record.
func TestAMemberRecordTellsHowLongALifeWasUnbroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutage(t, "drain")
		first := o.first.Epoch
		left := func() { // as planned, and back
			o.leaves("n1", false)
			o.restartsAs("process-" + time.Now().String())
			time.Sleep(time.Minute)
			o.establish(0)
			o.takeUp()
		}
		before := o.snapshot()
		left()
		once := o.snapshot()
		if m := once.Member; m.LifeSince(once.Registration.CreateRevision) != first || m.Away <= before.Revision || m.Away >= once.Registration.CreateRevision || m.Cut != nil {
			t.Errorf("after a planned return %+v, registered first in %d", m, first)
		}
		left()
		if m := o.snapshot().Member; m.LifeSince(9) != first || m.Away <= once.Member.ModRevision {
			t.Errorf("after another %+v", m)
		}
		o.past.Past.ConfirmedAt = o.snapshot().Revision
		o.past.Past.Deadline = time.Now().Add(o.ttl())
		confirmed := time.Now()
		o.past.CutFrom = confirmed
		o.unregister("n1")
		time.Sleep(o.ttl())
		o.establish(0)
		if seen := o.snapshot(); seen.Member.LifeSince(seen.Registration.CreateRevision) != seen.Registration.CreateRevision || seen.Member.Away != 0 ||
			seen.Member.Cut == nil || !seen.Member.Cut.From.Equal(confirmed.UTC()) {
			t.Errorf("after a loss %+v", seen.Member)
		}
		cut := *o.snapshot().Member.Cut
		o.takeUp()
		o.past.Mode.Mode = recovery.Active // an operator's word
		o.operator("active")
		if left(); o.snapshot().Member.Cut == nil || !o.snapshot().Member.Cut.From.Equal(cut.From) {
			t.Errorf("after a planned return from that %+v", o.snapshot().Member)
		}
		before = o.snapshot()
		o.past.Unsure, o.past.Health, o.past.CutFrom = 1, cluster.HealthIll, time.Time{}
		o.establish(o.outcomes[len(o.outcomes)-1].Grant.LeaseID)
		if kept, m := before.Member, o.snapshot().Member; m.ModRevision == kept.ModRevision || m.Since != kept.Since || m.Away != kept.Away ||
			m.Health != kept.Health || m.Cut == nil || !m.Cut.From.Equal(cut.From) {
			t.Errorf("written anew beside a registration that stands: %+v, was %+v", m, kept)
		}
	})
}

// An era that begins in the very moment in which the mode is written again is not forgotten.
func TestAnEraIsNotForgottenByAModeThatIsWritten(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		const proof = 46 * time.Second
		o := suspicious(t, false)
		o.establish(0)
		o.takeUp()
		o.goesOn(5*proof, func(second int) {
			if o.renewPeers("n2", "n3"); second == 10 {
				o.writeEra(`{"era":2}`)
				o.deletes(o.client.Keys().State("n1"))
			}
		})
		if s := o.snapshot().State; s.Mode != "active" {
			t.Errorf("the drain stands: %+v", s)
		}
	})
}
