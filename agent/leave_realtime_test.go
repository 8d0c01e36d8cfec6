package agent

import (
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/guard"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/recovery"
)

// 'holdfast leave' has been done, and both are stopped at once: the broker closes its admin
// API, and its process needs a moment more.
func TestABrokerThatHasLeftIsAwaitedWhileItEnds(t *testing.T) {
	for _, row := range []struct {
		name   string
		ends   time.Duration // after the stop; 0: not while anybody waits
		serves bool          // it answers, and is not quiesced
		fails  bool
	}{
		{"it ends a moment later", time.Second, false, false},
		{"it takes leave of its clients for longer", 0, false, false},
		{"it serves again, and cannot be quiesced", 0, true, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			inLeaver(t, kind{}, stoppable, func(l *leaver) {
				if err := l.asks(5*time.Second, false); err != nil {
					t.Fatal(err)
				}
				end := l.isAProcess()
				l.stopAsked()
				l.halt()
				l.set(func() { l.ended, l.serving, l.refuses = !row.serves, row.serves, 1000 })
				if row.ends > 0 {
					time.AfterFunc(row.ends, end)
				}
				began := l.age()
				err := l.leave()
				if took := l.age() - began; (err != nil) != row.fails || took > stopTimeout || row.ends > 0 && (took < row.ends || took > row.ends+2*50*time.Millisecond) {
					t.Errorf("%v, took %v", err, took)
				}
				if got := l.why("agent"); strings.HasSuffix(got, "stopped:left") == row.fails || l.notes != 1 || len(l.stops) > 0 {
					t.Errorf("the last word is %q, %d notes, stopped at %v", got, l.notes, l.stops)
				}
			})
		})
	}
}

// Its lease lives on for longer than anybody waits here, and is the next sidecar's.
func TestTheEndOfABrokerThatMustStopIsAwaitedBeforeItsRegistrationIsGivenUp(t *testing.T) {
	for _, row := range []struct {
		name  string
		asked bool          // by 'holdfast leave', before
		ends  time.Duration // after the stop; 0: not while anybody waits
	}{
		{"both are stopped at once", false, time.Second},
		{"the same, after 'holdfast leave'", true, time.Second},
		{"only the sidecar is stopped", false, 0},
		{"the same, after 'holdfast leave'", true, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			inLeaver(t, mustStop, func(c *config.Config) { c.IKnow = true }, func(l *leaver) {
				end := l.isAProcess()
				if row.asked {
					if err := l.asks(5*time.Second, false); err != nil || l.departing.Phase != recovery.Awaiting {
						t.Fatalf("%v, phase %q", err, l.departing.Phase)
					}
				}
				l.stopAsked()
				l.halt()
				if row.ends > 0 {
					time.AfterFunc(row.ends, func() {
						l.set(func() { l.ended = true })
						end()
					})
				}
				began := l.age()
				err := l.leave()
				took := l.age() - began
				if gone := row.ends > 0; (err == nil) != gone || (l.notes == 1) != gone || revoked(l.sidecarLife) != gone || took > stopTimeout {
					t.Errorf("%v, %d notes, revoked %v, took %v", err, l.notes, revoked(l.sidecarLife), took)
				}
				if err != nil && !strings.Contains(err.Error(), "left to run out by itself") {
					t.Error(err)
				}
			})
		})
	}
}

// isAProcess gives the broker a process that is seen, and returns what ends it.
func (l *sidecarLife) isAProcess() (end func()) {
	l.t.Helper()
	c := exec.Command("sleep", "300")
	if err := c.Start(); err != nil {
		l.t.Fatal(err)
	}
	end = sync.OnceFunc(func() { _, _ = c.Process.Kill(), c.Wait() })
	l.t.Cleanup(end)
	living, err := process.TargetOf(c.Process.Pid)
	if err != nil {
		l.t.Fatal(err)
	}
	who, _ := l.identity.get()
	l.inLoop(func() { l.served = living })
	l.recognizer.Settle(living, who.Instance, recognize.IsBroker, "")
	return end
}

func TestTheLastLineSaysWhatStaysAndWhatToDo(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 9, 0, time.UTC)
	const guarded = "start 'holdfast run' again: the guard of /state, process 4711, stops the broker at 12:00:09Z unless a sidecar renews the lease before; " +
		"only if no sidecar is to run here again: kill -KILL 4711 ends the guard, and nobody guards what the broker then serves"
	const given = "holdfast ends: registration given up; with other brokers alive this one comes back drained (--leave-registered avoids that)"
	watch := watchThatSaw(t)
	for _, row := range []struct {
		name     string
		detached bool
		config   func(*config.Config)
		change   func(l *sidecarLife)
		last     string
	}{
		{"a detached broker that boots", true, stoppable, func(l *sidecarLife) {
			l.ended, l.agent.process = true, watch
		}, "the broker may serve without a registration: the broker runs and does not answer: stop the broker, or " + guarded},
		{"a broker that is quiesced", false, stoppable, nil, given + "; its topics stay quiesced until a sidecar runs here: start 'holdfast run' again"},
		{"a broker that an operator has drained", false, stoppable, func(l *sidecarLife) {
			l.mode = recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: "operator"}
		}, "holdfast ends: registration given up; this one is drained (disk swap), and comes back so; its topics stay quiesced until a sidecar runs here: start 'holdfast run' again"},
		{"a broker that does not answer, and no process is seen", false, stoppable, func(l *sidecarLife) { l.ended = true }, given + "; " + guarded},
		{"a broker that refuses", false, stoppable, func(l *sidecarLife) { l.refuses = 1000 }, "stop the broker, or " + guarded},
		{"--leave-registered", false, func(c *config.Config) { stoppable(c); c.LeaveRegistered = true }, nil, "holdfast ends; " + guarded},
	} {
		t.Run(row.name, func(t *testing.T) {
			var g slowGuard
			past := withSlowGuard(&g)
			inLifeAfter(t, row.config, func(l *sidecarLife) {
				past(l)
				g.let(true)
				g.left = guard.Standing{Pid: 4711, Dir: "/state", At: at}
				l.guard = g
			}, func(l *sidecarLife) {
				if row.detached { // before it ends, since nobody renews for it then
					l.set(func() { l.lost, l.storeErr = true, true })
					l.becomes(recovery.Detached, l.age()+time.Minute)
				}
				l.inLoop(func() {
					l.set(func() {
						l.words = nil
						if row.change != nil {
							row.change(l)
						}
					})
				})
				l.until(l.age() + 5*time.Second)
				l.halt()
				l.set(func() { l.words = nil })
				var log strings.Builder
				l.log = slog.New(slog.NewTextHandler(&log, nil))
				last := ""
				if err := l.leave(); err != nil {
					last = err.Error()
				} else if lines := strings.Split(strings.TrimSpace(log.String()), "\n"); len(lines) > 0 {
					_, last, _ = strings.Cut(lines[len(lines)-1], `msg="`)
					last, _, _ = strings.Cut(last, `"`)
				}
				if !strings.HasSuffix(last, row.last) {
					t.Errorf("the last line is\n%s\nwant\n%s", last, row.last)
				}
			})
		})
	}
}
