package agent

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/control"
	"holdfast/agent/guard"
)

// newsGuard is a guard of which there is news.
type newsGuard struct {
	slowGuard
	news []guard.Event
}

func (g newsGuard) News() []guard.Event { return g.news }

// Whoever reads the journal of a sidecar that was killed, and again when the next one runs, finds each
// event under the number that it had, and the guard's shot once.
func TestTheGuardsShotKeepsItsNumber(t *testing.T) {
	quiet, a := slog.New(slog.DiscardHandler), &agent{}
	a.log, a.cfg.StateDir = quiet, t.TempDir()
	start := func() {
		a.journal = control.OpenJournal(a.cfg.StateDir, quiet)
		a.event(control.Event{Kind: "agent", To: "started"})
	}
	start()
	a.journal.Close()

	acted := guard.Acted{At: time.Date(2026, 3, 1, 3, 0, 0, 123, time.UTC), Broker: 5, How: "SIGTERM", QuietMS: 7100}
	raw, err := json.Marshal(acted)
	if err == nil {
		err = os.WriteFile(filepath.Join(a.cfg.StateDir, "guard.log"), append(raw, '\n'), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	left, err := control.LeftJournal(a.cfg.StateDir)
	if err != nil || len(left) != 2 || left[1].ID != 2 || left[1].To != guard.Fired || !left[1].At.Equal(acted.At) {
		t.Fatalf("left: %+v, %v", left, err)
	}

	start()
	defer a.journal.Close()
	a.guard = newsGuard{news: []guard.Event{{What: guard.Stopped, Detail: acted.String(), Acted: acted}}}
	a.metrics = newMetrics(prometheus.NewRegistry(), a)
	a.noteGuard()
	events, _ := a.journal.Since(0)
	if len(events) != 3 || events[1].ID != 2 || events[1].Detail != left[1].Detail || events[2].To != "started" {
		t.Errorf("the next sidecar has %+v", events)
	}
	a.journal.Close()
	if again, err := control.LeftJournal(a.cfg.StateDir); err != nil || len(again) != 3 { // it died before its guard's file was taken up
		t.Errorf("left again: %+v, %v", again, err)
	}
}
