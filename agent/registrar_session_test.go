package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/agent/lease"
	"holdfast/brokerapi/pulsar"
	etcd "holdfast/cluster/memory"
	"holdfast/recovery"
)

const (
	bundleA = "/public.default/0x00000000_0x40000000"
	bundleB = "/public.default/0x40000000_0x80000000"
)

// lock is the lock of a bundle as a broker of that host writes it.
func (a adopted) lock(bundle, host string, session int64) {
	a.t.Helper()
	key, ok := pulsar.LockKey(bundle)
	if !ok {
		a.t.Fatalf("%s is no bundle", bundle)
	}
	value := `{"nativeUrl":"pulsar://` + host + `:6650","httpUrl":"http://` + host + `","disabled":false,"advertisedListeners":{}}`
	if _, err := a.store.Put(a.t.Context(), &etcdserverpb.PutRequest{Key: []byte(key), Value: []byte(value), Lease: session}); err != nil {
		a.t.Fatal(err)
	}
}

// kept is the lock of a bundle.
func (a adopted) kept(bundle string) (kv etcd.KV) {
	key, _ := pulsar.LockKey(bundle)
	a.store.Inspect(func(v etcd.View) { kv, _ = v.Get(key) })
	return kv
}

// A connected broker renews the session that it had, for ever: under another lease its keys
// would live without it.
func TestALostSessionIsGrantedAgainUnderItsID(t *testing.T) {
	a := newAdopted(t, nil)
	*a.serving = []string{bundleA, bundleB, "/odd/name"}
	a.lose()
	old := a.session()
	a.lock(bundleB, "n1", old) // of an earlier session
	next := a.establish(a.first.LeaseID)
	a.decided(recovery.RowReconnected, recovery.Active)
	if reg := a.snapshot().Registration; next.LeaseID != a.first.LeaseID || reg.LeaseID != next.LeaseID || string(reg.Value) != adoptedBytes {
		t.Errorf("lease %x after %x, registration %+v", next.LeaseID, a.first.LeaseID, reg)
	}
	if kv := a.kept(bundleA); kv.Lease != next.LeaseID || kv.Version != 1 || !strings.Contains(string(kv.Value), `"http://n1"`) {
		t.Errorf("the free lock is %+v, want it put once under the session", kv)
	}
	if kv := a.kept(bundleB); kv.Lease != old || kv.Version != 1 {
		t.Errorf("the lock that was there is %+v, want it left", kv)
	}
	if !a.outcomes[len(a.outcomes)-1].joined {
		t.Error("the session does not count as the broker's own")
	}
}

func TestABrokerWhoseTopicsAnotherHasTakenIsNotRegisteredAgain(t *testing.T) {
	for _, row := range []struct {
		name  string
		lock  func(a adopted)
		names string
	}{
		{"by another broker", func(a adopted) { a.lock(bundleB, "n2", a.session()) }, "n2"},
		{"by nobody that can be told", func(a adopted) {
			key, _ := pulsar.LockKey(bundleB)
			_, _ = a.store.Put(a.t.Context(), &etcdserverpb.PutRequest{Key: []byte(key), Value: []byte("?"), Lease: a.session()})
		}, "cannot be read"},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := newAdopted(t, nil)
			*a.serving = []string{bundleA, bundleB}
			a.lose()
			row.lock(a)
			before, leases := a.holds()
			_, err := a.Establish(t.Context(), a.first.LeaseID, false)
			if !errors.Is(err, errTaken) || !strings.Contains(err.Error(), bundleB) || !strings.Contains(err.Error(), row.names) {
				t.Errorf("error %v", err)
			}
			if after, now := a.holds(); after != before || now != leases {
				t.Errorf("written: revision %d after %d, %d leases after %d", after, before, now, leases)
			}
		})
	}
}

// What was free for a try that wrote nothing may be another broker's for the next.
func TestWhoHoldsATopicIsLookedAtForEachTry(t *testing.T) {
	again := 0
	for nth := range 8 {
		t.Run(fmt.Sprintf("transaction %d is refused", nth), func(t *testing.T) {
			a := newAdopted(t, nil)
			*a.serving = []string{bundleA, bundleB}
			a.lose()
			asked := 0
			a.store.SetFault(func(method string) error {
				if !strings.HasSuffix(method, "/Txn") {
					return nil
				}
				if asked++; asked-1 == nth {
					return etcd.ErrNoSpace
				}
				return nil
			})
			_, _ = a.Establish(t.Context(), a.first.LeaseID, false)
			a.store.SetFault(nil)
			if a.snapshot().Registration != nil {
				return // that was not in its way
			}
			again++
			a.lock(bundleB, "n2", a.session())
			if _, err := a.Establish(t.Context(), a.first.LeaseID, false); !errors.Is(err, errTaken) || a.snapshot().Registration != nil {
				t.Errorf("error %v, registration %v", err, a.snapshot().Registration)
			}
		})
	}
	if again == 0 {
		t.Error("nothing was tried again")
	}
}

func TestASessionIsNotGrantedAgainWhileItIsNotKnownWhatTheBrokerServes(t *testing.T) {
	a := newAdopted(t, nil)
	*a.serving = nil
	a.lose()
	before, leases := a.holds()
	if _, err := a.Establish(t.Context(), a.first.LeaseID, false); !errors.Is(err, lease.ErrDeferred) || !strings.Contains(err.Error(), "500") {
		t.Errorf("error %v", err)
	}
	if after, now := a.holds(); after != before || now != leases {
		t.Errorf("written: revision %d after %d, %d leases after %d", after, before, now, leases)
	}
	*a.serving = []string{}
	a.establish(a.first.LeaseID)
}

// The registration alone is gone: the session goes on, and so does what else stands under it,
// also when the write is refused.
func TestASessionThatLivesIsNotEndedByTheWriteOfItsRegistration(t *testing.T) {
	for nth := range 8 { // looks are transactions, too
		inBubble(t, fmt.Sprintf("transaction %d is refused", nth), func(t *testing.T) {
			a := newAdopted(t, nil)
			*a.serving = nil // nobody asks
			began, boot := time.Now(), lease.BootClock()
			a.registrar.clock = func() lease.Instant { return boot.Add(time.Since(began)) }
			a.lock(bundleA, "n1", a.first.LeaseID)
			a.del("n1")
			_, _ = a.Establish(t.Context(), a.first.LeaseID, false) // it may be going
			time.Sleep(4 * time.Second)
			asked := 0
			a.store.SetFault(func(method string) error {
				if !strings.HasSuffix(method, "/Txn") {
					return nil
				}
				if asked++; asked-1 == nth {
					return etcd.ErrNoSpace
				}
				return nil
			})
			for range 2 {
				_, _ = a.Establish(t.Context(), a.first.LeaseID, false)
				if a.kept(bundleA).Lease != a.first.LeaseID {
					t.Fatal("the lock went with its session")
				}
			}
			a.store.SetFault(nil)
			if reg := a.snapshot().Registration; reg == nil || reg.LeaseID != a.first.LeaseID {
				t.Errorf("registration %+v; want it under %x", reg, a.first.LeaseID)
			}
		})
	}
}

// Nobody can have declared a broker dead whose session lived while it began the next.
func TestTheNextSessionOfTheSameProcessIsNoLoss(t *testing.T) {
	for _, row := range []struct {
		name  string
		lives bool
		row   recovery.Reason
	}{
		{"the one before lives", true, recovery.RowSurvived},
		{"the one before has ended", false, recovery.RowReconnected},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := newAdopted(t, nil)
			a.del("n1")
			if !row.lives {
				a.lose()
			}
			next := a.session()
			a.put("n1", next)
			if g := a.establish(a.first.LeaseID); g.LeaseID != next {
				t.Errorf("lease %x, want the next session %x", g.LeaseID, next)
			}
			a.decided(row.row, recovery.Active)
		})
	}
}
