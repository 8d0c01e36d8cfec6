package agent

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/registration"
	"holdfast/recovery"
)

func inShadow(c *config.Config) { stoppable(c); c.Shadow = true }

func (l *sidecarLife) would(what string) int {
	return int(testutil.ToFloat64(l.wouldHave.WithLabelValues(what)))
}

func (l *sidecarLife) probe(path string) (int, string) {
	w := httptest.NewRecorder()
	l.probeHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestInShadowNothingIsDoneToTheBroker(t *testing.T) {
	inLife(t, inShadow, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.until(l.deadline() + 10*time.Minute)
		if l.state() != recovery.Detached || l.why("fence") != "quiesced:" {
			t.Errorf("%s: %s", l.state(), l.why("fence"))
		}
		if l.quiesces+l.loads+len(l.stops) > 0 || !l.serving {
			t.Errorf("%d quiesces, %d loads, stops %v", l.quiesces, l.loads, l.stops)
		}
		if l.would(actQuiesce) != 1 || l.would(registration.ActStop) != 0 || l.would(actNotReady) != 1 {
			t.Errorf("would have: quiesce %d, stop %d, not_ready %d", l.would(actQuiesce), l.would(registration.ActStop), l.would(actNotReady))
		}
		for _, path := range []string{"/ready", "/readyz", "/startup", "/broker/live", "/live"} {
			if code, body := l.probe(path); code != http.StatusOK {
				t.Errorf("%s: %d %q", path, code, body)
			}
		}
		if _, body := l.probe("/ready"); !strings.HasPrefix(body, "shadow: would have answered 503: ") || strings.Count(body, "\n") != 1 {
			t.Errorf("/ready: %q", body)
		}
		if _, body := l.probe("/ready?full=1"); !strings.Contains(body, `"attached": "detached from the cluster"`) {
			t.Errorf("/ready?full=1: %q", body)
		}

		l.set(func() { l.away = false })
		l.becomes(recovery.Attached, time.Hour)
		l.until(l.age() + 10*time.Minute)
		if len(l.notReady()) > 0 || l.would(actLoad) != 1 || l.loads > 0 {
			t.Errorf("attached again: %v, would have loaded %d", l.notReady(), l.would(actLoad))
		}
		if _, body := l.probe("/ready"); body != "shadow: would have answered 200 too\n" {
			t.Errorf("/ready: %q", body)
		}
	})
}

func TestWhatAShadowSaysIsConditional(t *testing.T) {
	inLife(t, inShadow, func(l *sidecarLife) {
		l.set(func() { l.serving = false })
		l.until(l.age() + 2*time.Minute)
		if want := "shadow: n1 would be attached and active, and would serve 1 topic; in fact nothing is done."; l.status().Summary != want {
			t.Errorf("%q", l.status().Summary)
		}
		if got := l.topics(); len(got) != 1 || got[0].State != "served" || !got[0].Supposed {
			t.Errorf("topics %+v", got)
		}
		if l.would(actLoad) != 1 || len(l.told("shadow", "load")) > 0 { // topics may be thousands
			t.Errorf("%d loads counted, told of %+v", l.would(actLoad), l.told("shadow", "load"))
		}
		l.set(func() { l.away = true })
		l.until(l.deadline() + time.Minute)
		if s := l.status().Summary; !strings.HasPrefix(s, "shadow: nothing is done and clients are not kept away; without --shadow it would say: n1 is detached") {
			t.Errorf("%q", s)
		}
		for _, kind := range []string{"mode", "registration", "readiness", "topics", "fence"} {
			events, _ := l.journal.Since(0)
			for _, e := range events {
				if e.Kind == kind && e.To != "failing" && (!e.Shadow || !strings.HasPrefix(e.Detail, "would have been, but for --shadow")) {
					t.Errorf("%+v", e)
				}
			}
		}
	})
}

func (l *sidecarLife) told(kind, to string) (told []control.Event) {
	events, _ := l.journal.Since(0)
	for _, e := range events {
		if e.Kind == kind && e.To == to {
			told = append(told, e)
		}
	}
	return told
}

func TestInShadowTheProcessIsNotStopped(t *testing.T) {
	inLife(t, inShadow, func(l *sidecarLife) {
		l.set(func() { l.frozen = true })
		l.becomes(recovery.Detached, time.Hour)
		l.until(l.age() + 10*time.Minute)
		if len(l.stops) > 0 || l.would(registration.ActStop) != 1 {
			t.Errorf("stopped at %v, would have %d times", l.stops, l.would(registration.ActStop))
		}
	})
}

func TestANewProcessKnowsNothingOfWhatAShadowSupposed(t *testing.T) {
	inLife(t, inShadow, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.until(l.fencePoint() + time.Second)
		l.set(func() { l.ended = true })
		l.until(l.age() + 10*time.Second)
		l.start()
		l.until(l.age() + 10*time.Second)
		if got := l.would(actQuiesce); got != 2 {
			t.Errorf("would have quiesced %d times, want once for each process", got)
		}
	})
}

func TestInShadowAPersonsWordIsRefused(t *testing.T) {
	inLife(t, inShadow, func(l *sidecarLife) {
		for _, steer := range []func() error{
			func() error { return l.activate(t.Context(), order{}) },
			func() error { return l.drain(t.Context(), order{}) },
		} {
			var refused *control.ExitError
			if err := steer(); !errors.As(err, &refused) || refused.Code != control.ExitRefused || !strings.Contains(err.Error(), "--shadow") {
				t.Errorf("%v", err)
			}
		}
		if s := l.status(); !s.Shadow || !strings.HasPrefix(s.Summary, "shadow: ") {
			t.Errorf("%+v", s)
		}
	})
}
