package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

// What others may do to the registration, and what is left of it afterwards.

// renewsOn checks that the registration is renewed for longer than its TTL, and
// that nobody writes it.
func (c *couple) renewsOn() {
	c.s.Helper()
	before := c.registration()
	confirmed := c.metric(`holdfast_lease_renewals_total{result="confirmed"}`)
	ttl := time.Duration(c.metric(`holdfast_lease_ttl_seconds`) * float64(time.Second))
	c.awaitMetric(`holdfast_lease_renewals_total{result="confirmed"}`, confirmed+9, 2*ttl+bound) // eight in a TTL
	if after := c.registration(); after != before || after.CreateRevision == 0 {
		c.s.Errorf("the registration did not stay: %+v, then %+v", before, after)
	}
}

func TestAKeyThatLostItsLeaseIsBoundToOursAgain(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c := s.couple("n1")
	foreign, err := s.etcd.Client().Grant(s.ctx, 600)
	s.ok(err)
	before := c.registration()
	for i, tt := range []struct {
		name, said string
		lease      clientv3.LeaseID
		addr       string // admin address, if it is another: what somebody changed is kept
	}{
		{"no lease", "no lease", 0, ""},
		{"a foreign lease", "foreign lease", foreign.ID, ""},
		{"a foreign lease again", "foreign lease", foreign.ID, ""},
		{"another value without a lease", "no lease", 0, "nats://192.0.2.2:4222"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			value := before.Value
			if tt.addr != "" {
				value = regexp.MustCompile(`"admin_addr":"[^"]*"`).ReplaceAllString(value, `"admin_addr":"`+tt.addr+`"`)
			}
			put, err := s.etcd.Client().Put(s.ctx, s.keys.Registration("n1"), value, clientv3.WithLease(tt.lease))
			s.ok(err)
			fixed := s.awaitChange("the repair", put.Header.Revision, harness.PutKey(s.keys.Registration("n1")))
			if fixed.CreateRevision != before.CreateRevision || fixed.Value != value || fixed.Lease != int64(before.Lease) {
				t.Errorf("repaired to %v under lease %x, want the same bytes and create revision under lease %x", fixed, fixed.Lease, before.Lease)
			}
			if e := c.told(i+1, "registration", "repaired")[i]; !strings.Contains(e.From+e.Detail, tt.said) {
				t.Errorf("%+v, want %q", e, tt.said)
			}
			c.await("attached", func(st harness.Status) bool { return st.Attachment == "attached" })
		})
	}
	// The foreign lease must have no say any more.
	_, err = s.etcd.Client().Revoke(s.ctx, foreign.ID)
	s.ok(err)
	c.renewsOn()
	c.neverDetached()
	if err := c.probes.AlwaysReady(c.since.Add(time.Second), time.Now()); err != nil {
		t.Error(err)
	}
	if st := c.state(); st.Mode != "active" {
		t.Errorf("mode %s (%s), want active", st.Mode, st.Reason)
	}
	s.caughtUp()
	for _, ch := range s.changesOf(s.keys.Registration("n1"), before.CreateRevision) {
		if ch.Deleted {
			t.Errorf("the key was deleted: %v", ch)
		}
	}
	c.stayedLive()
	// A restart of the sidecar says again what its settings say.
	s.ok(c.Kill())
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	if reg := c.registration(); reg.OfAnyRun() != before.OfAnyRun() {
		t.Errorf("after a restart of the sidecar: %+v, want %+v", reg, before)
	}
}

// theft is a way in which somebody else ends a registration.
var thefts = []struct {
	name string
	do   func(s *stand, c *couple) error
}{
	{"key deleted", func(s *stand, c *couple) error {
		_, err := s.etcd.Client().Delete(s.ctx, s.keys.Registration(c.id))
		return err
	}},
	{"lease revoked", func(s *stand, c *couple) error {
		_, err := s.etcd.Client().Revoke(s.ctx, c.registration().Lease)
		return err
	}},
}

func TestARegistrationThatIsTakenAwayAmongPeersDrains(t *testing.T) {
	t.Parallel()
	for _, tt := range thefts {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSharedStand(t)
			s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
			c, peer := s.couple("n1"), s.couple("n2")
			before := c.registration()
			s.ok(tt.do(s, c))
			gone := s.awaitChange("the deletion", before.ModRevision, harness.DeletedKey(s.keys.Registration("n1")))
			back := s.awaitChange("the registration", gone.Revision, harness.PutKey(s.keys.Registration("n1")))
			c.await("drained", func(st harness.Status) bool { return st.Mode == "drained" && st.Epoch == back.Revision })
			if st := c.state(); st.Mode != "drained" || st.Reason != "registration_expired" || st.ModRevision != back.Revision {
				t.Errorf("state %+v, want drained, registration_expired, written at revision %d with the registration", st, back.Revision)
			}
			took := back.At.Sub(gone.At)
			t.Logf("registered again after %v", took.Round(time.Millisecond))
			within(t, "registered again", gone.At, took, 4*time.Second) // what became of n2 was looked at twice, two seconds apart
			s.notServed(c, "/default/a")
			// Ready at no moment since the mode is known to be drained, until activated.
			s.ok(c.AwaitNotReady(s.ctx, bound))
			drainedAt := c.awaitRecorded(time.Now()).Until
			c.renewsOn()
			if err := c.probes.NeverReady(drainedAt, time.Now()); err != nil {
				t.Error(err)
			}
			s.ok(c.Activate(s.ctx, "test"))
			s.ok(c.AwaitReady(s.ctx, bound))
			if st := peer.state(); st.Mode != "active" {
				t.Errorf("the peer is %s (%s)", st.Mode, st.Reason)
			}
			lost := c.metric(`holdfast_registration_lost_total{cause="lease_expired"}`) + c.metric(`holdfast_registration_lost_total{cause="key_deleted"}`)
			if lost != 1 {
				t.Errorf("holdfast_registration_lost_total counts %v, want 1", lost)
			}
			c.stayedLive()
			peer.stayedLive()
		})
	}
}

// notServed waits until the broker refuses messages for the topic.
func (s *stand) notServed(c *couple, topic string) {
	s.Helper()
	nc, err := c.nats.Connect()
	s.ok(err)
	defer nc.Close()
	s.ok(harness.Await(s.ctx, bound, topic+" to take no messages", func(ctx context.Context) (bool, string) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		seq, err := harness.Publish(ctx, nc, topic, []byte("x"))
		return err != nil, fmt.Sprintf("stored as %d", seq)
	}))
}
