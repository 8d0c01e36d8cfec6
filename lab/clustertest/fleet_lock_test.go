package clustertest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/cluster"
)

// restarts is a broker that asks for one of so many places to restart in.
func restarts(t *testing.T, c *cluster.Client, id string, places int) cluster.FleetLockRequest {
	t.Helper()
	return cluster.FleetLockRequest{
		Lock: cluster.LockRestart, Places: places, LeaseID: lease(t, c, time.Minute),
		Place: cluster.Place{Holder: id, Reason: "upgrade", At: at, Until: at.Add(time.Hour)},
	}
}

func TestOfAFleetSoManyHoldAPlaceAtOnceAndNoMore(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		const places, brokers = 2, 8
		c := open(t, e.config(t))
		var mu sync.Mutex
		held, most := 0, 0
		var all sync.WaitGroup
		for i := range brokers {
			r := restarts(t, c, fmt.Sprintf("b%d", i), places)
			all.Go(func() {
				ctx := bounded(t)
				p, err := c.TakePlace(ctx, r)
				for ; errors.Is(err, cluster.ErrNoPlace); p, err = c.TakePlace(ctx, r) {
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				held++
				most = max(most, held)
				mu.Unlock()
				if p.Number >= places || p.Holder != r.Place.Holder {
					t.Errorf("%+v", p)
				}
				mu.Lock()
				held--
				mu.Unlock()
				if err := c.LeavePlace(ctx, r.Lock, p); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if most > places {
			t.Errorf("%d held one of %d places at once", most, places)
		}
		if left := must[[]cluster.Place](t)(c.Places(bounded(t), cluster.LockRestart)); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
}

func TestAPlaceIsItsHoldersUntilItIsGivenBackOrTheLeaseEnds(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		first, second := restarts(t, c, "b1", 1), restarts(t, c, "b2", 1)
		taken := must[cluster.Place](t)(c.TakePlace(bounded(t), first))
		if again := must[cluster.Place](t)(c.TakePlace(bounded(t), first)); again != taken {
			t.Errorf("asked again: %+v, was %+v", again, taken)
		}
		_, err := c.TakePlace(bounded(t), second)
		if !errors.Is(err, cluster.ErrNoPlace) || !strings.Contains(err.Error(), "b1 (upgrade, until ") {
			t.Errorf("of two: %v", err)
		}
		drain := second
		drain.Lock = cluster.LockDrain
		if _, err := c.TakePlace(bounded(t), drain); err != nil {
			t.Errorf("another lock: %v", err)
		}

		if err := c.Revoke(bounded(t), first.LeaseID); err != nil {
			t.Fatal(err)
		}
		next := must[cluster.Place](t)(c.TakePlace(bounded(t), second))
		if err := c.LeavePlace(bounded(t), first.Lock, taken); !errors.Is(err, cluster.ErrChanged) {
			t.Errorf("who has lost it gives it back: %v", err)
		}
		if all := must[[]cluster.Place](t)(c.Places(bounded(t), cluster.LockRestart)); len(all) != 1 || all[0] != next {
			t.Errorf("%+v, want %+v", all, next)
		}
		if _, err := c.TakePlace(bounded(t), first); !errors.Is(err, cluster.ErrNoPlace) {
			t.Errorf("its lease is gone, and so are the places: %v", err)
		}
		if err := c.LeavePlace(bounded(t), first.Lock, next); err != nil {
			t.Fatal(err)
		}
		if _, err := c.TakePlace(bounded(t), first); !errors.Is(err, cluster.ErrLeaseNotFound) {
			t.Errorf("under a lease that is gone: %v", err)
		}
	})
}

func TestAPlaceThatCannotBeReadIsTaken(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		for key, value := range map[string]string{
			c.Keys().FleetLock(cluster.LockRestart, 0):         "{",
			c.Keys().FleetLocks(cluster.LockRestart) + "mine":  `{"broker_id":"b9"}`,
			c.Keys().FleetLocks(cluster.LockRestart) + "2/old": "",
		} {
			e.put(t, key, value)
		}
		r := restarts(t, c, "b1", 3)
		if _, err := c.TakePlace(bounded(t), r); !errors.Is(err, cluster.ErrNoPlace) || !strings.Contains(err.Error(), `"{" at key `) {
			t.Errorf("of three that are taken: %v", err)
		}
		r.Places = 4
		if p := must[cluster.Place](t)(c.TakePlace(bounded(t), r)); p.Number == 0 {
			t.Errorf("%+v", p)
		}
	})
}

func TestAFleetLockIsAskedForByItsNameWithPlacesAndALease(t *testing.T) {
	c := open(t, fake.config(t))
	good := restarts(t, c, "b1", 1)
	for want, spoil := range map[string]func(r *cluster.FleetLockRequest){
		`fleet lock "reboot": want restart or drain`:    func(r *cluster.FleetLockRequest) { r.Lock = "reboot" },
		"fleet lock restart: 0 places: want at least 1": func(r *cluster.FleetLockRequest) { r.Places = 0 },
		"fleet lock restart: it needs a lease":          func(r *cluster.FleetLockRequest) { r.LeaseID = 0 },
		`broker id "a/b": want a name without a slash`:  func(r *cluster.FleetLockRequest) { r.Place.Holder = "a/b" },
	} {
		r := good
		spoil(&r)
		if _, err := c.TakePlace(bounded(t), r); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
