package e2e

import (
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

// selfRegistering stands for a broker that registers itself under a lease of its
// own, as some do; what it writes is nobody else's business.
type selfRegistering struct {
	s     *stand
	id    string
	lease clientv3.LeaseID
	value string
}

func (b *selfRegistering) register(ttl int64) (revision int64) {
	b.s.Helper()
	lease, err := b.s.etcd.Client().Grant(b.s.ctx, ttl)
	b.s.ok(err)
	b.lease = lease.ID
	res, err := b.s.etcd.Client().Put(b.s.ctx, b.s.keys.Registration(b.id), b.value, clientv3.WithLease(lease.ID))
	b.s.ok(err)
	return res.Header.Revision
}

// awaitAdopted waits until the registration is under another lease than the
// broker's, and checks that nothing else about it changed.
func (b *selfRegistering) awaitAdopted(c *couple, after int64) harness.Change {
	b.s.Helper()
	adopted := b.s.awaitChange("the adoption", after, harness.PutKey(b.s.keys.Registration(b.id)))
	if adopted.Value != b.value {
		b.s.Errorf("adopted as %q, want the broker's own bytes %q", adopted.Value, b.value)
	}
	if adopted.Lease == 0 || clientv3.LeaseID(adopted.Lease) == b.lease {
		b.s.Errorf("adopted under lease %x, want one that is not the broker's %x", adopted.Lease, b.lease)
	}
	c.await("attached", func(st harness.Status) bool {
		return st.Attachment == "attached" && st.Registration.Adopted && st.Epoch == adopted.CreateRevision
	})
	return adopted
}

func TestAdoptedRegistrationLivesUnderOurLeaseWithTheBrokersBytes(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c := s.beside(s.broker("n1"), "--registration", "adopt")
	c.run()
	// Nothing is written for a broker that has not registered itself.
	c.await("a broker that answers", func(st harness.Status) bool { return st.Broker.Up == "up" })
	if c.Ready(s.ctx) || c.registration().CreateRevision != 0 {
		t.Error("ready or registered before the broker registered itself")
	}

	b := &selfRegistering{s: s, id: "n1", value: "\x01not JSON\x00 at all"}
	rev := b.register(600)
	first := b.awaitAdopted(c, rev)
	s.ok(c.AwaitReady(s.ctx, bound))
	if first.CreateRevision != rev {
		t.Errorf("create revision %d, want the broker's %d", first.CreateRevision, rev)
	}

	t.Run("the broker's lease ends and the key stays", func(t *testing.T) {
		_, err := s.etcd.Client().Revoke(s.ctx, b.lease)
		s.ok(err)
		c.renewsOn()
		if reg := c.registration(); reg.CreateRevision != rev || reg.Value != b.value {
			t.Errorf("registration %+v, want the one of revision %d", reg, rev)
		}
	})
	t.Run("the broker writes it again and it is adopted again", func(t *testing.T) {
		for n := range 3 {
			b.value = fmt.Sprintf(`{"broker_url":"n1","n":%d}`, n)
			again := b.awaitAdopted(c, b.register(600))
			if again.CreateRevision != rev {
				t.Errorf("create revision %d, want still %d", again.CreateRevision, rev)
			}
			if again.Lease != first.Lease {
				t.Errorf("under lease %x, want our one lease %x", again.Lease, first.Lease)
			}
			// It is counted when it is proven; what is written before that is adopted with it.
			c.awaitMetric("holdfast_registration_adoptions_total", float64(n+2), bound)
		}
		if n := c.metric("holdfast_registration_adoptions_total"); n != 4 {
			t.Errorf("holdfast_registration_adoptions_total is %v, want 4", n)
		}
	})
	t.Run("it vanishes and is recovered", func(t *testing.T) {
		res, err := s.etcd.Client().Delete(s.ctx, s.keys.Registration("n1"))
		s.ok(err)
		back := b.awaitAdopted(c, res.Header.Revision)
		if back.CreateRevision <= rev {
			t.Errorf("create revision %d, want a new one", back.CreateRevision)
		}
		s.ok(c.AwaitReady(s.ctx, bound))
		if st := c.state(); st.Mode != "active" {
			t.Errorf("mode %s (%s), want active: nobody else is registered", st.Mode, st.Reason)
		}
		c.renewsOn()
	})
	t.Run("it stays through a restart of the sidecar", func(t *testing.T) {
		before := c.registration()
		c.stayedLive()
		s.ok(c.Kill())
		c.run()
		s.ok(c.AwaitReady(s.ctx, bound))
		if after := c.registration(); after != before {
			t.Errorf("registration %+v, want %+v", after, before)
		}
	})
	c.stayedLive()
}

func TestAnAdoptedRegistrationThatVanishesAmongPeersDrains(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.couple("n2")
	c := s.beside(s.broker("n1"), "--registration", "adopt")
	b := &selfRegistering{s: s, id: "n1", value: `{"broker_url":"x"}`}
	rev := b.register(600)
	c.run()
	b.awaitAdopted(c, rev)
	s.ok(c.AwaitReady(s.ctx, bound))
	_, err := s.etcd.Client().Revoke(s.ctx, c.registration().Lease)
	s.ok(err)
	gone := s.awaitChange("the deletion", rev, harness.DeletedKey(s.keys.Registration("n1")))
	back := b.awaitAdopted(c, gone.Revision)
	if st := c.state(); st.Mode != "drained" || st.Reason != "registration_expired" || st.ModRevision != back.Revision {
		t.Errorf("state %+v, want drained, registration_expired at revision %d", st, back.Revision)
	}
	c.stayedLive()
}
