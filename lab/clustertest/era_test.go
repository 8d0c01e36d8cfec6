package clustertest

import (
	"fmt"
	"testing"

	"holdfast/cluster"
)

// Who comes back compares the revision of the era's key with its last renewal, so it is written by
// whoever finds nobody registered, and by nobody else.
func TestAnEraIsWrittenWhereNobodyIsRegistered(t *testing.T) {
	for name, peer := range map[string]bool{"beside others": true, "when nobody is registered any more": false} {
		for key, kept := range map[string]bool{"the key stands": true, "somebody deleted the key": false} {
			t.Run(name+", "+key, func(t *testing.T) {
				onEach(t, func(t *testing.T, e *server) {
					c := open(t, e.config(t))
					other := request(t, c, "b2")
					must[cluster.Registered](t)(c.Register(bounded(t), other))
					first := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1")).Era
					if first.N != 1 || first.ModRevision == 0 {
						t.Errorf("at first %+v", first)
					}
					if !peer {
						if err := c.Revoke(bounded(t), other.LeaseID); err != nil {
							t.Fatal(err)
						}
					}
					want := first.ModRevision
					if !kept {
						e.remove(t, c.Keys().Era())
						want = 0
					}
					done := must[cluster.Registered](t)(c.Register(bounded(t), request(t, c, "b1")))
					if !peer {
						want = done.Revision
					}
					if !peer && kept && done.Era != 2 || peer && kept && done.Era != 1 {
						t.Errorf("registered in era %d", done.Era)
					}
					if era := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1")).Era; era.ModRevision != want {
						t.Errorf("%+v, want it written at %d", era, want)
					}
				})
			})
		}
	}
}

// Who registers itself is kept, and not registered: where nobody else is that begins an era as well.
func TestARegistrationThatIsKeptMayBeginAnEra(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		must[cluster.Registered](t)(c.Register(bounded(t), request(t, c, "b1")))
		stale := cluster.RegisterRequest{Seen: must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1")), Begins: true}
		revision := must[int64](t)(c.Keep(bounded(t), stale))
		after := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
		if value := string(e.get(t, c.Keys().Era()).Kvs[0].Value); after.Era.ModRevision != revision || after.Era.N != 2 || after.Member.Era != 2 || value != fmt.Sprintf(`{"era":%d}`, 2) {
			t.Errorf("%+v, record %+v, %s", after.Era, after.Member, value)
		}
		e.put(t, c.Keys().Era(), `{"era":5}`)
		if _, err := c.Keep(bounded(t), cluster.RegisterRequest{Seen: after, Begins: true}); err == nil {
			t.Error("an era was begun over another")
		}
	})
}
