package moving

import (
	"context"
	"testing"
	"time"

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
		if err := a.worker.BeginDrain(g.t.Context(), d); err != nil {
			g.t.Fatal(err)
		}
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
