package agent

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"holdfast/agent/control"
	"holdfast/recovery"
)

// ask makes a request of the control socket.
func (l *sidecarLife) ask(path string, body any) (code int, answer control.PauseAnswer, raw string) {
	l.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		l.t.Fatal(err)
	}
	w := httptest.NewRecorder()
	l.controlHandler().ServeHTTP(w, httptest.NewRequestWithContext(l.life0, http.MethodPost, path, bytes.NewReader(b)))
	raw = w.Body.String()
	if w.Code == http.StatusOK {
		if err := json.Unmarshal([]byte(raw), &answer); err != nil {
			l.t.Fatal(err)
		}
	}
	return w.Code, answer, raw
}

func (l *sidecarLife) pause(d time.Duration) {
	l.t.Helper()
	if code, _, raw := l.ask("/v1/pause", control.PauseRequest{Owner: "ops", Reason: "disk swap", ForSeconds: d.Seconds()}); code != http.StatusOK {
		l.t.Fatalf("%d %s", code, raw)
	}
}

func (l *sidecarLife) resume() {
	l.t.Helper()
	if code, _, raw := l.ask("/v1/resume", struct{}{}); code != http.StatusOK {
		l.t.Fatalf("%d %s", code, raw)
	}
}

func TestAPauseIsShownAndEndsByItself(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		if st := l.status(); st.Pause != nil || strings.Contains(st.Summary, "paused") {
			t.Errorf("before: %+v, %q", st.Pause, st.Summary)
		}
		l.pause(time.Hour)
		began := l.age()
		l.until(began + 10*time.Minute)
		st := l.status()
		if st.Pause == nil || st.Pause.Owner != "ops" || st.Pause.Reason != "disk swap" || st.Pause.RemainingSeconds != 3000 ||
			time.Until(st.Pause.Until) != 50*time.Minute {
			t.Errorf("%+v", st.Pause)
		}
		if want := "n1 is attached, active and serves 1 topic. Recovery is paused by ops for 50m0s more (disk swap); to end it: holdfast resume."; st.Summary != want {
			t.Errorf("%q", st.Summary)
		}
		if !st.Ready.OK {
			t.Errorf("not ready: %v", st.Ready.Causes)
		}
		l.until(began + time.Hour - time.Nanosecond)
		if !l.agent.paused() {
			t.Error("a nanosecond before the end: it goes on")
		}
		l.until(began + time.Hour)
		if l.agent.paused() || l.status().Pause != nil {
			t.Error("it goes on after its end")
		}
		if got := l.why("operator"); got != "paused:operator resumed:expired" {
			t.Error(got)
		}
		if l.memory.Pause != nil {
			t.Error("the state file still holds it")
		}
	})
}

func TestPausingAgainReplacesAndResumingTwiceIsNothing(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.pause(time.Hour)
		l.until(l.age() + time.Minute)
		_, answer, _ := l.ask("/v1/pause", control.PauseRequest{Owner: "dba", Reason: "tests", ForSeconds: 60})
		if answer.Pause == nil || answer.Pause.Owner != "dba" || answer.Pause.RemainingSeconds != 60 ||
			answer.Before == nil || answer.Before.Owner != "ops" || answer.Before.RemainingSeconds != 3540 {
			t.Errorf("%+v %+v", answer.Pause, answer.Before)
		}
		_, answer, _ = l.ask("/v1/resume", struct{}{})
		if answer.Pause != nil || answer.Before == nil || answer.Before.Owner != "dba" || answer.BrokerID != "n1" {
			t.Errorf("%+v", answer)
		}
		code, answer, _ := l.ask("/v1/resume", struct{}{})
		if code != http.StatusOK || answer.Pause != nil || answer.Before != nil {
			t.Errorf("%d %+v", code, answer)
		}
		if got := l.why("operator"); got != "paused:operator paused:operator resumed:operator" {
			t.Error(got)
		}
	})
}

// Whoever reads the answer may kill the sidecar at once.
func TestAPauseIsOnDiskBeforeItIsConfirmed(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		for _, want := range []string{"ops", ""} {
			if want == "" {
				l.resume()
			} else {
				l.pause(time.Hour)
			}
			m, err := l.dir.load()
			if err != nil || (m.Pause == nil) != (want == "") || m.Pause != nil && m.Pause.Owner != want {
				t.Errorf("the state file has %+v, %v", m.Pause, err)
			}
		}
		kept := l.dir.path
		disk := func(path string) {
			l.fileMu.Lock()
			defer l.fileMu.Unlock()
			l.dir.path = path
		}
		disk("/proc/holdfast")
		if code, _, raw := l.ask("/v1/pause", control.PauseRequest{Owner: "ops", Reason: "disk swap", ForSeconds: 60}); code != http.StatusServiceUnavailable || !strings.Contains(raw, "would not know of it") {
			t.Errorf("on a disk that takes nothing: %d %s", code, raw)
		}
		disk(kept)
	})
}

func TestAPauseIsRefusedByNameAndRemedy(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		for _, c := range []struct {
			name string
			req  control.PauseRequest
			want string
		}{
			{"nothing given", control.PauseRequest{}, "--for: required: give how long, such as 30m, at least 1s and at most 24h\n" +
				"--owner: required: give who answers for the pause, such as a name or a ticket\n--reason: required: give why, for those who find the broker paused"},
			{"too long", control.PauseRequest{Owner: "ops", Reason: "disk", ForSeconds: 86401}, "--for 24h0m1s: more than 24h: give at most 24h, and pause again if need be"},
			{"backwards", control.PauseRequest{Owner: "ops", Reason: "disk", ForSeconds: -1e300}, "--for -1s: less than 1s: give at least that"},
			{"an owner of a thousand bytes", control.PauseRequest{Owner: strings.Repeat("o", 1000), Reason: "disk", ForSeconds: 60}, "--owner: 1000 bytes long: at most 100"},
			{"two lines", control.PauseRequest{Owner: "ops", Reason: "disk\nswap", ForSeconds: 60}, "--reason: has a line break or another control character: write one line of text"},
		} {
			code, _, raw := l.ask("/v1/pause", c.req)
			var refusal struct {
				Error    string `json:"error"`
				ExitCode int    `json:"exit_code"`
			}
			if err := json.Unmarshal([]byte(raw), &refusal); err != nil || code != http.StatusBadRequest || refusal.ExitCode != control.ExitUsage || refusal.Error != c.want {
				t.Errorf("%s: %d %s", c.name, code, raw)
			}
		}
		if l.pauseLeft() != 0 {
			t.Error("a refused pause is in force")
		}
	})
}

func TestAWallClockThatIsSetBackDoesNotMakeAPauseLast(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.inLoop(func() {
			p := recovery.NewPause("ops", "disk swap", time.Hour, time.Now(), l.bootID, time.Duration(l.clock()))
			p.At, p.Until = p.At.Add(48*time.Hour), p.Until.Add(48*time.Hour) // as seen after the wall clock went back
			l.beginPause(p)
		})
		began := l.age()
		l.until(began + time.Hour - time.Second)
		if l.pauseLeft() != time.Second {
			t.Errorf("%v left", l.pauseLeft())
		}
		l.until(began + time.Hour)
		if l.pauseLeft() != 0 {
			t.Errorf("%v left after its time", l.pauseLeft())
		}
	})
}

func TestAPausedSidecarRenewsDetachesAndFences(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.pause(12 * time.Hour)
		l.until(l.age() + time.Hour)
		if l.state() != recovery.Attached || len(l.notReady()) > 0 {
			t.Errorf("after an hour: %s, %v", l.state(), l.notReady())
		}
		l.set(func() { l.away = true })
		at := l.fencePoint()
		l.until(at - time.Nanosecond)
		if l.state() == recovery.Detached {
			t.Error("detached early")
		}
		l.until(at + time.Second)
		if l.state() != recovery.Detached || l.quiesces != 1 || len(l.notReady()) == 0 {
			t.Errorf("after the fence point: %s, %d topics quiesced", l.state(), l.quiesces)
		}
	})
}

func TestAModeIsWrittenAgainOnlyAfterThePause(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.pause(time.Minute)
		l.inLoop(func() { l.stateSeen(nil, "", 1_000_000, 0, 1_000_000) })
		var asserting, wanted bool
		l.inLoop(func() { asserting, wanted = l.reasserting, l.reassert })
		if asserting || !wanted {
			t.Errorf("while paused: being written %v, to be written %v", asserting, wanted)
		}
		l.inLoop(func() { l.reassert = false }) // there is no etcd here to write to
	})
}

func TestAnOperatorsDrainIsCarriedOutWhilePaused(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.pause(time.Hour)
		l.inLoop(func() {
			l.setMode(recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}, 1_000_000, "")
		})
		l.until(l.age() + 2*time.Second)
		if l.quiesces == 0 {
			t.Error("nothing was quiesced")
		}
	})
}

func TestRecoverysOwnDrainIsNotCarriedOutWhilePaused(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.pause(time.Hour)
		l.inLoop(func() {
			l.setMode(recovery.ModeRecord{Mode: recovery.Drained, Reason: recovery.ReasonStaleRestart, By: recovery.ByHoldfast}, 1_000_000, "")
		})
		l.until(l.age() + 2*time.Second)
		if l.quiesces != 0 {
			t.Errorf("%d topics quiesced", l.quiesces)
		}
		l.resume()
		l.until(l.age() + 2*time.Second)
		if l.quiesces == 0 {
			t.Error("nothing was quiesced after the pause")
		}
	})
}

// The pause is in the state file, so the next sidecar takes it up; one that ran out
// meanwhile is ended, with the words that belong to it.
func TestAPauseOutlivesTheSidecar(t *testing.T) {
	for _, c := range []struct {
		name string
		left time.Duration
		want string
	}{
		{"in force", time.Hour, ""},
		{"over", -time.Minute, "resumed:expired"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inLife(t, nil, func(l *sidecarLife) {
				p := recovery.NewPause("ops", "disk swap", 2*time.Hour, time.Now().Add(c.left-2*time.Hour), "an earlier boot", 7*time.Hour)
				l.inLoop(func() {
					l.remember(func(m *memory) { m.Pause = &p })
					l.restorePause()
				})
				l.inLoop(func() {})
				if got := l.pauseLeft(); got != max(0, c.left) {
					t.Errorf("%v left", got)
				}
				if got := l.why("operator"); got != c.want {
					t.Errorf("journal %q", got)
				}
				if c.left > 0 && (l.memory.Pause == nil || l.memory.Pause.BootID == "an earlier boot") {
					t.Errorf("not bound by the clock of this boot: %+v", l.memory.Pause)
				}
			})
		})
	}
}

func TestWhatAPauseHoldsBackSaysSo(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.pause(time.Hour)
		l.set(func() { l.serving = false })
		l.until(l.age() + 2*time.Minute)
		if got := l.topics(); len(got) != 1 || got[0].State != "missing" || got[0].Error != "held back: paused by ops" {
			t.Errorf("%+v", got)
		}
		l.resume()
		l.until(l.age() + 2*time.Minute)
		if got := l.topics(); len(got) != 1 || got[0].State != "served" || got[0].Error != "" {
			t.Errorf("after the pause: %+v", got)
		}
	})
}
