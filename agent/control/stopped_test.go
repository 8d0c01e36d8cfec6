package control

import (
	"testing"
	"time"

	"holdfast/agent/guard"
)

func TestTheStatusNamesWhoStoppedTheBroker(t *testing.T) {
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	up, down := Event{Kind: "broker", To: "up", At: noon}, Event{Kind: "broker", To: "down", At: noon.Add(time.Minute)}
	shot := Event{Kind: "fence", To: "guard_fired", At: noon.Add(2 * time.Minute), DoneAt: noon.Add(30 * time.Second),
		Detail: "no word from the sidecar for 7.1s: process 5 of the broker was stopped by SIGTERM"}
	unproven := shot
	unproven.Detail = guard.Acted{Broker: 5, How: "SIGTERM", QuietMS: 7100, Runs: true}.String()
	fenced := Event{Kind: "fence", To: "stopped", At: noon.Add(time.Minute)}
	supposed := fenced
	supposed.Shadow = true
	for _, row := range []struct {
		name    string
		events  []Event
		started time.Time
		want    string
	}{
		{"nobody", []Event{up, down}, noon, ""},
		{"its guard, at the time of the shot", []Event{up, down, shot}, noon,
			"n1 was stopped by its guard at 2026-11-20 12:00:30Z (no word from the sidecar for 7.1s)"},
		{"its guard, noted before the end was seen", []Event{up, shot, down}, noon,
			"n1 was stopped by its guard at 2026-11-20 12:00:30Z (no word from the sidecar for 7.1s)"},
		{"its guard, and the sidecar ran", []Event{up, down, unproven}, noon,
			"n1 was stopped by its guard at 2026-11-20 12:00:30Z (the sidecar runs, and for 7.1s had neither a renewal nor a proof that nothing is served)"},
		{"the fence", []Event{up, fenced, down}, noon,
			"n1 was stopped by the fence at 2026-11-20 12:01:00Z (its lease was about to end, and it was not shown to serve nothing)"},
		{"it came up since", []Event{up, fenced, down, up, down}, noon, ""},
		{"the shot was noted when the next process ran", []Event{up, shot, down}, noon.Add(time.Minute), ""},
		{"only supposed", []Event{up, supposed, down}, noon, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := ""
			if s := StoppedBy(row.events, row.started); s != nil {
				got = s.Sentence("n1")
			}
			if got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}
