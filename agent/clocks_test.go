package agent

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast/agent/lease"
	"holdfast/recovery"
)

func (l *sidecarLife) ring() {
	select {
	case l.inbox <- func() {}:
	case <-l.life0.Done():
	}
}

// suspend lets the boot clock and the wall clock run on by d, and no timer of Go's: that
// is what a suspended host is. Something wakes the loop.
func (l *sidecarLife) suspend(d time.Duration) {
	l.set(func() { l.jumped += d })
	l.ring()
	synctest.Wait()
}

func TestHostSuspendedIsJudgedByTheBootClockAtOnce(t *testing.T) {
	for _, tt := range []struct {
		name      string
		until     func(v lease.Validity) lease.Instant // boot clock at which it wakes up
		lost      bool
		detached  bool
		attempted string // attachment events
	}{
		{"before the fence point", func(v lease.Validity) lease.Instant { return v.FencePoint() - 1 }, false, false, ""},
		{"at the fence point", lease.Validity.FencePoint, false, true, "detached:fence_point attached:recover_window"},
		{"past the deadline, etcd kept the lease", func(v lease.Validity) lease.Instant { return v.Deadline().Add(time.Hour) }, false, true, "detached:fence_point attached:recover_window"},
		{"past the deadline, the lease is gone", func(v lease.Validity) lease.Instant { return v.Deadline().Add(time.Hour) }, true, true, "detached:fence_point attached:recover_window"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inLife(t, nil, func(l *sidecarLife) {
				l.set(func() { l.lost = tt.lost })
				age := l.age()
				l.suspend(tt.until(l.keeper.View().Validity).Sub(l.clock()))
				if l.age() != age {
					t.Fatalf("time passed: %v", l.age()-age)
				}
				if got := l.state() == recovery.Detached; got != tt.detached {
					t.Errorf("at once after it woke up: %s", l.state())
				}
				if got := l.why("agent"); got != "resumed:suspension" {
					t.Errorf("journal: %s", got)
				}
				if n := testutil.ToFloat64(l.agent.metrics.suspensions); n != 1 {
					t.Errorf("%v suspensions counted", n)
				}
				l.becomes(recovery.Attached, l.age()+time.Minute)
				l.until(l.age() + time.Minute)
				if l.state() != recovery.Attached || len(l.notReady()) > 0 {
					t.Errorf("a minute later: %s, %v", l.state(), l.notReady())
				}
				if got := l.why("attachment"); got != strings.TrimSpace("attached:registered "+tt.attempted) {
					t.Error(got)
				}
				if got := l.why("agent"); got != "resumed:suspension" {
					t.Errorf("journal: %s", got)
				}
			})
		})
	}
}

func TestWallClockMovedFiveMinutesChangesNothing(t *testing.T) {
	for name, by := range map[string]time.Duration{"forward": 5 * time.Minute, "back": -5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			inLife(t, nil, func(l *sidecarLife) {
				fence := l.fencePoint()
				l.set(func() { l.moved = by })
				l.until(l.age() + loopEvery)
				if got := l.why("agent"); got != "clock_jumped:" {
					t.Errorf("journal: %s", got)
				}
				if l.fencePoint() < fence {
					t.Error("the fence point moved with the wall clock")
				}
				l.until(l.age() + 10*time.Minute)
				if l.state() != recovery.Attached || len(l.notReady()) > 0 || l.quiesces > 0 {
					t.Errorf("%s, %v, %d quiesced", l.state(), l.notReady(), l.quiesces)
				}
				if got := l.why("attachment"); got != "attached:registered" {
					t.Error(got)
				}
				if got := l.why("agent"); got != "clock_jumped:" {
					t.Errorf("journal: %s", got)
				}
				if n := testutil.ToFloat64(l.agent.metrics.suspensions); n != 0 {
					t.Errorf("%v suspensions counted", n)
				}
			})
		})
	}
}
