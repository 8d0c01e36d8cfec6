package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/agent/control"
	"holdfast/brokerapi"
	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
	"holdfast/internal/raced"
	"holdfast/recovery"
)

// besideOf are other brokers as a sidecar in virtual time sees them.
type besideOf struct {
	l      *sidecarLife
	health []recovery.Health
	lives  bool // their leases rise
	silent bool // etcd does not show them
	looks  []time.Duration
}

func (b *besideOf) sight(context.Context) (uint64, []recovery.PeerSeen, error) {
	b.l.mu.Lock()
	defer b.l.mu.Unlock()
	b.looks = append(b.looks, b.l.age())
	if b.silent {
		return 0, nil, errors.New("etcd does not answer")
	}
	var seen []recovery.PeerSeen
	for i, h := range b.health {
		s := recovery.Sighting{Peer: "n2", Lease: int64(i + 100), Asked: b.l.age(), Answered: b.l.age(), Left: 31 * time.Second, Granted: 32 * time.Second}
		if !b.lives {
			s.Left = max(0, 40*time.Second-b.l.age())
		}
		seen = append(seen, recovery.PeerSeen{Health: h, Sighting: s})
	}
	return 1, seen, nil
}

// besidePeers is inLife of a broker whose end would be seen, beside peers that say so.
func besidePeers(t *testing.T, health []recovery.Health, lives bool, claim func(l *sidecarLife, b *besideOf)) {
	t.Helper()
	b := &besideOf{health: health, lives: lives}
	inLife(t, stoppable, func(l *sidecarLife) {
		b.l = l
		l.inLoop(func() {
			l.reached.Store(true)
			l.sightPeers = b.sight
		})
		claim(l, b)
	})
}

func TestABrokerThatIsIllIsHeldUnlessAPeerIsWell(t *testing.T) {
	if raced.Enabled {
		t.Skip("too slow with the race detector, which sees the same code in other tests")
	}
	well, ill, untold := recovery.HealthWell, recovery.HealthIll, recovery.HealthUntold
	for _, row := range []struct {
		name   string
		health []recovery.Health
		lives  bool
		held   recovery.Reason // empty: it is stopped
	}{
		{"alone", nil, true, recovery.ReasonAlone},
		{"all are ill", []recovery.Health{ill, ill}, true, recovery.ReasonAllIll},
		{"the others are older than the word", []recovery.Health{untold, untold}, true, recovery.ReasonNoneKnown},
		{"the others say well, and their leases only sink", []recovery.Health{well, well}, false, recovery.ReasonNoneKnown},
		{"one of the others is well", []recovery.Health{ill, well}, true, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			besidePeers(t, row.health, row.lives, func(l *sidecarLife, b *besideOf) {
				epoch, renewed := l.status().Epoch, l.answers()
				l.set(func() { l.frozen = true })
				if row.held == "" {
					at := l.becomes(recovery.Detached, time.Minute)
					l.until(at + 10*time.Millisecond)
					if got := l.why("fence"); got != "stopped:" || len(l.stops) != 1 || l.stops[0] > l.deadline() {
						t.Errorf("%s, stopped at %v, detached at %v", got, l.stops, at)
					}
					if got := l.why("broker"); !strings.HasSuffix(got, "let_go:peer_well") {
						t.Error(got)
					}
					return
				}
				l.until(l.age() + time.Minute)
				s := l.status()
				if s.Broker.Held != string(row.held) || s.Ready.OK || s.Attachment != "attached" || s.Severity != "critical" ||
					!strings.Contains(s.Summary, "held: "+recovery.HeldWords(row.held)) || !strings.Contains(strings.Join(s.Ready.Causes, " "), "held (") {
					t.Errorf("after a minute: %+v", s)
				}
				l.until(l.age() + time.Hour)
				if len(l.stops) > 0 || l.quiesces > 0 || l.revokes > 0 || l.state() != recovery.Attached || l.answers()-renewed < 800 {
					t.Errorf("stopped at %v, %d quiesced, %d revoked, %s, %d renewals", l.stops, l.quiesces, l.revokes, l.state(), l.answers()-renewed)
				}
				if code, body := l.brokerLive(); code != 200 {
					t.Errorf("/broker/live: %d %s", code, body)
				}
				if most := int(time.Hour/(l.cfg.LeaseTTL/2)) + 10; len(b.looks) > most && row.health != nil && row.lives {
					t.Errorf("%d looks at the others in an hour", len(b.looks))
				}
				l.set(func() { l.frozen = false })
				l.until(l.age() + 5*time.Second)
				if causes := l.notReady(); len(causes) > 0 || l.status().Epoch != epoch || l.status().Broker.Held != "" {
					t.Errorf("it answers again: %v, %+v", causes, l.status())
				}
				if got := l.why("broker"); strings.Count(got, "on_hold:"+string(row.held)) != 1 || !strings.Contains(got, "hold_over:") {
					t.Error(got)
				}
			})
		})
	}
}

// A broker that is alone stays attached all the while, but for the moment before the first look.
func TestNobodyLooksAtTheOthersBeforeTheLossIsNear(t *testing.T) {
	besidePeers(t, []recovery.Health{recovery.HealthIll}, true, func(l *sidecarLife, b *besideOf) {
		l.until(l.age() + 10*time.Minute)
		if len(b.looks) > 0 {
			t.Errorf("looked at %v while it was well", b.looks)
		}
		l.set(func() { l.frozen = true })
		for most := l.age() + time.Minute; l.keeper.View().Phase.String() != "paused" && l.age() < most; {
			l.until(l.age() + 100*time.Millisecond)
		}
		at := l.fencePoint()
		l.until(at)
		if want := at - recovery.LooksFrom(l.cfg.Timing().RenewInterval); len(b.looks) != 1 || b.looks[0] < want || b.looks[0] > want+time.Second {
			t.Errorf("looked at %v, fence point %v, want %v", b.looks, at, want)
		}
	})
}

// The rules of the deadline stand above it.
func TestAnIllBrokerIsStoppedAtTheFencePointWhenEtcdDoesNotShowTheOthers(t *testing.T) {
	besidePeers(t, nil, true, func(l *sidecarLife, b *besideOf) {
		l.set(func() { l.frozen, b.silent = true, true })
		at := l.becomes(recovery.Detached, time.Minute)
		l.until(at + 10*time.Millisecond)
		if got := l.why("fence"); got != "stopped:" || l.stops[0] > l.deadline() || len(b.looks) > 5 {
			t.Errorf("%s, stopped at %v, looked at %v", got, l.stops, b.looks)
		}
	})
	t.Run("nor renews it while it is held", func(t *testing.T) {
		besidePeers(t, nil, true, func(l *sidecarLife, b *besideOf) {
			l.set(func() { l.frozen = true })
			l.until(l.age() + time.Minute)
			l.set(func() { l.away, b.silent = true, true })
			at := l.becomes(recovery.Detached, l.age()+time.Minute)
			l.until(at + 10*time.Millisecond)
			if got := l.why("attachment"); !strings.HasSuffix(got, "detached:fence_point") || len(l.stops) != 1 || l.stops[0] > l.deadline() {
				t.Errorf("%s, stopped at %v", got, l.stops)
			}
		})
	})
}

func TestAHeldBrokerIsLetGoWhenAPeerIsWellAgain(t *testing.T) {
	besidePeers(t, []recovery.Health{recovery.HealthIll}, true, func(l *sidecarLife, b *besideOf) {
		l.set(func() { l.frozen = true })
		l.until(l.age() + 10*time.Minute)
		well := l.age()
		l.set(func() { b.health[0] = recovery.HealthWell })
		at := l.becomes(recovery.Detached, well+2*time.Minute)
		l.until(at + 10*time.Millisecond)
		if len(l.stops) != 1 || l.stops[0] > l.deadline() {
			t.Errorf("stopped at %v", l.stops)
		}
	})
	t.Run("and held once more when it is ill again before the fence point", func(t *testing.T) {
		besidePeers(t, []recovery.Health{recovery.HealthIll}, true, func(l *sidecarLife, b *besideOf) {
			l.set(func() { l.frozen = true })
			l.until(l.age() + time.Minute)
			l.set(func() { b.health[0] = recovery.HealthWell })
			for !strings.HasSuffix(l.why("broker"), "let_go:peer_well") {
				l.until(l.age() + 100*time.Millisecond)
			}
			l.set(func() { b.health[0] = recovery.HealthIll })
			l.until(l.age() + 10*time.Minute)
			if s := l.status(); len(l.stops) > 0 || s.Broker.Held != "all_ill" || s.Attachment != "attached" {
				t.Errorf("stopped at %v, %+v", l.stops, s)
			}
		})
	})
}

// It is no illness, whoever is well.
func TestABrokerThatHasEndedIsNotHeld(t *testing.T) {
	ends := func(l *sidecarLife) {
		l.set(func() { l.ended, l.frozen = true, false })
		l.identity.forget()
		l.breaks.Add(1)
		l.lostLine <- struct{}{}
	}
	for name, hangsFirst := range map[string]bool{"at once": false, "while it is held": true} {
		t.Run(name, func(t *testing.T) {
			besidePeers(t, nil, true, func(l *sidecarLife, b *besideOf) {
				if hangsFirst {
					l.set(func() { l.frozen = true })
					l.until(l.age() + time.Minute)
				}
				ends(l)
				l.becomes(recovery.Detached, l.age()+time.Minute)
				if s := l.status(); s.Broker.Held != "" || !hangsFirst && len(b.looks) > 0 {
					t.Errorf("%+v, looked at %v", s, b.looks)
				}
			})
		})
	}
}

func TestTheMemberRecordSaysWellOrIllWhenItChanges(t *testing.T) {
	besidePeers(t, nil, true, func(l *sidecarLife, _ *besideOf) {
		var mu sync.Mutex // of these
		var told []string
		var at []time.Duration
		var fails error
		locked := func(f func()) {
			mu.Lock()
			defer mu.Unlock()
			f()
		}
		l.inLoop(func() {
			l.noteHealthOf = func(_ context.Context, n cluster.HealthNote) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				at = append(at, l.age())
				if fails != nil {
					return false, fails
				}
				told = append(told, string(n.Health))
				return true, nil
			}
		})
		expect := func(after time.Duration, want ...string) {
			t.Helper()
			l.until(l.age() + after)
			locked(func() {
				if !slices.Equal(told, want) {
					t.Errorf("told %v, want %v", told, want)
				}
			})
		}
		expect(time.Hour, "well")
		l.set(func() { l.frozen = true })
		expect(5*time.Second, "well", "ill")
		l.set(func() { l.frozen = false })
		expect(3*time.Second, "well", "ill") // not more often than each 5 s
		expect(6*time.Second, "well", "ill", "well")
		l.set(func() { l.unableTo = errors.New("the storage hangs") })
		expect(10*time.Second, "well", "ill", "well", "ill")
		locked(func() { told = told[:2] })
		l.set(func() { l.unableTo = nil })
		expect(10*time.Second, "well", "ill", "well")
		before := 0
		locked(func() { fails, before = cluster.ErrChanged, len(at) })
		l.set(func() { l.frozen = true })
		expect(time.Minute, "well", "ill", "well")
		locked(func() {
			if n := len(at) - before; n < 9 || n > 13 {
				t.Errorf("tried %d times in a minute", n)
			}
			fails = nil
		})
		expect(6*time.Second, "well", "ill", "well", "ill")
		l.set(func() { l.ended, l.frozen = true, false })
		l.breaks.Add(1)
		l.lostLine <- struct{}{}
		expect(time.Minute, "well", "ill", "well", "ill") // its lease tells
	})
}

func TestBeforeItIsDecidedWhetherABrokerIsHeldNobodyIsToldToStopIt(t *testing.T) {
	besidePeers(t, []recovery.Health{recovery.HealthIll}, true, func(l *sidecarLife, _ *besideOf) {
		l.set(func() { l.frozen = true })
		l.until(l.age() + 6*time.Second)
		if s := l.status(); s.Broker.Up != "down" || s.Broker.Held != "" || !strings.Contains(s.Summary, "if it hangs and other brokers do not, stop it") {
			t.Errorf("%+v", s)
		}
		if next := control.Explain(control.Event{Kind: "broker", To: "down"}, l.cfg).Next; !strings.Contains(next, "while other brokers do, stop it") {
			t.Error(next)
		}
	})
}

func TestADrainOfABrokerThatIsHeldSaysWhatItWaitsFor(t *testing.T) {
	besidePeers(t, nil, true, func(l *sidecarLife, _ *besideOf) {
		l.set(func() { l.frozen = true })
		l.until(l.age() + time.Minute)
		l.inLoop(func() {
			l.setMode(recovery.ModeRecord{Mode: recovery.Drained, Reason: recovery.ReasonOperator, By: recovery.ByOperator}, l.modeRev+1, "")
		})
		err := l.awaitDrained(context.Background(), 5*time.Second)
		if err == nil || !strings.Contains(err.Error(), "held: it is alone") || !strings.Contains(err.Error(), "may still be served") {
			t.Error(err)
		}
	})
}

// Nobody may be stopped for the sake of one that takes nothing over.
func TestTheMemberRecordSaysAwayOfABrokerThatIsDrained(t *testing.T) {
	besidePeers(t, nil, true, func(l *sidecarLife, _ *besideOf) {
		var told atomic.Value
		l.inLoop(func() {
			l.noteHealthOf = func(_ context.Context, n cluster.HealthNote) (bool, error) {
				told.Store(n.Health)
				return true, nil
			}
		})
		for mode, want := range map[recovery.Mode]cluster.Health{recovery.Drained: cluster.HealthAway, recovery.Active: cluster.HealthWell} {
			l.inLoop(func() {
				l.setMode(recovery.ModeRecord{Mode: mode, Reason: recovery.ReasonOperator, By: recovery.ByOperator}, l.modeRev+1, "")
			})
			l.until(l.age() + 10*time.Second)
			if told.Load() != want {
				t.Errorf("%s: the record says %q, want %q", mode, told.Load(), want)
			}
		}
	})
}

// Ill is who fails: peers that are ill are held for it, and ones that are well are not.
func TestTheMemberRecordSaysNothingOfABrokerWhoseWorkWasNotTried(t *testing.T) {
	besidePeers(t, nil, true, func(l *sidecarLife, _ *besideOf) {
		var mu sync.Mutex
		var told []cluster.Health
		l.inLoop(func() {
			l.noteHealthOf = func(_ context.Context, n cluster.HealthNote) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, n.Health)
				return true, nil
			}
		})
		for _, step := range []struct {
			able error
			want cluster.Health
		}{
			{brokerapi.ErrUntried, ""},
			{nil, cluster.HealthWell},
			{brokerapi.ErrUntried, ""}, // another process
			{errors.New("the storage hangs"), cluster.HealthIll},
		} {
			l.set(func() { l.unableTo = step.able })
			l.until(l.age() + 2*healthEvery)
			mu.Lock()
			if len(told) == 0 || told[len(told)-1] != step.want {
				t.Errorf("told %q, want %q last", told, step.want)
			}
			mu.Unlock()
		}
	})
}

// A leader that was elected since lifted the lease, whoever renews it.
func TestALeaseOfWhichAnotherLeaderTellsIsNotKnown(t *testing.T) {
	client := cluster.Over(cluster.Config{}, etcd.New(etcd.Config{}).Conn(nil), slog.New(slog.DiscardHandler))
	id, _, refused := client.Grant(t.Context(), time.Minute)
	_, term, err := client.Registered(t.Context(), "n2")
	for before := range uint64(2) {
		s := recovery.Sighting{Lease: id}
		if err := cmp.Or(refused, err, askLease(t.Context(), client, term-before, time.Now(), &s)); err != nil || s.Unknown != (before > 0) || s.Lease == 0 {
			t.Errorf("%d terms later: %+v, %v", before, s, err)
		}
	}
}
