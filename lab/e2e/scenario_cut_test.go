package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

// longTTL is the default TTL, with which the slow scenarios are played.
const longTTL = 32 * time.Second

// renews returns right after a confirmed renewal.
func (n *node) renews() {
	n.t.Helper()
	began := time.Now()
	n.await("a renewal", func(st harness.Status) bool {
		age := time.Duration((st.Lease.TTLSeconds - st.Lease.RemainingSeconds) * float64(time.Second))
		return age < 200*time.Millisecond && time.Now().Add(-age).After(began)
	})
}

// awaitPhase returns when the last confirmed renewal was sent that long ago.
func (n *node) awaitPhase(phase time.Duration) {
	n.t.Helper()
	n.renews() // just now, so that the phase does not pass twice
	n.await("a phase of the renewal interval", func(st harness.Status) bool {
		return st.Lease.RemainingSeconds <= (n.ttl - phase).Seconds()
	})
}

// awaitRenewal returns when renewals were first seen to be confirmed again: one
// that was sent after the cut, which may have been on its way at the heal.
func (n *node) awaitRenewal(cut time.Time) (seen time.Time) {
	n.t.Helper()
	n.await("a renewal after the heal", func(st harness.Status) bool {
		seen = time.Now()
		// The deadline counts from the send, so it tells when that was.
		age := time.Duration((st.Lease.TTLSeconds - st.Lease.RemainingSeconds) * float64(time.Second))
		return seen.Add(-age).After(cut) && st.Lease.FailureStreak == 0 && st.Lease.FailingSeconds == 0
	})
	return seen
}

// unchanged checks that the registration is the one from before, to the revision,
// and that since then nothing was written of the node and no topic moved.
func (n *node) unchanged(before harness.RegistrationKey, after int64) {
	n.t.Helper()
	if now := n.registration(); now != before {
		n.t.Errorf("the registration of %s changed: %+v, then %+v", n.id, before, now)
	}
	name := n.name()
	n.never(n.id+" was written", after, func(c harness.Change) bool {
		return isOfTheCluster(c) && strings.Contains(c.Key+"/", "/"+name+"/") && !n.isCutNote(c)
	})
}

// isCutNote matches the note of a broker that was cut off for longer than it may serve, and
// kept its registration.
func (*stage) isCutNote(c harness.Change) bool {
	return !c.Deleted && strings.HasPrefix(c.Key, "/cluster/members/") && strings.Contains(c.Value, `"cut":{"from":`)
}

// isOfTheCluster matches what says who serves what. Brokers elect and report as they like.
func isOfTheCluster(c harness.Change) bool {
	return strings.HasPrefix(c.Key, "/cluster/") && c.Key != "/cluster/leader" && !strings.HasPrefix(c.Key, "/cluster/load/")
}

func TestScenario1_GlitchShorterThanTTL(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	eachKind(t, func(t *testing.T, k kind) {
		s := newStageOf(t, k)
		phases := 6
		if k.name != natsKind.name {
			phases = 2 // renewals know nothing of the broker: the first and the last will do
		}
		interval := longTTL / 8
		var nodes []*node
		for i := range phases + 1 {
			nodes = append(nodes, s.prepare(fmt.Sprintf("n%d", i+1), nodeOptions{TTL: longTTL, Cuttable: true}))
			nodes[i].start()
		}
		for _, n := range nodes {
			n.awaitReady()
			n.equip()
		}
		from := s.revision()
		var wg sync.WaitGroup
		for i, n := range nodes[:phases] {
			// Up to just before the next renewal.
			phase := time.Duration(i) * (interval - 200*time.Millisecond) / time.Duration(phases-1)
			wg.Go(func() { n.glitch(15*time.Second, phase, true) })
		}
		// Longer than the fence point: the registration survives all the same, if the
		// broker does.
		if k.stops == "" {
			wg.Go(func() { nodes[phases].glitch(25*time.Second, interval-200*time.Millisecond, false) })
		}
		wg.Wait()
		s.never("something was written", from, func(c harness.Change) bool { return isOfTheCluster(c) && !s.isCutNote(c) })
	})
}

// glitch cuts the node off for that long, that long after its last renewal. It is
// called from several goroutines at once, so it ends no test by itself.
func (n *node) glitch(length, phase time.Duration, attached bool) {
	name := fmt.Sprintf("%s, %v at phase %v", n.id, length, phase.Round(time.Millisecond))
	n.t.Run(name, func(t *testing.T) {
		here := *n.stage
		here.t, here.ctx = t, t.Context()
		n := *n
		n.stage = &here
		n.cutAndCompare(length, phase, attached)
	})
}

func (n *node) cutAndCompare(length, phase time.Duration, attached bool) {
	n.t.Helper()
	before, from := n.registration(), n.revision()
	publishers := n.publishAlways()
	publishers.await(served, time.Now())
	n.awaitPhase(phase)
	cut, healed := n.cutFor(length)
	took := n.awaitRenewal(cut).Sub(healed)
	n.t.Logf("renewed %v after the heal", took.Round(time.Millisecond))
	within(n.t, "renewed after the heal", healed, took, time.Second)
	// etcd's own word on the lease.
	left, err := n.etcd.Client().TimeToLive(n.ctx, before.Lease)
	n.must(err)
	if left.TTL < int64((n.ttl-n.ttl/4)/time.Second) {
		n.t.Errorf("etcd gives the lease %d s after the renewal, want about %v", left.TTL, n.ttl)
	}
	if attached {
		n.neverDetached(cut)
		n.never(n.id+" noted a cut", from, func(c harness.Change) bool { return n.isCutNote(c) && c.Key == n.keys.Member(n.name()) })
		n.alwaysReady(cut)
		publishers.only(served, cut, time.Now())
	} else {
		n.awaitReady()
		publishers.await(served, healed)
	}
	n.alwaysLive(cut)
	n.unchanged(before, from)
	n.isInMode("active", "boot")
}

func TestScenario2_UnavailableLongerThanTTL(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		s := newStageOf(t, k)
		peer := s.peer("n2")
		n := s.add("n1", nodeOptions{Cuttable: true})
		from := s.revision()
		publishers := n.publishAlways()
		publishers.await(served, time.Now())
		cut := time.Now()
		s.must(n.link.Cut())

		deleted := n.awaitExpiry(from)
		unready, ok := n.probes.FirstNotReady(cut)
		if !ok {
			t.Fatalf(harness.Violation+"key deleted at %v, but not fenced:\n%s", deleted, n.probes)
		}
		inOrder(t, "ready until", unready, "the key was deleted", deleted.At)
		fenced := refused
		if k.stops != "" {
			t.Log(k.stops)
			fenced = away
		}
		stopped := publishers.await(fenced, cut)
		inOrder(t, "publishers were served until", stopped, "the key was deleted", deleted.At)
		t.Logf("not ready %v, not served %v before the key was deleted", deleted.At.Sub(unready), deleted.At.Sub(stopped))

		healed := time.Now()
		s.must(n.link.Heal())
		reason := "registration_expired"
		if k.stops != "" {
			s.must(n.broker.Launch())
			reason = "stale_restart"
		}
		registered := n.awaitRegistered(deleted.Revision)
		t.Logf("registered %v after the heal", registered.At.Sub(healed))
		n.withState(registered, "drained", reason)
		n.await("drained and attached", func(st harness.Status) bool {
			return st.Mode == "drained" && st.Reason == reason && st.Attachment == "attached"
		})
		publishers.unserved(stopped, healed)
		switch {
		case k.keeps != "":
			t.Log(k.keeps)
		case k.boots != "":
			t.Log(k.boots)
			stopped = publishers.await(refused, time.Now())
			fallthrough
		default:
			publishers.unserved(stopped, publishers.await(refused, time.Now()))
		}
		asked := time.Now()
		n.neverReady(unready)
		n.activate()
		n.isGivenTopics(publishers, asked)
		n.alwaysLive(cut)
		n.isInMode("active", "e2e")

		peer.alwaysReady(cut)
		n.onlyDrained(from)
		registration, isState := peer.registrationKey(), peer.isState()
		s.never("the era moved, or the peer was touched", from, func(c harness.Change) bool {
			return c.Key == s.keys.Era() || c.Key == registration || isState(c)
		})
	})
}

// The document's broker took four failures to notice, which with a TTL of 32 s is
// later than the expiry; in between it came back as if nothing had been.
func TestRecoveryBetweenTTLAndFourthFailure(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	t.Parallel()
	s := newStage(t)
	peer := s.add("n3", nodeOptions{TTL: longTTL})
	for _, id := range []string{"n4", "n5"} { // the two that are cut off are fewer than half of the others
		s.add(id, nodeOptions{TTL: longTTL})
	}
	for id, length := range map[string]time.Duration{"n1": 33 * time.Second, "n2": 47 * time.Second} {
		n := s.add(id, nodeOptions{TTL: longTTL, Cuttable: true})
		t.Run(fmt.Sprintf("recovery at %v", length), func(t *testing.T) {
			t.Parallel()
			here := *s
			here.t, here.ctx = t, t.Context()
			n.stage = &here
			from := n.revision()
			// So that etcd, which looks for expired leases every half second, has
			// deleted the key after 33 s.
			n.awaitPhase(2 * time.Second)
			cut, _ := n.cutFor(length)
			registered := n.awaitRegistered(from)
			n.withState(registered, "drained", "registration_expired")
			deleted, found := n.history.Find(from+1, harness.DeletedKey(n.keys.Registration(n.id)))
			if !found || deleted.Revision >= registered.Revision {
				t.Fatalf("registered in revision %d without an expiry before it", registered.Revision)
			}
			n.await("drained and attached", func(st harness.Status) bool {
				return st.Mode == "drained" && st.Attachment == "attached"
			})
			unready, ok := n.probes.FirstNotReady(cut)
			if !ok {
				t.Fatalf(harness.Violation+"not fenced before %v:\n%s", deleted, n.probes)
			}
			inOrder(t, "ready until", unready, "the key was deleted", deleted.At)
			n.neverReady(unready)
			n.alwaysLive(cut)
			n.isInMode("drained", "registration_expired")
		})
	}
	began := time.Now()
	t.Cleanup(func() {
		if err := peer.probes.AlwaysReady(began, time.Now()); err != nil {
			t.Error(err)
		}
	})
}

func TestStateDeletedByLeader(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	n := s.add("n1", nodeOptions{Cuttable: true})
	s.add("n2", nodeOptions{})

	t.Log("while it runs and is active")
	ready := time.Now()
	again := s.deleteState(n)
	s.must(again())
	n.isInMode("active", "boot")
	n.alwaysReady(ready)

	t.Log("while it is cut off, after the expiry")
	from := s.revision()
	s.must(n.link.Cut())
	deleted := n.awaitExpiry(from)
	_, err := s.etcd.Client().Delete(s.ctx, s.keys.State(n.id))
	s.must(err)
	s.must(n.link.Heal())
	n.withState(n.awaitRegistered(deleted.Revision), "drained", "registration_expired")
	n.await("drained and attached", func(st harness.Status) bool {
		return st.Mode == "drained" && st.Attachment == "attached"
	})

	t.Log("while it runs and is drained")
	s.must(s.deleteState(n)())
	n.isInMode("drained", "registration_expired")
	if code, _, err := n.sidecar.Probe(s.ctx, "/ready"); err != nil || code != http.StatusServiceUnavailable {
		t.Errorf("/ready of a drained broker: %d, %v", code, err)
	}
	s.never("active after the expiry", deleted.Revision, func(c harness.Change) bool {
		return c.Key == s.keys.State(n.id) && isMode(c, "active")
	})
}

// deleteState deletes the state key; the result waits until it is there again.
func (s *stage) deleteState(n *node) func() error {
	s.t.Helper()
	res, err := s.etcd.Client().Delete(s.ctx, s.keys.State(n.id), clientv3.WithPrevKV())
	s.must(err)
	if res.Deleted != 1 {
		s.t.Fatalf("%s had no state", n.id)
	}
	return func() error {
		_, err := s.history.Await(s.ctx, bound, "the state again", res.Header.Revision+1, harness.PutKey(s.keys.State(n.id)))
		return err
	}
}
