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
				o.stand(firstStanding, recovery.Active, true)
				o.assign(true, []string{"/n/a"}, nil)
				o.after(time.Second)
				b.set(func() { b.quiesceErr["/n/a"] = errRefused })
				give(o)
				o.after(10 * time.Minute)
				o.wantOwned("/n/a")
				if o.own.Yielded("/n/a") {
					t.Error("yielded, and still served")
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
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, names("t", 5), nil)
		o.after(time.Second)
		o.stand(firstStanding, recovery.Draining, true)
		o.assign(false, []string{"/n/later"}, nil)
		o.after(time.Minute)
		o.wantServed(names("t", 5)...)
		o.wantOwned(names("t", 5)...)
		o.stand(firstStanding, recovery.Drained, true)
		o.after(5 * time.Second)
		o.wantServed()
		o.wantOwned()
		o.stand(firstStanding, recovery.Active, true)
		o.after(5 * time.Second)
		o.wantServed(append(names("t", 5), "/n/later")...)
		o.wantOwned(append(names("t", 5), "/n/later")...)
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
			b := newFakeBroker()
			inOwners(t, s, b, func(o *owners) {
				o.l.put("/n/theirs", "other", Standing{9, 9})
				o.stand(firstStanding, recovery.Active, true)
				o.assign(true, []string{"/n/theirs", "/n/free"}, nil)
				o.after(c.held)
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
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
		following := func() int { return value(o.l, &o.l.following) }
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, []string{"/n/a"}, nil)
		o.after(time.Minute)
		if n := following(); n != 0 || value(o.l, &o.l.followed) != 0 {
			t.Errorf("%d watches while nothing is waited for", n)
		}
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
	})
}

func TestReacquireWindowExhausted(t *testing.T) {
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
		for _, topic := range names("theirs", 3) {
			o.l.put(topic, "other", Standing{9, 9})
		}
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, append(names("theirs", 3), "/n/free"), nil)
		o.after(1900 * time.Millisecond)
		if p := o.Reconciler.Snapshot(); p.Reconciled || p.Elsewhere != 0 || o.own.progress().Settled {
			t.Errorf("within the window: progress %+v, want readiness to wait", p)
		}
		o.after(300 * time.Millisecond)
		if p := o.Reconciler.Snapshot(); !p.Reconciled || p.Elsewhere != 3 || p.Missing != 3 || !o.own.progress().Settled {
			t.Errorf("after the window: progress %+v, want the gate open for the others", p)
		}
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
		if n := strings.Count(o.log.String(), "longer than the retry window"); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
	})
}

func TestWithoutARetryWindowOnlyTheAuditAsksAgain(t *testing.T) {
	s := testOwnership
	s.RetryWindow, s.Watch = 0, false
	inOwners(t, s, newFakeBroker(), func(o *owners) {
		o.l.put("/n/theirs", "other", Standing{9, 9})
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, []string{"/n/theirs"}, nil)
		o.after(29 * time.Second)
		if !o.Reconciler.Snapshot().Reconciled {
			t.Error("readiness waits for a lock that nobody asks for")
		}
		o.wantMetric("holdfast_acquire_retry_attempts_total 0")
		o.after(2 * time.Second)
		o.wantMetric("holdfast_acquire_retry_attempts_total 1")
		o.wantMetric("holdfast_acquire_retry_window_exhausted_total 0")
	})
}

func TestInFlightAcquireDropsAfterDetach(t *testing.T) {
	for _, c := range []struct {
		name   string
		wanted bool
	}{{"still wanted: verified, not assumed", true}, {"not wanted any more: released", false}} {
		t.Run(c.name, func(t *testing.T) {
			b := newFakeBroker()
			inOwners(t, testOwnership, b, func(o *owners) {
				o.l.set(func() { o.l.deaf = 2 * time.Second })
				o.stand(firstStanding, recovery.Active, true)
				o.assign(true, []string{"/n/a"}, nil)
				o.after(time.Second)
				o.stand(firstStanding, recovery.Active, false)
				o.l.set(func() { o.l.deaf = 0 })
				o.after(10 * time.Second)
				o.wantOwned("/n/a") // the call was carried out
				if p := o.own.progress(); p.Owned != 0 || p.Settled || b.loads["/n/a"] != 0 {
					t.Errorf("believed while detached: %+v, %d loads", p, b.loads["/n/a"])
				}
				if !c.wanted {
					o.assign(false, nil, []string{"/n/a"})
				}
				calls := value(o.l, &o.l.calls)
				o.stand(firstStanding, recovery.Active, true)
				o.after(5 * time.Second)
				if value(o.l, &o.l.calls) == calls {
					t.Error("nothing was asked after the re-attachment")
				}
				if c.wanted {
					o.wantOwned("/n/a")
					o.wantServed("/n/a")
				} else {
					o.wantOwned()
					o.wantServed()
				}
			})
		})
	}
}

func TestNothingIsAskedWhileDetached(t *testing.T) {
	inOwners(t, testOwnership, newFakeBroker(), func(o *owners) {
		o.stand(firstStanding, recovery.Active, false)
		o.assign(true, names("t", 5), nil)
		o.after(10 * time.Minute)
		if value(o.l, &o.l.calls) != 0 {
			t.Errorf("%d calls", value(o.l, &o.l.calls))
		}
	})
}

func TestReOwn(t *testing.T) {
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
		topics := names("t", 30)
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, topics, nil)
		o.after(time.Second)
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
		if n := strings.Count(o.log.String(), "owned by another broker"); n != 1 {
			t.Errorf("conflicts were logged %d times, want once", n)
		}
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
		if p := o.Reconciler.Snapshot(); p.Foreign != 1 || p.GuardTripped {
			t.Errorf("progress %+v; want one foreign topic and no guard", p)
		}
		if s := o.state("/n/t-00007"); s.State != TopicForeign {
			t.Errorf("told as %+v", s)
		}
		b.set(func() { delete(b.quiesceErr, "/n/t-00007") })
		o.after(time.Second)
		o.wantServed()
		if p := o.Reconciler.Snapshot(); p.Foreign != 0 {
			t.Errorf("progress %+v", p)
		}
		o.wantMetric("holdfast_ownership_conflicts_total 20")
	})
}

func TestAStoreErrorIsNotAnAbsentLock(t *testing.T) {
	b := newFakeBroker("/n/held", "/n/theirs")
	inOwners(t, testOwnership, b, func(o *owners) {
		o.l.put("/n/held", "me", firstStanding)
		o.l.put("/n/theirs", "other", Standing{9, 9})
		o.l.set(func() { o.l.err = errStoreAway })
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, []string{"/n/held", "/n/theirs", "/n/new"}, nil)
		o.after(time.Minute)
		o.wantServed("/n/held", "/n/theirs") // nothing is known to be another's, nothing is loaded
		if p := o.own.progress(); !strings.Contains(p.LastError, "no leader") || p.Owned+p.Elsewhere != 0 {
			t.Errorf("ownership %+v", p)
		}
		if value(o.l, &o.l.calls) < 12 || value(o.l, &o.l.calls) > 30 {
			t.Errorf("%d calls in a minute, want a backoff of up to 5 s", value(o.l, &o.l.calls))
		}
		if n := strings.Count(o.log.String(), "cannot be asked for"); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
		o.l.set(func() { o.l.err = nil })
		o.after(7 * time.Second)
		o.wantServed("/n/held", "/n/new")
		// What is known stays known through the next failure.
		o.l.set(func() { o.l.err = errStoreAway })
		o.after(5 * time.Minute)
		o.wantServed("/n/held", "/n/new")
		if s := o.state("/n/theirs"); s.State != TopicElsewhere {
			t.Errorf("told as %+v", s)
		}
	})
}

func TestWhatWasAnsweredBeforeAnErrorCounts(t *testing.T) {
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
		o.l.set(func() { o.l.err, o.l.partial = errStoreAway, 3 })
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, names("t", 5), nil)
		o.after(100 * time.Millisecond)
		if n := len(b.served()); n != 3 {
			t.Errorf("%d served, want the three that were answered", n)
		}
		o.l.set(func() { o.l.err = nil })
		o.after(2 * time.Second)
		o.wantServed(names("t", 5)...)
	})
}

func TestAReleaseDuringAReOwnDoesNotResurrectTheKey(t *testing.T) {
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
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
				o.stand(firstStanding, recovery.Active, true)
				o.assign(true, []string{"/n/a"}, nil)
				o.after(time.Second)
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
		o.assign(true, []string{"/n/a", "/n/b", "/n/c"}, nil)
		o.after(time.Second)
		o.wantOwned("/n/a", "/n/b", "/n/c")
		o.l.remove("/n/a", "/n/b") // by a third party
		o.l.put("/n/b", "other", Standing{9, 9})
		o.after(31 * time.Second)
		o.wantOwned("/n/a", "/n/c")
		o.wantServed("/n/a", "/n/c")
		o.wantMetric("holdfast_ownership_conflicts_total 1")
		if n := strings.Count(o.log.String(), "not under our lease any more"); n != 2 {
			t.Errorf("logged %d times, want twice", n)
		}
	})
}

func TestALockIsNoGroundForLoadingBeforeItIsVerifiedAgain(t *testing.T) {
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, []string{"/n/a"}, nil)
		o.after(time.Second)
		o.stand(firstStanding, recovery.Active, false)
		b.set(func() { clear(b.serving) })
		o.l.set(func() { o.l.err = errStoreAway })
		o.stand(firstStanding, recovery.Active, true)
		o.after(time.Minute)
		o.wantServed()
		o.l.set(func() { o.l.err = nil })
		o.after(10 * time.Second)
		o.wantServed("/n/a")
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
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, []string{"/n/a"}, nil)
		o.after(time.Second)
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

// The listing was asked for before the load ended, so it does not tell what became of it.
func TestATopicWhoseLoadHadNoAnswerIsNotForgottenByAnOlderListing(t *testing.T) {
	inWorld(t, testSettings, newFakeBroker(), func(w *world) {
		forget := func(clock uint64) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.applyListing(clock, Held{}, time.Now())
			w.list.fresh = true
		}
		w.mu.Lock()
		topic := w.topic("/n/a", time.Now())
		topic.unsure, topic.changed = true, 7
		w.mu.Unlock()
		forget(5)
		if idle := w.Idle([]string{"/n/a"}); len(idle) > 0 {
			t.Error("idle by a listing of before")
		}
		forget(8)
		if idle := w.Idle([]string{"/n/a"}); len(idle) == 0 {
			t.Error("not idle, though it was listed since")
		}
	})
}

func TestAnAuditThatFailsHoldsNoLockUp(t *testing.T) {
	b := newFakeBroker()
	inOwners(t, testOwnership, b, func(o *owners) {
		o.l.set(func() { o.l.asideErr = errStoreAway })
		o.stand(firstStanding, recovery.Active, true)
		o.assign(true, []string{"/n/a"}, nil)
		o.after(10 * time.Minute)
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
		if n := strings.Count(o.log.String(), "cannot be checked"); n != 1 {
			t.Errorf("it was logged %d times, want once", n)
		}
	})
}
