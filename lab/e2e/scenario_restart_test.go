package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"holdfast/lab/harness"
)

func TestScenario3a_RestartWithinTTL(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		s := newQuietStageOf(t, k)
		var topics []string
		for i := range 20 {
			topics = append(topics, fmt.Sprintf("/default/t%02d", i))
		}
		peer := s.peer("n2")
		n := s.add("n1", nodeOptions{TTL: 15 * time.Second, Topics: topics})
		before, from := n.registration(), s.revision()
		killed := time.Now()
		s.must(n.broker.Kill())
		unready := n.awaitNotReady()
		n.assign("/default/late") // only the sidecar can bring it: it is not on the broker's disk
		select {
		case <-time.After(time.Until(killed.Add(5 * time.Second))): // as the scenario has it
		case <-s.ctx.Done():
		}
		launched := time.Now()
		n.neverReady(unready)
		publishers := n.publishAlways()
		s.must(n.broker.Launch())
		n.awaitReady()
		n.publishes() // ready is a promise that every topic is there

		after := n.registration()
		if k.renames == "" && (after.CreateRevision != before.CreateRevision || after.Lease != before.Lease || after.Value != before.Value) {
			t.Errorf("registration before %+v, after %+v", before, after)
		}
		n.isInMode("active", "fast_restart")
		s.never("the registration was deleted", from, harness.DeletedKey(n.registrationKey()))
		isState := n.isState()
		s.never("some mode but active", from, func(c harness.Change) bool {
			return isState(c) && !isMode(c, "active") && !n.byItself(c)
		})
		s.never("the era moved", from, harness.PutKey(s.keys.Era()))
		n.alwaysLive(killed)
		peer.alwaysReady(killed)

		// The journal has the order, and publishers had their topics from ready on.
		reconciled := n.awaitEvent(launched, "topics", "reconciled")
		if ready := n.awaitEvent(launched, "readiness", "ready"); ready.ID < reconciled.ID {
			t.Errorf("event %+v came before %+v", ready, reconciled)
		}
		publishers.only(served, n.firstReady(launched), time.Now())
	})
}

func TestScenario3b_RestartAfterTTL(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		for name, sidecarToo := range map[string]bool{"sidecar stays up": false, "sidecar down as well": true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newQuietStageOf(t, k)
				peer := s.peer("n2")
				n := s.add("n1", nodeOptions{})
				from, killed := s.revision(), time.Now()
				if sidecarToo {
					n.kill()
				} else {
					s.must(n.broker.Kill())
				}
				unready := n.awaitNotReady()
				deleted := n.awaitExpiry(from)
				if sidecarToo {
					n.start()
				} else {
					s.must(n.broker.Launch())
				}
				registered := n.awaitRegistered(deleted.Revision)
				n.withState(registered, "drained", "stale_restart")
				n.await("drained, attached, nothing served", func(st harness.Status) bool {
					return st.Mode == "drained" && st.Reason == "stale_restart" && st.Attachment == "attached" && (st.Topics.Served == 0 || k.keeps != "")
				})
				publishers := n.publishAlways()
				if k.keeps == "" {
					publishers.await(refused, time.Now())
				}
				n.neverReady(unready)
				asked := time.Now()
				n.activate()
				n.isGivenTopics(publishers, asked)
				n.isInMode("active", "e2e")
				if !sidecarToo {
					n.alwaysLive(killed)
				}
				peer.alwaysReady(killed)
				s.never("the era moved", from, harness.PutKey(s.keys.Era()))
				n.onlyDrained(from)
			})
		}
	})
}

func TestFirstBoot(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		s := newQuietStageOf(t, k)
		from := s.revision()
		n := s.prepare("n1", nodeOptions{})
		s.must(n.sidecar.Start())
		n.probes = s.Record(n.sidecar)
		// The sidecar starts first, and waits.
		n.await("the sidecar to run without a broker", func(st harness.Status) bool {
			return !st.Ready.OK && st.Boot.Kind == "unknown" && st.Mode == ""
		})
		s.never("registered without a broker", from, harness.PutKey(s.keys.Registration(n.id)))
		s.must(n.broker.Launch())
		registered := n.awaitRegistered(from)
		n.withState(registered, "active", "boot")
		with := []string{s.keys.Era(), s.keys.Member(n.id)}
		if k.uncounted != "" {
			with = with[1:]
		}
		for _, key := range with {
			if !slices.ContainsFunc(s.history.At(registered.Revision), harness.PutKey(key)) {
				t.Errorf("%s was not written with the registration: %v", key, s.history.At(registered.Revision))
			}
		}
		n.awaitReady()
		n.equip()
		n.publishes()
		st := n.await("a first boot", func(st harness.Status) bool { return st.Boot.Kind == "first_boot" })
		if st.Boot.Reason != "boot" || st.Epoch != n.registration().CreateRevision {
			t.Errorf("boot %+v, epoch %d; want reason boot, epoch %d", st.Boot, st.Epoch, n.registration().CreateRevision)
		}
		how := "registered"
		if k.uncounted != "" {
			how = "held"
		}
		began := n.awaitEvent(time.Time{}, "registration", how)
		if ready := n.awaitEvent(time.Time{}, "readiness", "ready"); ready.ID < began.ID {
			t.Errorf("ready (event %d) before registered (event %d)", ready.ID, began.ID)
		}

		t.Log("a second one finds a peer")
		second := s.prepare("n2", nodeOptions{})
		from = s.revision()
		second.start()
		second.withState(second.awaitRegistered(from), "active", "boot")
		second.awaitReady()
		s.never("the era moved", from, harness.PutKey(s.keys.Era()))

		t.Log("a third one has data from an earlier life, of which nobody else knows: nobody declared it dead")
		third := s.prepare("n3", nodeOptions{})
		s.must(third.broker.Start(s.ctx))
		s.must(third.broker.Litter(s.ctx))
		s.must(third.broker.Kill())
		from = s.revision()
		third.start()
		third.withState(third.awaitRegistered(from), "active", "first_registration")
		third.awaitReady()
	})
}

func TestJoin(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		s := newQuietStageOf(t, k)
		s.add("n2", nodeOptions{})
		from := s.revision()
		n := s.prepare("n1", nodeOptions{Flags: []string{"--join"}})
		n.start()
		n.withState(n.awaitRegistered(from), "drained", "join")
		n.await("drained and attached", func(st harness.Status) bool {
			return st.Mode == "drained" && st.Reason == "join" && st.Attachment == "attached"
		})
		if at, ok := n.probes.FirstReady(time.Time{}); ok {
			t.Errorf("ready at %v", at)
		}
		n.activate()
		n.equip()
		n.publishes()
		from = s.revision()

		t.Log("the flag is still there at the next start, and drains it no more")
		n.kill()
		n.awaitNotReady()
		n.start()
		n.awaitReady()
		n.publishes()
		s.never("drained again", from, func(c harness.Change) bool { return isMode(c, "drained") })
	})
}

func TestOperatorDrainSurvivesRestart(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		s := newQuietStageOf(t, k)
		s.peer("n2")
		n := s.add("n1", nodeOptions{TTL: 10 * time.Second})
		before, from := n.registration(), s.revision()
		publishers := n.publishAlways()
		publishers.await(served, time.Now())
		n.verb("drain", "--reason", "new disks")
		unready := n.awaitNotReady()
		left, stopped := len(n.topics), unready
		switch {
		case k.keeps != "":
			t.Log(k.keeps)
			n.await("its topics, still", func(st harness.Status) bool { return st.Mode == "drained" && st.Topics.Assigned == left })
		case k.moves != "":
			t.Log(k.moves)
			left = 0
			fallthrough
		default:
			stopped = publishers.await(refused, unready)
		}
		stillDrained := func(what string) {
			t.Helper()
			n.await(what, func(st harness.Status) bool {
				return st.Mode == "drained" && st.Attachment == "attached" && st.Broker.Up == "up" && (st.Topics.Assigned == left || k.keeps != "") &&
					st.Epoch == n.registration().CreateRevision
			})
			n.isOperatorDrain(from)
		}
		t.Log("restart of the broker")
		s.must(n.broker.Kill())
		n.await("the broker to be down", func(st harness.Status) bool { return st.Broker.Up == "down" })
		s.must(n.broker.Start(s.ctx))
		stillDrained("drained after a restart of the broker")
		refusing := publishers.await(refused, time.Now())
		if k.keeps != "" { // the leader gives to others what the process that has ended had
			stopped = refusing
		}

		t.Log("restart of the sidecar")
		s.must(n.sidecar.Kill())
		s.must(n.sidecar.Start())
		stillDrained("drained after a restart of the sidecar")

		t.Log("restart of both")
		n.awaitRecognized()
		n.kill()
		n.start()
		stillDrained("drained after a restart of both")
		publishers.await(refused, time.Now())

		now := time.Now()
		s.should(n.probes.NeverReady(unready, now))
		publishers.unserved(stopped, now)
		if after := n.registration(); k.renames == "" && after.CreateRevision != before.CreateRevision {
			t.Errorf("registration before %+v, after %+v: the restart was not a fast one", before, after)
		}
		n.activate()
		n.isGivenTopics(publishers, now)
	})
}

// isOperatorDrain checks that the mode in etcd is the operator's, as it was written.
func (n *node) isOperatorDrain(after int64) {
	n.t.Helper()
	st, err := n.keys.ReadState(n.ctx, n.etcd.Client(), n.name())
	n.must(err)
	if st.Mode != "drained" || st.By == "holdfast" || st.By == "" {
		n.t.Errorf("state %+v, want an operator's drained", st)
	}
	isState := n.isState()
	n.never("the operator's word was overwritten", after, func(c harness.Change) bool {
		return isState(c) && !isMode(c, "drained") && !isMode(c, "draining") && !n.byItself(c)
	})
}
