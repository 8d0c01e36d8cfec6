package agent

import (
	"testing"

	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/agent/registration"
)

func TestTheEndOfTheProcessOfAnEarlierLifeIsProven(t *testing.T) {
	space, err := process.Space()
	if err != nil {
		t.Fatal(err)
	}
	ended := process.Target{Pid: 1<<22 + 1, StartTicks: 1} // no pid is that high
	for name, row := range map[string]struct {
		past *recognize.Past
		want bool
	}{
		"none is known":                        {nil, false},
		"the one that was registered":          {&recognize.Past{Target: ended, Instance: "b", Space: space}, true},
		"one before it":                        {&recognize.Past{Target: ended, Instance: "a", Space: space}, false},
		"one of another boot or pid namespace": {&recognize.Past{Target: ended, Instance: "b", Space: "elsewhere"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := &agent{}
			a.memory = memory{Past: registration.Past{Instance: "b"}, Process: row.past}
			a.recallProcess()
			if got := a.processEnded(); got != row.want {
				t.Errorf("proven: %t", got)
			}
		})
	}
}

// TestAProcessThatEndsBeforeItIsJudgedIsProvenToHave: but one that is another's proves
// nothing.
func TestAProcessThatEndsBeforeItIsJudgedIsProvenToHave(t *testing.T) {
	ended := process.Target{Pid: 1<<22 + 1, StartTicks: 1}
	living, err := process.TargetOf(1)
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		served, unjudged process.Target
		verdict          recognize.Verdict
		want             bool
	}{
		"never up":                       {want: false},
		"not judged yet":                 {unjudged: ended, want: true},
		"judged to be another's":         {unjudged: ended, verdict: recognize.IsForeign, want: false},
		"the one before has ended":       {served: ended, unjudged: living, want: false},
		"the one after it is another's":  {served: ended, unjudged: living, verdict: recognize.IsForeign, want: true},
		"the one that was judged":        {served: ended, want: true},
		"the one that was judged, lives": {served: living, want: false},
	} {
		t.Run(name, func(t *testing.T) {
			a := &agent{}
			a.served, a.unjudged = row.served, row.unjudged
			a.recognizer.Settle(process.Target{}, "", row.verdict, "why")
			if got := a.processEnded(); got != row.want {
				t.Errorf("proven: %t", got)
			}
			if got, want := a.servingLives(), a.lastServing() == living; got != want {
				t.Errorf("seen to live: %t", got)
			}
		})
	}
}
