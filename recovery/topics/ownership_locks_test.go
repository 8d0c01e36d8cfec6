package topics

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/recovery"
)

func TestATopicThatCannotBeUnloadedKeepsItsLock(t *testing.T) {
	for name, give := range map[string]func(o *owners){
		"unassigned": func(o *owners) { o.assign(false, nil, []string{"/n/a"}) },
		"yielded":    func(o *owners) { o.own.Yield([]string{"/n/a"}) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newFakeBroker()
			inOwners(t, testOwnership, b, func(o *owners) {
				o.begin(time.Second, "/n/a")
				b.set(func() { b.quiesceErr["/n/a"] = errRefused })
				give(o)
				o.after(10 * time.Minute)
				o.wantOwned("/n/a")
				if o.own.Yielded("/n/a") || value(o.l, &o.l.followed) != 0 {
					t.Error("yielded, and still served; or its lock is waited for")
				}
				b.set(func() { delete(b.quiesceErr, "/n/a") })
				o.after(time.Minute)
				o.wantOwned()
			})
		})
	}
}

func TestADrainingBrokerTakesNothingNewAndADrainedOneGivesItsLocksUp(t *testing.T) {
	inOwners(t, testOwnership, newFakeBroker(), func(o *owners) {
		o.begin(time.Second, names("t", 5)...)
		o.stand(firstStanding, recovery.Draining, true)
		o.assign(false, []string{"/n/later"}, nil)
		o.after(time.Minute)
		o.l.expire(firstStanding.LeaseID)
		o.stand(nextStanding, recovery.Draining, true) // what it serves it serves on, under the new lease
		o.after(time.Minute)
		o.wantServed(names("t", 5)...)
		o.wantOwned(names("t", 5)...)
		o.stand(nextStanding, recovery.Drained, true)
		o.after(5 * time.Second)
		o.wantServed()
		o.wantOwned()
		o.l.put("/n/t-00001", "me", nextStanding) // a call that nobody heard of any more
		o.after(testOwnership.AuditInterval)
		o.wantOwned()
		o.l.put("/n/t-00000", "other", Standing{9, 9}) // which is no conflict: it was given up
		o.stand(nextStanding, recovery.Active, true)
		o.after(5 * time.Second)
		o.wantServed(append(names("t", 5)[1:], "/n/later")...)
		o.wantOwned(append(names("t", 5)[1:], "/n/later")...)
		o.wantMetric("holdfast_ownership_conflicts_total 0")
	})
}

func TestReacquireOnLockDeletion(t *testing.T) {
	for _, c := range []struct {
		name  string
		watch bool
		held  time.Duration // by the other, since we first asked
		most  time.Duration // until it is ours
	}{
		{"within the window, watched", true, 300 * time.Millisecond, 5 * time.Millisecond},
		{"after the window, watched", true, 10 * time.Second, 5 * time.Millisecond},
		{"within the window, not watched", false, 300 * time.Millisecond, 205 * time.Millisecond},
		{"after the window, not watched", false, 10 * time.Second, 31 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testOwnership
			s.Watch = c.watch
			inOwners(t, s, newFakeBroker(), func(o *owners) {
				o.l.put("/n/theirs", "other", Standing{9, 9})
				o.begin(c.held, "/n/theirs", "/n/free")
				o.wantServed("/n/free")
				o.l.remove("/n/theirs")
				start := time.Now()
				for o.l.owner("/n/theirs") != "me" && time.Since(start) < time.Minute {
					o.after(time.Millisecond)
				}
				if took := time.Since(start); took > c.most {
					t.Errorf("ours after %v, want at most %v", took, c.most)
				}
				o.after(100 * time.Millisecond)
				o.wantServed("/n/free", "/n/theirs")
			})
		})
	}
}

func TestLocksAreWatchedOnlyWhileOneIsWaitedFor(t *testing.T) {
	inOwners(t, testOwnership, newFakeBroker(), func(o *owners) {
		following := func() int { return value(o.l, &o.l.following) }
		o.begin(time.Minute, "/n/a")
		if n := following(); n != 0 || value(o.l, &o.l.followed) != 0 || value(o.l, &o.l.calls) != 3 {
			t.Errorf("%d watches while nothing is waited for, %d calls instead of one and two audits", n, o.l.calls)
		}
		o.wantLog("longer than the retry window", 0)
		o.l.put("/n/theirs", "other", Standing{9, 9})
		o.assign(false, []string{"/n/theirs"}, nil)
		o.after(time.Second)
		if n := following(); n != 1 {
			t.Errorf("%d watches while one lock is waited for, want 1", n)
		}
		o.assign(false, nil, []string{"/n/theirs"})
		o.after(time.Second)
		if n := following(); n != 0 {
			t.Errorf("%d watches after the topic went elsewhere", n)
		}
		o.assign(false, []string{"/n/theirs"}, nil)
		o.after(time.Second)
		o.stand(firstStanding, recovery.Active, false)
		o.after(time.Second)
		if n := following(); n != 0 {
			t.Errorf("%d watches while detached", n)
		}
		o.wantLog("are not watched", 0)
	})
}

func TestReacquireWindowExhausted(t *testing.T) {
	inOwners(t, testOwnership, newFakeBroker(), func(o *owners) {
		for _, topic := range names("theirs", 3) {
			o.l.put(topic, "other", Standing{9, 9})
		}
		o.begin(1900*time.Millisecond, append(names("theirs", 3), "/n/free")...)
		o.want("4 assigned, 1 served, 3 missing") // within the window readiness waits
		o.after(300 * time.Millisecond)
		o.want("4 assigned, 1 served, 3 missing, 3 elsewhere, complete")
		if s := o.state("/n/theirs-00000"); s.State != TopicElsewhere || !strings.Contains(s.Error, "other") {
			t.Errorf("told as %+v, want held_elsewhere with the owner", s)
		}
		o.wantMetric("holdfast_acquire_retry_attempts_total 30")
		o.wantMetric("holdfast_acquire_retry_window_exhausted_total 3")
		o.wantMetric("holdfast_ownership_conflicts_total 0")
		o.wantMetric(`holdfast_topics{state="held_elsewhere"} 3`)
		o.after(5 * time.Minute)
		o.wantMetric("holdfast_acquire_retry_attempts_total 60") // every 30 s
		o.wantMetric("holdfast_acquire_retry_window_exhausted_total 3")
		o.wantLog("longer than the retry window", 1)
	})
}

func TestWithoutARetryWindowOnlyTheAuditAsksAgain(t *testing.T) {
	s := testOwnership
	s.RetryWindow, s.Watch = 0, false
	inOwners(t, s, newFakeBroker(), func(o *owners) {
		o.l.put("/n/theirs", "other", Standing{9, 9})
		o.begin(29*time.Second, "/n/theirs")
		o.want("1 assigned, 1 missing, 1 elsewhere, complete")
		o.wantMetric("holdfast_acquire_retry_attempts_total 0")
		o.after(2 * time.Second)
		o.wantMetric("holdfast_acquire_retry_attempts_total 1")
		o.wantMetric("holdfast_acquire_retry_window_exhausted_total 0")
	})
}

func TestInFlightAcquireDropsAfterDetach(t *testing.T) {
	for _, c := range []struct {
		name string
		want []string
	}{{"still wanted: verified, not assumed", []string{"/n/a"}}, {"not wanted any more: released", nil}} {
		t.Run(c.name, func(t *testing.T) {
			b := newFakeBroker()
			inOwners(t, testOwnership, b, func(o *owners) {
				o.l.set(func() { o.l.deaf = 2 * time.Second })
				o.begin(time.Second, "/n/a")
				o.stand(firstStanding, recovery.Active, false)
				o.l.set(func() { o.l.deaf = 0 })
				calls := value(o.l, &o.l.calls)
				o.after(10 * time.Minute)
				o.wantOwned("/n/a") // the call was carried out
				if _, ours := o.Calm("/n/a"); ours || b.loads["/n/a"] != 0 || value(o.l, &o.l.calls) != calls {
					t.Errorf("while detached: believed %v, %d loads, %d calls", ours, b.loads["/n/a"], o.l.calls-calls)
				}
				o.assign(true, c.want, nil)
				o.stand(firstStanding, recovery.Active, true)
				o.after(5 * time.Second)
				o.wantOwned(c.want...)
				o.wantServed(c.want...)
			})
		})
	}
}

func TestReOwn(t *testing.T) {
	inOwners(t, testOwnership, newFakeBroker(), func(o *owners) {
		topics := names("t", 30)
		o.begin(time.Second, topics...)
		o.wantOwned(topics...)
		// The session is lost; the broker goes on serving until it is asked not to.
		o.stand(firstStanding, recovery.Active, false)
		o.l.remove(topics[:10]...)           // these went with the lease
		for _, topic := range topics[5:25] { // and another broker took some
			o.l.remove(topic)
			o.l.put(topic, "other", Standing{9, 9})
		}
		for _, topic := range topics[20:25] {
			o.l.put(topic, "me", firstStanding) // the old lease is not over yet
		}
		clear(o.l.deletes)
		o.stand(nextStanding, recovery.Active, true)
		o.after(3 * time.Second)
		mine := slices.Concat(topics[:5], topics[20:])
		o.wantOwned(mine...)
		o.wantServed(mine...) // 15 of 30 went at once: the guard is not asked
		for topic, k := range o.l.locks {
			if k.owner == "me" && k.standing != nextStanding {
				t.Errorf("%s stands under %+v", topic, k.standing)
			}
		}
		if len(o.l.deletes) != 0 {
			t.Errorf("deleted on the way: %v", sortedKeys(o.l.deletes))
		}
		o.wantMetric("holdfast_ownership_conflicts_total 15")
		o.wantLog("owned by another broker", 1)
		o.l.expire(firstStanding.LeaseID)
		o.after(time.Minute)
		o.wantOwned(mine...)
	})
}

func TestAForeignTopicIsUnloadedAtOnceAndTold(t *testing.T) {
	served := names("t", 20)
	b := newFakeBroker(served...)
	b.quiesceErr["/n/t-00007"] = errRefused
	inOwners(t, testOwnership, b, func(o *owners) {
		for _, topic := range served {
			o.l.put(topic, "other", Standing{9, 9})
		}
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, served[:15], nil) // the others are served here and not even assigned
		o.after(200 * time.Millisecond)
		o.wantServed("/n/t-00007")
		o.want("15 assigned, 1 served, 14 missing, 5 quarantined, 1 foreign, 1 failed, error")
		o.after(3 * time.Second)
		o.want("15 assigned, 1 served, 14 missing, 5 quarantined, 14 elsewhere, 1 foreign, 1 failed, error") // and no ready broker
		if s := o.state("/n/t-00019"); s.Error != "" {
			t.Errorf("nobody has it here, and it is told as %+v", s)
		}
		if s := o.state("/n/t-00007"); s.State != TopicForeign {
			t.Errorf("told as %+v", s)
		}
		b.set(func() { delete(b.quiesceErr, "/n/t-00007") })
		o.after(maxQuiesceBackoff + time.Second)
		o.wantServed()
		o.want("15 assigned, 15 missing, 5 quarantined, 15 elsewhere, complete")
		o.wantMetric("holdfast_ownership_conflicts_total 20")
		o.after(time.Minute)
		o.wantMetric("holdfast_acquire_retry_window_exhausted_total 15") // the others are not waited for
	})
}

func TestAStoreErrorIsNotAnAbsentLock(t *testing.T) {
	inOwners(t, testOwnership, newFakeBroker("/n/held", "/n/theirs"), func(o *owners) {
		o.l.put("/n/held", "me", firstStanding)
		o.l.put("/n/theirs", "other", Standing{9, 9})
		o.l.set(func() { o.l.err = errStoreAway })
		o.begin(time.Minute, "/n/held", "/n/theirs", "/n/new")
		o.wantServed("/n/held", "/n/theirs") // nothing is known to be another's, nothing is loaded
		if err, elsewhere := o.own.Trouble(); !strings.Contains(err, "no leader") || elsewhere != 0 {
			t.Errorf("%d elsewhere, error %s", elsewhere, err)
		}
		if value(o.l, &o.l.calls) < 12 || value(o.l, &o.l.calls) > 30 {
			t.Errorf("%d calls in a minute, want a backoff of up to 5 s", value(o.l, &o.l.calls))
		}
		o.wantLog("cannot be asked for", 1)
		o.l.set(func() { o.l.err = nil })
		o.after(7 * time.Second)
		o.wantServed("/n/held", "/n/new")
		o.wantLog("can be asked for again", 1)
		// What is known stays known through the next failure.
		o.l.set(func() { o.l.err = errStoreAway })
		o.after(5 * time.Minute)
		o.wantServed("/n/held", "/n/new")
		if _, elsewhere := o.own.Trouble(); elsewhere != 1 || o.state("/n/theirs").State != TopicElsewhere {
			t.Errorf("%d elsewhere; told as %+v", elsewhere, o.state("/n/theirs"))
		}
	})
}

func TestWhatWasAnsweredBeforeAnErrorCounts(t *testing.T) {
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
		o.l.set(func() { o.l.err, o.l.partial = errStoreAway, 3 })
		o.begin(100*time.Millisecond, names("t", 5)...)
		if n := len(b.served()); n != 3 {
			t.Errorf("%d served, want the three that were answered", n)
		}
		o.l.set(func() { o.l.err = nil })
		o.after(2 * time.Second)
		o.wantServed(names("t", 5)...)
	})
}

func TestAReleaseDuringAReOwnDoesNotResurrectTheKey(t *testing.T) {
	inOwners(t, testOwnership, newFakeBroker(), func(o *owners) {
		o.l.put("/n/a", "me", firstStanding)
		o.l.set(func() { o.l.latency = time.Second })
		o.l.onLock = func(requests []LockRequest) {
			if requests[0].Step != recovery.LockRebind {
				return
			}
			// While the rebind is on its way somebody unloads the topic.
			o.assign(false, nil, []string{"/n/a"})
			o.l.remove("/n/a")
		}
		o.stand(nextStanding, recovery.Active, true)
		o.assign(true, []string{"/n/a"}, nil)
		o.after(5 * time.Minute)
		if n := o.l.asked(recovery.LockRebind); n != 1 {
			t.Fatalf("%d rebinds, want one in flight", n)
		}
		o.wantOwned()
		o.wantServed()
		if owner := o.l.owner("/n/a"); owner != "" {
			t.Errorf("the lock is %s's", owner)
		}
	})
}

// A release whose answer was lost may still come to pass. The lock is written anew before
// the topic is loaded, so that it finds nothing to delete.
func TestALateReleaseDoesNotTakeALockThatIsBelieved(t *testing.T) {
	for _, late := range []time.Duration{2 * time.Second, 8 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			b := newFakeBroker()
			inOwners(t, testOwnership, b, func(o *owners) {
				o.begin(time.Second, "/n/a")
				b.set(func() { clear(b.serving) })
				o.Kick()
				o.after(time.Second)
				b.set(func() { clear(b.serving) }) // so that the release goes out at once
				o.l.set(func() { o.l.lost = late })
				o.assign(false, nil, []string{"/n/a"})
				o.after(1500 * time.Millisecond)
				if n := o.l.asked(recovery.LockRelease); n != 1 {
					t.Fatalf("%d releases, want one in flight", n)
				}
				o.l.set(func() { o.l.lost = 0 })
				o.stand(firstStanding, recovery.Active, false) // a short detachment
				o.assign(false, []string{"/n/a"}, nil)
				o.stand(firstStanding, recovery.Active, true)
				for range 100 {
					o.after(100 * time.Millisecond)
					if b.serves("/n/a") && o.l.owner("/n/a") != "me" {
						t.Fatal("served without its lock")
					}
				}
				o.wantServed("/n/a")
			})
		})
	}
}

func TestTheAuditFindsLocksThatWentAndLocksThatStayed(t *testing.T) {
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
		o.l.put("/n/left-over", "me", firstStanding) // of a life before this one
		o.stand(firstStanding, recovery.Active, true)
		o.after(time.Minute)
		o.wantOwned("/n/left-over") // it may be assigned
		o.begin(time.Second, "/n/a", "/n/b", "/n/c")
		o.wantOwned("/n/a", "/n/b", "/n/c")
		o.l.remove("/n/a", "/n/b") // by a third party
		o.l.put("/n/b", "other", Standing{9, 9})
		o.after(31 * time.Second)
		o.wantOwned("/n/a", "/n/c")
		o.wantServed("/n/a", "/n/c")
		o.wantMetric("holdfast_ownership_conflicts_total 1")
		o.wantLog("not under our lease any more", 2)
	})
}

func TestALockIsNoGroundForLoadingBeforeItIsVerifiedAgain(t *testing.T) {
	for name, again := range map[string]func(o *owners){
		"attached again": func(o *owners) {
			o.stand(firstStanding, recovery.Active, false)
			o.stand(firstStanding, recovery.Active, true)
		},
		"under another lease": func(o *owners) { o.stand(nextStanding, recovery.Active, true) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newFakeBroker()
			inOwners(t, testOwnership, b, func(o *owners) {
				o.begin(time.Second, "/n/a")
				b.set(func() { clear(b.serving) })
				o.l.set(func() { o.l.err = errStoreAway })
				again(o)
				o.after(time.Minute)
				o.wantServed()
				o.l.set(func() { o.l.err = nil })
				o.after(10 * time.Second)
				o.wantServed("/n/a")
			})
		})
	}
}

func TestALockThatWentWithItsTopicIsNotBelieved(t *testing.T) {
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
		o.begin(time.Second, "/n/moved", "/n/unassigned")
		b.set(func() { b.quiesceErr["/n/unassigned"] = errRefused })
		o.assign(false, nil, []string{"/n/unassigned"})
		o.after(2 * time.Second)
		o.l.put("/n/moved", "other", Standing{9, 9})
		Locked{Reconciler: o.Reconciler}.SetElsewhere("/n/unassigned", 1)
		for topic, revision := range map[string]int64{"/n/moved": 2, "/n/unassigned": 1} { // the latter is no news
			Locked{o.Reconciler, o.own}.SetElsewhere(topic, revision)
			if _, ours := o.Calm(topic); ours {
				t.Errorf("the lock of %s is still believed", topic)
			}
		}
		b.set(func() { clear(b.quiesceErr) })
		o.after(10 * time.Second)
		o.wantOwned()
		o.wantServed()
		if _, elsewhere := o.own.Trouble(); elsewhere != 0 {
			t.Error("a topic that went is waited for")
		}
	})
}

func TestALoadThatWaitsForItsTurnIsWithdrawnWithTheClaim(t *testing.T) {
	b := newFakeBroker()
	b.latency = time.Second
	s := testSettings
	s.OwnershipLocks, s.Concurrency = true, 1
	inWorld(t, s, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, names("t", 3), nil)
		for _, topic := range names("t", 3) {
			w.SetClaims([]TopicClaim{{Topic: topic, Claim: recovery.ClaimOurs}})
		}
		w.after(1500 * time.Millisecond) // listed, and the first is being loaded
		w.SetClaims([]TopicClaim{{Topic: "/n/t-00002", Claim: recovery.ClaimPending}})
		synctest.Wait()
		if got := w.Idle(names("t", 3)); !slices.Equal(got, []string{"/n/t-00001", "/n/t-00002"}) {
			t.Errorf("idle are %v, want those that are not being loaded", got)
		}
		w.after(time.Minute)
		w.wantServed("/n/t-00000", "/n/t-00001")
	})
}

func TestNothingIsReleasedOnAnOldViewOfTheBroker(t *testing.T) {
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
		o.begin(time.Second, "/n/a")
		b.set(func() { b.listErr = errRefused })
		o.Reconciler.SetOrders(recovery.Orders{Epoch: 1, Mode: recovery.Active, Attached: true, Instance: "another process"})
		o.assign(false, nil, []string{"/n/a"})
		o.after(time.Minute)
		o.wantOwned("/n/a")
		b.set(func() { b.listErr = nil })
		o.after(time.Minute)
		o.wantOwned()
		o.wantServed()
	})
}

// Whether it was carried out is not known, and a listing of before does not tell.
func TestALoadWithoutAnAnswerIsLookedForBeforeItsLockIsReleased(t *testing.T) {
	for _, c := range []struct {
		name   string
		loses  func(o *owners) // the load's answer; it takes effect in the broker
		within time.Duration
	}{
		{"it ends after new orders", func(o *owners) {
			o.b.set(func() { o.b.deaf = 3 * time.Second })
			o.assign(true, []string{"/n/a"}, nil)
			o.after(time.Second)
			o.stand(firstStanding, recovery.Drained, true)
			o.after(2500 * time.Millisecond)
		}, time.Second},
		{"it ends after new orders, under which the broker is being listed", func(o *owners) {
			o.b.set(func() { o.b.deaf = 3 * time.Second })
			o.assign(true, []string{"/n/a"}, nil)
			o.after(time.Second)
			o.b.set(func() { o.b.listDeaf = 2500 * time.Millisecond })
			o.stand(firstStanding, recovery.Drained, true)
			o.after(2200 * time.Millisecond)
			o.b.set(func() { o.b.listDeaf = 0 })
		}, time.Second},
		{"it ends by its timeout", func(o *owners) {
			o.b.set(func() { o.b.hangs["/n/a"] = true })
			o.assign(true, []string{"/n/a"}, nil)
			o.after(20 * time.Second)
			o.Kick() // the next audit is far away
			o.after(9 * time.Second)
			o.assign(false, nil, []string{"/n/a"})
			o.b.set(func() { o.b.serving["/n/a"] = true })
			o.after(1500 * time.Millisecond)
		}, recovery.SettleTime + time.Second},
		{"it ended by its timeout before", func(o *owners) {
			o.b.set(func() { o.b.loadErr["/n/a"] = context.DeadlineExceeded })
			o.assign(true, []string{"/n/a"}, nil)
			o.after(time.Second)
			o.b.set(func() { o.b.serving["/n/a"] = true })
			o.assign(false, nil, []string{"/n/a"})
			o.after(time.Second)
		}, recovery.SettleTime + time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newFakeBroker()
			b.latency = 20 * time.Millisecond
			inOwners(t, testOwnership, b, func(o *owners) {
				o.l.onRelease = func(topic string) {
					if b.serves(topic) {
						t.Errorf("%s was released while it was served", topic)
					}
				}
				o.stand(firstStanding, recovery.Active, true)
				c.loses(o)
				o.after(c.within)
				o.wantServed()
				o.wantOwned()
			})
		})
	}
}

// The listing was asked for at clock 7, and has none of them.
func TestWhatAListingForgets(t *testing.T) {
	type facts = recovery.PlanFacts
	now := time.Now()
	for _, row := range []struct {
		name string
		topic
		kept, idle bool
	}{
		{"nothing is left of it", topic{}, false, true},
		{"a call had no answer since", topic{unsure: true, changed: 8}, true, false},
		{"a call had no answer before", topic{unsure: true, changed: 7}, false, true},
		{"held", topic{PlanFacts: facts{Held: true}}, true, false},
		{"assigned", topic{PlanFacts: facts{Assigned: true}}, true, true},
		{"assigned, and it was done with since", topic{PlanFacts: facts{Assigned: true}, changed: 8}, true, true},
		{"not assigned yet, and its lock is ours", topic{PlanFacts: facts{Claim: recovery.ClaimOurs}}, true, true},
		{"its lock is not known", topic{PlanFacts: facts{Claim: recovery.ClaimPending}}, false, true},
		{"served since", topic{PlanFacts: facts{Serving: true}, changed: 8}, true, false},
		{"served before", topic{PlanFacts: facts{Serving: true}, changed: 7}, false, true},
		{"withdrawn since", topic{PlanFacts: facts{Quiesced: true}, changed: 8}, true, true},
		{"withdrawn before", topic{PlanFacts: facts{Quiesced: true}}, false, true},
		{"just unassigned: the guard counts it", topic{PlanFacts: facts{Lost: true, UnassignedAt: now.Add(-time.Second)}}, true, true},
		{"just moved away", topic{PlanFacts: facts{UnassignedAt: now.Add(-time.Second)}}, false, true},
		{"unassigned long ago", topic{PlanFacts: facts{Lost: true, UnassignedAt: now.Add(-time.Hour)}}, false, true},
		{"being withdrawn", topic{phase: phaseFlying}, true, false},
		{"to be withdrawn", topic{want: actQuiesce, phase: phaseReady}, true, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := NewReconciler(testSettings, newFakeBroker(), &fakeRecords{}, discard(), nil)
			topic := row.topic
			r.table["/n/a"], r.list.fresh = &topic, true
			r.applyListing(7, Held{}, now)
			if kept, idle := len(r.table) > 0, len(r.Idle([]string{"/n/a"})) > 0; kept != row.kept || idle != row.idle {
				t.Errorf("kept %v, idle %v", kept, idle)
			}
		})
	}
}

func TestAnAuditThatFailsHoldsNoLockUp(t *testing.T) {
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
		o.l.set(func() { o.l.asideErr = errStoreAway })
		o.begin(10*time.Minute, "/n/a")
		start := time.Now()
		o.assign(false, []string{"/n/b"}, nil)
		for o.l.owner("/n/b") != "me" {
			o.after(time.Millisecond)
		}
		if took := time.Since(start); took > 10*time.Millisecond {
			t.Errorf("acquired after %v", took)
		}
		o.l.set(func() { o.l.asideErr = nil })
		o.after(time.Minute)
		o.wantLog("cannot be checked", 1)
	})
}
