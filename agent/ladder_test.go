package agent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/brokerapi"
	"holdfast/recovery"
)

func stoppable(c *config.Config) { c.BrokerPIDFile = "/run/broker.pid" }

// brokerLive is the answer of /broker/live.
func (l *sidecarLife) brokerLive() (code int, body string) {
	w := httptest.NewRecorder()
	l.probeHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/broker/live", nil))
	return w.Code, w.Body.String()
}

// deadline is the age at which the lease may be gone.
func (l *sidecarLife) deadline() time.Duration {
	return time.Duration(l.keeper.View().Validity.Deadline()) - time.Hour
}

func (l *sidecarLife) said() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.words, ", ")
}

func TestABrokerThatIsQuiescedIsNotStopped(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.until(l.deadline() + time.Hour)
		if got := l.why("fence"); got != "quiesced:" || len(l.stops) > 0 || l.serving {
			t.Errorf("%s, stopped at %v", got, l.stops)
		}
		if code, body := l.brokerLive(); code != http.StatusOK || body != "ok\n" {
			t.Errorf("/broker/live: %d %q", code, body)
		}
	})
}

func TestTheStopFollowsAFailedQuiesceAtOnce(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.set(func() { l.away, l.refuses, l.dies = true, 1000, 200*time.Millisecond })
		at := l.fencePoint()
		l.until(at + time.Second)
		if got := l.why("fence"); got != "failed:quiesce stopped:" || len(l.stops) != 1 || l.stops[0] != at {
			t.Errorf("%s, stopped at %v; fence point %v", got, l.stops, at)
		}
		l.until(l.age() + 10*time.Minute)
		if len(l.stops) != 1 {
			t.Errorf("stopped again: %v", l.stops)
		}
	})
}

func TestAFrozenBrokerIsStoppedBeforeTheDeadline(t *testing.T) {
	third := natsDefaults().Effective().LeaseDetachMargin / 3
	t.Run("that froze at the fence point", func(t *testing.T) {
		inLife(t, stoppable, func(l *sidecarLife) {
			l.set(func() { l.away = true })
			at := l.fencePoint()
			l.until(at - time.Millisecond)
			l.set(func() { l.frozen = true })
			l.until(at + third + time.Millisecond)
			if len(l.stops) != 1 || l.stops[0] > at+third {
				t.Errorf("stopped at %v, fence point %v, a third of the margin %v", l.stops, at, third)
			}
			if l.until(at + third + time.Millisecond); !l.ended {
				t.Error("not stopped")
			}
		})
	})
	t.Run("that froze long before", func(t *testing.T) {
		inLife(t, stoppable, func(l *sidecarLife) {
			l.set(func() { l.frozen = true })
			at := l.becomes(recovery.Detached, 2*time.Minute)
			l.until(at + 10*time.Millisecond)
			if got := l.why("fence"); got != "stopped:" || l.stops[0] > l.deadline()-third {
				t.Errorf("%s, stopped at %v, detached at %v", got, l.stops, at)
			}
		})
	})
}

func TestReadyAndStopAlone(t *testing.T) {
	inLife(t, func(c *config.Config) { stoppable(c); c.Fence = []string{"ready", "stop"} }, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		at := l.fencePoint()
		l.until(at + time.Millisecond)
		if got := l.why("fence"); got != "stopped:" || !slices.Equal(l.stops, []time.Duration{at}) || l.quiesces > 0 {
			t.Errorf("%s at %v, %d quiesced; fence point %v", got, l.stops, l.quiesces, at)
		}
	})
}

// It may have to wait for its guard for longer than the ladder pauses. Stopped, it would
// never be there to be attached. What it never was registered for it cannot lose while etcd
// answers, so nothing is tried.
func TestTheNextProcessThatIsRegisteredIsNotStoppedWhileItWaitsToBeAttached(t *testing.T) {
	inLife(t, func(c *config.Config) {
		stoppable(c)
		c.Fence, c.DetachmentRecoverWindow = []string{"ready", "stop"}, 10*time.Second
	}, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.until(l.fencePoint() + 10*time.Second)
		if len(l.stops) != 1 {
			t.Fatalf("stopped at %v", l.stops)
		}
		l.set(func() { l.away = false })
		l.start()
		l.until(l.age() + 30*time.Second)
		if causes := l.notReady(); len(causes) > 0 || len(l.stops) != 1 || l.why("fence") != "stopped:" {
			t.Errorf("%v, stopped at %v, %s", causes, l.stops, l.why("fence"))
		}
	})
}

func TestTheNextProcessIsStoppedOnceItIsUpWhileEtcdIsSilent(t *testing.T) {
	inLife(t, func(c *config.Config) { stoppable(c); c.Fence = []string{"ready", "stop"} }, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.until(l.fencePoint() + 10*time.Second)
		l.start()
		began := l.age()
		l.until(began + 2*l.cfg.HealthInterval + 10*time.Millisecond) // it is up with the second answer
		if len(l.stops) != 2 || !l.ended {
			t.Errorf("started at %v, stopped at %v", began, l.stops)
		}
	})
}

// A process that is being judged is stopped when that is over, and not a second later
// because it was refused to the first attempt.
func TestTheStopWaitsForAJudgementAndNotForLong(t *testing.T) {
	for name, row := range map[string]struct{ judged, want time.Duration }{
		"that takes its time": {60 * time.Millisecond, 60 * time.Millisecond},
		"that never comes":    {time.Hour, stopPatience},
	} {
		t.Run(name, func(t *testing.T) {
			inLife(t, func(c *config.Config) { stoppable(c); c.Fence = []string{"ready", "stop"} }, func(l *sidecarLife) {
				l.set(func() { l.away = true })
				at := l.fencePoint()
				judge := func(on bool) {
					if on {
						l.recognizer.Begin(process.Target{Pid: 7}, "any", time.Now().Add(time.Hour), true)
					} else {
						l.recognizer.End(process.Target{Pid: 7}, "any", recognize.Unknown, "")
					}
				}
				judge(true)
				if row.judged < time.Minute {
					l.until(at + row.judged)
					if len(l.stops) > 0 {
						t.Errorf("stopped at %v, judged %v after %v", l.stops, row.judged, at)
					}
					judge(false)
					l.inLoop(func() {})
				}
				l.until(at + row.want + time.Millisecond)
				if len(l.stops) != 1 || l.stops[0] != at+row.want {
					t.Errorf("stopped at %v, want %v after %v", l.stops, row.want, at)
				}
			})
		})
	}
}

func TestABrokerThatHarmsUnregisteredIsStoppedThoughItIsQuiesced(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.set(func() { l.away, l.traits.AtDeadline = true, brokerapi.Stop })
		l.until(l.fencePoint() + time.Second)
		if got := l.why("fence"); got != "quiesced: stopped:" {
			t.Error(got)
		}
	})
	inLife(t, nil, func(l *sidecarLife) {
		l.set(func() { l.away, l.traits.AtDeadline = true, brokerapi.Stop })
		l.until(l.fencePoint() + time.Second)
		if code, body := l.brokerLive(); code != http.StatusServiceUnavailable || !strings.Contains(body, "may not run without") {
			t.Errorf("/broker/live: %d %q", code, body)
		}
	})
}

// Nothing that it was told of has gone, so there is nothing that it would destroy; and
// stopped at each start it would never be there to be registered.
func TestTheNextProcessOfSuchABrokerIsOnlyQuiesced(t *testing.T) {
	inLife(t, func(c *config.Config) { stoppable(c); c.DetachmentRecoverWindow = 10 * time.Second }, func(l *sidecarLife) {
		l.set(func() { l.away, l.traits.AtDeadline = true, brokerapi.Stop })
		l.until(l.fencePoint() + 10*time.Second)
		l.start()
		l.until(l.age() + 10*time.Second)
		if got := l.why("fence"); got != "quiesced: stopped: quiesced:" || len(l.stops) != 1 {
			t.Errorf("%s, stopped at %v", got, l.stops)
		}
		l.set(func() { l.away = false })
		l.until(l.age() + 30*time.Second)
		if causes := l.notReady(); len(causes) > 0 || len(l.stops) != 1 {
			t.Errorf("%v, stopped at %v", causes, l.stops)
		}
	})
}

func TestAStopThatFailedIsTriedAgainWithTheWholeLadder(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.set(func() { l.lost, l.storeErr, l.refuses, l.immortal = true, true, 1000, true })
		l.becomes(recovery.Detached, time.Minute)
		l.until(l.age() + 20*time.Second)
		if len(l.stops) < 4 || l.quiesces < 4 {
			t.Errorf("%d stops, %d quiesces in 20 s", len(l.stops), l.quiesces)
		}
		if got := l.why("fence"); got != "failed:quiesce failed:stop" {
			t.Error(got)
		}
		if code, body := l.brokerLive(); code != http.StatusServiceUnavailable || strings.Count(body, "\n") != 1 || !strings.Contains(body, "restarted") {
			t.Errorf("/broker/live: %d %q", code, body)
		}
		l.set(func() { l.immortal = false })
		l.until(l.age() + 5*time.Second)
		if code, body := l.brokerLive(); code != http.StatusOK || !strings.HasSuffix(l.why("fence"), " stopped:") {
			t.Errorf("/broker/live: %d %q; %s", code, body, l.why("fence"))
		}
	})
}

func TestBrokerLiveAsksForARestartOnlyWhileNothingElseHelps(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		expect := func(when string, want int) {
			t.Helper()
			if code, body := l.brokerLive(); code != want {
				t.Errorf("%s: %d %q", when, code, body)
			}
		}
		expect("attached", http.StatusOK)
		l.set(func() { l.away, l.refuses = true, 6 })
		at := l.fencePoint()
		l.until(at - time.Nanosecond)
		expect("before the fence point", http.StatusOK)
		l.until(at + 10*time.Millisecond)
		expect("quiesce has failed", http.StatusServiceUnavailable)
		l.until(at + 10*time.Second)
		expect("quiesced at last", http.StatusOK)
	})
	inLife(t, nil, func(l *sidecarLife) {
		l.set(func() { l.ended = true })
		l.becomes(recovery.Detached, time.Minute)
		l.until(l.age() + time.Minute)
		if code, body := l.brokerLive(); code != http.StatusOK {
			t.Errorf("down: %d %q", code, body)
		}
		if got := l.why("fence"); got != "awaiting:" {
			t.Error(got)
		}
	})
}

// Nobody can stop it, and its clients may still be served.
func TestBrokerLiveAsksForARestartOfABrokerThatHangsPastTheFencePoint(t *testing.T) {
	for name, ended := range map[string]bool{"it hangs": false, "it ended": true} {
		t.Run(name, func(t *testing.T) {
			inLife(t, nil, func(l *sidecarLife) {
				l.reached.Store(true)
				l.set(func() { l.frozen, l.ended = !ended, ended })
				if ended {
					l.identity.forget()
					l.breaks.Add(1)
					l.lostLine <- struct{}{}
				}
				l.until(l.fencePoint() - time.Nanosecond)
				if code, body := l.brokerLive(); code != http.StatusOK {
					t.Errorf("before the fence point: %d %q", code, body)
				}
				l.becomes(recovery.Detached, time.Minute)
				l.until(l.age() + time.Minute)
				if code, body := l.brokerLive(); (code == http.StatusOK) != ended {
					t.Errorf("a minute after it: %d %q", code, body)
				}
			})
		})
	}
}

// A broker that hangs after a failed quiesce keeps its connection; one that was
// restarted does not, and must not be restarted while it starts.
func TestBrokerLiveTellsABrokerThatHangsFromOneThatStarts(t *testing.T) {
	for name, breaks := range map[string]bool{"it hangs": false, "its connection broke": true} {
		t.Run(name, func(t *testing.T) {
			inLife(t, nil, func(l *sidecarLife) {
				l.set(func() { l.away, l.refuses = true, 1000 })
				breakLine := func() { l.identity.forget(); l.breaks.Add(1); l.lostLine <- struct{}{} }
				l.until(l.fencePoint() + time.Second)
				breakLine() // and the same process is up again
				l.until(l.age() + 5*time.Second)
				l.set(func() { l.frozen = !breaks; l.ended = breaks })
				if breaks {
					breakLine()
				}
				l.until(l.age() + 30*time.Second)
				code, body := l.brokerLive()
				if (code == http.StatusOK) != breaks {
					t.Errorf("%d %q", code, body)
				}
			})
		})
	}
}

func TestAProcessThatASupervisorStartsAgainIsFencedAgain(t *testing.T) {
	for name, sameInstance := range map[string]bool{"another instance": false, "a driver that cannot tell instances apart": true} {
		t.Run(name, func(t *testing.T) {
			inLife(t, stoppable, func(l *sidecarLife) {
				l.set(func() { l.away, l.refuses = true, 1 })
				l.until(l.fencePoint() + 10*time.Second)
				if got := l.why("fence"); got != "failed:quiesce stopped:" {
					t.Fatal(got)
				}
				quiesces := l.quiesces
				l.start()
				if sameInstance {
					l.set(func() { l.process-- })
				}
				l.until(l.age() + 10*time.Second)
				if l.serving || len(l.stops) != 1 || l.quiesces != quiesces+1 {
					t.Errorf("serving %v, %d stops, %d quiesces", l.serving, len(l.stops), l.quiesces-quiesces)
				}
				if got := l.why("fence"); got != "failed:quiesce stopped: quiesced:" {
					t.Error(got)
				}
			})
		})
	}
}

// The host was suspended: the loop learns of it within a second and asks nobody for
// long.
func TestALossNoticedLateIsFencedAtOnce(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.set(func() { l.away, l.frozen, l.jumped = true, true, time.Hour })
		at := l.becomes(recovery.Detached, l.age()+2*time.Second)
		l.until(at + recovery.LateQuiesce)
		if len(l.stops) != 1 || !l.ended {
			t.Errorf("stopped at %v, noticed at %v", l.stops, at)
		}
	})
}

func TestAStepThatWasUnderWayDuringASuspensionIsCutShort(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.set(func() { l.away, l.frozen = true, false })
		l.until(l.fencePoint() - time.Millisecond)
		l.set(func() { l.frozen = true })
		l.until(l.fencePoint() + time.Millisecond)
		l.set(func() { l.jumped = time.Hour })
		l.until(l.age() + 1100*time.Millisecond)
		if len(l.stops) != 1 {
			t.Errorf("stopped at %v", l.stops)
		}
	})
}

func TestTheGuardIsArmedBeforeAnythingIsLoadedAndRestsOnlyAfterAProof(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		if got := l.said(); !strings.HasPrefix(got, "arm ") {
			t.Errorf("attached: %s", got)
		}
		l.set(func() { l.words, l.away, l.refuses = nil, true, 1 })
		l.until(l.deadline() - time.Second)
		if got := l.said(); got != "postpone" || l.why("fence") != "failed:quiesce stopped:" {
			t.Errorf("stopped: %s", got)
		}
		l.start()
		l.until(l.age() + 10*time.Second) // past the deadline: nothing to arm with
		l.set(func() { l.away, l.words = false, nil })
		l.becomes(recovery.Attached, time.Hour)
		l.until(l.age() + 3*time.Second)
		words := strings.Split(strings.TrimPrefix(l.said(), "postpone, "), ", ")
		load := slices.Index(words, "load")
		if load < 1 || !strings.HasPrefix(words[0], "arm ") {
			t.Errorf("attached again: %v", words)
		}
	})
	inLife(t, stoppable, func(l *sidecarLife) {
		l.set(func() { l.words, l.away, l.refuses, l.immortal = nil, true, 1000, true })
		l.until(l.deadline() + time.Minute)
		if got := l.said(); got != "" {
			t.Errorf("nothing is proven: %s", got)
		}
	})
}

func TestEachConfirmedRenewalMovesTheGuard(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.set(func() { l.words = nil })
		renewals := l.keeper.View().Renewals
		l.until(l.age() + 30*time.Second)
		if n := strings.Count(l.said(), "arm "); n != l.keeper.View().Renewals-renewals || n == 0 {
			t.Errorf("%d times, %d renewals: %s", n, l.keeper.View().Renewals-renewals, l.said())
		}
	})
}

// With no recover window the broker is attached while the fence is still under way.
func TestAFenceThatEndsAfterTheBrokerWasAttachedAgainHoldsNothing(t *testing.T) {
	inLife(t, func(c *config.Config) { c.DetachmentRecoverWindow = 0 }, func(l *sidecarLife) {
		l.set(func() { l.lost, l.frozen = true, true })
		l.keeper.Reestablish()
		l.until(l.age() + 200*time.Millisecond)
		if l.state() != recovery.Attached || !strings.Contains(l.why("attachment"), "lease_lost") {
			t.Fatalf("%s: %s", l.state(), l.why("attachment"))
		}
		l.set(func() { l.frozen = false })
		l.until(l.age() + 10*time.Second)
		if l.why("fence") != "" || len(l.notReady()) > 0 || !l.serving {
			t.Errorf("%s, %v", l.why("fence"), l.notReady())
		}
	})
}

func TestNobodyIsAttachedWhileTheProcessIsBeingStopped(t *testing.T) {
	inLife(t, func(c *config.Config) { stoppable(c); c.DetachmentRecoverWindow = 100 * time.Millisecond }, func(l *sidecarLife) {
		l.set(func() { l.away, l.refuses, l.dies = true, 1, 4*time.Second })
		l.until(l.fencePoint() + 10*time.Millisecond)
		l.set(func() { l.away = false })
		l.until(l.age() + 3*time.Second)
		if l.keeper.View().FailureStreak > 0 || l.state() != recovery.Detached {
			t.Errorf("%s while the process is being stopped", l.state())
		}
	})
}

// revoked reports whether the registration was given up.
func revoked(l *sidecarLife) bool { return l.keeper.View().Grant == lease.Grant{} }

func TestWhatASidecarLeavesBehind(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(l *sidecarLife)
		config func(*config.Config)
		fails  bool
		gone   bool // the registration
		guard  string
	}{
		{"a broker that is quiesced", nil, stoppable, false, true, "disarm"},
		{"a broker that refuses", func(l *sidecarLife) { l.refuses = 1000 }, stoppable, true, false, ""},
		{"a broker that has no step quiesce", nil, func(c *config.Config) { stoppable(c); c.Fence = []string{"ready", "stop"} }, false, true, "disarm"},
		{"the same, and it refuses", func(l *sidecarLife) { l.refuses = 1000 }, func(c *config.Config) { stoppable(c); c.Fence = []string{"ready", "stop"} }, true, false, ""},
		{"a broker that does not answer, and no process is seen", func(l *sidecarLife) { l.ended = true }, stoppable, false, true, ""},
		{"--leave-registered", nil, func(c *config.Config) { stoppable(c); c.LeaveRegistered = true }, false, false, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			inLife(t, row.config, func(l *sidecarLife) {
				l.set(func() {
					l.words = nil
					if row.change != nil {
						row.change(l)
					}
				})
				l.until(l.age() + 5*time.Second)
				l.set(func() { l.words = nil })
				l.halt()
				err := l.leave()
				if (err != nil) != row.fails || revoked(l) != row.gone || l.said() != row.guard {
					t.Errorf("%v, revoked %v, guard %q", err, revoked(l), l.said())
				}
				if len(l.stops) > 0 {
					t.Error("the broker was stopped because its sidecar ended")
				}
			})
		})
	}
}

// What is deleted after a registration destroys the topics of some brokers that still run.
func TestASidecarThatIsStoppedStopsABrokerThatMayNotRunUnregistered(t *testing.T) {
	for _, row := range []struct {
		name    string
		change  func(l *sidecarLife)
		config  func(*config.Config)
		fails   bool
		gone    bool // the registration
		stopped bool
		guard   string
	}{
		{"it is stopped", nil, stoppable, false, true, true, "disarm"},
		{"it refuses to be quiesced", func(l *sidecarLife) { l.refuses = 1000 }, stoppable, false, true, true, "disarm"},
		{"it cannot be stopped", func(l *sidecarLife) { l.immortal = true }, stoppable, true, false, true, ""},
		{"there is no way to stop it", nil, func(c *config.Config) { c.IKnow = true }, true, false, false, ""},
		{"it had ended", func(l *sidecarLife) { l.ended = true }, stoppable, false, true, true, "disarm"},
		{"it does not answer, and cannot be stopped", func(l *sidecarLife) { l.frozen, l.immortal = true, true }, stoppable, true, false, true, ""},
		{"it does not answer, and there is no way to stop it", func(l *sidecarLife) { l.ended = true }, func(c *config.Config) { c.IKnow = true }, true, false, false, ""},
		{"--leave-registered", nil, func(c *config.Config) { stoppable(c); c.LeaveRegistered = true }, false, false, false, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			inLife(t, row.config, func(l *sidecarLife) {
				l.traits.AtDeadline = brokerapi.Stop
				l.set(func() {
					if row.change != nil {
						row.change(l)
					}
				})
				l.until(l.age() + 5*time.Second)
				l.set(func() { l.words = nil })
				l.halt()
				err := l.leave()
				if (err != nil) != row.fails || revoked(l) != row.gone || l.said() != row.guard || len(l.stops) > 0 != row.stopped {
					t.Errorf("%v, revoked %v, guard %q, stops %v", err, revoked(l), l.said(), l.stops)
				}
			})
		})
	}
}

type nothingToStop struct{}

func (nothingToStop) Stop(context.Context) (string, error) { return "", process.ErrNotFound }

// A host that comes up for maintenance may have the sidecar alone, and nothing is given up then.
func TestASidecarEndsWellBesideABrokerThatNeverRan(t *testing.T) {
	past := func(l *sidecarLife) {
		l.set(func() { l.ended = true })
		l.stopper = nothingToStop{}
		l.remember(func(m *memory) { m.Epoch, m.Instance = 1, "process-0" })
	}
	lifeOf(t, mustStop, stoppable, past, func(l *sidecarLife) {
		l.until(2 * l.cfg.LeaseTTL)
		l.halt()
		if err := l.leave(); err != nil {
			t.Error(err)
		}
	})
}

// The registration is gone and the ladder has not ended when the sidecar is stopped.
func TestASidecarThatIsStoppedOnTheLadderClimbsItToTheEnd(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(l *sidecarLife)
		config func(*config.Config)
		fails  bool
		guard  string
	}{
		{"a broker that refuses is stopped", func(l *sidecarLife) { l.immortal = false }, stoppable, false, "disarm"},
		{"one that cannot be stopped is left to the guard", nil, stoppable, true, ""},
		{"one that refused is quiesced", func(l *sidecarLife) { l.refuses = 0 }, stoppable, false, "disarm"},
		{"one that refuses, without a step stop", nil, nil, true, ""},
		{"--leave-registered is no leave to serve without", func(l *sidecarLife) { l.immortal = false },
			func(c *config.Config) { stoppable(c); c.LeaveRegistered = true }, false, "disarm"},
	} {
		t.Run(row.name, func(t *testing.T) {
			inLife(t, row.config, func(l *sidecarLife) {
				l.set(func() { l.lost, l.storeErr, l.refuses, l.immortal = true, true, 1000, true })
				l.becomes(recovery.Detached, time.Minute)
				l.until(l.age() + 2500*time.Millisecond)
				l.set(func() {
					l.words = nil
					if row.change != nil {
						row.change(l)
					}
				})
				l.halt()
				err := l.leave()
				if (err != nil) != row.fails || l.said() != row.guard || l.serving != row.fails {
					t.Errorf("%v, guard %q, serving %t", err, l.said(), l.serving)
				}
			})
		})
	}
}

// A sidecar that was killed left a broker behind, and the next one finds no etcd: the
// ladder begins at the fence point of the predecessor's lease.
func TestABrokerLeftBehindIsFencedByTheWholeLadder(t *testing.T) {
	past := func(l *sidecarLife) {
		l.memory.Epoch, l.memory.Instance, l.away, l.refuses = 7, "process-1", true, 1
		l.former = lease.Validity{SentAt: l.begun, TTL: l.cfg.LeaseTTL, Margin: l.cfg.LeaseDetachMargin}
	}
	inLifeAfter(t, stoppable, past, func(l *sidecarLife) {
		over := l.cfg.LeaseTTL - l.cfg.LeaseDetachMargin
		l.until(over - 10*time.Millisecond)
		if got := l.why("fence"); got != "" {
			t.Errorf("while the lease may live: %s", got)
		}
		l.until(over + 2*time.Second)
		if got := l.why("fence"); got != "failed:quiesce stopped:" {
			t.Error(got)
		}
		if got := l.said(); got != "postpone" {
			t.Errorf("the predecessor's guard: %s", got)
		}
	})
}

// The predecessor's lease runs on while the host is suspended, and so must the count.
func TestABrokerLeftBehindIsFencedAtOnceAfterASuspension(t *testing.T) {
	past := func(l *sidecarLife) {
		l.memory.Epoch, l.memory.Instance, l.away = 7, "process-1", true
		l.former = lease.Validity{SentAt: l.begun, TTL: l.cfg.LeaseTTL, Margin: l.cfg.LeaseDetachMargin}
	}
	inLifeAfter(t, stoppable, past, func(l *sidecarLife) {
		l.set(func() { l.jumped = time.Minute })
		l.until(l.age() + 2*time.Second)
		if got := l.why("fence"); got != "quiesced:" {
			t.Errorf("%q, %v after the lease must be over", got, l.clock().Sub(l.begun)-l.cfg.LeaseTTL)
		}
	})
}

// zombie is holdfast_broker_zombie{kind="unregistered"}.
func (l *sidecarLife) zombie() (value float64) {
	families, err := l.reg.Gather()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "holdfast_broker_zombie" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == "unregistered" {
				value = m.GetGauge().GetValue()
			}
		}
	}
	return value
}

func TestABrokerThatServesPastItsDeadlineIsAZombie(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		expect := func(when string, want float64) {
			t.Helper()
			if got := l.zombie(); got != want {
				t.Errorf("%s: %v, want %v", when, got, want)
			}
		}
		expect("attached", 0)
		l.set(func() { l.away, l.refuses = true, 1000 })
		deadline := l.deadline()
		l.until(deadline - time.Millisecond)
		expect("before the deadline", 0)
		l.until(deadline + time.Second)
		expect("past it, and not to be quiesced", 1)
		l.set(func() { l.refuses = 0 })
		l.until(deadline + 5*time.Second)
		expect("quiesced", 0)
		l.set(func() { l.ended = true })
		l.until(deadline + 20*time.Second)
		expect("down", 0)
		l.set(func() { l.refuses = 1000 })
		l.start()
		l.until(deadline + 40*time.Second)
		expect("started again, and not to be quiesced", 1)
	})
}

// Nothing is known of what another process serves until it was asked.
func TestAnotherProcessServesNothingOfTheFormer(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		if p := l.reconciler.Snapshot(); !p.ServedKnown || p.Served == 0 {
			t.Fatalf("attached: %+v", p)
		}
		l.set(func() { l.away, l.ended = true, true }) // so nothing is decided about the next
		l.until(l.age() + time.Second)
		l.start()
		l.until(l.age() + 3*time.Second)
		if p := l.reconciler.Snapshot(); p.ServedKnown || p.Served != 0 {
			t.Errorf("another process, never listed: %+v", p)
		}
	})
}
