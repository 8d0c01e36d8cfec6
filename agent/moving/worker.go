// Package moving carries out the moves of one broker's topics: it follows their journals, does
// what package moves says is this broker's turn, and writes down what became of it.
//
// Guaranteed: nothing is begun while the broker is not attached, and what was under way when it
// was detached, registered anew, or overtaken by another's word in the journal, is dropped; each
// write is guarded by our registration and by the journal as it was read; a topic that is being
// moved is held from everybody else in this process before anything is done to it. Not
// guaranteed: that an act whose context has ended did nothing; it is done again, or undone.
package moving

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/recovery/moves"
)

const (
	quiet     = 30 * time.Second // an act that moves no byte for so long is tried anew
	lookAgain = 2 * time.Second  // at the other broker, after an act that failed, and for progress
	callBound = 5 * time.Second  // on one question to etcd
	stalled   = time.Minute      // a move that gets no further for so long is said to be
	tries     = 3                // to write a step, which others' words may be before
)

// Topics are those that the broker serves, as the rest of the sidecar sees to them.
type Topics interface {
	// SetHeld names those that are being moved, all of them.
	SetHeld(topics []string)
	// Calm: no call about the topic is under way; ours: it may be served here, by its lock.
	Calm(topic string) (calm, ours bool)
	// Kick has the broker listed.
	Kick()
}

// Settings of a worker.
type Settings struct {
	Me     func() string // this broker's id, known before Run
	Mover  brokerapi.Mover
	Sender brokerapi.Sender // nil, as Mover may be, but not both
	Driver string
	AtOnce int // topics that are withdrawn at a time
	// DrainsAtOnce is how many brokers of the cluster may drain at a time by moving topics.
	DrainsAtOnce int
	// Drained drains the broker: nothing is left on it.
	Drained func(ctx context.Context, why string) error
	Rate    float64 // bytes a second; 0: no limit
	// Told hears of each step that this broker has done, when the journal has it.
	Told func(m moves.Move)
}

// Orders are what a worker acts under.
type Orders struct {
	Who      cluster.Claimant
	Attached bool
	Mode     string
}

func (o Orders) serves() bool { return o.Mode == cluster.ModeActive || o.Mode == cluster.ModeDraining }

// Worker carries out moves. Its methods are safe for concurrent use.
type Worker struct {
	set     Settings
	store   *cluster.Client
	topics  Topics
	log     *slog.Logger
	metrics *metrics
	limit   *rate.Limiter
	slots   chan struct{} // one for each topic that is withdrawn

	mu      sync.Mutex
	orders  Orders
	own     map[string]*under // by topic: moves of ours that are not over
	changed chan struct{}     // closed when orders or own have changed
	drain   draining

	stepping sync.Mutex // held while a drain takes a step
	tasks    sync.WaitGroup
}

// under is a move that is not over.
type under struct {
	moves.Move
	revision int64
	carried  bool
	bytes    atomic.Int64 // that the act under way has moved
}

// Run follows and carries out moves until ctx ends.
func (w *Worker) Run(ctx context.Context) error {
	defer w.tasks.Wait()
	w.tasks.Go(func() { w.drains(ctx) })
	target := cluster.Target{Key: w.store.Keys().Moves(), Prefix: true}
	return w.store.Follow(ctx, target, func(u cluster.Update) { w.take(ctx, u) }, func(err error) {
		if ctx.Err() == nil {
			w.log.Warn("watch failed, listing again", "what", "moves", "err", err)
		}
	})
}

// SetOrders sets what is acted under. What is under way under others is dropped.
func (w *Worker) SetOrders(o Orders) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o != w.orders {
		w.orders = o
		w.wake()
	}
}

// wake has all moves looked at anew. The caller holds the mutex.
func (w *Worker) wake() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// take takes journals up as they were read.
func (w *Worker) take(ctx context.Context, u cluster.Update) {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := map[string]bool{}
	for _, kv := range u.Puts {
		if topic, ok := w.store.Keys().ParseMove(kv.Key); ok {
			found[topic] = true
			w.learn(topic, kv.Value, kv.ModRevision)
		}
	}
	for topic, m := range w.own { // a list of everything may be older than what we wrote ourselves
		if u.Full && !found[topic] && m.revision <= u.Revision || slices.Contains(u.Deletes, w.store.Keys().Move(topic)) {
			w.log.Warn("the journal of a move was deleted by others: nothing is done about it any more", "topic", topic, "move", m.ID, "phase", m.Phase)
			delete(w.own, topic)
		}
	}
	w.settle(ctx)
}

// learn takes up one journal. The caller holds the mutex.
func (w *Worker) learn(topic string, value []byte, revision int64) {
	was := w.own[topic]
	if was != nil && was.revision >= revision {
		return
	}
	m, err := moves.Parse(topic, value)
	switch {
	case err != nil:
		w.log.Warn("the journal of a move is left alone", "topic", topic, "err", err)
		delete(w.own, topic)
	case m.Of(w.set.Me()) == moves.Neither, m.Phase.Over(), m.Phase == moves.Returned && m.From == w.set.Me():
		if was != nil && was.ID == m.ID {
			w.noteEnd(m)
		}
		delete(w.own, topic)
	case was != nil && was.ID == m.ID:
		was.Move, was.revision = m, revision
	default:
		w.own[topic] = &under{Move: m, revision: revision}
	}
}

// settle holds what is being moved, and has each move carried. The caller holds the mutex.
func (w *Worker) settle(ctx context.Context) {
	var held []string
	for topic, m := range w.own {
		if m.Held(m.Of(w.set.Me())) {
			held = append(held, topic)
		}
		if !m.carried {
			m.carried = true
			w.tasks.Go(func() { w.carry(ctx, topic, m.ID) })
		}
	}
	slices.Sort(held)
	w.topics.SetHeld(held)
	w.metrics.progress(maps.Values(w.own))
	w.wake()
}

// look is a move as it is, the orders, and what is closed when either changes; nil: it is over.
func (w *Worker) look(topic, id string) (u *under, m moves.Move, revision int64, o Orders, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if u = w.own[topic]; u == nil || u.ID != id {
		return nil, m, 0, o, nil
	}
	return u, u.Move, u.revision, w.orders, w.changed
}

// carry does this broker's part of one move until it is over.
func (w *Worker) carry(ctx context.Context, topic, id string) {
	slot := false
	free := func() {
		if slot {
			<-w.slots
			slot = false
		}
	}
	defer free()
	for ctx.Err() == nil {
		u, m, _, o, changed := w.look(topic, id)
		if u == nil {
			return
		}
		var again <-chan time.Time
		if o.Attached {
			step, err := w.next(ctx, m)
			switch {
			case step.Act == moves.Seal && !slot:
				select {
				case w.slots <- struct{}{}:
					slot = true
				case <-changed: // it may have been called off
				case <-ctx.Done():
				}
				continue
			case m.Phase.HandedOver() || m.Phase == moves.Returned:
				free()
			}
			if step.Act != moves.Wait && w.do(ctx, u, m, o, step) {
				continue
			}
			if err != nil || step.Act != moves.Wait || m.Of(w.set.Me()) == moves.Source {
				again = time.After(lookAgain)
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-again:
		}
	}
}

// next asks package moves what to do, with what etcd says of the other broker.
func (w *Worker) next(ctx context.Context, m moves.Move) (moves.Step, error) {
	f := moves.Facts{Side: m.Of(w.set.Me())}
	if f.Side == moves.Source {
		ctx, cancel := context.WithTimeout(ctx, callBound)
		defer cancel()
		reg, mode, err := w.store.Party(ctx, m.To)
		switch {
		case err != nil: // an error is not an absence
			return m.Next(f), err
		case reg == nil:
			f.PeerGone = fmt.Sprintf("broker %s is not registered any more", m.To)
		case mode != cluster.ModeActive:
			f.PeerGone = fmt.Sprintf("broker %s is not active any more: %s", m.To, cmp.Or(mode, "its mode is not known"))
		}
	}
	return m.Next(f), nil
}

// do does a step and writes down what became of it. False: it is to be tried again after a while.
func (w *Worker) do(ctx context.Context, u *under, m moves.Move, o Orders, step moves.Step) bool {
	act, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.watch(ctx, act, u, m, o, cancel)
	}()
	out, assigned := w.act(act, u, m, o, step)
	cancel(errActed)
	<-ended
	for range tries {
		_, now, revision, ok := w.still(m, o)
		if !ok {
			return true
		}
		next, differs := now.After(step, out, w.set.Me(), time.Now())
		if !differs {
			break
		}
		write := cluster.MoveWrite{Topic: m.Topic, Value: next.Value(), Seen: revision}
		if next.Phase == moves.Switched {
			write.From, write.To, write.Assigned = m.From, m.To, assigned
		}
		err := w.write(ctx, &o.Who, write)
		if err == nil {
			w.tell(now, next)
			return out.Err == nil || next.Phase != m.Phase
		}
		w.log.Warn("a step of a move is not written yet", "topic", m.Topic, "move", m.ID, "phase", m.Phase, "act", step.Act, "err", err)
	}
	return false
}

var (
	errOvertaken = errors.New("the move or the orders have changed")
	errActed     = errors.New("the act is over")
	errQuiet     = fmt.Errorf("nothing was moved for %s", quiet)
)

// still is the move as it is, if it is in the same phase under the same orders.
func (w *Worker) still(was moves.Move, o Orders) (changed <-chan struct{}, m moves.Move, revision int64, ok bool) {
	u, m, revision, orders, changed := w.look(was.Topic, was.ID)
	return changed, m, revision, u != nil && m.Phase == was.Phase && orders == o
}

// watch cancels an act once the move or the orders are not those any more, and writes down how
// far it is.
func (w *Worker) watch(ctx, act context.Context, u *under, m moves.Move, o Orders, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		changed, now, revision, ok := w.still(m, o)
		if !ok {
			cancel(errOvertaken)
			return
		}
		select {
		case <-act.Done():
			return
		case <-changed:
			continue
		case <-tick.C:
		}
		if bytes := u.bytes.Load(); bytes != now.Moved {
			now = now.Progress(bytes, time.Now())
			_ = w.write(ctx, &o.Who, cluster.MoveWrite{Topic: m.Topic, Value: now.Value(), Seen: revision}) // the next one tells more
		}
	}
}

// write writes a journal and takes it up. After an error it is read, since it may be written.
func (w *Worker) write(ctx context.Context, who *cluster.Claimant, write cluster.MoveWrite) error {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	revision, err := w.store.WriteMove(ctx, who, write)
	value := write.Value
	if err != nil {
		kv, failed := w.store.MoveOf(ctx, write.Topic)
		if failed != nil || kv == nil {
			return errors.Join(err, failed)
		}
		if value, revision = kv.Value, kv.ModRevision; string(value) == string(write.Value) {
			err = nil
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.learn(write.Topic, value, revision)
	w.wake()
	return err
}

// tell says a step that the journal has.
func (w *Worker) tell(was, now moves.Move) {
	w.metrics.step(was, now)
	if was.Phase == now.Phase {
		w.log.Warn("a step of a move failed and is tried again", "topic", now.Topic, "move", now.ID, "phase", now.Phase, "err", now.Error)
	} else {
		w.log.Info("move", "topic", now.Topic, "move", now.ID, "from", now.From, "to", now.To, "phase", now.Phase, "err", now.Error)
		w.topics.Kick()
	}
	if w.set.Told != nil {
		w.set.Told(now)
	}
}
