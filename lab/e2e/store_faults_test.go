package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

// What may be wrong with etcd itself while it answers.

// steady is for a broker that must be ready all the while: on a busy machine a check
// may take as long as three of the quick intervals, and counts as late then.
var steady = []string{"--health-interval", "1s"}

// neverDetached checks the journal of all lives.
func (c *couple) neverDetached() {
	c.s.Helper()
	for _, e := range c.events("attachment", "detached") {
		c.s.Errorf("%s detached: %+v", c.id, e)
	}
}

// alwaysReady checks every answer of /ready since a moment.
func (c *couple) alwaysReady(since time.Time) {
	c.s.Helper()
	if err := c.probes.AlwaysReady(since, c.awaitRecorded(time.Now()).Until); err != nil {
		c.s.Error(err)
	}
}

// readyNow returns a moment from which on the recorder knows it to be ready.
func (c *couple) readyNow() time.Time {
	c.s.Helper()
	c.s.ok(harness.Await(c.s.ctx, bound, c.id+" to be seen ready", func(context.Context) (bool, string) {
		runs := c.probes.Timeline()
		return len(runs) > 0 && runs[len(runs)-1].Ready == http.StatusOK, c.probes.String()
	}))
	return time.Now()
}

// awaitUnreadySeen returns a moment from which on the recorder knows it not to be ready.
func (c *couple) awaitUnreadySeen(since time.Time) time.Time {
	c.s.Helper()
	var at time.Time
	c.s.ok(harness.Await(c.s.ctx, bound, c.id+" not to be ready", func(context.Context) (ok bool, saw string) {
		at, ok = c.probes.FirstNotReady(since)
		return ok, c.probes.String()
	}))
	return at
}

// neverReady checks every answer of /ready since a moment at which it was not 200.
func (c *couple) neverReady(since time.Time) {
	c.s.Helper()
	if err := c.probes.NeverReady(since, c.awaitRecorded(time.Now()).Until); err != nil {
		c.s.Error(err)
	}
}

// serves waits until the broker takes messages for the topic.
func (c *couple) serves(topic string) {
	c.s.Helper()
	nc, err := c.nats.Connect()
	c.s.ok(err)
	defer nc.Close()
	c.s.ok(harness.Await(c.s.ctx, bound, topic+" to take messages", func(ctx context.Context) (bool, string) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := harness.Publish(ctx, nc, topic, []byte("x"))
		return err == nil, fmt.Sprint(err)
	}))
}

// backDrained waits for the registration after a revision and checks that it came with
// drained in the same one.
func (c *couple) backDrained(after int64, reason string) harness.Change {
	c.s.Helper()
	back := c.s.awaitChange("the registration", after, harness.PutKey(c.s.keys.Registration(c.id)))
	c.await("drained", func(st harness.Status) bool { return st.Mode == "drained" && st.Epoch == back.CreateRevision })
	if st := c.state(); st.Mode != "drained" || st.Reason != reason || st.ModRevision != back.Revision {
		c.s.Errorf("state %+v, want drained, %s, written at revision %d with the registration", st, reason, back.Revision)
	}
	return back
}

func (c *couple) activate() {
	c.s.Helper()
	c.s.ok(c.Activate(c.s.ctx, "e2e"))
	c.s.ok(c.AwaitReady(c.s.ctx, bound))
}

// A keep-alive writes nothing, so a full etcd renews; it grants no lease and takes no
// registration.
func TestAFullEtcdDetachesNobodyAndTakesNobodyBack(t *testing.T) {
	t.Parallel()
	s := newStandOn(t, harness.EtcdOptions{Args: []string{"--quota-backend-bytes", fmt.Sprint(2 << 20)}})
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
	c, peer := s.couple("n1", steady...), s.couple("n2", steady...)
	reg := c.registration()
	peer.readyNow()
	ready := c.readyNow()
	s.fill()

	t.Log("full")
	c.renewsOn()
	c.neverDetached()
	c.alwaysReady(ready)
	c.serves("/default/a")

	t.Log("and the registration is lost")
	noSpace := c.metric(`holdfast_lease_keepalive_failures_total{class="no_space"}`)
	lost := time.Now()
	_, err := s.etcd.Client().Revoke(s.ctx, reg.Lease)
	s.ok(err)
	gone := s.awaitChange("the deletion", reg.ModRevision, harness.DeletedKey(s.keys.Registration("n1")))
	unready := c.awaitUnreadySeen(lost)
	c.awaitMetric(`holdfast_lease_keepalive_failures_total{class="no_space"}`, noSpace+3, bound)
	st := c.await("the word", func(st harness.Status) bool { return strings.Contains(st.Lease.LastError, "space exceeded") })
	if st.Attachment != "detached" || st.Registration.Present || st.Ready.OK {
		t.Errorf("without a registration: %v", st)
	}
	s.notServed(c, "/default/a")

	t.Log("and has space again")
	s.free()
	c.backDrained(gone.Revision, "registration_expired")
	s.notServed(c, "/default/a")
	c.neverReady(unready)
	c.activate()
	c.serves("/default/a")
	peer.neverDetached()
	peer.alwaysReady(ready)
	c.stayedLive()
	peer.stayedLive()
}

// fill writes until etcd takes no more.
func (s *stand) fill() {
	s.Helper()
	value := strings.Repeat("x", 200<<10)
	for i := range 100 {
		_, err := s.etcd.Client().Put(s.ctx, fmt.Sprintf("/lab/fill/%d", i), value)
		if errors.Is(err, rpctypes.ErrNoSpace) {
			return
		}
		s.ok(err)
	}
	s.Fatal("20 MB did not fill etcd")
}

// free is what an operator does about a full etcd.
func (s *stand) free() {
	s.Helper()
	c := s.etcd.Client()
	res, err := c.Delete(s.ctx, "/lab/fill/", clientv3.WithPrefix())
	s.ok(err)
	_, err = c.Compact(s.ctx, res.Header.Revision, clientv3.WithCompactPhysical())
	s.ok(err)
	_, err = c.Defragment(s.ctx, s.etcd.Endpoint())
	s.ok(err)
	_, err = c.AlarmDisarm(s.ctx, &clientv3.AlarmMember{})
	s.ok(err)
}

// etcd looks once a second for simple tokens to forget: only who is silent for more than two
// meets one that has run out.
func TestAnAuthTokenThatExpiresIsNoTrouble(t *testing.T) {
	t.Parallel()
	s := &stand{T: t, ctx: t.Context(), lab: harness.ForTest(t)}
	var err error
	s.etcd, err = s.lab.StartEtcd(s.ctx, harness.EtcdOptions{Args: []string{"--auth-token", "simple", "--auth-token-ttl", "1"}})
	s.ok(err)
	s.ok(s.etcd.EnableAuth(s.ctx, "root-word", "hf", "hf-word", ""))
	s.watch()
	password := s.write("password", "hf-word\n")
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
	c := s.couple("n1", append(steady, "--lease-ttl", "12s", "--renew-interval", "2200ms", "--etcd-user", "hf", "--etcd-password-file", password)...)
	ready, reg := c.readyNow(), c.registration()

	const renewals = 4            // longer than several lives of a token
	before := s.authentications() // the lab itself asks nothing until after
	c.awaitMetric(confirmed, c.metric(confirmed)+renewals, 2*bound)
	if n := s.authentications() - before; n < 3 {
		t.Errorf("%v authentications in %d renewals: no token ran out, and nothing is shown", n, renewals)
	}
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/b"))
	c.serves("/default/b")

	c.neverDetached()
	c.alwaysReady(ready)
	for _, class := range []string{"auth", "other"} {
		if n := c.metric(`holdfast_lease_keepalive_failures_total{class="` + class + `"}`); n != 0 {
			t.Errorf("%v renewals failed with class %s", n, class)
		}
	}
	if after := c.registration(); after != reg {
		t.Errorf("the registration did not stay: %+v, then %+v", reg, after)
	}
	c.stayedLive()
}

// etcdMetrics is what etcd shows of itself.
func etcdMetrics(ctx context.Context, etcd *harness.Etcd) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, etcd.Endpoint()+"/metrics", nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

// authentications is how many passwords etcd has traded for a token.
func (s *stand) authentications() float64 {
	s.Helper()
	const series = `grpc_server_handled_total{grpc_code="OK",grpc_method="Authenticate",grpc_service="etcdserverpb.Auth",grpc_type="unary"}`
	text, err := etcdMetrics(s.ctx, s.etcd)
	s.ok(err)
	n, ok := seriesValue(text, series)
	if !ok {
		s.Fatalf("etcd does not tell %s", series)
	}
	return n
}

// A key that is overwritten by another incarnation is not fought for, and not served on.
func TestARegistrationOverwrittenByAnotherFencesAndIsNotFoughtFor(t *testing.T) {
	t.Parallel()
	s := newSharedStand(t)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a"))
	c, peer := s.couple("n1", steady...), s.couple("n2", steady...)
	before := c.registration()
	foreign, err := s.etcd.Client().Grant(s.ctx, 600)
	s.ok(err)
	other := regexp.MustCompile(`"incarnation":"[^"]*"`).ReplaceAllString(before.Value, `"incarnation":"another"`)
	if other == before.Value {
		t.Fatalf("no incarnation in %s", before.Value)
	}
	began := c.readyNow()
	put, err := s.etcd.Client().Put(s.ctx, s.keys.Registration("n1"), other, clientv3.WithLease(foreign.ID))
	s.ok(err)
	st := c.await("the conflict", func(st harness.Status) bool {
		return strings.Contains(strings.Join(st.Ready.Causes, " "), "identity conflict")
	})
	if st.Attachment != "detached" {
		t.Errorf("%s with another's registration", st.Attachment)
	}
	unready := c.awaitUnreadySeen(began)
	s.notServed(c, "/default/a")
	t.Logf("fenced %v after the put", time.Since(began).Round(time.Millisecond))
	peer.renewsOn() // for longer than a lease lasts
	for _, ch := range s.changesOf(s.keys.Registration("n1"), put.Header.Revision) {
		t.Errorf("fought for: %v", ch)
	}
	for _, ch := range s.changesOf(s.keys.State("n1"), put.Header.Revision) {
		t.Errorf(harness.Violation+"state written on another's registration: %v", ch)
	}
	c.neverReady(unready)

	_, err = s.etcd.Client().Revoke(s.ctx, foreign.ID)
	s.ok(err)
	gone := s.awaitChange("the end of the other", put.Header.Revision, harness.DeletedKey(s.keys.Registration("n1")))
	c.backDrained(gone.Revision, "registration_expired")
	s.notServed(c, "/default/a")
	c.neverReady(unready)
	c.activate()
	c.serves("/default/a")
	c.stayedLive()
}
