package agent

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/cluster"
)

// led is a broker of a cluster with a leader of its own.
var led = brokerapi.Capabilities{MustStop: true, Overlooks: true}

// While none leads that lives, nobody would see the registration go.
func TestABrokerThatLeadsKeepsItsRegistrationUntilAnotherLeads(t *testing.T) {
	for _, row := range []struct {
		name string
		then []string // who leads, each for 5 s, and the last on; "!": it cannot be read
		gone time.Duration
	}{
		{"another leads already", []string{"n2"}, 0},
		{"it led", []string{"n1", "n2"}, 5 * time.Second},
		{"it led, and then nobody does", []string{"n1", "", "n2"}, 10 * time.Second},
		{"nobody leads", []string{"", "n2"}, 5 * time.Second},
		{"who leads cannot be read", []string{"!", "n2"}, 5 * time.Second},
		{"none follows it", []string{"n1"}, -1},
	} {
		t.Run(row.name, func(t *testing.T) {
			inLeaver(t, led, stoppable, func(l *leaver) {
				l.inLoop(func() { l.ids.registered.set("n1") })
				began := l.age()
				l.leader = func(context.Context) (string, error) {
					who := row.then[min(int((l.age()-began)/(5*time.Second)), len(row.then)-1)]
					if who == "!" {
						return "", errors.New("etcd does not answer")
					}
					return who, nil
				}
				c := make(chan error, 1)
				go func() { c <- l.leaveNow(context.Background(), time.Minute, false, false) }()
				if row.gone >= 0 {
					if l.until(began + row.gone - 100*time.Millisecond); row.gone > 0 && l.revokes > 0 {
						t.Error("revoked before another leads")
					}
					l.until(began + row.gone + 1500*time.Millisecond)
					if l.revokes != 1 || !l.memory.Released {
						t.Errorf("%d revokes, released %v", l.revokes, l.memory.Released)
					}
				} else if l.until(began + l.cfg.LeaseTTL + time.Second); l.revokes > 0 || l.keeper.View().Validity.HeldAt(l.clock()) {
					t.Errorf("%d revokes, held %v", l.revokes, l.keeper.View().Validity.HeldAt(l.clock()))
				}
				if err := <-c; err != nil || l.notes != 1 || len(l.stops) == 0 {
					t.Errorf("%v, %d notes, stopped at %v", err, l.notes, l.stops)
				}
			})
		})
	}
}

// A short grace for dead brokers does not give up what nobody would see go.
func TestARestartGraceDoesNotGiveUpWhatNobodyWouldSeeGo(t *testing.T) {
	inLeaver(t, led, func(c *Config) { stoppable(c); c.RestartGrace = 3 * time.Second }, func(l *leaver) {
		l.inLoop(func() { l.ids.registered.set("n1") })
		var leads atomic.Value
		leads.Store("n1")
		l.leader = func(context.Context) (string, error) { return leads.Load().(string), nil }
		go func() { _ = l.leaveNow(context.Background(), time.Minute, false, false) }()
		l.until(l.age() + 15*time.Second)
		if l.revokes > 0 {
			t.Error("revoked while it still led")
		}
		leads.Store("n2")
		l.until(l.age() + 2*time.Second)
		if l.revokes != 1 {
			t.Errorf("%d revokes once another leads", l.revokes)
		}
	})
}

// The next process has the registration under that lease.
func TestALeaseThatWaitsForAnotherLeaderIsKeptForTheNextProcess(t *testing.T) {
	inLeaver(t, led, stoppable, func(l *leaver) {
		var leads atomic.Value
		leads.Store("n1")
		l.leader = func(context.Context) (string, error) { return leads.Load().(string), nil }
		l.inLoop(func() { l.ids.registered.set("n1") })
		go func() { _ = l.leaveNow(context.Background(), time.Minute, false, false) }()
		l.until(l.age() + 5*time.Second)
		l.start()
		l.until(l.age() + 10*time.Second)
		leads.Store("n2")
		l.until(l.age() + 10*time.Second)
		if l.revokes > 0 || !l.registered() || len(l.notReady()) > 0 {
			t.Errorf("%d revokes, registered %v, not ready: %v", l.revokes, l.registered(), l.notReady())
		}
	})
}

func TestWhoWaitsForALeaderNoLongerHearsThatTheBrokerHasLeft(t *testing.T) {
	inLeaver(t, led, stoppable, func(l *leaver) {
		l.leader = func(context.Context) (string, error) { return "", nil }
		if err := l.asks(3*time.Second, false); err != nil || l.notes != 1 {
			t.Errorf("%v, %d notes", err, l.notes)
		}
	})
}

// renewer is the sidecar's whole Line.
type renewer struct{ *sidecarLife }

func (renewer) Client(context.Context) (*cluster.Client, error) { return nil, errors.New("none") }

// The sidecar's own end does not last so long: the lease is renewed once more, and left.
func TestASidecarThatEndsLeavesTheLeaseOfABrokerThatLed(t *testing.T) {
	for leader, gone := range map[string]bool{"n2": true, "n1": false, "": false} {
		inLeaver(t, led, stoppable, func(l *leaver) {
			l.inLoop(func() { l.ids.registered.set("n1") })
			l.leader = func(context.Context) (string, error) { return leader, nil }
			l.agent.line = renewer{l.sidecarLife}
			l.stopAsked()
			l.halt()
			sent := l.sidecarLife.asks()
			err := l.leave()
			if renewed := l.sidecarLife.asks() > sent; err != nil || l.notes != 1 || revoked(l.sidecarLife) != gone || renewed == gone {
				t.Errorf("%q leads: %v, %d notes, revoked %v, renewed %v", leader, err, l.notes, revoked(l.sidecarLife), renewed)
			}
			events, _ := l.journal.since(0)
			if last := events[len(events)-1]; !gone && !strings.Contains(last.Detail, "nobody would see") {
				t.Errorf("the last word is %+v", last)
			}
		})
	}
}
