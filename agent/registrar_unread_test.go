package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

const garbledEra = `{"era":"many"}`

// garbleNote leaves a note of a planned stop that cannot be read.
func (o *outage) garbleNote() {
	o.t.Helper()
	o.putValue(o.client.Keys().Member("n1"), `{"era":1,"incarnation":"mine","left":{"at":"soon"}}`)
}

// A sidecar is restarted with its broker, or only the registration was lost (again is false). What
// is foretold of it is what it decides.
func TestARecordThatCannotBeReadConcernsWhomOnlyItCouldExcuse(t *testing.T) {
	const whole = "" // nothing that cannot be read is left afterwards
	ago := func(o *outage) { o.wasConfirmed(time.Hour) }
	for _, c := range []struct {
		name  string
		again bool
		play  func(o *outage)
		row   recovery.Reason
		left  string // what cannot be read of the era afterwards
	}{
		{"the era, the registration stands", true, func(o *outage) { o.writeEra(garbledEra) }, recovery.ReasonFastRestart, garbledEra},
		{"the era, the process and its registration stand", false, func(o *outage) { o.writeEra(garbledEra) }, recovery.RowSurvived, garbledEra},
		{"the era, others lived on, as each member record says", true, func(o *outage) { o.lose(); o.writeEra(garbledEra) }, recovery.ReasonStaleRestart, garbledEra},
		{"the era, the registration was lost", false, func(o *outage) { o.lose(); o.writeEra(garbledEra) }, recovery.ReasonRegistrationExpired, garbledEra},
		{"the era, and the whole cluster restarts", true, func(o *outage) { o.writeEra(garbledEra); o.everybodyElseGoes() }, recovery.ReasonFullClusterRestart, whole},
		{"the era, and the whole cluster has restarted", true, func(o *outage) { o.writeEra(garbledEra); o.everybodyElseGoes(); o.peer("n2") }, recovery.ReasonFullClusterRestart, whole},
		{"the era, after the whole cluster restarted, and when we were confirmed is not known", true,
			func(o *outage) { o.everybodyElseGoes(); o.peer("n2"); o.writeEra(garbledEra) }, recovery.ReasonFullClusterRestart, garbledEra},
		{"the era, after the whole cluster restarted", true,
			func(o *outage) { ago(o); o.everybodyElseGoes(); o.peer("n2"); o.writeEra(garbledEra) }, recovery.ReasonUnreadableRecord, garbledEra},
		{"the era, after all leases ended and the process runs on", false,
			func(o *outage) { ago(o); o.everybodyElseGoes(); o.writeEra(garbledEra) }, recovery.ReasonFleetExpired, whole},
		{"until when the fleet was alive, in our own era", true, func(o *outage) { ago(o); o.lose(); o.writeEra(`{"era":1,"alive_until":"?"}`) }, recovery.ReasonStaleRestart, `{"era":1,"alive_until":"?"}`},
		{"the era and a member record of others", true, func(o *outage) { o.lose(); o.writeEra(garbledEra); o.garble("n2") }, recovery.ReasonUnreadableRecord, garbledEra},
		{"the era and a member record of others, nobody else is registered", true,
			func(o *outage) { o.writeEra(garbledEra); o.garble("n2"); o.everybodyElseGoes() }, recovery.ReasonFullClusterRestart, whole},
		{"a member record of others", true, func(o *outage) { o.lose(); o.garble("n2") }, recovery.ReasonStaleRestart, whole},
		{"our member record, the registration stands", true, func(o *outage) { o.garble("n1") }, recovery.ReasonFastRestart, whole},
		{"our member record, the process and its registration stand", false, func(o *outage) { o.garble("n1") }, recovery.RowSurvived, whole},
		{"our member record, others lived on", true, func(o *outage) { o.lose(); o.garble("n1") }, recovery.ReasonUnreadableRecord, whole},
		{"our member record, the registration was lost", false, func(o *outage) { o.lose(); o.garble("n1") }, recovery.ReasonUnreadableRecord, whole},
		{"our member record, policy reconnect", false, func(o *outage) { o.cfg.SessionExpiredPolicy = "reconnect"; o.lose(); o.garble("n1") }, recovery.RowReconnected, whole},
		{"our member record, and the whole cluster restarts", true, func(o *outage) { o.everybodyElseGoes(); o.garble("n1") }, recovery.ReasonFullClusterRestart, whole},
		{"our member record and the era, nobody else is registered", true,
			func(o *outage) { o.everybodyElseGoes(); o.garble("n1"); o.writeEra(garbledEra) }, recovery.ReasonFullClusterRestart, whole},
		{"our member record, the cluster lived on and all have gone", true, func(o *outage) {
			ago(o)
			o.lose()
			o.put("/elsewhere") // so that the store tells before from after
			o.begins("n2", &cluster.Alive{Until: time.Now().Add(-30 * time.Minute), Revision: o.snapshot().Revision})
			o.everybodyElseGoes()
			o.garble("n1")
		}, recovery.ReasonUnreadableRecord, whole},
		{"the note of our planned stop, others lived on", true, func(o *outage) { o.lose(); o.garbleNote() }, recovery.ReasonUnreadableRecord, whole},
		{"the note of our planned stop, nobody else is registered", true, func(o *outage) { o.everybodyElseGoes(); o.garbleNote() }, recovery.ReasonFullClusterRestart, whole},
		{"drained by an operator", true, func(o *outage) {
			o.past.mode = recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}
			if _, err := o.client.PutState(o.t.Context(), "n1", *stateWrite(o.past.mode), o.snapshot().StateRevision); err != nil {
				o.t.Fatal(err)
			}
			o.lose()
			o.garble("n1")
		}, recovery.RowKept, whole},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			o.cfg.FleetLossShare = 0
			c.play(o)
			if c.again {
				o.restartsAs("process-2")
				o.stood = false
			}
			seen := o.snapshot()
			keys := o.client.Keys()
			f := o.foretells()
			if f.Err != nil || !strings.Contains(f.Text, ", decided by "+string(c.row)+": ") ||
				seen.Era.Unread != "" && !strings.Contains(f.Text, "at key "+keys.Era()) || seen.MemberMalformed != "" && !strings.Contains(f.Text, "at key "+keys.Member("n1")) {
				t.Errorf("foretold %+v", f)
			}
			o.settled(o.past.memory.LeaseID)
			out := o.outcomes[len(o.outcomes)-1]
			if d := out.decision; d.Row != c.row || d.Row == recovery.ReasonUnreadableRecord && (o.snapshot().State.Mode != cluster.ModeDrained || !strings.Contains(d.Detail, "at key /cluster/")) {
				t.Errorf("%s by %s: %s; %+v", d, d.Row, d.Detail, o.snapshot().State)
			}
			if (out.unread == "") != (unreadable(seen) == "") || !strings.HasPrefix(out.unread, unreadable(seen)) {
				t.Errorf("it says that %q cannot be read, and that is %q", out.unread, unreadable(seen))
			}
			after := o.snapshot()
			if left := fmt.Sprintf("%q at key %s", c.left, keys.Era()); c.left == whole && unreadable(after) != "" || c.left != whole && unreadable(after) != "era "+left {
				t.Errorf("afterwards %q cannot be read, want %q", unreadable(after), c.left)
			}
			if after.Member == nil || after.Member.Era < seen.Era.N || after.Era.N < after.Member.Era {
				t.Errorf("era %+v, our record %+v; they were %+v and %+v", after.Era, after.Member, seen.Era, seen.Member)
			}
		})
	}
}

func TestAPeerWhoseRecordCannotBeReadCountsNeitherAsAliveNorAsDead(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(o *outage) // after n2 registered, when we had gone for long
		row    recovery.Reason
	}{
		{"it can be read", nil, recovery.ReasonStaleRestart},
		{"it cannot", func(o *outage) { o.garble("n2") }, recovery.ReasonUnreadableRecord},
		{"it cannot, and another one lived on", func(o *outage) { o.garble("n2"); o.peer("n3") }, recovery.ReasonStaleRestart},
		{"it cannot, and it goes", func(o *outage) { o.garble("n2"); o.everybodyElseGoes() }, recovery.ReasonFullClusterRestart},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			o, _ := newDead(t)
			o.everybodyElseGoes()
			o.past.memory.Deadline = time.Now()
			time.Sleep(5 * time.Minute)
			o.peerInSameEra("n2")
			if c.change != nil {
				c.change(o)
			}
			d, err := o.wait(2*time.Minute, func(time.Duration) { o.renewPeers() })
			if err != nil || d.Row != c.row || d.Row == recovery.ReasonUnreadableRecord && !strings.Contains(d.Detail, o.client.Keys().Member("n2")) {
				t.Errorf("%s by %s: %s, %v", d, d.Row, d.Detail, err)
			}
		})
	}
}

func TestWithoutTheRightToMemberRecordsAGarbledEraIsNotKnown(t *testing.T) {
	o := newOutage(t, "drain")
	o.hasty, o.cfg.FleetLossShare = true, 0
	o.lose()
	o.writeEra(garbledEra)
	o.restartsAs("process-2")
	o.line = directLine{o.without(o.client.Keys().Members())}
	o.establish(0)
	if d := o.decided(); d.Row != recovery.ReasonUnreadableRecord || !strings.Contains(d.Detail, "grant this user read on /cluster/members/") {
		t.Errorf("%s by %s: %s", d, d.Row, d.Detail)
	}
}

// A lease is given up on purpose only if that can be noted.
func TestWhoseRecordCannotBeReadDoesNotLeave(t *testing.T) {
	o := newOutage(t, "drain")
	o.garble("n1")
	if err := noteLeft(t.Context(), o.client, o.departs()); err == nil || !strings.Contains(err.Error(), "at key "+o.client.Keys().Member("n1")) {
		t.Errorf("%v", err)
	}
}

// scans counts the looks at all member records.
type scans struct {
	grpc.ClientConnInterface
	members string
	seen    int
}

func (s *scans) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	ops := []*etcdserverpb.RangeRequest{}
	if txn, ok := args.(*etcdserverpb.TxnRequest); ok {
		for _, op := range txn.Success {
			ops = append(ops, op.GetRequestRange())
		}
	} else if one, ok := args.(*etcdserverpb.RangeRequest); ok {
		ops = append(ops, one)
	}
	for _, op := range ops {
		if len(op.GetRangeEnd()) > 0 && string(op.Key) == s.members {
			s.seen++
		}
	}
	return s.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// Brokers that all register themselves never write the era.
func TestABrokerThatRegistersItselfLooksAtNoMemberRecordsOnceItStands(t *testing.T) {
	o := newOutage(t, "drain")
	o.deleteEra()
	o.cfg.Registration, o.stood = "adopt", false
	o.restartsAs("process-2")
	o.past.value = nil
	o.unregister("n1")
	way := &scans{ClientConnInterface: o.store.Conn(nil), members: o.client.Keys().Members()}
	o.line = directLine{cluster.Over(cluster.Config{}, way, slog.New(slog.DiscardHandler))}
	if _, err := o.Establish(t.Context(), 0, false); !errors.Is(err, lease.ErrDeferred) || way.seen != 1 {
		t.Fatalf("%v after %d looks at all member records", err, way.seen)
	}
	o.put(o.client.Keys().Registration("n1"))
	held := o.establish(0).LeaseID
	for range 3 {
		o.takeUp()
		o.establish(held)
	}
	if way.seen != 2 { // while it waited, and when it stood
		t.Errorf("%d looks at all member records", way.seen)
	}
}
