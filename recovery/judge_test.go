package recovery

import "testing"

func TestStateKeyIsJudgedByWhoWroteWhat(t *testing.T) {
	ours := func(m Mode, r Reason) ModeRecord { return ModeRecord{m, r, ByHoldfast} }
	person := func(m Mode) ModeRecord { return ModeRecord{m, ReasonOperator, "operator"} }
	booted := ModeRecord{Active, ReasonBoot, "broker"}
	stale := ours(Drained, ReasonStaleRestart)
	for _, c := range []struct {
		name string
		have ModeRecord
		seen *ModeRecord
		want Ruling
		mode ModeRecord
	}{
		{"what we hold", stale, &stale, Unchanged, stale},
		{"deleted while active", ours(Active, ReasonBoot), nil, Reassert, ours(Active, ReasonBoot)},
		{"deleted while drained", stale, nil, Reassert, stale},
		{"not a mode", stale, &ModeRecord{Mode: "sleeping"}, Reassert, stale},
		{"empty", stale, &ModeRecord{}, Reassert, stale},
		{"the broker's own boot while drained", stale, &booted, Reassert, stale},
		{"the broker's own boot, no author", stale, &ModeRecord{Active, ReasonBoot, ""}, Reassert, stale},
		{"the broker's own boot while draining", person(Draining), &booted, Reassert, person(Draining)},
		{"the broker's own boot while drained by a person", person(Drained), &booted, Reassert, person(Drained)},
		{"the broker's own boot while active", ours(Active, ReasonFastRestart), &booted, Accept, booted},
		{"a person activates", stale, ptr(person(Active)), Accept, person(Active)},
		{"a person drains", ours(Active, ReasonBoot), ptr(person(Drained)), Accept, person(Drained)},
		{"a person drains, no author", ours(Active, ReasonBoot), &ModeRecord{Mode: Drained}, Accept, ModeRecord{Mode: Drained}},
		{"a person changes the reason only", stale, ptr(person(Drained)), Accept, person(Drained)},
		{"our own activation", stale, ptr(ours(Active, ReasonBoot)), Accept, ours(Active, ReasonBoot)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, mode := JudgeState(c.have, c.seen); got != c.want || mode != c.mode {
				t.Errorf("%d %v, want %d %v", got, mode, c.want, c.mode)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }
