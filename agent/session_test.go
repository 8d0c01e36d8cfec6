package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/registration"
	"holdfast/cluster"
	"holdfast/internal/raced"
	"holdfast/recovery"
)

// Errors of etcd as they arrive.
var (
	errSilence  = status.Error(codes.Unavailable, "connection refused")
	errNoLeader = status.Error(codes.Unavailable, "etcdserver: no leader")
	errRefuses  = status.Error(codes.Unauthenticated, "etcdserver: invalid auth token")
)

func TestEveryClassOfAFailureHasAPolicy(t *testing.T) {
	known := []recovery.Failure{recovery.FailureUnreachable, recovery.FailureTimeout, recovery.FailureNoLeader,
		recovery.FailureOverloaded, recovery.FailureAuth, recovery.FailureLeaseGone, recovery.FailureNoSpace, recovery.FailureOther}
	var want, got []string
	for _, f := range known {
		want = append(want, string(f))
	}
	for _, c := range cluster.Classes {
		got = append(got, string(c))
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("classes %v, policies %v", got, want)
	}
}

func reconnectTwice(c *config.Config) { c.SessionExpiredPolicy, c.SessionRetries = "reconnect", 2 }

// sessionOver is what the loop ended with; nil: it runs.
func (l *sidecarLife) sessionOver() *registration.SessionEnd {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// fakeStopper ends a process that it does not have.
type fakeStopper struct {
	err   error
	stops int
	life  *sidecarLife
	saw   int // quiesces before the stop
}

func (s *fakeStopper) Stop(context.Context) (string, error) {
	s.stops++
	s.life.set(func() { s.saw = s.life.quiesces })
	return "SIGTERM", s.err
}

func TestRetriesCountOnlyAfterTheDeadline(t *testing.T) {
	inLife(t, reconnectTwice, func(l *sidecarLife) {
		deadline := time.Duration(l.keeper.View().Validity.Deadline()) - time.Hour
		l.set(func() { l.away, l.heard = true, errSilence })
		l.until(deadline - time.Millisecond)
		if l.sessionOver() != nil || l.keeper.View().FailureStreak < 5 {
			t.Fatalf("before the deadline, after %d failures: %v", l.keeper.View().FailureStreak, l.sessionOver())
		}
		l.until(deadline + time.Minute)
		if l.sessionOver() == nil || l.sessionOver().Reason != recovery.ReasonRetriesUsedUp || !strings.Contains(l.sessionOver().Detail, "2 attempts") {
			t.Errorf("%+v", l.sessionOver())
		}
		if got := l.why("registration"); strings.Count(got, "failing:unreachable") != 1 || !strings.HasSuffix(got, "failing:retries_used_up") {
			t.Error(got)
		}
	})
}

func TestWhatEtcdItselfReportsUsesUpNoRetry(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		word string
	}{
		{"no leader", errNoLeader, "failing:no_leader"},
		{"refused", errRefuses, "failing:auth"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inLife(t, reconnectTwice, func(l *sidecarLife) {
				l.set(func() { l.away, l.heard = true, c.err })
				l.until(l.age() + time.Hour)
				if l.sessionOver() != nil {
					t.Errorf("ended: %v", l.sessionOver())
				}
				if got := l.why("registration"); strings.Count(got, "failing:") != 1 || !strings.Contains(got, c.word) {
					t.Error(got)
				}
				if s := l.status().Summary; !strings.Contains(s, l.view.Load().failure.Detail) {
					t.Errorf("the status says %q, not %q", s, l.view.Load().failure.Detail)
				}
				l.set(func() { l.away = false })
				l.becomes(recovery.Attached, l.age()+time.Minute)
				if f := l.view.Load().failure; f.Reason != "" {
					t.Errorf("still told: %+v", f)
				}
			})
		})
	}
}

func TestARegistrationThatStandsAgainBeginsTheRetriesAnew(t *testing.T) {
	inLife(t, func(c *config.Config) { c.SessionExpiredPolicy, c.SessionRetries = "reconnect", 50 }, func(l *sidecarLife) {
		for range 2 {
			l.set(func() { l.away, l.heard = true, errSilence })
			l.until(l.age() + 2*time.Minute)
			used := 0
			l.inLoop(func() { used = l.session.used })
			if used < 10 || used > 40 || l.sessionOver() != nil {
				t.Errorf("%d retries used in two minutes, %v", used, l.sessionOver())
			}
			l.set(func() { l.away = false })
			l.becomes(recovery.Attached, l.age()+time.Minute)
			l.inLoop(func() { used = l.session.used })
			if used != 0 {
				t.Errorf("%d retries used after the registration stood", used)
			}
		}
	})
}

func TestNoRetryIsUsedUp(t *testing.T) {
	if raced.Enabled {
		t.Skip("too slow with the race detector, which sees the same code in other tests")
	}
	drained := recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}
	for _, c := range []struct {
		name   string
		change func(c *config.Config)
		before func(l *sidecarLife)
	}{
		{"with the policy drain", nil, nil},
		{"with the policy shutdown: only etcd's word counts", func(c *config.Config) { c.SessionExpiredPolicy = "shutdown" }, nil},
		{"without a limit", func(c *config.Config) { c.SessionExpiredPolicy = "reconnect" }, nil},
		{"in shadow", func(c *config.Config) { reconnectTwice(c); c.Shadow = true }, nil},
		{"of a broker that a person drained", reconnectTwice, func(l *sidecarLife) { l.inLoop(func() { l.setMode(drained, 1_000_000, "") }) }},
		{"while recovery is paused", reconnectTwice, func(l *sidecarLife) { l.pause(12 * time.Hour) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			inLife(t, c.change, func(l *sidecarLife) {
				if c.before != nil {
					c.before(l)
				}
				l.set(func() { l.away, l.heard = true, errSilence })
				l.until(l.age() + time.Hour)
				if l.sessionOver() != nil {
					t.Errorf("ended: %v", l.sessionOver())
				}
				if l.shadow != nil {
					if n := testutil.ToFloat64(l.wouldHave.WithLabelValues(string(registration.ActStop))); n != 1 {
						t.Errorf("a shadow counts %v stops that it would have done, want the one", n)
					}
				}
				if l.state() != recovery.Detached || l.quiesces == 0 && l.shadow == nil {
					t.Errorf("%s, %d topics quiesced: not fenced", l.state(), l.quiesces)
				}
			})
		})
	}
}

func TestTheEndOfASessionFencesThenStopsAndSaysWhy(t *testing.T) {
	expired := &registration.SessionEnd{Reason: recovery.ReasonSessionExpired, Detail: "registration lost: era is still 1: other brokers stayed registered all the while"}
	used := &registration.SessionEnd{Reason: recovery.ReasonRetriesUsedUp, Detail: "etcd did not answer (unreachable) in 2 attempts since the registration ran out"}
	for _, c := range []struct {
		name   string
		end    *registration.SessionEnd
		change func(c *config.Config)
		err    error
		words  string
		reason string
	}{
		{"expired", expired, func(c *config.Config) { c.SessionExpiredPolicy = "shutdown" }, nil,
			"registration lost: era is still 1: other brokers stayed registered all the while (--session-expired-policy shutdown): " +
				"the broker was stopped (SIGTERM): find out what cut it off, then start the broker and this sidecar again", "broker_stopped"},
		{"retries used up", used, reconnectTwice, nil,
			"etcd did not answer (unreachable) in 2 attempts since the registration ran out (--session-expired-policy reconnect, --session-retries 2): " +
				"the broker was stopped (SIGTERM): bring etcd back, then start the broker and this sidecar again", "broker_stopped"},
		{"not stopped", used, reconnectTwice, errors.Join(errors.New("no permission"), errors.New("still there")),
			"etcd did not answer (unreachable) in 2 attempts since the registration ran out (--session-expired-policy reconnect, --session-retries 2): " +
				"the broker could not be stopped: no permission; still there: stop it by hand, it may serve what others own", "broker_not_stopped"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inLife(t, c.change, func(l *sidecarLife) {
				s := &fakeStopper{err: c.err, life: l}
				l.stopper = s
				var err error
				l.inLoop(func() { err = l.endSession(c.end) })
				var exit *control.ExitError
				if !errors.As(err, &exit) || exit.Code != control.ExitFailed || err.Error() != c.words {
					t.Errorf("got  %v\nwant %s", err, c.words)
				}
				if s.stops != 1 || s.saw != 1 {
					t.Errorf("%d stops, %d topics quiesced before", s.stops, s.saw)
				}
				want := fmt.Sprintf("shutdown:%s stopped:%s", c.end.Reason, c.reason)
				if got := l.why("agent"); got != want {
					t.Errorf("journal %q, want %q", got, want)
				}
				events, _ := l.journal.Since(0)
				for _, e := range events {
					if x := control.Explain(e, l.cfg); e.Kind == "agent" && strings.HasPrefix(x.Why, "The state of this sidecar changed") {
						t.Errorf("%+v is not explained", e)
					}
				}
			})
		})
	}
}

func TestABrokerProcessThatWasNotRegisteredHasNoSessionToEnd(t *testing.T) {
	inLife(t, reconnectTwice, func(l *sidecarLife) {
		l.set(func() { l.away, l.heard = true, errSilence })
		l.until(l.age() + 25*time.Second) // before the deadline
		l.inLoop(func() { l.remember(func(m *memory) { m.Instance = "process-0" }) })
		l.until(l.age() + time.Hour)
		if l.sessionOver() != nil {
			t.Errorf("ended: %v", l.sessionOver())
		}
	})
}

func TestWhatABrokerHasToExpectFollowsThePolicy(t *testing.T) {
	for policy, want := range map[string]string{
		"drain":     "if it has and other brokers stayed registered, it comes back drained: active by itself if none of them lived on",
		"reconnect": "if it has and other brokers stayed registered, it registers again and goes on with the topics that are still its own",
		"shutdown":  "if it has and other brokers stayed registered, it is stopped and this sidecar ends",
	} {
		t.Run(policy, func(t *testing.T) {
			inLife(t, func(c *config.Config) { c.SessionExpiredPolicy = policy }, func(l *sidecarLife) {
				l.set(func() { l.away, l.heard = true, errSilence })
				l.until(l.age() + 2*time.Minute)
				if s := l.status().Summary; !strings.Contains(s, want) {
					t.Errorf("the status says %q", s)
				}
			})
		})
	}
}

// etcd answers, so neither its address nor the class of an error is the matter.
func TestTheStatusOfABrokerThatMustRegisterItselfNamesNoEtcd(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.set(func() { l.lost, l.storeErr, l.heard = true, true, registration.ErrNothingToAdopt })
		l.becomes(recovery.Detached, time.Minute)
		l.until(l.age() + time.Second)
		st := l.status()
		if s := st.Summary; !strings.Contains(s, "is not registered: "+registration.ErrNothingToAdopt.Error()+".") || st.Registration.State == "unknown" {
			t.Errorf("the status says %q, and the registration is %s", s, st.Registration.State)
		}
	})
}

// What etcd denies says nothing of a registration that a sidecar of before has left there.
func TestARegistrationThatMayNotBeReadIsUnknown(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		denied := fmt.Errorf("read cluster state of broker n1: %w to read /cluster/register/: etcdctl role grant-permission ROLE --prefix=true read /cluster/register/", rpctypes.ErrPermissionDenied)
		l.set(func() { l.lost, l.storeErr, l.heard = true, true, denied })
		l.becomes(recovery.Detached, time.Minute)
		l.until(l.age() + time.Second)
		st := l.status()
		const want = `n1 is not known to be registered (auth): --etcd-endpoints "http://127.0.0.1:2379": etcd refuses the user of --etcd-cert`
		if !strings.HasPrefix(st.Summary, want) || st.Registration.State != "unknown" || st.Lease.FailingSeconds != 0 {
			t.Errorf("%s, failing for %gs: %s", st.Registration.State, st.Lease.FailingSeconds, st.Summary)
		}
	})
}

func TestARegistrationOfWhichNothingIsHeardIsUnknown(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.agent.metrics.present.Store(true) // as the watch would
		if got := l.status().Registration.State; got != "held" {
			t.Errorf("attached: %s", got)
		}
		l.set(func() { l.away = true })
		l.until(l.fencePoint() - time.Second)
		if got := l.status().Registration.State; got != "held" {
			t.Errorf("the lease surely holds: %s", got)
		}
		l.until(l.deadline() + time.Minute)
		if st := l.status(); st.Registration.State != "unknown" || !strings.Contains(st.Summary, "may have run out") {
			t.Errorf("after the deadline: %s, %q", st.Registration.State, st.Summary)
		}
	})
}

func TestABrokerThatNeverRegisteredIsPromisedNoReturn(t *testing.T) {
	for _, was := range []bool{false, true} {
		a := built(t)
		if was {
			a.memory.Epoch = 17
		}
		a.publish()
		got := a.afterwards(a.view.Load(), a.keeper.View(), "it")
		if was != strings.Contains(got, "it comes back drained") {
			t.Errorf("registered before: %v: %q", was, got)
		}
	}
}
