package moving

import (
	"context"
	"strings"
	"testing"
	"time"

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

// An error of etcd is not an absence of brokers.
func TestADrainThatCannotReadWhoIsThereLeavesNothing(t *testing.T) {
	onStage(t, Settings{AtOnce: 1, DrainsAtOnce: 1}, one, func(g *stage, a, b *side) {
		g.after(time.Second)
		lists := 0
		g.store.SetFault(func(method string) error {
			if strings.HasSuffix(method, "KV/Range") || strings.HasSuffix(method, "KV/Txn") {
				lists++
			}
			if lists > 1 { // the first is of what is assigned here
				return memory.ErrPermissionDenied
			}
			return nil
		})
		a.worker.drain = draining{known: true, Drain: moves.Drain{State: moves.Moving, Deadline: time.Now().Add(time.Hour)}}
		more, err := a.worker.relist(g.t.Context())
		g.store.SetFault(nil)
		if left := a.worker.drain.Left; err == nil || more || len(left) > 0 || lists < 2 {
			t.Errorf("left %v, error %v, after %d lists", left, err, lists)
		}
		a.worker.drain = draining{known: true}
	})
}
