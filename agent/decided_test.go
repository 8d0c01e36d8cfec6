package agent

import (
	"testing"

	"holdfast/agent/control"
	"holdfast/agent/registration"
	"holdfast/recovery"
)

var staleRestart = recovery.Decision{Row: recovery.ReasonStaleRestart, Mode: recovery.ModeRecord{Mode: recovery.Drained, Reason: recovery.ReasonStaleRestart, By: recovery.ByHoldfast},
	Write: true, Detail: "other brokers are registered"}

// decides has the loop take up that decision, of a start.
func (l *sidecarLife) decides(d recovery.Decision, boot recovery.BootKind, revision int64) {
	l.inLoop(func() {
		l.takeUp(registration.Outcome{Decision: d, Boot: boot, Grant: l.grant, Instance: "process-1", StateRevision: revision})
	})
}

func TestTheRowThatDecidedIsToldUntilAnotherSetsTheMode(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		wants := func(row recovery.Reason) {
			t.Helper()
			switch d := l.status().Decided; {
			case row == "" && d != nil:
				t.Errorf("decided by %s, want by nobody", d.Row)
			case row != "" && (d == nil || d.Row != string(row) || d.Why == "" || d.Otherwise != recovery.Otherwise(row)):
				t.Errorf("decided by %+v, want %s", d, row)
			}
		}
		l.decides(staleRestart, recovery.Restart, 2_000_000)
		wants(recovery.ReasonStaleRestart)
		survived := recovery.Decision{Step: recovery.Keep, Row: recovery.RowSurvived, Mode: staleRestart.Mode}
		l.decides(survived, "", 2_000_001)
		wants(recovery.ReasonStaleRestart)
		l.inLoop(func() { // a sidecar that is started anew
			l.mode, l.modeRev, l.decided = recovery.ModeRecord{}, 0, l.memory.Decided
		})
		l.decides(survived, "", 2_000_002)
		wants(recovery.ReasonStaleRestart)
		kept := recovery.Decision{Step: recovery.Keep, Row: recovery.RowKept, Mode: staleRestart.Mode, Detail: "kept"}
		l.decides(kept, recovery.Restart, 2_000_003)
		wants(recovery.RowKept)
		l.inLoop(func() {
			l.setMode(recovery.ModeRecord{Mode: recovery.Active, Reason: recovery.ReasonOperator, By: recovery.ByOperator}, 2_000_004, "by an operator")
		})
		wants("")
	})
}

func TestAnEventOfAStartSaysOnceWhatWouldHaveMadeItAnother(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		before := l.journal.Newest()
		l.decides(staleRestart, recovery.Restart, 2_000_000)
		events, _ := l.journal.Since(before)
		said := 0
		for _, e := range events {
			if e.Kind != "boot" && e.Kind != "mode" {
				continue
			}
			if e.Row != string(recovery.ReasonStaleRestart) || control.Explain(e, l.cfg).Otherwise != recovery.Otherwise(recovery.ReasonStaleRestart) {
				t.Errorf("%+v", e)
			}
			if e.Otherwise != "" {
				said++
			}
		}
		if said != 1 {
			t.Errorf("said %d times: %+v", said, events)
		}
	})
}

// The mode is an operator's, and it is not what its reason says that decided.
func TestADrainThatWasKeptIsExplainedAsKept(t *testing.T) {
	e := control.Event{Kind: "boot", To: "restart", Reason: string(recovery.ReasonStaleRestart), Row: string(recovery.RowKept), Otherwise: recovery.Otherwise(recovery.RowKept)}
	fresh := e
	fresh.Row, fresh.Otherwise = "", ""
	c := natsDefaults().Effective()
	if kept, decided := control.Explain(e, c), control.Explain(fresh, c); kept.Why == decided.Why || kept.Otherwise == decided.Otherwise || decided.Otherwise == "" {
		t.Errorf("kept: %+v\ndecided: %+v", kept, decided)
	}
}
