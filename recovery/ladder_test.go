package recovery

import (
	"testing"
	"time"
)

// atFencePoint is a broker that just lost its right to serve: 9 s of margin.
func atFencePoint(change func(f *LadderFacts)) LadderFacts {
	f := LadderFacts{Now: 100 * time.Second, Deadline: 109 * time.Second, Margin: 9 * time.Second, StopAt: 106 * time.Second, Quiesce: true, Stop: true}
	if change != nil {
		change(&f)
	}
	return f
}

func TestTheNextRung(t *testing.T) {
	const s = time.Second
	open := func(step FenceStep, bound time.Duration) Rung {
		return Rung{Fence: FenceOpen, Step: step, Until: bound}
	}
	at := func(f Fence) Rung { return Rung{Fence: f} }
	look := func(bound time.Duration) Rung { return Rung{Fence: FenceQuiesced, Step: StepQuiesce, Until: bound} }
	failed := Ladder{Quiesced: Failed, climbed: true}
	const unquiesced = "it could not be quiesced, so it may serve without its registration, and it was not stopped"
	const unstopped = "it may not run without its registration, and it was not stopped"
	const hangs = "it does not answer any more, so it may serve without its registration, and nothing here can stop it"
	restart := func(r Rung, why string) Rung { r.Restart = why; return r }
	for _, c := range []struct {
		name string
		l    Ladder
		f    LadderFacts
		want Rung // Until: from now on
	}{
		{"quiesce comes first, for a third of the margin", Ladder{}, atFencePoint(nil), open(StepQuiesce, 3*s)},
		{"quiesce has the time of stop where there is none", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Stop = false }), open(StepQuiesce, 6*s)},
		{"stop follows a failed quiesce at once", failed, atFencePoint(nil), restart(open(StepStop, 6*s), unquiesced)},
		{"stop after a quiesce that took its time", failed, atFencePoint(func(f *LadderFacts) { f.Now += 3 * s }), restart(open(StepStop, 3*s), unquiesced)},
		{"a proven quiesce ends the ladder", Ladder{Quiesced: Done}, atFencePoint(nil), at(FenceQuiesced)},
		{"a proven quiesce is not enough", Ladder{Quiesced: Done}, atFencePoint(func(f *LadderFacts) { f.MustStop = true }), restart(open(StepStop, 6*s), unstopped)},
		{"not enough, and no way to stop", Ladder{Quiesced: Done}, atFencePoint(func(f *LadderFacts) { f.MustStop, f.Stop = true, false }), restart(at(FenceAwaiting), unstopped)},
		{"ready,stop", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Quiesce = false }), open(StepStop, 6*s)},
		{"ready,stop, and it is registered again", Ladder{Stopped: Failed}, atFencePoint(func(f *LadderFacts) { f.Quiesce, f.Registered = false, true }), at(FencePausing)},
		{"ready,stop, and it will be known in a moment who it is", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Quiesce, f.Waits = false, true }), at(FencePausing)},
		{"that can be quiesced meanwhile", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Waits = true }), open(StepQuiesce, 3*s)},
		{"registered again, and does not answer", Ladder{Stopped: Failed}, atFencePoint(func(f *LadderFacts) { f.Quiesce, f.Registered, f.Down = false, true, true }), open(StepStop, 6*s)},
		{"registered again, and a quiesce failed", failed, atFencePoint(func(f *LadderFacts) { f.Registered = true }), restart(open(StepStop, 6*s), unquiesced)},
		{"registered again, and can be quiesced", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Registered = true }), open(StepQuiesce, 3*s)},
		{"ready alone", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Quiesce, f.Stop = false, false }), at(FenceAwaiting)},
		{"no answer: nothing could be proven", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Down = true }), open(StepStop, 6*s)},
		{"no answer, no way to stop", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Down, f.Stop = true, false }), at(FenceAwaiting)},
		{"it served and hangs, no way to stop", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Down, f.Served, f.Stop = true, true, false }), restart(Rung{Fence: FenceAwaiting, Step: StepQuiesce, Until: FenceRetry}, hangs)},
		{"it was asked just now, and hangs", Ladder{askAt: 101 * s}, atFencePoint(func(f *LadderFacts) { f.Down, f.Served, f.Stop = true, true, false }), restart(at(FenceAwaiting), hangs)},
		{"somebody may give it topics, and it was seen just now", Ladder{Quiesced: Done, provenAt: 99 * s}, atFencePoint(func(f *LadderFacts) { f.Look = 5 * s }), at(FenceQuiesced)},
		{"somebody may have given it topics since", Ladder{Quiesced: Done, provenAt: 95 * s}, atFencePoint(func(f *LadderFacts) { f.Look = 5 * s }), look(2 * s)},
		{"the same, and it does not answer", Ladder{Quiesced: Done, provenAt: 95 * s}, atFencePoint(func(f *LadderFacts) { f.Look, f.Down = 5*s, true }), look(2 * s)},
		{"the same, and the last look was in vain", Ladder{Quiesced: Done, provenAt: 95 * s, askAt: 101 * s}, atFencePoint(func(f *LadderFacts) { f.Look = 5 * s }), at(FenceQuiesced)},
		{"it is registered again, and somebody may have given it topics before", Ladder{Quiesced: Done, provenAt: 95 * s}, atFencePoint(func(f *LadderFacts) { f.Look, f.Registered = 5*s, true }), look(2 * s)},
		{"it is registered again, and no look told for long", Ladder{Quiesced: Done, provenAt: 10 * s}, atFencePoint(func(f *LadderFacts) { f.Look, f.Registered = 5*s, true }), look(2 * s)},
		{"the last look before the proof is too old", Ladder{Quiesced: Done, provenAt: 86 * s}, atFencePoint(func(f *LadderFacts) { f.Look = 5 * s }), look(s)},
		{"the proof is too old", Ladder{Quiesced: Done, provenAt: 85 * s}, atFencePoint(func(f *LadderFacts) { f.Look = 5 * s }), open(StepStop, 6*s)},
		{"too old, no way to stop", Ladder{Quiesced: Done, provenAt: 85 * s}, atFencePoint(func(f *LadderFacts) { f.Look, f.Stop = 5*s, false }), Rung{Fence: FenceAwaiting, Step: StepQuiesce, Until: FenceRetry}},
		{"too old, it hangs, no way to stop", Ladder{Quiesced: Done, provenAt: 85 * s}, atFencePoint(func(f *LadderFacts) { f.Look, f.Stop, f.Down, f.Served = 5*s, false, true, true }), restart(Rung{Fence: FenceAwaiting, Step: StepQuiesce, Until: FenceRetry}, hangs)},
		{"too old, and its connection broke: it may be starting", Ladder{Quiesced: Done, provenAt: 85 * s}, atFencePoint(func(f *LadderFacts) { f.Look, f.Down, f.Lost = 5*s, true, true }), Rung{Fence: FenceAwaiting, Step: StepQuiesce, Until: FenceRetry}},
		{"too old, and it left on purpose", ProvenIdle(85 * s), atFencePoint(func(f *LadderFacts) { f.Look, f.Down, f.Leaves = 5*s, true, true }), look(2 * s)},
		{"the same, and it may not run without its registration", ProvenIdle(85 * s), atFencePoint(func(f *LadderFacts) { f.Look, f.Leaves, f.MustStop = 5*s, true, true }), restart(open(StepStop, 6*s), unstopped)},
		{"it left on purpose, and serves again", Ladder{Quiesced: Failed, climbed: true}, atFencePoint(func(f *LadderFacts) { f.Look, f.Leaves = 5*s, true }), restart(open(StepStop, 6*s), unquiesced)},
		{"it left on purpose, and nothing was proven", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Down, f.Leaves = true, true }), open(StepStop, 6*s)},
		{"it served, and its connection broke: it may be starting", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Down, f.Served, f.Lost, f.Stop = true, true, true, false }), at(FenceAwaiting)},
		{"it served and hangs, and can be stopped", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Down, f.Served = true, true }), open(StepStop, 6*s)},
		{"it hangs after a proven quiesce", Ladder{Quiesced: Done}, atFencePoint(func(f *LadderFacts) { f.Down, f.Served, f.Stop = true, true, false }), at(FenceQuiesced)},
		{"no answer any more, no way to stop", Ladder{Quiesced: Failed}, atFencePoint(func(f *LadderFacts) { f.Down, f.Stop = true, false }), restart(at(FenceAwaiting), unquiesced)},
		{"its connection broke after a failed quiesce: it may be starting", Ladder{Quiesced: Failed}, atFencePoint(func(f *LadderFacts) { f.Down, f.Lost, f.Stop = true, true, false }), at(FenceAwaiting)},
		{"no answer any more, after a proven quiesce", Ladder{Quiesced: Done}, atFencePoint(func(f *LadderFacts) { f.Down = true }), at(FenceQuiesced)},
		{"the process is gone", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Down, f.Gone = true, true }), at(FenceGone)},
		{"gone after a failed quiesce", failed, atFencePoint(func(f *LadderFacts) { f.Gone = true }), at(FenceGone)},
		{"stopped", Ladder{Quiesced: Failed, Stopped: Done}, atFencePoint(nil), at(FenceGone)},
		{"stop failed too: a pause", Ladder{Quiesced: Failed, Stopped: Failed, retryAt: 101 * s}, atFencePoint(nil), restart(at(FencePausing), unquiesced)},
		{"and a new round", Ladder{Quiesced: Failed, Stopped: Failed, retryAt: 101 * s}, atFencePoint(func(f *LadderFacts) { f.Now = 101 * s }), restart(open(StepQuiesce, 2*s), unquiesced)},

		{"noticed late, in time for both", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Now = 104500 * time.Millisecond }), open(StepQuiesce, 500*time.Millisecond)},
		{"noticed in the last third", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Now = 107 * s }), open(StepQuiesce, s)},
		{"stop in the last third", failed, atFencePoint(func(f *LadderFacts) { f.Now = 107 * s }), restart(open(StepStop, 2*s), unquiesced)},
		{"noticed after the deadline", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Now = 500 * s }), open(StepQuiesce, LateQuiesce)},
		{"stop after the deadline", failed, atFencePoint(func(f *LadderFacts) { f.Now = 500 * s }), restart(open(StepStop, LateStop), unquiesced)},
		{"a new lease, while nothing is proven yet", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Now = 50 * s }), open(StepQuiesce, LateQuiesce)},
		{"stop under a new lease", failed, atFencePoint(func(f *LadderFacts) { f.Now = 50 * s }), restart(open(StepStop, LateStop), unquiesced)},
		{"no deadline is known", Ladder{}, atFencePoint(func(f *LadderFacts) { f.Deadline = 0 }), open(StepQuiesce, LateQuiesce)},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.l.Next(c.f)
			if got.Step != StepNone {
				got.Until -= c.f.Now
			}
			if got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

// Whatever fails, however late it was noticed before the last third of the margin,
// and whatever else is the case: the ladder has ended when the guard acts.
func TestTheLadderEndsBeforeTheGuardActs(t *testing.T) {
	for bits := range 16 {
		bit := func(n int) bool { return bits>>n&1 == 1 }
		for margin := 600 * time.Millisecond; margin <= time.Minute; margin += 3 * time.Second {
			for late := time.Duration(0); late < margin/3; late += margin / 20 {
				f := LadderFacts{Deadline: time.Hour, Margin: margin, StopAt: time.Hour - margin/3, Stop: true, Quiesce: bit(0), MustStop: bit(1), Down: bit(2)}
				f.Now = f.Deadline - margin + late
				var l Ladder
				for n := 0; ; n++ {
					r := l.Next(f)
					if r.Step == StepNone {
						break
					}
					if r.Until > f.StopAt || r.Until <= f.Now {
						t.Fatalf("%s at %v until %v of %v, margin %v", r.Step, f.Now, r.Until, f.Deadline, margin)
					}
					f.Now = r.Until
					l = l.Ended(r.Step, r.Step == StepQuiesce && bit(3), f)
				}
				if l.Stopped == NotTried && !l.Next(f).Fence.Proven() {
					t.Fatalf("never stopped: %+v", f)
				}
			}
		}
	}
}

func TestNothingIsProvenUnlessAStepSucceededOrTheProcessIsGone(t *testing.T) {
	for bits := range 1 << 9 {
		bit := func(n int) bool { return bits>>n&1 == 1 }
		f := LadderFacts{Now: 100 * time.Second, Margin: 9 * time.Second, Quiesce: bit(0), Stop: bit(1), MustStop: bit(2), Down: bit(3), Gone: bit(4)}
		if bit(5) {
			f.Deadline = 109 * time.Second
		}
		for _, quiesced := range []Result{NotTried, Failed, Done} {
			for _, stopped := range []Result{NotTried, Failed, Done} {
				l := Ladder{Quiesced: quiesced, Stopped: stopped, climbed: bit(6)}
				if bit(7) {
					l.retryAt = 200 * time.Second
				}
				r := l.Next(f)
				proof := f.Gone || stopped == Done || quiesced == Done && !f.MustStop
				if r.Fence.Proven() != proof {
					t.Errorf("%+v of %+v: %+v", l, f, r)
				}
				if proof && (r.Step != StepNone || r.Restart != "") {
					t.Errorf("proven, and %+v", r)
				}
				if r.Step == StepStop && !f.Stop || r.Step == StepQuiesce && (!f.Quiesce || f.Down) {
					t.Errorf("%+v of %+v: %+v", l, f, r)
				}
				if (r.Fence == FenceOpen) != (r.Step != StepNone) {
					t.Errorf("%+v", r)
				}
			}
		}
	}
}

func TestARoundThatFailedIsFollowedByAPauseAndAnother(t *testing.T) {
	for _, stop := range []bool{true, false} {
		f := atFencePoint(func(f *LadderFacts) { f.Stop, f.Deadline = stop, 0 })
		var l Ladder
		for range 3 {
			steps := []FenceStep{StepQuiesce}
			if stop {
				steps = append(steps, StepStop)
			}
			for _, step := range steps {
				if r := l.Next(f); r.Step != step {
					t.Fatalf("%+v, want %s", r, step)
				}
				l = l.Ended(step, false, f)
			}
			if r := l.Next(f); r.Fence != FencePausing {
				t.Fatalf("%+v, want a pause", r)
			}
			f.Now += FenceRetry
		}
		if l = l.Ended(StepQuiesce, true, f); l.Next(f).Fence != FenceQuiesced {
			t.Errorf("%+v", l.Next(f))
		}
	}
}

func TestALookThatFailsAtABrokerThatIsRegisteredAgainIsRepeated(t *testing.T) {
	f := atFencePoint(func(f *LadderFacts) { f.Look, f.Registered = time.Second, true })
	l := Ladder{Quiesced: Done, provenAt: f.Now - time.Second}.Ended(StepQuiesce, false, f)
	if r := l.Next(f); r.Fence != FenceQuiesced || r.Step != StepNone {
		t.Errorf("after the look that failed: %+v", r)
	}
	f.Now += lookRetry
	if r := l.Next(f); r.Fence != FenceQuiesced || r.Step != StepQuiesce {
		t.Errorf("later: %+v", r)
	}
}

func TestABrokerThatDoesNotAnswerIsAskedAgainAndNothingHeldAgainstIt(t *testing.T) {
	f := atFencePoint(func(f *LadderFacts) { f.Down, f.Served, f.Stop = true, true, false })
	var l Ladder
	for range 3 {
		if r := l.Next(f); r.Fence != FenceAwaiting || r.Step != StepQuiesce {
			t.Fatalf("%+v, want it to be asked", r)
		}
		if l = l.Ended(StepQuiesce, false, f); l.Quiesced != NotTried || l.Next(f).Step != StepNone {
			t.Fatalf("%+v, then %+v", l, l.Next(f))
		}
		f.Now += FenceRetry
	}
	up := f
	up.Down = false
	if r := l.Next(up); r.Fence != FenceOpen || r.Step != StepQuiesce || r.Restart != "" {
		t.Errorf("it answers: %+v", r)
	}
	if l = l.Ended(StepQuiesce, true, f); l.Next(f).Fence != FenceQuiesced {
		t.Errorf("quiesced while it was down: %+v", l.Next(f))
	}
}

func TestAProofIsLookedAtAgain(t *testing.T) {
	const at, look = 100 * time.Second, time.Second
	for _, c := range []struct {
		l           Ladder
		proven, due time.Duration
	}{
		{ProvenIdle(at), at, at + look},
		{Ladder{Quiesced: Failed, provenAt: at, retryAt: 7}, 0, 7},
		{Ladder{Quiesced: Done, provenAt: at, askAt: at + 2*look}, at, at + 2*look},
	} {
		if c.l.ProvenAt() != c.proven || c.l.RetryAt(look) != c.due {
			t.Errorf("%+v: proven at %v, again at %v", c.l, c.l.ProvenAt(), c.l.RetryAt(look))
		}
	}
}
