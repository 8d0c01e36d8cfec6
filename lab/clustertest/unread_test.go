package clustertest

import (
	"errors"
	"fmt"
	"testing"

	"holdfast/cluster"
)

func TestAnEraThatCannotBeReadStaysUntilOneBegins(t *testing.T) {
	const garbled = `{"era":"many"}`
	for _, c := range []struct {
		name    string
		garbled string
		peer    bool
		era     int64
		value   string // of the key afterwards
	}{
		{"beside others", garbled, true, 0, garbled},
		{"of a newer version", `{"era":12,"format":2}`, true, 0, `{"era":12,"format":2}`},
		{"when nobody is registered", garbled, false, 1, `{"era":1}`},
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
				if era := req.Seen.Era; era.Unread != fmt.Sprintf("%q at key %s", c.garbled, client.Keys().Era()) {
					t.Errorf("read as %+v", era)
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
