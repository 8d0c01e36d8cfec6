package agent

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/cluster"
	"holdfast/recovery"
)

// wasConfirmed sets when n1 was confirmed for the last time: long ago, at the store's present
// revision.
func (o *outage) wasConfirmed(ago time.Duration) {
	o.past.memory.Deadline = time.Now().Add(o.cfg.LeaseTTL - ago)
	o.past.memory.ConfirmedAt = o.snapshot().Revision
}

// restartsAs is another process of the broker, with its data.
func (o *outage) restartsAs(instance string) {
	o.past.instance, o.past.mode = instance, recovery.ModeRecord{}
	o.past.boot = recovery.BootFacts{OldestMarker: time.Now().Add(-time.Hour), MarkerPath: "data", BrokerStartedAt: time.Now()}
}

// begins is a peer that registers first, and knows until when the fleet was alive.
func (o *outage) begins(id string, alive *cluster.Alive) {
	o.t.Helper()
	o.everybodyElseGoes()
	under, _, err := o.client.Grant(o.t.Context(), time.Minute)
	if err != nil {
		o.t.Fatal(err)
	}
	seen, err := o.client.Snapshot(o.t.Context(), id)
	if err == nil {
		_, err = o.client.Register(o.t.Context(), cluster.RegisterRequest{LeaseID: under, Value: []byte("{}"), Seen: seen, Alive: alive, Member: cluster.Member{At: time.Now()}})
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// leftAgo is the note of a planned stop, in the record of a broker that is away.
func (o *outage) leftAgo(ago time.Duration) {
	o.t.Helper()
	m := *o.snapshot().Member
	m.Left = &cluster.Left{At: time.Now().Add(-ago), Epoch: o.first.Epoch, Instance: "process-1"}
	o.writeMember(m)
	o.writeEra(fmt.Sprintf(`{"era":2,"alive_until":%q,"alive_revision":%d}`, o.snapshot().Era.Alive.Until.Format(time.RFC3339Nano), o.snapshot().Revision+1))
}

func (o *outage) writeMember(m cluster.Member) {
	o.t.Helper()
	value, err := json.Marshal(m)
	if err == nil {
		_, err = o.store.Put(o.t.Context(), &etcdserverpb.PutRequest{Key: []byte(o.client.Keys().Member("n1")), Value: value})
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

func TestAClusterThatLivedOnAndRestartedLaterHasDeclaredABrokerDead(t *testing.T) {
	const minute = time.Minute
	for _, c := range []struct {
		name   string
		lived  time.Duration // for how long after us n2 was confirmed, by its clock
		saw    bool          // and our registration went meanwhile
		change func(o *outage)
		row    recovery.Reason
	}{
		{"they lived on for long", 50 * minute, true, nil, recovery.ReasonStaleRestart},
		{"and are gone again", 50 * minute, true, func(o *outage) { o.everybodyElseGoes() }, recovery.ReasonStaleRestart},
		{"etcd has forgotten the time between", 50 * minute, true, (*outage).forgets, recovery.ReasonStaleRestart},
		{"etcd has forgotten the time between, and both clocks may be wrong", 11 * minute, true, (*outage).forgets, recovery.ReasonFullClusterRestart},
		{"etcd has forgotten the time between, and no clock is wrong by so much", 12 * minute, true, (*outage).forgets, recovery.ReasonStaleRestart},
		{"the store is not at the revision yet that is noted", 50 * minute, true, func(o *outage) {
			alive := o.snapshot().Era.Alive
			o.writeEra(fmt.Sprintf(`{"era":2,"alive_until":%q,"alive_revision":%d}`, alive.Until.Format(time.RFC3339Nano), 1<<40))
		}, recovery.ReasonFullClusterRestart},
		{"all ended within two TTLs", minute, true, nil, recovery.ReasonFullClusterRestart},
		{"all ended at once", 0, false, nil, recovery.ReasonFullClusterRestart},
		{"all ended at once, and one clock is five minutes ahead", 5 * minute, false, nil, recovery.ReasonFullClusterRestart},
		{"what is noted lies in our future", 2 * time.Hour, true, nil, recovery.ReasonFullClusterRestart},
		{"it is not known when we were confirmed", 50 * minute, true, func(o *outage) { o.past.memory.Deadline = time.Time{} }, recovery.ReasonFullClusterRestart},
		{"an older sidecar began the era", 50 * minute, true, func(o *outage) { o.writeEra(`{"era":2}`) }, recovery.ReasonFullClusterRestart},
		{"it was registered again after that, which nobody has noted here", 50 * minute, true, func(o *outage) { o.writeMember(*o.snapshot().Member) }, recovery.ReasonFullClusterRestart},
		{"it had left on purpose, and the others followed within --return-within", 50 * minute, true, func(o *outage) { o.leftAgo(65 * minute) }, recovery.ReasonFullClusterRestart},
		{"it had left on purpose, and they lived on for longer", 50 * minute, true, func(o *outage) { o.leftAgo(90 * minute) }, recovery.ReasonStaleRestart},
		{"the same process runs on", 50 * minute, true, func(o *outage) {
			o.past.instance = "process-1"
			o.past.mode = recovery.ModeRecord{Mode: recovery.Active, Reason: recovery.ReasonBoot, By: recovery.ByHoldfast}
		}, recovery.ReasonRegistrationExpired},
		{"it does, and nobody is registered", 50 * minute, true, func(o *outage) {
			o.past.instance = "process-1"
			o.past.mode = recovery.ModeRecord{Mode: recovery.Active, Reason: recovery.ReasonBoot, By: recovery.ByHoldfast}
			o.everybodyElseGoes()
		}, recovery.ReasonFleetExpired},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			o.hasty, o.cfg.FleetLossShare = true, 0
			o.wasConfirmed(time.Hour)
			ours := time.Now().Add(-time.Hour)
			if c.saw {
				o.lose()
			}
			o.put("/elsewhere") // so that the store tells before from after
			alive := &cluster.Alive{Until: ours.Add(c.lived), Revision: o.snapshot().Revision}
			o.begins("n2", alive)
			o.restartsAs("process-2")
			if c.change != nil {
				c.change(o)
			}
			o.establish(0)
			if d := o.decided(); d.Row != c.row {
				t.Errorf("%s by %s: %s", d, d.Row, d.Detail)
			}
		})
	}
}

func TestWhoKnowsOfALongerLifeOfTheFleetSaysSo(t *testing.T) {
	for _, c := range []struct {
		name  string
		play  func(o *outage)
		noted bool
	}{
		{"the first to come back", func(o *outage) { o.everybodyElseGoes() }, true},
		{"after one that died long before us", func(o *outage) { o.begins("n2", &cluster.Alive{Until: time.Now().Add(-time.Hour), Revision: 2}) }, true},
		{"after one that died with us", func(o *outage) {
			o.begins("n2", &cluster.Alive{Until: time.Now().Add(-10*time.Minute - time.Second), Revision: 2})
		}, false},
		{"after one that says nothing", func(o *outage) { o.begins("n2", nil) }, true},
		{"in the era that we were registered in", func(o *outage) { o.lose() }, false},
		{"when it is not known until when we were", func(o *outage) { o.begins("n2", nil); o.past.memory.Deadline = time.Time{} }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			o.hasty, o.cfg.FleetLossShare = true, 0
			o.wasConfirmed(10 * time.Minute)
			ours := cluster.Alive{Until: o.past.memory.Deadline.Add(-o.cfg.LeaseTTL).UTC(), Revision: o.past.memory.ConfirmedAt}
			c.play(o)
			o.restartsAs("process-2")
			before := o.snapshot().Era
			o.establish(0)
			after := o.snapshot().Era
			if noted := after.Alive.Until.Equal(ours.Until) && after.Alive.Revision == ours.Revision; noted != c.noted || !noted && after != before {
				t.Errorf("%+v is noted, was %+v; ours was %+v", after, before, ours)
			}
		})
	}
}

// forgets has etcd compact its past.
func (o *outage) forgets() {
	o.t.Helper()
	if _, err := o.store.Compact(o.t.Context(), &etcdserverpb.CompactionRequest{Revision: o.snapshot().Revision}); err != nil {
		o.t.Fatal(err)
	}
}

func (o *outage) writeEra(value string) { o.putValue(o.client.Keys().Era(), value) }

func (o *outage) putValue(key, value string) {
	o.t.Helper()
	if _, err := o.store.Put(o.t.Context(), &etcdserverpb.PutRequest{Key: []byte(key), Value: []byte(value)}); err != nil {
		o.t.Fatal(err)
	}
}
