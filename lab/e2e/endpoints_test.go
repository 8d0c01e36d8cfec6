package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/lab/harness"
	"holdfast/standstill"
)

// ensemble is an etcd of three members, one place with a link to each of them, and the
// sidecars there.
type ensemble struct {
	*testing.T
	ctx   context.Context
	lab   *harness.Lab
	etcd  *harness.EtcdCluster
	links []harness.Link
}

func newEnsemble(t *testing.T) *ensemble {
	t.Helper()
	s := &ensemble{T: t, ctx: t.Context(), lab: harness.ForTest(t)}
	var err error
	s.etcd, err = s.lab.StartEtcdCluster(s.ctx, 3, harness.EtcdOptions{})
	s.ok(err)
	s.links, err = harness.NewLinks(s.lab, s.etcd.Members...)
	s.ok(err)
	return s
}

func (s *ensemble) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// renewer is a broker and its sidecar, and what its lease went through.
type renewer struct {
	*harness.Sidecar
	s         *ensemble
	id        string
	ttl       time.Duration
	endpoints []string
	epoch     int64

	mu     sync.Mutex
	worst  time.Duration // longest time since the send of the last confirmed renewal
	seen   []string      // attachments, each once
	looked time.Time     // since when
}

// renewer starts a broker and its sidecar, and watches its lease.
func (s *ensemble) renewer(id string, ttl time.Duration, endpoints []string, flags ...string) *renewer {
	s.Helper()
	n, err := s.lab.StartNATS(s.ctx, harness.NATSOptions{Name: id, Place: s.links[0].Place()})
	s.ok(err)
	sc, err := s.lab.StartSidecar(harness.SidecarOptions{Broker: n, Endpoints: endpoints,
		Flags: append([]string{"--lease-ttl", ttl.String(), "--detachment-recover-window", "200ms", "--health-interval", "200ms"}, flags...)})
	s.ok(err)
	r := &renewer{Sidecar: sc, s: s, id: id, ttl: ttl, endpoints: endpoints, looked: time.Now()}
	s.ok(r.AwaitReady(s.ctx, 2*bound))
	for i := range endpoints {
		r.awaitUp(i, true)
	}
	st, err := r.Status(s.ctx)
	s.ok(err)
	r.epoch = st.Epoch
	ctx, cancel := context.WithCancel(s.ctx)
	var watching sync.WaitGroup
	watching.Go(func() { r.watch(ctx) })
	s.Cleanup(func() { cancel(); watching.Wait() })
	return r
}

func (r *renewer) watch(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		st, err := r.Status(ctx)
		if err != nil {
			continue
		}
		r.mu.Lock()
		r.worst = max(r.worst, r.ttl-time.Duration(st.Lease.RemainingSeconds*float64(time.Second)))
		if !slices.Contains(r.seen, st.Attachment) {
			r.seen = append(r.seen, st.Attachment)
		}
		r.mu.Unlock()
	}
}

// since returns, and forgets, the worst age of a renewal that was seen since it was asked
// last, and the attachments.
func (r *renewer) since() (from time.Time, worst time.Duration, seen []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	from, worst, seen = r.looked, r.worst, r.seen
	r.worst, r.seen, r.looked = 0, nil, time.Now()
	return from, worst, seen
}

// within checks that no confirmed renewal was older since it was asked last, and returns the
// attachments that were seen.
func (r *renewer) within(during string, most time.Duration) (seen []string) {
	r.s.Helper()
	from, worst, seen := r.since()
	r.s.Logf("%s, TTL %v: the last confirmed renewal was at most %v old, limit %v; %q", during, r.ttl, worst.Round(time.Millisecond), most, seen)
	if worst == 0 {
		r.s.Errorf("%s, TTL %v: nothing was seen", during, r.ttl)
	}
	standstill.Check(r.s.T, standstill.Judge(fmt.Sprintf("%s, TTL %v: renewed", during, r.ttl), from, time.Now(), worst, most))
	return seen
}

// noGap checks that no confirmed renewal was ever older than the interval and a second,
// and that nothing but attached was seen. The age from send to confirmation is at least
// the gap between two confirmations.
func (r *renewer) noGap(during string) {
	r.s.Helper()
	seen := r.within(during, r.ttl/8+time.Second)
	if !slices.Equal(seen, []string{"attached"}) {
		r.s.Errorf("%s, TTL %v: %q, want only attached", during, r.ttl, seen)
	}
}

// intact checks that nobody was declared dead.
func (r *renewer) intact() {
	r.s.Helper()
	st, err := r.Status(r.s.ctx)
	r.s.ok(err)
	if st.Epoch != r.epoch || st.Mode != "active" {
		r.s.Errorf("%s: epoch %d after %d, mode %s (%s)", r.Name, st.Epoch, r.epoch, st.Mode, st.Reason)
	}
}

func (r *renewer) value(series string) float64 {
	r.s.Helper()
	text, err := r.Metrics(r.s.ctx)
	r.s.ok(err)
	v, ok := seriesValue(text, series)
	if !ok {
		r.s.Fatalf("%s is not in the metrics of %s", series, r.Name)
	}
	return v
}

func (r *renewer) hedgesWon() float64 { return r.value(`holdfast_lease_hedges_total{won="true"}`) }

// awaitUp waits until the sidecar says that an endpoint is up, or that it is not.
func (r *renewer) awaitUp(i int, up bool) {
	r.s.Helper()
	series := fmt.Sprintf("holdfast_etcd_endpoint_up{endpoint=%q}", r.endpoints[i])
	want := 0.0
	if up {
		want = 1
	}
	r.s.ok(harness.Await(r.s.ctx, bound, fmt.Sprintf("%s to be %v", series, want), func(ctx context.Context) (bool, string) {
		text, err := r.Metrics(ctx)
		if err != nil {
			return false, err.Error()
		}
		v, ok := seriesValue(text, series)
		return ok && v == want, fmt.Sprint(v, ok)
	}))
}

// renewals waits for so many more confirmed renewals.
func (r *renewer) renewals(n float64) {
	r.s.Helper()
	const series = `holdfast_lease_renewals_total{result="confirmed"}`
	before := r.value(series)
	r.s.ok(harness.Await(r.s.ctx, time.Duration(n)*r.ttl/8+bound, fmt.Sprintf("%v renewals of %s", n, r.Name), func(ctx context.Context) (bool, string) {
		text, err := r.Metrics(ctx)
		if err != nil {
			return false, err.Error()
		}
		v, _ := seriesValue(text, series)
		return v >= before+n, fmt.Sprint(v - before)
	}))
}

func TestAFrozenMemberDelaysNoRenewalByASecond(t *testing.T) {
	t.Parallel()
	s := newEnsemble(t)
	r := s.renewer("b1", 8*time.Second, harness.Endpoints(s.links))
	for i, member := range s.etcd.Members {
		leader, err := s.etcd.Leader(s.ctx)
		s.ok(err)
		r.since()
		before := r.hedgesWon()
		s.ok(member.Freeze())
		during := member.Name + " frozen"
		if member == leader {
			// For less than the TTL: a leader that thaws revokes what had expired by its own
			// clock before it hears of its successor.
			r.renewals(3)
		} else {
			r.renewals(6)
		}
		if r.hedgesWon() > before && member != leader {
			r.awaitUp(i, false)
		}
		if member != leader {
			r.noGap(during)
		} else { // nobody can renew before there is another leader
			if seen := r.within(during+", the leader", r.ttl*2/3); slices.Contains(seen, "detached") {
				t.Errorf("%s, the leader: %q", during, seen)
			}
		}
		s.ok(member.Thaw())
		r.intact()
	}
}

func TestAKilledLeaderDetachesNobody(t *testing.T) {
	t.Parallel()
	s := newEnsemble(t)
	all := []*renewer{
		s.renewer("b1", 8*time.Second, harness.Endpoints(s.links)),
		s.renewer("b2", 16*time.Second, harness.Endpoints(s.links)),
	}
	for round := range 2 {
		leader, err := s.etcd.Leader(s.ctx)
		s.ok(err)
		for _, r := range all {
			r.since()
		}
		s.ok(leader.Kill())
		for _, r := range all {
			r.renewals(2)
			during := fmt.Sprintf("round %d, leader killed", round)
			if seen := r.within(during, r.ttl/8+4*time.Second); slices.Contains(seen, "detached") {
				t.Errorf("%s, TTL %v: %q", during, r.ttl, seen)
			}
		}
		s.ok(leader.Start(s.ctx))
		for _, r := range all {
			r.renewals(1)
			r.intact()
		}
	}
}

func TestALostQuorumIsNoLeaderAndItsReturnIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	s := newEnsemble(t)
	// The first runs out meanwhile, as far as the sidecar can know: from then on it asks as
	// often as --backoff-max says.
	all := []*renewer{
		s.renewer("b1", 4*time.Second, harness.Endpoints(s.links), "--backoff-max", "1s"),
		s.renewer("b2", 24*time.Second, harness.Endpoints(s.links)),
	}
	killed := s.etcd.Members[:2]
	for _, m := range killed {
		s.ok(m.Kill())
	}
	st, err := all[0].Await(s.ctx, bound, "the deadline to pass", func(st harness.Status) bool { return st.Lease.RemainingSeconds < -2 })
	s.ok(err)
	if st.Attachment != "detached" || !strings.Contains(st.Lease.LastError, "no leader") {
		t.Errorf("past the deadline: %s, the last error is %q, want detached, and one about the leader", st.Attachment, st.Lease.LastError)
	}
	for _, r := range all {
		if n := r.value(`holdfast_lease_keepalive_failures_total{class="no_leader"}`); n < 2 {
			t.Errorf("%s counts %v failures for want of a leader", r.Name, n)
		}
	}
	started := make(chan error, 1)
	go func() { started <- killed[0].Start(s.ctx) }()
	back := time.Now()
	s.ok(harness.Await(s.ctx, 2*bound, "the quorum", func(ctx context.Context) (bool, string) {
		ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		back = time.Now()
		_, err := s.etcd.Members[2].Client().Put(ctx, "/lab/quorum", "")
		return err == nil, fmt.Sprint(err)
	}))
	for _, r := range all {
		_, err := r.Await(s.ctx, bound, "a renewal", func(st harness.Status) bool { return st.Lease.FailureStreak == 0 && st.Attachment == "attached" })
		s.ok(err)
		within(t, fmt.Sprintf("TTL %v: renewed and attached", r.ttl), back, time.Since(back), 2*time.Second)
		r.intact()
	}
	s.ok(<-started)
}
