package moving

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/cluster/memory"
	"holdfast/recovery/moves"
)

func TestAJournalThatWasDeletedByHandEndsTheMove(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.fault(moves.Copy, hangs)
		g.begin(topic)
		g.after(time.Second)
		if _, err := g.store.DeleteRange(g.t.Context(), &pb.DeleteRangeRequest{Key: []byte("/cluster/moves" + topic)}); err != nil {
			t.Fatal(err)
		}
		g.after(time.Minute)
		g.wantFree() // so the source is given the topic as any other, and serves it
		if b.count(moves.Copy) != 1 || a.count(moves.Restore)+b.count(moves.Discard) > 0 || g.get("/cluster/moves"+topic) != "" {
			t.Errorf("acts %q and %q, journal %q", a.acts, b.acts, g.get("/cluster/moves"+topic))
		}
		if !strings.Contains(g.log.String(), "was deleted by others") {
			t.Errorf("log:\n%s", g.log)
		}
	})
}

func TestJournalsThatCannotBeReadAreLeftAloneAndShown(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		whole := moves.Move{ID: "m", From: "a", To: "b", Phase: moves.Pending}.Value()
		values := map[string]string{
			"/n/garbled":   "{",
			"/n/newer":     strings.Replace(string(whole), `"format":1`, `"format":2`, 1),
			"/n/unplanned": string(whole),
			"/n/unsealed":  strings.Replace(string(whole), "pending", "sealed", 1),
		}
		for name, value := range values {
			g.put("/cluster/moves"+name, value)
		}
		g.after(time.Hour)
		for name, value := range values {
			if got := g.get("/cluster/moves" + name); got != value {
				t.Errorf("%s: %s, was %s", name, got, value)
			}
		}
		g.wantFree()
		if len(a.acts)+len(b.acts) > 0 {
			t.Errorf("acts %q and %q", a.acts, b.acts)
		}
		list, err := a.worker.List(g.t.Context(), "")
		if err != nil || len(list) != len(values) {
			t.Fatalf("list %+v, error %v", list, err)
		}
		for _, s := range list {
			if s.Unreadable == "" || s.Topic == "/n/newer" && !strings.Contains(s.Unreadable, "newer version") {
				t.Errorf("%s: %q", s.Topic, s.Unreadable)
			}
		}
	})
}

func TestTheJournalSaysHowFarACopyIsAndAStallNamesWhoIsWaitedFor(t *testing.T) {
	onStage(t, Settings{Rate: 100}, one, func(g *stage, a, b *side) {
		a.topics[topic].messages = []string{strings.Repeat("x", 1000), strings.Repeat("y", 1000)}
		blocked := false
		b.fault(moves.Copy, func(ctx context.Context, do func() error) error {
			if blocked {
				return hangs(ctx, do)
			}
			return do()
		})
		g.begin(topic)
		g.after(6 * time.Second)
		m := g.wantPhase(topic, moves.Sealed)
		if m.Moved < 300 || m.Moved > 700 {
			t.Errorf("%d bytes moved after 6 s, at 100 a second", m.Moved)
		}
		if list, _ := a.worker.List(g.t.Context(), ""); list[0].Stalled != "" {
			t.Errorf("stalled: %q", list[0].Stalled)
		}
		blocked = true
		b.end() // and its next process copies nothing
		b.start()
		g.after(70 * time.Second)
		list, err := a.worker.List(g.t.Context(), "")
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		for _, want := range []string{"sealed for 1m", "b's turn", "nothing was moved for 30s", "'holdfast status' at b", "'holdfast moves cancel m-n-t'"} {
			if !strings.Contains(list[0].Stalled, want) {
				t.Errorf("stalled %q, want %q in it", list[0].Stalled, want)
			}
		}
		g.cancel(topic)
		g.after(time.Second)
		g.wantPhase(topic, moves.Cancelled)
	})
}

func TestAtMostSoManyTopicsAreWithdrawnAtATime(t *testing.T) {
	topics := []string{"/n/a", "/n/b", "/n/c", "/n/d", "/n/e", "/n/f"}
	onStage(t, Settings{AtOnce: 2}, topics, func(g *stage, a, b *side) {
		sealed := func() (names []string) {
			for _, name := range topics {
				if !a.peek(name).served && g.get("/cluster/brokers/a"+name) != "" {
					names = append(names, name)
				}
			}
			return names
		}
		b.fault(moves.Copy, hangs)
		for _, name := range topics {
			g.begin(name)
		}
		g.after(5 * time.Second)
		before := sealed()
		if len(before) != 2 {
			t.Fatalf("withdrawn: %q, want two", before)
		}
		g.cancel(before[0])
		g.after(time.Second)
		now := sealed()
		if len(now) != 2 || slices.Contains(now, before[0]) || !slices.Contains(now, before[1]) {
			t.Errorf("withdrawn: %q, want %s and another", now, before[1])
		}
		a.end()
		a.start()
		g.after(time.Second)
		for _, name := range topics { // one that waits is served, also by a broker that starts anew
			if waits := !slices.Contains(now, name) && name != before[0]; waits == slices.Contains(a.held, name) && name != before[0] {
				t.Errorf("%s is held: %t", name, !waits)
			}
		}
		for _, name := range topics { // and needs no slot to end
			if name != before[0] && !slices.Contains(now, name) {
				g.cancel(name)
				g.after(time.Second)
				g.wantPhase(name, moves.Cancelled)
				break
			}
		}
		most := 0
		b.fault(moves.Copy, func(_ context.Context, do func() error) error {
			most = max(most, len(sealed()))
			time.Sleep(time.Second)
			return do()
		})
		g.after(time.Minute + 10*time.Second)
		ends := map[moves.Phase]int{}
		for _, name := range topics {
			ends[g.journal(name).Phase]++
		}
		if ends[moves.Done] != 4 || ends[moves.Cancelled] != 2 {
			t.Errorf("ends %v, want 4 done and 2 cancelled", ends)
		}
		if most != 2 {
			t.Errorf("%d were withdrawn at once, want two", most)
		}
	})
}

// What was sealed and not written down yet would be served, and its move refused.
func TestATopicThatIsBeingSealedKeepsItsTurnOverARestart(t *testing.T) {
	topics := []string{"/n/a", "/n/b"}
	onStage(t, Settings{AtOnce: 1}, topics, func(g *stage, a, b *side) {
		b.once(moves.Accept, func(ctx context.Context, do func() error) error {
			time.Sleep(10 * time.Second)
			return do()
		})
		g.begin("/n/a") // the older one, which is accepted later
		g.after(time.Second)
		a.once(moves.Seal, func(ctx context.Context, do func() error) error {
			if err := do(); err != nil {
				return err
			}
			return hangs(ctx, nil)
		})
		g.begin("/n/b")
		g.after(12 * time.Second)
		g.wantPhase("/n/a", moves.Draining)
		g.wantPhase("/n/b", moves.Draining)
		a.end()
		b.fault(moves.Copy, hangs)
		a.start()
		g.after(time.Second)
		if !slices.Equal(a.held, []string{"/n/b"}) {
			t.Errorf("held: %q, want what was sealed", a.held)
		}
		b.fault(moves.Copy, nil)
		g.after(time.Minute)
		g.wantPhase("/n/a", moves.Done)
		g.wantPhase("/n/b", moves.Done)
	})
}

func TestATopicThatWasHandedOverGivesItsSlotToTheNext(t *testing.T) {
	topics := []string{"/n/a", "/n/b"}
	onStage(t, Settings{AtOnce: 1}, topics, func(g *stage, a, b *side) {
		b.fault(moves.Resume, hangs)
		for _, name := range topics {
			g.begin(name)
		}
		g.after(10 * time.Second)
		for _, name := range topics {
			g.wantPhase(name, moves.Switched)
		}
		b.fault(moves.Resume, nil)
		g.after(time.Minute)
		for _, name := range topics {
			g.wantPhase(name, moves.Done)
		}
	})
}

// Beside the slot's count: what others have written wakes nobody who waits.
func TestMovesThatWaitAskNothingOfEtcdWhileOthersGoOn(t *testing.T) {
	var topics []string
	for i := range 60 {
		topics = append(topics, fmt.Sprintf("/n/%02d", i))
	}
	onStage(t, Settings{AtOnce: 1}, topics, func(g *stage, _, _ *side) {
		reads := 0
		g.store.SetFault(func(method string) error {
			if strings.HasSuffix(method, "KV/Range") || strings.HasSuffix(method, "KV/Txn") {
				reads++
			}
			return nil
		})
		for _, name := range topics {
			g.begin(name)
		}
		g.after(time.Second)
		g.store.SetFault(nil)
		for _, name := range topics {
			g.wantPhase(name, moves.Done)
		}
		if each := reads / len(topics); each > 40 {
			t.Errorf("%d questions to etcd for each of %d moves", each, len(topics))
		}
	})
}

func TestACopyKeepsToTheRateAlsoWhereOneMessageTakesLongerThanSilenceMay(t *testing.T) {
	onStage(t, Settings{Rate: 10}, one, func(g *stage, a, b *side) {
		a.topics[topic].messages = []string{strings.Repeat("x", 1000)}
		g.begin(topic)
		g.after(5 * time.Minute)
		m := g.wantPhase(topic, moves.Done)
		if d := m.Since[moves.Copied].Sub(m.Since[moves.Sealed]); d < 99*time.Second || d > 101*time.Second {
			t.Errorf("1,000 bytes at 10 a second took %v", d)
		}
		if n := b.count(moves.Copy); n != 1 {
			t.Errorf("copied %d times", n)
		}
	})
}

// Errors of a network name another port each time.
func TestAnActThatFailsInOtherWordsEachTimeIsTriedAtAPace(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		n := 0
		b.fault(moves.Resume, func(context.Context, func() error) error {
			n++
			return fmt.Errorf("port %d", n)
		})
		g.begin(topic)
		g.after(time.Minute)
		if n < 25 || n > 31 {
			t.Errorf("%d tries in a minute, want one each %v", n, lookAgain)
		}
		if m := g.wantPhase(topic, moves.Switched); !strings.HasPrefix(m.Error, "port ") {
			t.Errorf("error %q", m.Error)
		}
		b.fault(moves.Resume, nil)
		g.after(lookAgain)
		wantEnd(g, moves.Resume)
	})
}

func TestATargetThatWasDrainedDoesNotResumeBeforeItIsActive(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		a.once(moves.HandOver, func(_ context.Context, do func() error) error {
			drained := b.orders
			drained.Mode = cluster.ModeDrained
			b.order(drained)
			return do()
		})
		g.begin(topic)
		g.after(time.Minute)
		if m := g.wantPhase(topic, moves.Switched); !strings.Contains(m.Error, "'holdfast activate' there") || b.count(moves.Resume) > 0 {
			t.Errorf("error %q, acts %q", m.Error, b.acts)
		}
		active := b.orders
		active.Mode = cluster.ModeActive
		b.order(active)
		g.after(lookAgain)
		wantEnd(g, moves.Resume)
	})
}

func TestATargetResumesOnlyWithItsOwnershipLockAndWhenTheBrokerIsAskedNothingElse(t *testing.T) {
	for name, set := range map[string]func(s *side, on bool){
		"does not have its ownership lock": func(s *side, on bool) { s.foreign = on },
		"is still asked":                   func(s *side, on bool) { s.busy = on },
	} {
		onStage(t, Settings{}, one, func(g *stage, a, b *side) {
			a.once(moves.HandOver, func(_ context.Context, do func() error) error {
				b.change(func() { set(b, true) })
				return do()
			})
			g.begin(topic)
			g.after(time.Minute)
			if m := g.wantPhase(topic, moves.Switched); !strings.Contains(m.Error, name) || b.count(moves.Resume) > 0 {
				t.Errorf("error %q, want %q in it; acts %q", m.Error, name, b.acts)
			}
			b.change(func() { set(b, false) })
			g.after(lookAgain)
			wantEnd(g, moves.Resume)
		})
	}
}

// Begun before the journals were read: what is held is not known yet, and nothing is said of it.
func TestNothingIsSaidToBeAllThatIsHeldBeforeAllWasRead(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		g.after(time.Second)
		a.end()
		a.change(func() { a.heldTold = 0 })
		running := a.worker
		a.worker = New(Settings{Me: running.set.Me, Mover: a, Told: func(moves.Move) {}}, a.client, a, running.log, prometheus.NewPedanticRegistry())
		a.worker.SetOrders(a.orders)
		g.begin(topic) // before it runs
		if a.heldTold > 0 {
			t.Error("told before the journals were read")
		}
		a.start()
		g.after(time.Minute)
		wantEnd(g, moves.Copy)
	})
}

// As a role has it that was made before topics moved: the broker goes on as it did.
func TestASidecarThatMayNotReadJournalsHoldsNothing(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		g.after(time.Second)
		a.end()
		a.change(func() { a.heldTold = 0 })
		g.store.SetFault(func(string) error { return memory.ErrPermissionDenied })
		a.start()
		g.after(time.Second)
		if a.heldTold == 0 || len(a.held) > 0 {
			t.Errorf("told %d times, of %q", a.heldTold, a.held)
		}
		if !strings.Contains(g.log.String(), "grant readwrite on this prefix") {
			t.Errorf("log:\n%s", g.log)
		}
		g.store.SetFault(nil)
	})
}

// sender is a broker whose own cluster moves topics.
type sender struct {
	brokerapi.Broker
	to string
}

func (s *sender) Topics(context.Context) (brokerapi.Held, error) {
	return brokerapi.Held{Serving: []string{topic}}, nil
}

func (s *sender) Send(_ context.Context, topic string, to brokerapi.Peer) (string, error) {
	s.to = to.URL
	return "b has " + topic, nil
}

func TestATopicThatTheBrokersOwnClusterMovesIsObserved(t *testing.T) {
	sent := &sender{}
	onStage(t, Settings{Sender: sent}, one, func(g *stage, a, b *side) {
		if _, err := a.worker.Prepare(g.t.Context(), moves.Move{Topic: "/n/far"}, nil); !errors.Is(err, brokerapi.ErrRefused) ||
			!strings.Contains(err.Error(), "topic /n/far: this broker does not serve it") {
			t.Errorf("of a topic that is not here: %v", err)
		}
		g.begin(topic)
		g.after(time.Second)
		if m := g.wantPhase(topic, moves.Done); m.Same.Observed != "b has /n/t" || sent.to != "nats://b:4222" {
			t.Errorf("observed %q, sent to %q", m.Same.Observed, sent.to)
		}
		g.wantFree()
		g.put("/cluster/brokers/a/n/u", "null")
		e := moves.Extent{}
		if err := a.worker.Begin(g.t.Context(), Shown{Move: moves.Move{ID: "m2", Topic: "/n/u", From: "a", To: "b", Planned: &e}}); err != nil {
			t.Fatal(err)
		}
		g.after(time.Second)
		if m := g.wantPhase("/n/u", moves.Failed); !strings.Contains(m.Error, "do not move so") {
			t.Errorf("error %q", m.Error)
		}
	})
}

func TestNothingIsBegunWhileTheBrokerIsNotAttachedOrOverAnother(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.fault(moves.Accept, hangs)
		g.begin(topic)
		e := a.topics[topic].extent()
		second := moves.Move{ID: "m2", Topic: topic, From: "a", To: "b", Planned: &e}
		if err := a.worker.Begin(g.t.Context(), Shown{Move: second}); err == nil || !strings.Contains(err.Error(), "not begun") {
			t.Errorf("a second move: %v", err)
		}
		g.cancel(topic)
		a.detach()
		if err := a.worker.Begin(g.t.Context(), Shown{Move: second}); err == nil || !strings.Contains(err.Error(), "not attached") {
			t.Errorf("while detached: %v", err)
		}
		g.after(time.Second)
	})
}

// Whoever it is assigned to serves it: the source does not serve it again, and nothing is removed.
func TestATopicThatOthersAssignMeanwhileIsLeftToThem(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		b.fault(moves.Copy, hangs)
		g.begin(topic)
		g.after(time.Second)
		g.wantPhase(topic, moves.Sealed)
		if _, err := g.store.DeleteRange(g.t.Context(), &pb.DeleteRangeRequest{Key: []byte("/cluster/brokers/a" + topic)}); err != nil {
			t.Fatal(err)
		}
		g.put("/cluster/brokers/c"+topic, "null")
		g.cancel(topic)
		g.after(10 * time.Second)
		if m := g.wantPhase(topic, moves.Cancelled); !strings.Contains(m.Error, "others have taken its assignment from a") {
			t.Errorf("error %q", m.Error)
		}
		if a.peek(topic).served {
			t.Error("a serves what is assigned to c")
		}
	})
}

// The answer to our own write may come after the watch has told what others made of it.
func TestWhatIsHeardLateOfAMoveThatIsOverIsNoMove(t *testing.T) {
	w := New(Settings{Me: func() string { return "b" }}, nil, &side{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	m := moves.Move{ID: "m1", Topic: "/n/t", From: "a", To: "b", Phase: moves.Draining, Planned: &moves.Extent{}}
	w.learn(m.Topic, m.Value(), 5)
	over := m
	over.Phase = moves.Failed
	w.learn(m.Topic, over.Value(), 7)
	m.Phase = moves.Undoing
	w.learn(m.Topic, m.Value(), 6)
	if u := w.own[m.Topic]; u != nil {
		t.Errorf("it is carried on in %s", u.Phase)
	}
}

// A broker without the lock of what it has assigned may have an old copy, while another serves.
func TestWhatAnotherHasTheLockOfIsNotSealed(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		a.change(func() { a.foreign = true })
		g.begin(topic)
		g.after(20 * time.Second)
		if m := g.wantPhase(topic, moves.Draining); !strings.Contains(m.Error, "ownership lock") || a.count(moves.Seal) > 0 {
			t.Errorf("error %q, %d seals", m.Error, a.count(moves.Seal))
		}
		a.change(func() { a.foreign = false })
		g.after(10 * time.Second)
		g.wantPhase(topic, moves.Done)
	})
}

// Of a backup that was restored all revisions are older than those that were heard.
func TestAMoveIsHeardOfInARestoredStore(t *testing.T) {
	onStage(t, Settings{}, one, func(g *stage, a, b *side) {
		backup := g.store.Content()
		b.fault(moves.Copy, hangs)
		g.begin(topic)
		g.after(5 * time.Second)
		g.wantPhase(topic, moves.Sealed)
		g.store.Rewind(backup)
		a.worker.Forget()
		b.worker.Forget()
		b.fault(moves.Copy, nil)
		g.after(2 * time.Minute)
		g.wantFree()
		g.begin(topic)
		g.after(10 * time.Second)
		g.wantPhase(topic, moves.Done)
	})
}

// Journals and assignments are watched one beside the other: the end of a hold may be heard before the
// assignment has gone.
func TestAJournalSaysWhoseTheTopicWas(t *testing.T) {
	handedOver := map[moves.Phase]time.Time{moves.Switched: time.Now()}
	write := func(id, from, to string, p moves.Phase, change func(m *moves.Move)) []byte {
		m := moves.Move{ID: id, Topic: topic, From: from, To: to, Phase: p, Planned: &moves.Extent{}, Sealed: &moves.Extent{}}
		if change != nil {
			change(&m)
		}
		return m.Value()
	}
	copied := write("m1", "a", "b", moves.Copied, nil)
	pending := write("m1", "a", "b", moves.Pending, nil)
	switched := write("m1", "a", "b", moves.Switched, nil)
	coming := write("m1", "b", "a", moves.Switched, nil)
	taken := func(m *moves.Move) { m.Taken, m.Since = true, handedOver }
	for _, row := range []struct {
		name      string
		was, now  []byte
		elsewhere bool // for a
	}{
		{"handed over", copied, write("m1", "a", "b", moves.Switched, nil), true},
		{"done", copied, write("m1", "a", "b", moves.Done, nil), true},
		{"failed after the handover", copied, write("m1", "a", "b", moves.Failed, func(m *moves.Move) { m.Since = handedOver }), true},
		{"the same, heard by a sidecar that has just begun", nil, write("m1", "a", "b", moves.Failed, func(m *moves.Move) { m.Since = handedOver }), true},
		{"failed before the handover", copied, write("m1", "a", "b", moves.Failed, nil), false},
		{"undone", copied, write("m1", "a", "b", moves.Returned, nil), false},
		{"taken by others", copied, write("m1", "a", "b", moves.Failed, func(m *moves.Move) { m.Taken = true }), true},
		{"taken by others after the handover, who may have given it back", switched, write("m1", "a", "b", moves.Failed, taken), false},
		{"moved on by the next", copied, write("m2", "b", "c", moves.Pending, nil), true},
		{"on its way back", copied, write("m2", "b", "a", moves.Copied, nil), true},
		{"moved back", copied, write("m2", "b", "a", moves.Switched, nil), false},
		{"cannot be read", copied, []byte("{"), true},
		{"deleted", copied, nil, true},
		{"cannot be read, while it is served", pending, []byte("{"), false},
		{"deleted, while it is served", pending, nil, false},
		{"cannot be read, after it was handed over to us", coming, []byte("{"), false},
		{"deleted, after it was handed over to us", coming, nil, false},
		{"goes on after the handover", switched, write("m1", "a", "b", moves.Resumed, nil), false},
		{"handed over to us, and taken by others", coming, write("m1", "b", "a", moves.Failed, taken), true},
		{"of others", nil, write("m1", "b", "c", moves.Switched, nil), false},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := &side{}
			client := cluster.Over(cluster.Config{}, memory.New(memory.Config{}).Conn(nil), slog.New(slog.DiscardHandler))
			defer client.Close()
			w := New(Settings{Me: func() string { return "a" }}, client, a, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			key := client.Keys().Move(topic)
			for i, value := range [][]byte{row.was, row.now} {
				u := cluster.Update{Full: true, Revision: int64(5 + i)}
				a.unmoved = nil
				if value != nil {
					u.Puts = []cluster.KV{{Key: key, Value: value, ModRevision: u.Revision}}
				}
				w.take(ctx, u)
			}
			w.tasks.Wait()
			if told := len(a.unmoved) > 0; told != row.elsewhere {
				t.Errorf("told that it is elsewhere: %t, want %t; held %q", told, row.elsewhere, a.held)
			}
		})
	}
}
