package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/lab/harness"
	"holdfast/lab/prom"
)

// scenario is a trial and how it is played. What differs from the expectation goes
// into the trial; an error says that it could not be played on.
type scenario struct {
	*trial
	play func(context.Context, *trial) error
}

func scenarios(s *stage) []scenario {
	n1, n2, n3 := s.nodes[0], s.nodes[1], s.nodes[2]
	began := time.Now()
	return []scenario{
		{&trial{
			name: "1 glitch shorter than TTL", nodes: []*node{n1},
			expected: "stays ready, same registration, renewed within 1 s of the heal",
		}, func(ctx context.Context, t *trial) error { return s.glitch(ctx, t, n1) }},
		{&trial{
			name: "2 cut longer than TTL", nodes: []*node{n1},
			expected: "fenced before the key is deleted; then registered and drained (registration_expired) in one revision; activate serves; alert HoldfastLeaseLost fires, and is resolved",
		}, func(ctx context.Context, t *trial) error { return s.longCut(ctx, t, n1) }},
		{&trial{
			name: "3a restart within TTL", nodes: []*node{n2},
			expected: "same registration, active, topics served when ready",
		}, func(ctx context.Context, t *trial) error { return s.quickRestart(ctx, t, n2) }},
		{&trial{
			name: "3b restart after TTL", nodes: []*node{n2},
			expected: "drained (stale_restart), never ready until activate",
		}, func(ctx context.Context, t *trial) error { return s.staleRestart(ctx, t, n2) }},
		{&trial{
			name: "frozen sidecar", nodes: []*node{n3},
			expected: "its guard, a second process, stops the broker before the key is deleted; then drained",
		}, func(ctx context.Context, t *trial) error { return s.frozenSidecar(ctx, t, n3) }},
		{&trial{
			name: "4 full cluster restart", nodes: s.nodes,
			expected: "all active (full_cluster_restart), also the late one; nobody activates",
		}, func(ctx context.Context, t *trial) error { return s.fullRestart(ctx, t, began) }},
		{&trial{
			name: "a drain that moves 3 topics", nodes: s.nodes,
			expected: "each goes to another broker with all that was acknowledged, under load; consumers go on where they stood",
		}, func(ctx context.Context, t *trial) error { return s.drainMoves(ctx, t, n3) }},
	}
}

// pause lets the time pass that a scenario is about.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// glitch: recovery counts from the heal to the send of a renewal that is confirmed.
func (s *stage) glitch(ctx context.Context, t *trial, n *node) error {
	before, err := s.keys.ReadRegistration(ctx, s.etcd.Client(), n.id)
	if err != nil {
		return err
	}
	began := time.Now()
	s.say("cutting %s and its sidecar off from etcd for %v: nothing passes, nothing is refused", n.id, shortCut)
	if err := n.link.Cut(); err != nil {
		return err
	}
	pause(ctx, shortCut)
	t.holds(n.publish(ctx))
	healed := time.Now()
	if err := n.link.Heal(); err != nil {
		return err
	}
	s.say("healed; clients could publish all the while")
	var renewed time.Time
	_, err = n.sidecar.Await(ctx, comeBack, "a renewal after the heal", func(st harness.Status) bool {
		// The deadline counts from the send, so it tells when that was.
		renewed = time.Now().Add(seconds(st.Lease.RemainingSeconds - st.Lease.TTLSeconds))
		return renewed.After(healed) && st.Lease.FailureStreak == 0
	})
	if err != nil {
		return err
	}
	t.recovery = renewed.Sub(healed)
	t.must(t.recovery <= time.Second, "renewed %v after the heal", t.recovery)
	after, err := s.keys.ReadRegistration(ctx, s.etcd.Client(), n.id)
	if err != nil {
		return err
	}
	t.must(after == before, "the registration changed: %+v, then %+v", before, after)
	t.holds(n.probes.AlwaysReady(began, time.Now()))
	t.saw("stayed ready, same registration (create revision %d), renewed", after.CreateRevision)
	return nil
}

// longCut: recovery counts from the heal to the registration in etcd.
func (s *stage) longCut(ctx context.Context, t *trial, n *node) error {
	stored, err := n.publishSeq(ctx)
	if err != nil {
		return err
	}
	from, err := s.revision(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	s.say("cutting %s off from etcd for longer than the TTL of %v; the broker keeps running", n.id, ttl)
	if err := n.link.Cut(); err != nil {
		return err
	}
	if err := n.sidecar.AwaitNotReady(ctx, expiryBound); err != nil {
		return err
	}
	unready := time.Now()
	s.say("%s says not ready %.1f s after the cut, before its lease can be gone", n.id, unready.Sub(began).Seconds())
	if err := n.awaitRefusal(ctx); err != nil {
		return err
	}
	refused := time.Now()
	s.say("the topics are quiesced: publishers hear \"no responders\" and may go elsewhere")
	deleted, err := s.history.Await(ctx, expiryBound, "the expiry of "+n.id, from, harness.DeletedKey(s.keys.Registration(n.id)))
	if err != nil {
		return err
	}
	s.say("etcd deleted the registration, %.1f s after the fence", deleted.At.Sub(refused).Seconds())
	t.must(refused.Before(deleted.At), "publishing was refused %v after the key was deleted", refused.Sub(deleted.At))
	if err := s.alerted(ctx, t, began, "HoldfastLeaseLost", n); err != nil {
		return err
	}

	healed := time.Now()
	if err := n.link.Heal(); err != nil {
		return err
	}
	s.say("healed")
	registered, err := s.awaitRegistration(ctx, n, deleted.Revision)
	if err != nil {
		return err
	}
	t.recovery = registered.At.Sub(healed)
	s.isDrained(t, n, registered, "registration_expired")
	s.say("registered again %d ms after the heal, and drained in the same revision %d", t.recovery.Milliseconds(), registered.Revision)
	if err := s.activated(ctx, t, n, unready); err != nil {
		return err
	}
	seq, err := n.publishSeq(ctx)
	if err != nil {
		return err
	}
	t.must(seq > stored, "sequence %d after %d: messages were lost", seq, stored)
	t.saw("fenced %.1f s before the key was deleted, registered and drained in revision %d, served after activate",
		deleted.At.Sub(refused).Seconds(), registered.Revision)
	return s.resolved(ctx, t, healed, "HoldfastLeaseLost", n)
}

// quickRestart: recovery counts from the start of the broker to ready.
func (s *stage) quickRestart(ctx context.Context, t *trial, n *node) error {
	before, err := s.keys.ReadRegistration(ctx, s.etcd.Client(), n.id)
	if err != nil {
		return err
	}
	killed := time.Now()
	s.say("kill -9 of %s's broker", n.id)
	if err := n.nats.Kill(); err != nil {
		return err
	}
	if err := n.sidecar.AwaitNotReady(ctx, comeBack); err != nil {
		return err
	}
	unready := time.Since(killed)
	s.say("%s says not ready %d ms later; its registration stays until the TTL is over", n.id, unready.Milliseconds())
	pause(ctx, 2*time.Second-time.Since(killed))
	started := time.Now()
	if err := n.nats.Launch(); err != nil {
		return err
	}
	s.say("the broker is started again")
	if err := n.sidecar.AwaitReady(ctx, comeBack); err != nil {
		return err
	}
	t.recovery = time.Since(started)
	// Right now: ready is a promise that every topic is there.
	if err := n.publish(ctx); err != nil {
		t.must(false, "ready before its topics were served: %v", err)
	}
	after, err := s.keys.ReadRegistration(ctx, s.etcd.Client(), n.id)
	if err != nil {
		return err
	}
	state, err := s.keys.ReadState(ctx, s.etcd.Client(), n.id)
	if err != nil {
		return err
	}
	t.must(after.CreateRevision == before.CreateRevision, "another registration: create revision %d, then %d", before.CreateRevision, after.CreateRevision)
	t.must(state.Mode == "active", "mode %s, reason %s", state.Mode, state.Reason)
	s.say("ready again, mode %s, reason %s; every topic takes messages", state.Mode, state.Reason)
	t.saw("create revision still %d, %s (%s), %d topics served when ready; not ready %d ms after the kill",
		after.CreateRevision, state.Mode, state.Reason, len(n.topics), unready.Milliseconds())
	return nil
}

// staleRestart: recovery counts from the start of the broker to its registration.
func (s *stage) staleRestart(ctx context.Context, t *trial, n *node) error {
	from, err := s.revision(ctx)
	if err != nil {
		return err
	}
	s.say("kill -9 of %s's broker, for longer than the TTL; the others keep running", n.id)
	killed := time.Now()
	if err := n.nats.Kill(); err != nil {
		return err
	}
	if err := n.sidecar.AwaitNotReady(ctx, comeBack); err != nil {
		return err
	}
	unready := time.Now()
	deleted, err := s.history.Await(ctx, expiryBound, "the expiry of "+n.id, from, harness.DeletedKey(s.keys.Registration(n.id)))
	if err != nil {
		return err
	}
	s.say("the sidecar does not vouch for a dead broker: the registration ran out %.1f s after the kill", deleted.At.Sub(killed).Seconds())
	started := time.Now()
	if err := n.nats.Launch(); err != nil {
		return err
	}
	s.say("the broker is started again")
	registered, err := s.awaitRegistration(ctx, n, deleted.Revision)
	if err != nil {
		return err
	}
	t.recovery = registered.At.Sub(started)
	s.isDrained(t, n, registered, "stale_restart")
	s.say("registered, and drained: the others may have taken over, so an operator must say when it serves")
	pause(ctx, time.Second) // long enough for a wrong "ready" to show
	if err := s.activated(ctx, t, n, unready); err != nil {
		return err
	}
	t.holds(n.publish(ctx))
	t.saw("drained (stale_restart) in the revision of the registration, never ready until activate, then served")
	return nil
}

// frozenSidecar: recovery counts from the thaw and the broker's start to the
// registration.
func (s *stage) frozenSidecar(ctx context.Context, t *trial, n *node) error {
	from, err := s.revision(ctx)
	if err != nil {
		return err
	}
	s.say("freezing the sidecar of %s (SIGSTOP): nobody renews, nobody watches the clock", n.id)
	frozen := time.Now()
	if err := n.sidecar.Freeze(); err != nil {
		return err
	}
	select {
	case <-n.nats.Exited():
	case <-time.After(expiryBound):
		return errors.New("the broker was not stopped")
	case <-ctx.Done():
		return ctx.Err()
	}
	ended := time.Now()
	s.say("its guard stopped the broker %.1f s later", ended.Sub(frozen).Seconds())
	deleted, err := s.history.Await(ctx, expiryBound, "the expiry of "+n.id, from, harness.DeletedKey(s.keys.Registration(n.id)))
	if err != nil {
		return err
	}
	t.must(ended.Before(deleted.At), "the broker ended %v after the key was deleted", ended.Sub(deleted.At))
	s.say("etcd deleted the registration %.1f s after that", deleted.At.Sub(ended).Seconds())
	back := time.Now()
	if err := errors.Join(n.sidecar.Thaw(), n.nats.Launch()); err != nil {
		return err
	}
	registered, err := s.awaitRegistration(ctx, n, deleted.Revision)
	if err != nil {
		return err
	}
	t.recovery = registered.At.Sub(back)
	reason := "stale_restart"
	if errors.Is(s.drainedFor(n, registered, reason), errReason) {
		reason = "registration_expired" // the thawed sidecar was faster than its broker
	}
	s.isDrained(t, n, registered, reason)
	pause(ctx, time.Second) // long enough for a wrong "ready" to show
	if err := s.activated(ctx, t, n, registered.At); err != nil {
		return err
	}
	t.holds(n.publish(ctx))
	t.saw("stopped %.1f s before the key was deleted, drained (%s) when it came back, served after activate",
		deleted.At.Sub(ended).Seconds(), reason)
	return nil
}

// fullRestart: recovery counts from the start of a broker and its sidecar to
// ready; the slowest of the three.
func (s *stage) fullRestart(ctx context.Context, t *trial, began time.Time) error {
	from, err := s.revision(ctx)
	if err != nil {
		return err
	}
	for _, n := range s.nodes[:2] { // n3's sidecar was frozen
		t.holds(n.probes.AlwaysLive(began, time.Now()))
	}
	s.say("kill -9 of all brokers and all sidecars")
	for _, n := range s.nodes {
		if err := errors.Join(n.sidecar.Kill(), n.nats.Kill()); err != nil {
			return err
		}
	}
	for _, n := range s.nodes {
		if _, err := s.history.Await(ctx, expiryBound, "the expiry of "+n.id, from, harness.DeletedKey(s.keys.Registration(n.id))); err != nil {
			return err
		}
	}
	s.say("all registrations ran out: nobody is alive")
	order := []*node{s.nodes[2], s.nodes[0], s.nodes[1]}
	for i, n := range order {
		launch := []func() error{n.sidecar.Start, n.nats.Launch}
		what := "sidecar first"
		if i == 1 {
			launch[0], launch[1] = launch[1], launch[0]
			what = "broker first"
		}
		if i == 2 {
			s.say("%s is late by more than a TTL", n.id)
			pause(ctx, ttl+time.Second)
		}
		s.say("starting %s, %s", n.id, what)
		started := time.Now()
		if err := errors.Join(launch[0](), launch[1]()); err != nil {
			return err
		}
		if err := n.sidecar.AwaitReady(ctx, comeBack); err != nil {
			t.holds(err)
			continue
		}
		t.recovery = max(t.recovery, time.Since(started))
	}
	var modes []string
	for _, n := range s.nodes {
		state, err := s.keys.ReadState(ctx, s.etcd.Client(), n.id)
		if err != nil {
			return err
		}
		t.must(state.Mode == "active" && state.Reason == "full_cluster_restart", "%s is %s, reason %s", n.id, state.Mode, state.Reason)
		t.holds(n.publish(ctx))
		modes = append(modes, fmt.Sprintf("%s %s (%s)", n.id, state.Mode, state.Reason))
	}
	bounded, cancel := context.WithTimeout(ctx, alertBound)
	defer cancel()
	if _, err := s.prom.AwaitAlert(bounded, "HoldfastDown", prom.Inactive); err != nil {
		return err
	}
	if err := s.toldAll(bounded); err != nil {
		return err
	}
	s.say("%s; all topics take messages", strings.Join(modes, ", "))
	t.saw("%s", strings.Join(modes, ", "))
	t.saw("all serving")
	return nil
}

// awaitRefusal waits until every topic of the node is refused to publishers.
func (n *node) awaitRefusal(ctx context.Context) error {
	c, err := n.nats.Connect()
	if err != nil {
		return err
	}
	defer c.Close()
	for _, topic := range n.topics {
		err := harness.Await(ctx, expiryBound, topic+" to be refused", func(ctx context.Context) (bool, string) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := harness.Publish(ctx, c, topic, []byte("demo"))
			return errors.Is(err, nats.ErrNoResponders), fmt.Sprint(err)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) awaitRegistration(ctx context.Context, n *node, after int64) (harness.Change, error) {
	return s.history.Await(ctx, comeBack, "the registration of "+n.id, after+1, harness.PutKey(s.keys.Registration(n.id)))
}

// errReason says that a node is drained for another reason.
var errReason = errors.New("drained for another reason")

// isDrained checks that one revision holds the registration and the drained state.
func (s *stage) isDrained(t *trial, n *node, registered harness.Change, reason string) {
	t.holds(s.drainedFor(n, registered, reason))
}

func (s *stage) drainedFor(n *node, registered harness.Change, reason string) error {
	for _, c := range s.history.At(registered.Revision) {
		switch {
		case c.Key != s.keys.State(n.id):
		case strings.Contains(c.Value, "fleet_expired"): // the machine stood still, and all leases ended
			return fmt.Errorf("registered with state %s, want drained", c.Value)
		case !strings.Contains(c.Value, `"drained"`):
			return fmt.Errorf(harness.Violation+"registered with state %s, want drained", c.Value)
		case !strings.Contains(c.Value, `"`+reason+`"`):
			return fmt.Errorf("%w: state %s, want %s", errReason, c.Value, reason)
		default:
			return nil
		}
	}
	return fmt.Errorf(harness.Violation+"registered in revision %d without a state in the same revision", registered.Revision)
}

// activated checks that the node was not ready since unready, activates it and
// waits until it is.
func (s *stage) activated(ctx context.Context, t *trial, n *node, unready time.Time) error {
	t.holds(n.probes.NeverReady(unready, time.Now()))
	asked := time.Now()
	if err := n.sidecar.Activate(ctx, "demo"); err != nil {
		return err
	}
	if err := n.sidecar.AwaitReady(ctx, comeBack); err != nil {
		return err
	}
	s.say("\"holdfast activate\" made %s ready in %d ms", n.id, time.Since(asked).Milliseconds())
	return nil
}

func (s *stage) revision(ctx context.Context) (int64, error) {
	res, err := s.etcd.Client().Get(ctx, s.keys.Era())
	if err != nil {
		return 0, fmt.Errorf("read etcd's revision: %w", err)
	}
	return res.Header.Revision, nil
}

func seconds(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }
