package agent

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/agent/guard"
	"holdfast/agent/lease"
	"holdfast/agent/process"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// slowGuard is a guard that is a process, and stands by when it is let.
type slowGuard struct {
	fakeGuard
	mu     *sync.Mutex
	stands map[process.Target]bool
	wakes  *int
	fired  process.Target
	left   guard.Standing // zero: none stays
}

func (g slowGuard) Stands(t process.Target) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stands[t]
}
func (g slowGuard) let(stands bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stands[process.Target{}] = stands
}
func (g slowGuard) Fired(t process.Target) bool { return t == g.fired }
func (g slowGuard) Wake()                       { *g.wakes++ }
func (g slowGuard) Run(context.Context) error   { return nil }
func (g slowGuard) News() []guard.Event         { return nil }
func (g slowGuard) Goodbye()                    {}
func (g slowGuard) Alive() bool                 { return g.Stands(process.Target{}) }
func (g slowGuard) Starts() int64               { return 0 }
func (g slowGuard) Standing() (guard.Standing, bool) {
	return g.left, g.left.Pid != 0 && !strings.Contains(g.l.said(), "disarm")
}

// withSlowGuard gives the sidecar a guard that does not stand by yet.
func withSlowGuard(g *slowGuard) func(l *sidecarLife) {
	return func(l *sidecarLife) {
		*g = slowGuard{fakeGuard{l}, &sync.Mutex{}, map[process.Target]bool{}, new(int), process.Target{}, guard.Standing{}}
		l.guard = *g
	}
}

func TestNobodyIsAttachedBeforeItsGuardStandsBy(t *testing.T) {
	var g slowGuard
	past := withSlowGuard(&g)
	inLifeAfter(t, stoppable, func(l *sidecarLife) { past(l); l.set(func() { l.ended = true }) }, func(l *sidecarLife) {
		l.start()
		l.set(func() { l.serving = false })
		l.until(l.age() + 4*time.Second)
		if l.state() != recovery.Detached || l.loads > 0 || l.keeper.View().Phase != lease.Holding || *g.wakes == 0 {
			t.Errorf("without a guard: %s, %d loads, %s, woken %d times", l.state(), l.loads, l.keeper.View().Phase, *g.wakes)
		}
		if st := l.status(); !slices.Contains(st.Ready.Causes, "guard: the guard of the broker's process does not stand by yet") {
			t.Errorf("%q", st.Ready.Causes)
		}
		g.let(true)
		l.until(l.age() + guardLook)
		if l.state() != recovery.Attached || !strings.HasPrefix(l.said(), "arm ") {
			t.Errorf("with a guard: %s, it was told %s", l.state(), l.said())
		}
		if l.until(l.age() + time.Second); l.loads != 1 {
			t.Errorf("%d loads", l.loads)
		}
	})
}

func TestABrokerWhoseGuardCannotBeStartedIsServedAndItIsSaid(t *testing.T) {
	var g slowGuard
	inLifeAfter(t, stoppable, withSlowGuard(&g), func(l *sidecarLife) {
		l.until(l.age() + guardPatience)
		if causes := l.notReady(); len(causes) > 0 || l.why("guard") != "absent:" || !strings.Contains(l.status().Summary, "without a guard") {
			t.Errorf("%v, %s, %s", causes, l.why("guard"), l.status().Summary)
		}
		l.set(func() { l.ended = true })
		l.until(l.age() + 10*time.Second)
		l.start()
		l.until(l.age() + 10*time.Second)
		if l.why("guard") != "absent:" {
			t.Errorf("told again: %s", l.why("guard"))
		}
		g.let(true)
		l.until(l.age() + time.Second)
		if strings.Contains(l.status().Summary, "without a guard") {
			t.Error(l.status().Summary)
		}
	})
}

func TestTheEndOfTheBrokersProcessIsTheFirstCauseAndNoGuardIsAwaitedForIt(t *testing.T) {
	var g slowGuard
	past := withSlowGuard(&g)
	inLifeAfter(t, stoppable, func(l *sidecarLife) { past(l); g.let(true) }, func(l *sidecarLife) {
		endProcess(l)
		for range 2 { // as it is seen, and once its port refused
			if st := l.status(); len(st.Ready.Causes) == 0 || st.Ready.Causes[0] != "broker: its process has ended" {
				t.Errorf("%q", st.Ready.Causes)
			}
			l.until(l.age() + 5*time.Second)
		}
		if got := l.status().Summary; !strings.HasPrefix(got, "The process of n1 has ended: clients are kept away") || !strings.Contains(got, "; start it") {
			t.Error(got)
		}
		if got := l.why("readiness"); !strings.HasSuffix(got, "not_ready:broker") {
			t.Error(got)
		}
		if got := l.status().Topics; got.Assigned == 0 || got.Served+got.Orphan != 0 || got.Missing != got.Assigned {
			t.Errorf("of a dead broker: %+v", got)
		}
		for _, topic := range l.topics() {
			if topic.State != topics.TopicMissing || topic.Error != "held back: its process has ended" {
				t.Errorf("of a dead broker: %+v", topic)
			}
		}
		l.inLoop(func() {
			l.setMode(recovery.ModeRecord{Mode: recovery.Drained, Reason: recovery.ReasonOperator, By: recovery.ByOperator}, l.modeRev+1, "")
		})
		if err := l.awaitDrained(context.Background(), time.Second); err != nil {
			t.Errorf("drained in etcd, and nothing is served: %v", err)
		}
		l.inLoop(func() {
			l.setMode(recovery.ModeRecord{Mode: recovery.Active, Reason: recovery.ReasonOperator, By: recovery.ByOperator}, l.modeRev+1, "")
		})
		l.until(l.deadline() + time.Minute)
		if got := l.status(); got.Registration.State != "absent" || strings.Contains(got.Summary, "may have run out") || !strings.Contains(got.Summary, "its registration has ended") {
			t.Errorf("%s: %s", got.Registration.State, got.Summary)
		}
	})
}

func TestTheGuardOfANewProcessIsAwaitedAndADeadOneIsNot(t *testing.T) {
	var g slowGuard
	past := withSlowGuard(&g)
	inLifeAfter(t, stoppable, func(l *sidecarLife) { past(l); g.let(true) }, func(l *sidecarLife) {
		g.let(false)
		l.until(l.age() + 20*time.Second)
		if causes := l.notReady(); len(causes) > 0 {
			t.Errorf("after the guard died: %v", causes)
		}
		g.let(true)
		l.until(l.age() + time.Second)
		g.let(false)
		l.set(func() { l.away = true })
		l.until(l.becomes(recovery.Detached, 5*time.Minute) + time.Second)
		l.set(func() { l.away = false })
		l.until(l.age() + 4*time.Second)
		if l.state() != recovery.Detached {
			t.Errorf("%s again without a guard", l.state())
		}
		g.let(true)
		l.until(l.age() + time.Second)
		if causes := l.notReady(); len(causes) > 0 {
			t.Errorf("with a guard: %v", causes)
		}
	})
}
