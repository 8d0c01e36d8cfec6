package agent

import (
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/agent/lease"
	etcd "holdfast/cluster/memory"
)

// slowly has each request of a service take a while on the boot clock of the registrar.
func (o *outage) slowly(service string, took time.Duration) (now func() lease.Instant) {
	at := lease.Instant(time.Hour)
	o.clock = func() lease.Instant { return at }
	o.store.SetFault(func(method string) error {
		if strings.Contains(method, service) {
			at = at.Add(took)
		}
		return nil
	})
	return o.clock
}

func TestALeaseCountsFromBeforeItWasAskedFor(t *testing.T) {
	t.Run("a registration that is kept", func(t *testing.T) {
		o := newOutage(t, "drain")
		sent := o.slowly(etcdserverpb.Lease_LeaseKeepAlive_FullMethodName, 3*time.Second)()
		if g := o.establish(o.first.LeaseID); g.LeaseID != o.first.LeaseID || g.SentAt != sent {
			t.Errorf("counted from %v after the send", g.SentAt.Sub(sent))
		}
	})
	t.Run("a new one", func(t *testing.T) {
		o := newOutage(t, "reconnect")
		o.lose()
		sent := o.slowly(etcdserverpb.Lease_LeaseGrant_FullMethodName, 3*time.Second)()
		if g := o.establish(0); g.LeaseID == o.first.LeaseID || g.SentAt != sent {
			t.Errorf("counted from %v after the send", g.SentAt.Sub(sent))
		}
	})
}

func TestALeaseLastsForWhatWasGrantedAndNotForWhatWasAsked(t *testing.T) {
	const least = 2 * time.Minute
	o := newOutageOn(t, "drain", etcd.Config{MinTTL: least})
	if o.cfg.LeaseTTL >= least || o.first.TTL != least {
		t.Errorf("%v was asked for, %v granted and %v believed", o.cfg.LeaseTTL, least, o.first.TTL)
	}
}
