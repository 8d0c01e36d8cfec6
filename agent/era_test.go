package agent

import (
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/recovery"
)

// deleteEra is somebody who tidies up.
func (o *outage) deleteEra() {
	o.t.Helper()
	if _, err := o.store.DeleteRange(o.t.Context(), &etcdserverpb.DeleteRangeRequest{Key: []byte(o.client.Keys().Era())}); err != nil {
		o.t.Fatal(err)
	}
}

func TestAnEraWhoseKeyWasDeletedTellsARestartOfAllFromADeath(t *testing.T) {
	again := func(o *outage) { // another process of the broker, with its data
		o.past.instance, o.past.mode = "process-2", recovery.ModeRecord{}
		o.past.boot = recovery.BootFacts{OldestMarker: time.Now().Add(-time.Hour), MarkerPath: "data", BrokerStartedAt: time.Now()}
	}
	for _, c := range []struct {
		name string
		play func(o *outage)
		row  recovery.Reason
	}{
		{"the whole cluster restarted", func(o *outage) { o.everybodyElseGoes(); o.deleteEra(); o.peer("n2"); again(o) }, recovery.ReasonFullClusterRestart},
		{"it did, and the key was deleted after that", func(o *outage) { o.everybodyElseGoes(); o.peer("n2"); o.deleteEra(); again(o) }, recovery.ReasonFullClusterRestart},
		{"others lived on", func(o *outage) { o.lose(); o.deleteEra(); again(o) }, recovery.ReasonStaleRestart},
		{"others lived on, and one more registered", func(o *outage) { o.lose(); o.deleteEra(); o.peer("n3"); again(o) }, recovery.ReasonStaleRestart},
		{"all leases ended while the broker ran", func(o *outage) { o.everybodyElseGoes(); o.deleteEra(); o.peer("n2") }, recovery.ReasonFleetExpired},
		{"its own did", func(o *outage) { o.lose(); o.deleteEra() }, recovery.ReasonRegistrationExpired},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			o.hasty, o.cfg.FleetLossShare = true, 0 // what stands is alive, and each loss judged alone
			c.play(o)
			o.establish(0)
			if d := o.decided(); d.Row != c.row {
				t.Errorf("%s by %s: %s", d, d.Row, d.Detail)
			}
			if o.snapshot().Era.ModRevision == 0 {
				t.Error("the key is still away: each that comes back reads all member records")
			}
		})
	}
}
