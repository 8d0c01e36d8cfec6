package agent

import (
	"testing"
	"time"
)

func TestOnlyALoopThatIsStuckIsNotLive(t *testing.T) {
	for age, want := range map[time.Duration]string{
		loopBound - 5*time.Second: "",
		loopBound + 2*time.Second: "agent loop has not run for 12s",
		-time.Hour:                "",
	} {
		a := &agent{}
		a.ranAt(time.Now().Add(-age))
		got := ""
		if err := a.liveChecks()[0].Err(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%v ago: %q", age, got)
		}
	}
}
