package moving

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast/cluster/memory"
	"holdfast/recovery/moves"
)

// Nothing takes time here but a pause.
func TestADrainMovesOneTopicAfterTheOtherWithoutAPause(t *testing.T) {
	topics := []string{"/n/a", "/n/b", "/n/c", "/n/d", "/n/e"}
	drained := ""
	set := Settings{AtOnce: 2, DrainsAtOnce: 1, Drained: func(_ context.Context, why string) error {
		drained = why
		return nil
	}}
	onStage(t, set, topics, func(g *stage, a, b *side) {
		g.after(time.Second)
		d := moves.Drain{By: "disk swap", To: "b", Topics: len(topics), Deadline: time.Now().Add(time.Hour)}
		g.drain(d)
		g.after(lookAgain / 2)
		if now := a.worker.Drain(); now.State != moves.Drained || now.Moved != len(topics) || drained != d.By {
			g.t.Errorf("%+v, drained for %q", now, drained)
		}
		for _, name := range topics {
			g.wantPhase(name, moves.Done)
			g.wantServed(name, "b")
		}
		g.wantFree()
	})
}

// As it is by the sidecar that sees it as its own from now on.
func TestContentsAreComparedWhileTheBrokerIsAskedToServeTheTopic(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.once(moves.Resume, func(_ context.Context, do func() error) error {
			defer b.change(func() { b.busy = true })
			return do()
		})
		g.begin(topic)
		g.after(lookAgain / 2)
		g.wantPhase(topic, moves.Done)
		g.wantServed(topic, "b")
	})
}

// An error of etcd is not an absence of brokers.
func TestADrainThatCannotReadWhoIsThereLeavesNothing(t *testing.T) {
	onStage(t, Settings{AtOnce: 1, DrainsAtOnce: 1}, one, func(g *stage, a, b *side) {
		g.after(time.Second)
		a.change(func() { a.blind = "/cluster/register/" }) // the list of registrations
		g.drain(moves.Drain{By: "operator"})
		g.after(10 * time.Second)
		if d := a.worker.Drain(); d.State != moves.Moving || len(d.Left) > 0 || !strings.Contains(d.Error, "read fleet") {
			g.t.Errorf("%+v", d)
		}
		a.change(func() { a.blind = "" })
		g.after(10 * time.Second)
		g.wantServed(topic, "b")
	})
}

// drain begins to drain a.
func (g *stage) drain(d moves.Drain) {
	g.t.Helper()
	if d.Deadline.IsZero() {
		d.Deadline = time.Now().Add(time.Hour)
	}
	if err := g.sides["a"].worker.BeginDrain(g.t.Context(), d); err != nil {
		g.t.Fatal(err)
	}
}

// drainIs waits so long and looks at the record of a's drain.
func (g *stage) drainIs(after time.Duration, want moves.State) moves.Drain {
	g.t.Helper()
	g.after(after)
	d, err := moves.ParseDrain([]byte(g.get("/cluster/drains/a")))
	if err != nil || d.State != want {
		g.t.Errorf("the record says %+v, %v; want %s", d, err, want)
	}
	if now := g.sides["a"].worker.Drain(); string(now.Value()) != string(d.Value()) {
		g.t.Errorf("the sidecar says %+v, and its record %+v", now, d)
	}
	return d
}

func TestARestartedSidecarGoesOnWithItsDrainAndASecondDrainJoinsIt(t *testing.T) {
	topics := []string{"/n/a", "/n/b", "/n/c", "/n/d"}
	onStage(t, Settings{}, topics, func(g *stage, a, b *side) {
		b.fault(moves.Copy, hangs)
		g.after(time.Second)
		g.drain(moves.Drain{By: "first", Topics: 4})
		first := g.drainIs(10*time.Second, moves.Moving)
		a.end()
		a.start()
		g.drain(moves.Drain{By: "second"})
		if d := g.drainIs(10*time.Second, moves.Moving); d.By != "first" || !d.At.Equal(first.At) {
			g.t.Errorf("%+v", d)
		}
		b.fault(moves.Copy, nil)
		if d := g.drainIs(time.Minute, moves.Drained); d.Moved != 4 || d.Bytes != 4*11 {
			g.t.Errorf("%+v", d)
		}
		g.drain(moves.Drain{By: "third"}) // of nothing
		if d := g.drainIs(time.Second, moves.Drained); d.By != "third" || d.Moved != 0 {
			g.t.Errorf("%+v", d)
		}
	})
}

// What cannot be moved, and what came back, stays, also for a sidecar that was away meanwhile.
func TestADrainSaysWhatStaysAndWhy(t *testing.T) {
	onStage(t, Settings{Drained: func(context.Context, string) error { return errors.New("not to be drained") }}, []string{"/n/a", "/n/b", "/n/c"}, func(g *stage, a, b *side) {
		g.put("/cluster/brokers/a/n/gone", "null")
		g.after(time.Second)
		plan, err := a.worker.PlanDrain(g.t.Context(), "b")
		if err != nil || len(plan.Moves) != 3 || len(plan.Stay) != 1 || !strings.Contains(plan.Stay["/n/gone"], "not here") || plan.Rate != 0 {
			g.t.Errorf("planned %+v, %v", plan, err)
		}
		b.once(moves.Copy, func(context.Context, func() error) error {
			time.Sleep(10 * time.Second)
			return refused("no room")
		})
		g.drain(moves.Drain{By: "operator", Topics: 4})
		g.drainIs(5*time.Second, moves.Moving)
		a.end()
		g.after(time.Minute)
		a.start()
		d := g.drainIs(time.Minute, moves.Left)
		if d.Moved != 2 || d.Topics != 4 || len(d.Left) != 2 || !strings.Contains(d.Left["/n/gone"], "not here") {
			g.t.Errorf("%+v", d)
		}
		for _, name := range []string{"/n/a", "/n/b", "/n/c"} { // one of them came first
			at := "b"
			if why := d.Left[name]; why != "" {
				at = "a"
				if line := d.Line(); !strings.Contains(why, "no room") || !strings.Contains(line, "2 of 4 topics moved, 2 left: "+name+": no room") {
					g.t.Error(line)
				}
			}
			g.wantServed(name, at)
		}
		if g.get("/cluster/locks/drain") != "" {
			g.t.Error("the lock is kept")
		}
		if plan, err = a.worker.PlanDrain(g.t.Context(), ""); err != nil || plan.Rate < 0 {
			g.t.Errorf("rate %g, %v", plan.Rate, err)
		}
	})
}

func TestADrainWaitsForItsTurnUnderWhateverLease(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		g.after(time.Second)
		if holders, err := b.client.LockDrain(g.t.Context(), b.orders.Who, 1); err != nil || len(holders) > 0 {
			g.t.Fatal(holders, err)
		}
		g.drain(moves.Drain{By: "operator"})
		if d := g.drainIs(2*stalled, moves.Waiting); !strings.Contains(d.Line(), "the drain of b") || d.Stalled != "" {
			g.t.Errorf("%+v", d)
		}
		b.fault(moves.Copy, hangs)
		if err := b.client.UnlockDrain(g.t.Context(), b.orders.Who, 1); err != nil {
			g.t.Fatal(err)
		}
		g.drainIs(10*time.Second, moves.Moving)
		a.detach() // with the lock
		if holders, err := b.client.LockDrain(g.t.Context(), b.orders.Who, 1); err != nil || len(holders) > 0 {
			g.t.Fatal(holders, err)
		}
		a.register()
		g.drainIs(10*time.Second, moves.Waiting)
		if err := b.client.UnlockDrain(g.t.Context(), b.orders.Who, 1); err != nil {
			g.t.Fatal(err)
		}
		b.fault(moves.Copy, nil)
		g.drainIs(2*quiet, moves.Drained)
	})
}

func TestADrainEndsAtItsDeadline(t *testing.T) {
	onStage(t, Settings{}, []string{"/n/a", "/n/b", "/n/c", "/n/d", "/n/e", "/n/f"}, func(g *stage, a, b *side) {
		b.fault(moves.Copy, hangs)
		g.after(time.Second)
		g.drain(moves.Drain{By: "operator", Deadline: time.Now().Add(20 * time.Second)})
		g.drainIs(15*time.Second, moves.Moving)
		d := g.drainIs(10*time.Second, moves.Left)
		if len(d.Left) != 6 || !strings.Contains(d.Left["/n/f"], "deadline") || !strings.Contains(d.Left["/n/a"], "deadline") {
			g.t.Errorf("%+v", d)
		}
		g.wantServed("/n/a", "a")
		g.wantServed("/n/f", "a")
	})
}

func TestTheLastActiveBrokerIsNotDrained(t *testing.T) {
	drained := false
	onStage(t, Settings{Drained: func(context.Context, string) error { drained = true; return nil }}, one, func(g *stage, a, b *side) {
		b.once(moves.Compare, func(_ context.Context, do func() error) error { // as it serves the topic
			g.put("/cluster/brokers/b/state", `{"mode":"drained"}`)
			return do()
		})
		g.after(time.Second)
		g.drain(moves.Drain{By: "operator", Deadline: time.Now().Add(5 * time.Minute)})
		if d := g.drainIs(2*time.Minute, moves.Moving); drained || d.Moved != 1 || !strings.Contains(d.Line(), "registered and active") || !strings.Contains(d.Stalled, "holdfast status") {
			g.t.Errorf("drained %v: %s", drained, d.Line())
		}
		g.drainIs(4*time.Minute, moves.Left)
		if drained {
			g.t.Error("it was drained")
		}
	})
}

// A broker that is restarted says nothing of its topics; one that errs for a minute about one does.
func TestADrainTriesAgainWhereTheBrokerErrs(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		a.fault(moves.HandOver, func(context.Context, func() error) error { return errors.New("connection refused") })
		g.after(time.Second)
		if plan, err := a.worker.PlanDrain(g.t.Context(), ""); err != nil || !strings.Contains(plan.Stay[topic], "connection refused") {
			g.t.Errorf("stay %q, %v", plan.Stay, err)
		}
		g.drain(moves.Drain{By: "operator"})
		if d := g.drainIs(stalled/2, moves.Moving); !strings.Contains(d.Line(), "connection refused") {
			g.t.Error(d.Line())
		}
		if d := g.drainIs(stalled, moves.Left); !strings.Contains(d.Left[topic], "connection refused") {
			g.t.Error(d.Line())
		}
		a.fault(moves.HandOver, nil)
		g.drain(moves.Drain{By: "operator"})
		g.drainIs(10*time.Second, moves.Drained)
	})
}

func TestADrainThatIsNotCalledOffInEtcdGoesOn(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.fault(moves.Copy, hangs)
		g.after(time.Second)
		g.drain(moves.Drain{By: "operator"})
		g.drainIs(5*time.Second, moves.Moving)
		g.links["a"].Cut(memory.BothWays)
		bounded, cancel := context.WithTimeout(g.t.Context(), 3*time.Second)
		defer cancel()
		if err := a.worker.EndDrain(bounded, "activated"); err == nil {
			g.t.Error("called off without etcd")
		}
		g.links["a"].Heal()
		g.drainIs(5*time.Second, moves.Moving)
		if err := a.worker.EndDrain(g.t.Context(), "activated"); err != nil {
			g.t.Error(err)
		}
		if d := g.drainIs(5*time.Second, moves.CalledOff); d.Error != "activated" || g.get("/cluster/locks/drain") != "" {
			g.t.Errorf("%+v; the lock is %q", d, g.get("/cluster/locks/drain"))
		}
		b.fault(moves.Copy, nil)
		g.after(2 * quiet)
		g.wantServed(topic, "b")
		g.drainIs(0, moves.CalledOff)
	})
}

func TestAStalledDrainNamesWhatIsInItsWay(t *testing.T) {
	onStage(t, Settings{}, []string{"/n/a", "/n/b"}, func(g *stage, a, b *side) {
		b.fault(moves.Resume, func(context.Context, func() error) error { return errors.New("disk full") })
		g.after(time.Second)
		g.drain(moves.Drain{By: "operator"})
		if d := g.drainIs(stalled/2, moves.Moving); d.Stalled != "" {
			g.t.Error(d.Stalled)
		}
		d := g.drainIs(2*stalled, moves.Moving)
		for _, part := range []string{"/n/", "switched", "b's turn", "disk full", "'holdfast status' at b"} {
			if !strings.Contains(d.Stalled, part) || !strings.Contains(d.Line(), part) {
				g.t.Errorf("%q is not in %q", part, d.Stalled)
			}
		}
		if ratio := testutil.ToFloat64(a.worker.metrics.drain); ratio <= 0 || ratio >= 1 {
			g.t.Errorf("progress %g", ratio)
		}
		b.fault(moves.Resume, nil)
		if d := g.drainIs(10*time.Second, moves.Drained); d.Stalled != "" {
			g.t.Error(d.Stalled)
		}
		if ratio := testutil.ToFloat64(a.worker.metrics.drain); ratio != 1 {
			g.t.Errorf("progress %g", ratio)
		}
	})
}

// Two that are emptied would send their topics back and forth.
func TestABrokerThatIsBeingEmptiedTakesNoTopics(t *testing.T) {
	onStage(t, Settings{DrainsAtOnce: 2}, one, func(g *stage, a, b *side) {
		g.after(time.Second)
		if holders, err := b.client.LockDrain(g.t.Context(), b.orders.Who, 2); err != nil || len(holders) > 0 {
			g.t.Fatal(holders, err)
		}
		if loads, err := a.worker.Targets(g.t.Context(), "b"); err == nil || !strings.Contains(err.Error(), "being moved away") {
			g.t.Errorf("%v, %v", loads, err)
		}
		g.drain(moves.Drain{By: "operator"})
		if d := g.drainIs(10*time.Second, moves.Left); !strings.Contains(d.Left[topic], "nobody could take it") {
			g.t.Errorf("%+v", d)
		}
		g.wantServed(topic, "a")
	})
}

// The clock of the record may have been ahead.
func TestADrainWhoseClockWasSetBackLeavesWhatCameBack(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.fault(moves.Copy, func(context.Context, func() error) error { return refused("no room") })
		drain := moves.Drain{By: "operator", At: time.Now().Add(time.Hour), State: moves.Moving, Deadline: time.Now().Add(2 * time.Hour), Topics: 1}
		a.end()
		g.put("/cluster/drains/a", string(drain.Value()))
		a.start()
		if d := g.drainIs(time.Minute, moves.Left); !strings.Contains(d.Left[topic], "no room") || a.count(moves.Seal) != 1 {
			g.t.Errorf("%+v, sealed %d times", d, a.count(moves.Seal))
		}
	})
}

func TestADrainEndsAfterItsDeadlineAlsoWhereTheTargetNeverServes(t *testing.T) {
	onStage(t, Settings{AtOnce: 2}, []string{"/n/a", "/n/b"}, func(g *stage, a, b *side) {
		b.fault(moves.Resume, func(context.Context, func() error) error { return errors.New("disk full") })
		g.after(time.Second)
		g.drain(moves.Drain{By: "operator", Deadline: time.Now().Add(30 * time.Second)})
		g.drainIs(45*time.Second, moves.Moving)
		d := g.drainIs(stalled, moves.Left)
		if why := d.Left["/n/a"]; len(d.Left) != 2 || !strings.Contains(why, "switched") || !strings.Contains(why, "disk full") || d.Stalled != "" {
			g.t.Errorf("%+v", d)
		}
		b.fault(moves.Resume, nil)
		g.after(10 * time.Second)
		g.wantServed("/n/a", "b")
	})
}
