package moving

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/cluster"
	"holdfast/cluster/memory"
	"holdfast/recovery/moves"
)

const topic = "/n/t"

var one = []string{topic}

func TestAMoveTakesTheTopicToTheTargetAndEndsInAReceipt(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		g.put("/topics"+topic, "{}")
		g.begin(topic)
		g.after(time.Second)
		m := g.wantPhase(topic, moves.Done)
		g.wantServed(topic, "b")
		g.wantFree()
		if _, left := a.topics[topic]; left {
			t.Error("the source still has data")
		}
		if !slices.Equal(a.unmoved, one) {
			t.Errorf("the source was told that %q went, want %q", a.unmoved, one)
		}
		receipt := strings.Join(m.Receipt(), "\n")
		for _, want := range []string{"sealed ", "copied ", "resumed ", "c at 2", "compared   3 messages", "message that the target takes: 4", "rests on   on a slice", "b serves /n/t"} {
			if !strings.Contains(receipt, want) {
				t.Errorf("receipt without %q:\n%s", want, receipt)
			}
		}
		for _, want := range []struct {
			s    *side
			told string
		}{{a, "[done pending sealed switched]"}, {b, "[copied draining resumed verified]"}} {
			slices.Sort(want.s.told) // who begins may tell of it after others went on
			if got := fmt.Sprint(want.s.told); got != want.told {
				t.Errorf("%s has told %s, want %s", want.s.id, got, want.told)
			}
		}
	})
}

// undone are the acts of a move that is called off while it copies.
var undone = map[moves.Act]bool{moves.Restore: true, moves.Discard: true}

// eachAct runs a claim for each act, with the broker that does it. The move has begun, and is
// called off where only that leads to the act.
func eachAct(t *testing.T, before func(g *stage, s *side, act moves.Act), claim func(g *stage, s *side, act moves.Act)) {
	for act, at := range map[moves.Act]string{
		moves.Accept: "b", moves.Seal: "a", moves.Copy: "b", moves.HandOver: "a", moves.Resume: "b",
		moves.Compare: "b", moves.Remove: "a", moves.Restore: "a", moves.Discard: "b",
	} {
		t.Run(string(act), func(t *testing.T) {
			onStage(t, Settings{}, one, func(g *stage, _, b *side) {
				s := g.sides[at]
				before(g, s, act)
				if undone[act] {
					b.fault(moves.Copy, hangs)
				}
				g.begin(topic)
				if undone[act] {
					g.after(time.Second)
					g.cancel(topic)
				}
				g.after(time.Second)
				claim(g, s, act)
			})
		})
	}
}

// wantEnd looks that a move has ended well, or was undone well.
func wantEnd(g *stage, act moves.Act) {
	g.t.Helper()
	g.wantFree()
	if undone[act] {
		g.wantPhase(topic, moves.Cancelled)
		g.wantServed(topic, "a")
		return
	}
	if m := g.wantPhase(topic, moves.Done); m.Error != "" {
		g.t.Errorf("error %q left after the end", m.Error)
	}
	g.wantServed(topic, "b")
}

func TestAnActThatFailsIsTriedAgainAndTheJournalSaysWhy(t *testing.T) {
	eachAct(t, func(_ *stage, s *side, act moves.Act) {
		s.once(act, func(context.Context, func() error) error { return errors.New("the disk is slow") })
	}, func(g *stage, s *side, act moves.Act) {
		if m := g.journal(topic); !strings.Contains(m.Error, "the disk is slow") || m.Where != s.id {
			g.t.Errorf("error %q of %q\n%s", m.Error, m.Where, g.log)
		}
		g.after(lookAgain)
		if n := s.count(act); n != 2 {
			g.t.Errorf("tried %d times, want twice", n)
		}
		wantEnd(g, act)
	})
}

// A worker may be ended with its process, before and after the broker did what was asked.
func TestASidecarThatEndsInTheMidstOfAnActGoesOnWhenItIsBack(t *testing.T) {
	for _, carriedOut := range []bool{false, true} {
		eachAct(t, func(_ *stage, s *side, act moves.Act) {
			s.once(act, func(ctx context.Context, do func() error) error {
				<-ctx.Done()
				if carriedOut {
					_ = do()
				}
				return ctx.Err()
			})
		}, func(g *stage, s *side, act moves.Act) {
			s.end()
			g.after(2 * time.Minute)
			if n := s.count(act); n != 1 {
				g.t.Errorf("tried %d times by a worker that has ended", n)
			}
			s.start()
			g.after(2 * lookAgain)
			wantEnd(g, act)
		})
	}
}

func TestABrokerThatWasDetachedInTheMidstOfAnActGoesOnUnderItsNewRegistration(t *testing.T) {
	eachAct(t, func(_ *stage, s *side, act moves.Act) {
		s.once(act, func(ctx context.Context, do func() error) error {
			<-ctx.Done()
			return errors.Join(do(), ctx.Err()) // it came through all the same
		})
	}, func(g *stage, s *side, act moves.Act) {
		before := g.get("/cluster/moves" + topic)
		epoch := s.orders.Who.Epoch
		if s.id == "a" { // the source is not asked for: the target's absence would undo the move
			s.detach()
		} else {
			s.order(Orders{Mode: cluster.ModeActive})
		}
		g.after(time.Minute)
		if now := g.get("/cluster/moves" + topic); now != before && s.id == "a" {
			g.t.Errorf("written while detached:\n%s\n%s", before, now)
		}
		if s.id == "a" {
			s.register()
		} else {
			s.order(Orders{Attached: true, Mode: cluster.ModeActive, Who: cluster.Claimant{BrokerID: "b", Incarnation: "i", Epoch: epoch, LeaseID: lease(g, "b")}})
		}
		g.after(2 * lookAgain)
		wantEnd(g, act)
	})
}

func lease(g *stage, id string) int64 {
	g.t.Helper()
	r, err := g.store.Range(g.t.Context(), &pb.RangeRequest{Key: []byte("/cluster/register/" + id)})
	if err != nil || len(r.Kvs) == 0 {
		g.t.Fatal("not registered", err)
	}
	return r.Kvs[0].Lease
}

func TestARefusalEndsTheMoveAndTheSourceServes(t *testing.T) {
	for act, at := range map[moves.Act]string{moves.Accept: "b", moves.Seal: "a", moves.Copy: "b", moves.HandOver: "a"} {
		t.Run(string(act), func(t *testing.T) {
			onStage(t, Settings{}, one, func(g *stage, a, b *side) {
				g.sides[at].fault(act, func(context.Context, func() error) error { return refused("no room for it") })
				g.begin(topic)
				g.after(time.Second)
				m := g.wantPhase(topic, moves.Failed)
				if !strings.Contains(m.Error, "no room for it") {
					t.Errorf("error %q", m.Error)
				}
				g.wantServed(topic, "a")
				g.wantFree()
				if len(b.topics) > 0 {
					t.Error("something is left at the target")
				}
				if act == moves.Accept && len(a.acts) > 0 {
					t.Errorf("the source was asked for %q", a.acts)
				}
			})
		})
	}
}

func TestContentsThatDifferFailTheMoveAndNothingIsRemoved(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.once(moves.Compare, func(_ context.Context, do func() error) error {
			b.change(func() { b.topics[topic].messages[1] = "too" })
			return do()
		})
		g.begin(topic)
		g.after(time.Minute)
		m := g.wantPhase(topic, moves.Failed)
		if !strings.Contains(m.End(), "b serves /n/t") || !strings.Contains(m.End(), "a keeps what it had") {
			t.Errorf("end %q", m.End())
		}
		if a.count(moves.Remove) > 0 || len(a.topics[topic].messages) != 3 || a.topics[topic].served || !b.topics[topic].served {
			t.Errorf("source %+v, target %+v", a.topics[topic], b.topics[topic])
		}
		g.wantFree()
	})
}

// Where messages go by themselves their absence says nothing, and where none is read nothing is said of them.
func TestATargetThatHasLostTheTopicSinceItResumedIsNoReasonToRemoveIt(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.once(moves.Compare, func(_ context.Context, do func() error) error {
			defer b.change(func() { b.topics[topic] = &stored{served: true} }) // as the reconciler makes it anew
			return do()
		})
		g.begin(topic)
		g.after(time.Minute)
		if m := g.wantPhase(topic, moves.Failed); !strings.Contains(m.End(), "lost since it resumed") || !strings.Contains(m.End(), "a keeps what it had") {
			t.Errorf("end %q", m.End())
		}
		if a.count(moves.Remove) > 0 || len(a.peek(topic).messages) != 3 {
			t.Errorf("source %+v", a.peek(topic))
		}
		g.wantFree()
	})
}

func TestACancelledCopyEndsAtOnceAndTheSourceServesAgain(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		ended := time.Time{}
		b.fault(moves.Copy, func(ctx context.Context, do func() error) error {
			if err := do(); err != nil {
				return err
			}
			<-ctx.Done()
			ended = time.Now()
			return ctx.Err()
		})
		g.begin(topic)
		g.after(3 * time.Second)
		g.wantPhase(topic, moves.Sealed)
		if !b.peek(topic).half || !slices.Equal(a.held, one) || !slices.Equal(b.held, one) {
			t.Errorf("target %+v, held %q and %q", b.peek(topic), a.held, b.held)
		}
		at := time.Now()
		g.cancel(topic)
		g.after(time.Second)
		if !ended.Equal(at) {
			t.Errorf("the copy ended %v after the word", ended.Sub(at))
		}
		m := g.wantPhase(topic, moves.Cancelled)
		if !strings.Contains(m.End(), "by an operator") || !strings.Contains(m.End(), "a serves") {
			t.Errorf("end %q", m.End())
		}
		g.wantServed(topic, "a")
		g.wantFree()
		if len(b.topics) > 0 {
			t.Error("half a copy is left")
		}
		if _, err := b.worker.Cancel(g.t.Context(), m.ID, "again"); err == nil || !strings.Contains(err.Error(), "is over") {
			t.Errorf("called off twice: %v", err)
		}
		if _, err := b.worker.Cancel(g.t.Context(), "m-x", "again"); err == nil || !strings.Contains(err.Error(), "unknown") {
			t.Errorf("called off unknown: %v", err)
		}
	})
}

func TestACancelThatEtcdRefusesSaysSoAtOnce(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.fault(moves.Copy, hangs)
		g.begin(topic)
		g.after(time.Second)
		g.store.SetFault(func(method string) error {
			if strings.HasSuffix(method, "KV/Txn") {
				return memory.ErrNoSpace
			}
			return nil
		})
		began := time.Now()
		if _, err := a.worker.Cancel(g.t.Context(), g.journal(topic).ID, "x"); err == nil || !strings.Contains(err.Error(), "space") {
			t.Errorf("error %v", err)
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("after %v", d)
		}
		g.store.SetFault(nil)
	})
}

func TestTheSourceServesAgainWhenTheTargetGoesWhileItIsSealed(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.once(moves.Copy, func(ctx context.Context, do func() error) error {
			_ = do()
			<-ctx.Done()
			return ctx.Err()
		})
		g.begin(topic)
		g.after(time.Second)
		g.wantPhase(topic, moves.Sealed)
		b.detach()
		g.after(2 * lookAgain)
		g.wantServed(topic, "a")
		if slices.Contains(a.held, topic) {
			t.Error("still held at the source, which serves it")
		}
		b.register()
		g.after(2 * lookAgain)
		m := g.journal(topic)
		if !m.Phase.Over() || !strings.Contains(m.Error, "not registered any more") {
			t.Errorf("phase %s, error %q", m.Phase, m.Error)
		}
		g.wantServed(topic, "a")
		g.wantFree()
	})
}

// Safety rule: what cannot be read is not gone.
func TestAnErrorOfEtcdIsNotAnAbsence(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		copied := make(chan struct{})
		b.fault(moves.Copy, func(ctx context.Context, do func() error) error {
			<-copied
			return do()
		})
		g.begin(topic)
		g.after(time.Second)
		g.wantPhase(topic, moves.Sealed)
		g.links["a"].Refuse()
		g.after(20 * time.Second)
		if m := g.wantPhase(topic, moves.Sealed); m.Error != "" {
			t.Errorf("error %q", m.Error)
		}
		if a.count(moves.Restore) > 0 || !slices.Equal(a.held, one) {
			t.Errorf("undone: acts %q, held %q", a.acts, a.held)
		}
		close(copied)
		g.after(time.Second)
		g.links["a"].Heal()
		g.after(time.Minute)
		wantEnd(g, moves.Copy)
	})
}

// The same where nothing else fails, so that it could be undone.
func TestARegistrationThatCannotBeReadUndoesNothing(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.once(moves.Copy, func(_ context.Context, do func() error) error {
			time.Sleep(20 * time.Second)
			return do()
		})
		g.begin(topic)
		g.after(time.Second)
		a.change(func() { a.blind = "/cluster/register/b" })
		g.after(15 * time.Second)
		if m := g.wantPhase(topic, moves.Sealed); m.Error != "" || a.count(moves.Restore) > 0 {
			t.Errorf("error %q, acts %q", m.Error, a.acts)
		}
		a.change(func() { a.blind = "" })
		g.after(time.Minute)
		wantEnd(g, moves.Copy)
	})
}

func TestAMoveHasBegunAlsoIfOthersWentOnWithItBeforeThatWasHeard(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.end()
		a.loses(func(txn *pb.TxnRequest) bool {
			for _, op := range txn.Success {
				if put := op.GetRequestPut(); strings.HasPrefix(string(put.GetKey()), "/cluster/moves") {
					a.lose = nil
					g.put(string(put.GetKey()), strings.Replace(string(put.GetValue()), `"phase":"pending"`, `"phase":"draining"`, 1))
					return true
				}
			}
			return false
		})
		g.begin(topic)
		b.start()
		g.after(time.Minute)
		wantEnd(g, moves.Copy)
	})
}

func TestAWorkerEndsWithItsClient(t *testing.T) {
	onStage(t, Settings{}, nil, func(g *stage, a, b *side) {
		client := cluster.Over(cluster.Config{}, g.store.Conn(nil), a.worker.log)
		w := New(Settings{Me: func() string { return "c" }, Mover: a}, client, a, a.worker.log, prometheus.NewPedanticRegistry())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(g.t.Context()) }()
		g.after(time.Second)
		_ = client.Close()
		select {
		case err := <-ended:
			if !errors.Is(err, cluster.ErrClosed) {
				t.Errorf("error %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("it goes on")
		}
	})
}

// The answer to each write of a journal is lost once; nothing is done twice for it.
func TestAWriteWhoseAnswerWasLostIsNotRepeatedAsAnAct(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		var lost sync.Map // phases; a write whose answer was lost may be tried again before the journal is read
		for _, s := range g.sides {
			s.loses(func(txn *pb.TxnRequest) bool {
				for _, op := range txn.Success {
					put := op.GetRequestPut()
					if !strings.HasPrefix(string(put.GetKey()), "/cluster/moves") {
						continue
					}
					m, err := moves.Parse(topic, put.GetValue())
					if err == nil {
						lost.Store(m.Phase, true)
					}
					return m.Phase != moves.Pending // whoever begins it may be told of a lost answer
				}
				return false
			})
		}
		g.begin(topic)
		g.after(time.Second)
		wantEnd(g, moves.Copy)
		n := 0
		lost.Range(func(any, any) bool { n++; return true })
		if n < 8 {
			t.Errorf("%d phases written, want all", n)
		}
		for act, s := range map[moves.Act]*side{moves.Accept: b, moves.Seal: a, moves.Copy: b, moves.HandOver: a, moves.Resume: b, moves.Compare: b, moves.Remove: a} {
			if n := s.count(act); n != 1 {
				t.Errorf("%s: %d times, want once", act, n)
			}
		}
	})
}

// The handover came through, and then the way to etcd was cut before anybody heard of it.
func TestAHandoverThatNobodyHeardOfIsNotUndone(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		a.loses(func(txn *pb.TxnRequest) bool {
			for _, op := range txn.Success {
				if string(op.GetRequestPut().GetKey()) == "/cluster/brokers/b"+topic {
					g.links["a"].Refuse()
					return true
				}
			}
			return false
		})
		g.begin(topic)
		g.after(20 * time.Second)
		g.wantPhase(topic, moves.Verified)
		g.links["a"].Heal()
		g.after(time.Minute)
		wantEnd(g, moves.Copy)
		if a.count(moves.Restore) > 0 {
			t.Errorf("acts %q", a.acts)
		}
	})
}
