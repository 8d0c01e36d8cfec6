package recognize

import (
	"errors"
	"testing"
	"time"

	"holdfast/agent/process"
	"holdfast/probes"
)

func TestAProcessIsRecognizedByItsStartAndTheAdminSocket(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	near, far, none := at.Add(-startTolerance), at.Add(-startTolerance-1), time.Time{}
	for _, tt := range []struct {
		name    string
		started time.Time
		stated  time.Time
		holding probes.Holding
		holder  time.Time
		twins   bool
		want    Verdict
	}{
		{"it holds the socket", near, at, probes.HoldingYes, none, false, IsBroker},
		{"it holds the socket, the clock was set", far, at, probes.HoldingYes, none, false, IsBroker},
		{"it holds the socket, the broker states no start", near, none, probes.HoldingYes, none, false, IsBroker},
		{"starts agree, socket hidden", near, at, probes.HoldingUnknown, none, false, IsBroker},
		{"starts agree, another start is later", at.Add(startTolerance), at, probes.HoldingUnknown, none, false, IsBroker},
		{"starts differ, socket hidden", far, at, probes.HoldingUnknown, none, false, IsForeign},
		{"starts differ, it does not hold the socket", far, at, probes.HoldingNo, none, false, IsForeign},
		{"starts differ, another holds the socket", far, at, probes.HoldingAnother, at, false, IsForeign},
		{"starts agree, the broker next to it holds the socket", at, at, probes.HoldingAnother, near, true, IsForeign},
		{"no start stated, the broker next to it holds the socket", near, none, probes.HoldingAnother, near, true, IsForeign},
		{"starts agree, the holder's fits better", near, at, probes.HoldingAnother, at.Add(-time.Second), false, IsForeign},
		{"starts agree, the holder is a proxy that is older", near, at, probes.HoldingAnother, far, false, Unknown},
		{"starts agree, it does not hold the socket, who does is hidden", at, at, probes.HoldingNo, none, false, Unknown},
		{"no start stated, socket hidden", near, none, probes.HoldingUnknown, none, false, Unknown},
		{"no start stated, another holds the socket", near, none, probes.HoldingAnother, at, false, Unknown},
		{"nothing is known", none, none, probes.HoldingUnknown, none, false, Unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := recognize(recognitionFacts{Started: tt.started, Stated: tt.stated, Holding: tt.holding, Holder: tt.holder, Twins: tt.twins})
			if got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func TestNobodyIsHitBeforeHeIsJudgedWhileTheBrokerAnswers(t *testing.T) {
	var r Judged
	first, second := process.Target{Pid: 7, StartTicks: 1}, process.Target{Pid: 8, StartTicks: 2}
	if err := r.Refuses(first); err != nil {
		t.Errorf("the broker never answered: %v", err)
	}
	r.Begin(first, "", time.Time{}, false)
	if err := r.Refuses(first); err != nil {
		t.Errorf("the broker does not answer: %v", err)
	}
	if ask, _ := r.Begin(first, "a", time.Now().Add(-time.Minute), true); ask {
		t.Error("judged by an answer from before it was seen")
	}
	if r.Refuses(first) == nil || errors.Is(r.Refuses(first), process.ErrNotFound) {
		t.Errorf("not judged yet: %v", r.Refuses(first))
	}
	if ask, _ := r.Begin(first, "a", time.Now().Add(time.Minute), true); !ask {
		t.Fatal("not judged")
	}
	if ask, _ := r.Begin(first, "a", time.Now().Add(time.Minute), true); ask {
		t.Error("judged twice at once")
	}
	if !r.End(first, "a", IsBroker, "") || r.Refuses(first) != nil {
		t.Errorf("the broker is refused: %v", r.Refuses(first))
	}
	// The file names another one.
	if _, isNew := r.Begin(second, "a", time.Now(), true); !isNew || r.Refuses(second) == nil {
		t.Error("believed without a judgement")
	}
	if ask, _ := r.Begin(second, "a", time.Now().Add(time.Minute), true); !ask || !r.End(second, "a", IsForeign, "no") {
		t.Error("not judged")
	}
	for _, up := range []bool{true, false} { // also when the broker hangs or ends
		r.Begin(second, "a", time.Now().Add(time.Minute), up)
		if !errors.Is(r.Refuses(second), process.ErrNotFound) || r.Foreign() != "no" {
			t.Errorf("up %t: %v", up, r.Refuses(second))
		}
	}
	// It turns out to be the broker that came up.
	if ask, _ := r.Begin(second, "b", time.Now().Add(time.Minute), true); !ask || !r.End(second, "b", IsBroker, "") || r.Refuses(second) != nil {
		t.Errorf("another broker answers: %v", r.Refuses(second))
	}
}
