package clustertest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"holdfast/cluster"
)

func TestAnEraThatCannotBeReadStaysUntilOneBegins(t *testing.T) {
	const garbled = `{"era":"many"}`
	for _, c := range []struct {
		name    string
		garbled string
		peer    bool
		alive   *cluster.Alive
		era     int64
		value   string // of the key afterwards
	}{
		{"beside others", garbled, true, nil, 7, garbled},
		{"of a newer version", `{"era":12,"format":2}`, true, nil, 7, `{"era":12,"format":2}`},
		{"beside others, by who knows until when the fleet was alive", garbled, true, &cluster.Alive{Until: at, Revision: 5}, 7, garbled},
		{"when nobody is registered", garbled, false, nil, 8, `{"era":8}`},
		{"when nobody is registered, by who knows until when the fleet was alive", garbled, false, &cluster.Alive{Until: at, Revision: 5}, 8,
			fmt.Sprintf(`{"era":8,"alive_until":%q,"alive_revision":5}`, at.UTC().Format(time.RFC3339Nano))},
		{"of which the number can be read", `{"era":9,"alive_until":"?"}`, true, &cluster.Alive{Until: at, Revision: 5}, 9, `{"era":9,"alive_until":"?"}`},
		{"of which the number can be read, when nobody is registered", `{"era":9,"alive_until":"?"}`, false, nil, 10, `{"era":10}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, e *server) {
				client := open(t, e.config(t))
				e.put(t, client.Keys().Era(), `{"era":6}`)
				peer := request(t, client, "b2")
				must[cluster.Registered](t)(client.Register(bounded(t), peer))
				if !c.peer {
					if err := client.Revoke(bounded(t), peer.LeaseID); err != nil {
						t.Fatal(err)
					}
				}
				e.put(t, client.Keys().Era(), c.garbled)
				req := request(t, client, "b1")
				req.Alive = c.alive
				if era := req.Seen.Era; era.Unread != fmt.Sprintf("%q at key %s", c.garbled, client.Keys().Era()) || era.Alive != (cluster.Alive{}) || req.Seen.EraUnsure != "" {
					t.Errorf("read as %+v, unsure because of %q", era, req.Seen.EraUnsure)
				}
				done := must[cluster.Registered](t)(client.Register(bounded(t), req))
				value := string(e.get(t, client.Keys().Era()).Kvs[0].Value)
				member := must[cluster.Snapshot](t)(client.Snapshot(bounded(t), "b1")).Member
				if done.Era != c.era || member == nil || member.Era != c.era || value != c.value {
					t.Errorf("registered in era %d, and %+v; the key holds %s; want %d and %s", done.Era, member, value, c.era, c.value)
				}
			})
		})
	}
}

func TestARegistrationIsRefusedWhenAnEraThatCouldNotBeReadHasChanged(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		e.put(t, c.Keys().Era(), "?")
		one, two := request(t, c, "b1"), request(t, c, "b2")
		must[cluster.Registered](t)(c.Register(bounded(t), one))
		if _, err := c.Register(bounded(t), two); !errors.Is(err, cluster.ErrChanged) {
			t.Errorf("the era was begun twice: %v", err)
		}
		e.put(t, c.Keys().Era(), "?")
		three := request(t, c, "b3")
		e.put(t, c.Keys().Era(), `{"era":5}`)
		if _, err := c.Register(bounded(t), three); !errors.Is(err, cluster.ErrChanged) {
			t.Errorf("registered on an era that was mended meanwhile: %v", err)
		}
	})
}

func TestARecordThatCannotBeReadLeavesTheEraUnsure(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		e.put(t, c.Keys().Era(), "?")
		e.put(t, c.Keys().Member("b2"), `{"era":4}`)
		e.put(t, c.Keys().Member("b3"), "torn")
		seen := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
		if want := `"torn" at key ` + c.Keys().Member("b3"); seen.Era.N != 4 || seen.EraUnsure != want {
			t.Errorf("era %+v, unsure because of %q; want 4, because of %q", seen.Era, seen.EraUnsure, want)
		}
	})
}

func TestWhoStandsByItsRegistrationKnowsTheEraWithoutALookAtOthers(t *testing.T) {
	for name, era := range map[string]string{"deleted": "", "garbled": "?"} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, e *server) {
				c := open(t, e.config(t))
				req := request(t, c, "b1")
				must[cluster.Registered](t)(c.Register(bounded(t), req))
				if era == "" {
					e.remove(t, c.Keys().Era())
				} else {
					e.put(t, c.Keys().Era(), era)
				}
				e.put(t, c.Keys().Member("b2"), `{"era":4}`)
				e.put(t, c.Keys().Member("b3"), "torn")
				seen := must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1"))
				if seen.Era.N != 1 || seen.EraUnsure != "" {
					t.Errorf("standing: era %+v, unsure because of %q", seen.Era, seen.EraUnsure)
				}
				if err := c.Revoke(bounded(t), req.LeaseID); err != nil {
					t.Fatal(err)
				}
				if seen = must[cluster.Snapshot](t)(c.Snapshot(bounded(t), "b1")); seen.Era.N != 4 || (seen.EraUnsure != "") != (era != "") {
					t.Errorf("once it has gone: era %+v, unsure because of %q", seen.Era, seen.EraUnsure)
				}
			})
		})
	}
}

// Somebody has written it anew by hand.
func TestAnEraIsNoLowerThanWhatTheBrokerRemembers(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		e.put(t, c.Keys().Era(), `{"era":2}`)
		e.put(t, c.Keys().Member("b1"), `{"era":7}`)
		e.put(t, c.Keys().Member("b2"), `{"era":1}`)
		if done := must[cluster.Registered](t)(c.Register(bounded(t), request(t, c, "b1"))); done.Era != 8 {
			t.Errorf("registered in era %d", done.Era)
		}
		if done := must[cluster.Registered](t)(c.Register(bounded(t), request(t, c, "b2"))); done.Era != 8 {
			t.Errorf("the next one registered in era %d", done.Era)
		}
	})
}
