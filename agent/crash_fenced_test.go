package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"holdfast/agent/process"
	"holdfast/brokerapi"
	"holdfast/recovery"
)

// endSeer stops the broker, whose process is watched.
type endSeer struct {
	l     *sidecarLife
	after process.Target // what served is then
}

func (s endSeer) Stop(ctx context.Context) (string, error) {
	how, err := s.l.Stop(ctx)
	s.l.inLoop(func() {
		s.l.served = s.after
		s.l.reached.Store(false) // what ends is not ill any more, as the watch of a process would tell
	})
	return how, err
}

// stoppedUnderLease is a broker that hangs for good, and is stopped at its fence point.
func stoppedUnderLease(t *testing.T, can brokerapi.Capabilities, change func(c *Config), claim func(l *sidecarLife, s *endSeer)) {
	t.Helper()
	living, err := process.TargetOf(1)
	if err != nil {
		t.Fatal(err)
	}
	settings := func(c *Config) {
		stoppable(c)
		c.Fence, c.RestartGrace = []string{"ready", "stop"}, 3*time.Second
		if change != nil {
			change(c)
		}
	}
	inLifeOf(t, can, settings, nil, func(l *sidecarLife) {
		s := &endSeer{l: l, after: process.Target{Pid: 1<<22 + 1, StartTicks: 1}}
		l.inLoop(func() { l.guard, l.stopper, l.served = nil, s, living })
		claim(l, s)
	})
}

func TestTheLeaseOfABrokerThatWasStoppedUnderItIsGivenUpAtOnce(t *testing.T) {
	itself := brokerapi.Capabilities{FencesItself: true}
	for _, row := range []struct {
		name   string
		can    brokerapi.Capabilities
		change func(c *Config)
		before func(l *sidecarLife, s *endSeer)
		fails  error // of the note
		notes  int
		given  bool // up before its end
	}{
		{"its process is seen to end", itself, nil, nil, nil, 1, true},
		{"its process is not seen to end", itself, nil, func(l *sidecarLife, s *endSeer) { l.inLoop(func() { s.after = l.served }) }, nil, 0, false},
		{"etcd does not take the note", itself, nil, nil, context.DeadlineExceeded, 0, false},
		{"drained by an operator", itself, nil, func(l *sidecarLife, _ *endSeer) {
			l.inLoop(func() {
				l.setMode(recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}, l.modeRev+1, "")
			})
		}, nil, 0, true},
		{"its registration is kept", itself, func(c *Config) { c.RestartGrace = 0 }, nil, nil, 0, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			stoppedUnderLease(t, row.can, row.change, func(l *sidecarLife, s *endSeer) {
				if row.before != nil {
					row.before(l, s)
				}
				var notes int
				l.note = func(_ context.Context, d departure) error {
					if l.set(func() {}); l.revokes > 0 || !l.ended || !d.crash || d.stop {
						t.Errorf("noted %+v after %d revokes, ended %t", d, l.revokes, l.ended)
					}
					if left := time.Since(d.at); left < l.cfg.LeaseTTL/2 {
						t.Errorf("it counts from %v ago, when the lease was not renewed", left)
					}
					if row.fails == nil {
						notes++
					}
					return row.fails
				}
				l.set(func() { l.frozen = true })
				at := l.becomes(recovery.Detached, time.Minute)
				if l.revokes > 0 {
					t.Error("given up while it may serve")
				}
				deadline := l.deadline()
				l.until(at + time.Second)
				if notes != row.notes || (l.revokes == 1) != row.given || len(l.stops) != 1 {
					t.Errorf("%d notes, %d revokes, stopped at %v; want %d, given up %t", notes, l.revokes, l.stops, row.notes, row.given)
				}
				l.until(deadline - time.Millisecond)
				if l.revokes > 1 || l.revokes == 1 && !row.given {
					t.Errorf("%d revokes before its end", l.revokes)
				}
				if lost := strings.Contains(l.why("registration"), "lost:stopped"); lost != row.given {
					t.Errorf("registration: %s", l.why("registration"))
				}
			})
		})
	}
}

// The note would be taken away before it has excused anything, and the lease be revoked under
// who took it up.
func TestAProcessThatComesUpWhileAStopIsNotedKeepsItsLease(t *testing.T) {
	stoppedUnderLease(t, brokerapi.Capabilities{FencesItself: true}, nil, func(l *sidecarLife, _ *endSeer) {
		var held bool
		l.note = func(ctx context.Context, _ departure) error {
			l.start()
			sleep(ctx, noteTimeout)
			held = l.life.Load().leaves
			return context.DeadlineExceeded
		}
		l.set(func() { l.frozen = true })
		at := l.becomes(recovery.Detached, time.Minute)
		l.until(at + 10*time.Second)
		if l.revokes > 0 || !held || len(l.notReady()) > 0 {
			t.Errorf("%d revokes, held back %t, not ready: %v", l.revokes, held, l.notReady())
		}
	})
}
