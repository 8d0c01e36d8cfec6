package moving

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/recovery/moves"
)

func (g *stage) unassign(from, topic string) {
	g.t.Helper()
	if _, err := g.store.DeleteRange(g.t.Context(), &pb.DeleteRangeRequest{Key: []byte("/cluster/brokers/" + from + topic)}); err != nil {
		g.t.Fatal(err)
	}
}

// The target is dead for good, and its topics are given to others ('holdfast forget'): the source is
// held by the move no more.
func TestAMoveWhoseOtherSideNeverComesBackEndsOnceTheTopicIsAssignedElsewhere(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.fault(moves.Resume, hangs)
		g.begin(topic)
		g.after(5 * time.Second)
		g.wantPhase(topic, moves.Switched)
		b.detach()
		g.after(5 * time.Second)
		g.wantPhase(topic, moves.Switched)
		g.unassign("b", topic)
		g.put("/cluster/brokers/a"+topic, "null")
		g.after(5 * time.Second)
		if m := g.wantPhase(topic, moves.Failed); !strings.Contains(m.Error, "others have taken its assignment from b") {
			t.Errorf("error %q", m.Error)
		}
		g.wantFree()
		if got := len(a.peek(topic).messages); got != 3 {
			t.Errorf("%d messages are left at the source", got)
		}
	})
}

func TestWhatWouldFailLaterIsSaidBeforeTheTopicIsWithdrawn(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.foreseen = refused("nobody answers there")
		g.begin(topic)
		g.after(time.Second)
		if m := g.wantPhase(topic, moves.Failed); !strings.Contains(m.Error, "nobody answers there") {
			t.Errorf("error %q", m.Error)
		}
		b.change(func() { b.foreseen = errors.New("no answer") })
		if _, err := a.worker.Send(g.t.Context(), moves.Move{Topic: topic, To: "b", By: "operator"}, nil, false); err != nil {
			t.Fatal(err)
		}
		g.after(2 * time.Minute)
		if m := g.wantPhase(topic, moves.Failed); !strings.Contains(m.Error, "no answer") {
			t.Errorf("error %q", m.Error)
		}
		if n := a.count(moves.Seal); n != 0 {
			t.Errorf("the topic was withdrawn %d times", n)
		}
		g.wantServed(topic, "a")
	})
}

// Each try would take the topic from its clients.
func TestPlacementDoesNotTryAtOnceAgainWhatHasFailed(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.once(moves.Copy, func(context.Context, func() error) error { return refused("no room") })
		if err := a.worker.Carry(g.t.Context(), topic, "b"); err != nil {
			t.Fatal(err)
		}
		g.after(10 * time.Second)
		g.wantPhase(topic, moves.Failed)
		if err := a.worker.Carry(g.t.Context(), topic, "b"); !errors.Is(err, brokerapi.ErrRefused) || !strings.Contains(err.Error(), "no room") {
			t.Errorf("at once: %v", err)
		}
		g.after(carryAgain)
		if err := a.worker.Carry(g.t.Context(), topic, "b"); err != nil {
			t.Errorf("later: %v", err)
		}
		g.after(10 * time.Second)
		g.wantServed(topic, "b")
	})
}

func TestADrainLeavesAMoveThatIsUnderWayAsItIs(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.fault(moves.Copy, hangs)
		g.begin(topic)
		g.after(5 * time.Second)
		before := g.wantPhase(topic, moves.Sealed)
		g.drain(moves.Drain{By: "operator"})
		g.after(5 * time.Second)
		if now := g.wantPhase(topic, moves.Sealed); !now.At.Equal(before.At) {
			t.Error("it was begun anew")
		}
		b.fault(moves.Copy, nil)
		g.after(2 * quiet)
		g.wantServed(topic, "b")
		if d := a.worker.Drain(); d.State != moves.Drained {
			t.Errorf("%+v", d)
		}
	})
}

// An operator's word holds whatever etcd and the sidecar do meanwhile.
func TestADrainThatWasCalledOffStaysSo(t *testing.T) {
	onStage(t, Settings{AtOnce: 1, DrainsAtOnce: 1}, one, func(g *stage, a, b *side) {
		a.stage.set.Drained = func(context.Context, string) error { return errors.New("not to be drained") }
		drain := moves.Drain{By: "operator", At: time.Now(), State: moves.Moving, Deadline: time.Now().Add(time.Hour), Topics: 1}
		a.end()
		g.put("/cluster/drains/a", string(drain.Value()))
		a.orders.Attached = false
		a.start()
		if err := a.worker.EndDrain(g.t.Context(), "activated"); err != nil {
			t.Fatal(err)
		}
		a.order(Orders{Attached: true, Mode: cluster.ModeActive, Who: a.orders.Who})
		g.after(10 * time.Second)
		if d, err := moves.ParseDrain([]byte(g.get("/cluster/drains/a"))); err != nil || d.State != moves.CalledOff || d.Error != "activated" {
			t.Errorf("the record says %+v, %v", d, err)
		}
		g.wantServed(topic, "a")
		if err := a.worker.BeginDrain(g.t.Context(), moves.Drain{By: "operator", Deadline: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		if d := a.worker.Drain(); d.State.Over() {
			t.Errorf("a later drain is %s", d.State)
		}
		if err := a.worker.EndDrain(g.t.Context(), "activated again"); err != nil {
			t.Fatal(err)
		}
	})
}

// The other side may be at something that moves nothing, for long.
func TestAnActThatIsHeardOfIsNotSilent(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.worker.set.Mover = slow{b}
		g.begin(topic)
		g.after(time.Minute)
		if m := g.wantPhase(topic, moves.Sealed); time.Since(m.MovedAt) > quiet {
			t.Errorf("heard of last %v ago", time.Since(m.MovedAt))
		}
		g.after(10 * quiet)
		g.wantPhase(topic, moves.Done)
		g.wantServed(topic, "b")
	})
}

// slow makes indexes for minutes when it has copied.
type slow struct{ *side }

func (s slow) Copy(ctx context.Context, topic, move string, from brokerapi.Peer, sealed moves.Extent, meter brokerapi.Meter) (moves.Extent, error) {
	e, err := s.side.Copy(ctx, topic, move, from, sealed, meter)
	for range 16 {
		select {
		case <-time.After(quiet / 2):
			err = errors.Join(err, meter(ctx, 0))
		case <-ctx.Done():
			return e, io.ErrUnexpectedEOF
		}
	}
	return e, err
}

// A sidecar that knows of no moves, or may not write journals, is registered and active like any other.
func TestATopicIsServedAgainWhenTheTargetSaysNothing(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.once(moves.Copy, func(ctx context.Context, _ func() error) error {
			go b.end()
			<-ctx.Done()
			return ctx.Err()
		})
		g.begin(topic)
		g.after(time.Minute)
		a.end() // whoever looks anew waits as long from then on
		a.start()
		g.after(170 * time.Second)
		g.wantPhase(topic, moves.Sealed)
		g.after(20 * time.Second)
		if m := g.wantPhase(topic, moves.Returned); !strings.Contains(m.Error, "broker b has said nothing for 3m0s") {
			t.Errorf("error %q", m.Error)
		}
		g.wantServed(topic, "a")
		b.start()
		g.after(10 * time.Second)
		g.wantPhase(topic, moves.Failed)
		g.wantFree()
	})
}

// Who could not hear is not who was told nothing.
func TestASourceThatWasDetachedGivesTheTargetItsTimeAgain(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.once(moves.Copy, func(_ context.Context, do func() error) error {
			time.Sleep(20 * time.Second)
			return do()
		})
		g.begin(topic)
		g.after(time.Second)
		g.wantPhase(topic, moves.Sealed)
		attached := b.orders
		a.detach()
		b.order(Orders{Mode: cluster.ModeActive})
		g.after(10 * time.Minute)
		a.register()
		g.after(10 * time.Second)
		g.wantPhase(topic, moves.Sealed)
		b.order(attached)
		g.after(time.Minute)
		wantEnd(g, moves.Copy)
	})
}

func TestAMoveWhoseSourceNeverComesBackIsEndedByAnOperator(t *testing.T) {
	for _, act := range []moves.Act{moves.Compare, moves.Remove} {
		onStage(t, Settings{}, one, func(g *stage, a, b *side) {
			g.sides[map[moves.Act]string{moves.Compare: "b", moves.Remove: "a"}[act]].fault(act, hangs)
			g.begin(topic)
			g.after(time.Second)
			a.detach()
			a.end()
			g.after(2 * time.Minute)
			if list, err := b.worker.List(g.t.Context(), ""); err != nil || !strings.Contains(list[0].Stalled, "'holdfast moves cancel m-n-t'") {
				t.Errorf("%s: stalled %q, %v", act, list[0].Stalled, err)
			}
			g.cancel(topic)
			g.after(10 * time.Second)
			if m := g.wantPhase(topic, moves.Failed); !strings.Contains(m.End(), "called off: by an operator; b serves /n/t") {
				t.Errorf("%s: %s", act, m.End())
			}
			g.wantServed(topic, "b")
			a.start()
			a.register()
			g.after(time.Minute)
			g.wantFree()
			if n := len(a.peek(topic).messages); n != 3 {
				t.Errorf("%s: %d messages are left at the source", act, n)
			}
		})
	}
}

func TestTheSourcesDataGoesOnlyWhenTheTargetsIsOnItsDisk(t *testing.T) {
	var whole atomic.Bool
	sync := func() (string, error) {
		time.Sleep(5 * time.Second)
		if !whole.Load() {
			return "", errors.New("the disk is broken")
		}
		return "/data", nil
	}
	onStage(t, Settings{Sync: sync}, one, func(g *stage, a, b *side) {
		g.begin(topic)
		g.after(time.Minute)
		if m := g.wantPhase(topic, moves.Resumed); !strings.Contains(m.Error, "the disk is broken") || len(a.peek(topic).messages) != 3 {
			t.Errorf("error %q, at the source are %q", m.Error, a.peek(topic).messages)
		}
		whole.Store(true)
		g.after(10 * time.Second)
		if text := strings.Join(g.wantPhase(topic, moves.Done).Receipt(), "\n"); !strings.Contains(text, "the file system of /data at b, before what was left at a was removed") {
			t.Error(text)
		}
		g.wantServed(topic, "b")
	})
}

// What cannot be ended is begun once, and neither the move nor the sidecar waits for it for ever.
func TestADiskThatDoesNotAnswerIsAskedOnce(t *testing.T) {
	var calls atomic.Int64
	var answers atomic.Bool
	sync := func() (string, error) {
		calls.Add(1)
		for !answers.Load() {
			time.Sleep(time.Second)
		}
		return "", nil
	}
	onStage(t, Settings{Sync: sync}, one, func(g *stage, a, b *side) {
		g.begin(topic)
		g.after(5 * time.Minute)
		if m := g.wantPhase(topic, moves.Resumed); !strings.Contains(m.Error, "sync the data directory") || calls.Load() != 1 {
			t.Errorf("error %q, asked %d times", m.Error, calls.Load())
		}
		b.end()
		b.start()
		answers.Store(true)
		g.after(time.Minute)
		if text := strings.Join(g.wantPhase(topic, moves.Done).Receipt(), "\n"); !strings.Contains(text, "nothing: the sidecar of b does not see its data directory") {
			t.Error(text)
		}
	})
}
