// Package moving carries out the moves of one broker's topics: it follows their journals, does
// what package moves says is this broker's turn, and writes down what became of it.
//
// Guaranteed: nothing is begun while the broker is not attached, and what was under way when it
// was detached, registered anew, or overtaken by another's word in the journal, is dropped; each
// write is guarded by our registration and by the journal as it was read; a topic that is being
// moved is held from everybody else in this process before anything is done to it. Not
// guaranteed: that an act whose context has ended did nothing; it is done again, or undone. Nor that
// a call of the reconciler to serve a topic, which bears no move's ID, is not carried out by a slow
// broker after the topic was sealed, where the sidecar that has made the call has ended since.
package moving

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	quiet       = 30 * time.Second // an act that moves no byte for so long is tried anew
	lookAgain   = 2 * time.Second  // at the other broker, after an act that failed, and for progress
	callBound   = 5 * time.Second  // on one question to etcd
	stalled     = time.Minute      // a move that gets no further for so long is said to be
	pendingMost = 10 * time.Second // the same, where the target has only to look
	tries       = 3                // to write a step, which others' words may be before

	carryAgain = 10 * time.Minute // after a move by placement that did not succeed
)

// Topics are those that the broker serves, as the rest of the sidecar sees to them.
type Topics interface {
	// SetHeld names those that are being moved, all of them, and which of those were handed over.
	SetHeld(topics, parted []string)
	// SetElsewhere tells that a topic was not assigned here at that revision: what is known of an older
	// one does not count.
	SetElsewhere(topic string, revision int64)
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
	Locks        bool // topics have ownership locks
	// Drained drains the broker: nothing is left on it.
	Drained func(ctx context.Context, why string) error
	Rate    float64 // bytes a second; 0: no limit
	// Sync has the file system of the broker's data write what it holds to its disk, and says which
	// directory it took; empty: none is seen from here. It may take for ever.
	Sync func() (dir string, err error)
	// Told hears of each step that this broker has done, when the journal has it.
	Told func(m moves.Move)
}

// Orders are what a worker acts under.
type Orders struct {
	Who      cluster.Claimant
	Attached bool
	Mode     string
}

// Worker carries out moves. Its methods are safe for concurrent use.
type Worker struct {
	set     Settings
	store   *cluster.Client
	topics  Topics
	log     *slog.Logger
	metrics *metrics
	limit   *rate.Limiter
	syncing chan struct{} // has one while Sync is called
	stirred chan struct{} // when a drain may go on; it has room for one

	mu     sync.Mutex
	known  bool   // the journals were read
	anew   func() // has them listed anew
	orders Orders
	own    map[string]*under // by topic: moves of ours that are not over
	learnt map[string]int64  // by topic: the youngest revision that was, of moves of ours, over or not
	found  map[string]bool   // those of ours that a list has had so far; nil: none is under way
	drain  draining

	tasks   sync.WaitGroup
	refused atomic.Value // why a step was not written last; empty: it was
}

// under is a move that is not over.
type under struct {
	moves.Move
	revision int64
	heard    time.Time // when that was
	turn     bool      // to be withdrawn: only so many are at a time
	carried  bool
	changed  chan struct{} // closed, and replaced, when the phase or the orders are others
}

func (u *under) wake() {
	close(u.changed)
	u.changed = make(chan struct{})
}

// waits: it is to be withdrawn, and it is not its turn.
func (u *under) waits(side moves.Side) bool {
	return side == moves.Source && u.Phase == moves.Draining && !u.turn
}

// Run follows and carries out moves until ctx ends.
func (w *Worker) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer w.tasks.Wait()
	defer cancel()
	w.tasks.Go(func() { w.drains(ctx) })
	for ctx.Err() == nil {
		listing, anew := context.WithCancel(ctx)
		w.mu.Lock()
		w.anew = anew
		w.mu.Unlock()
		if err := w.follow(ctx, listing); listing.Err() == nil {
			anew()
			return err
		}
	}
	return ctx.Err()
}

// follow takes up journals until listing ends.
func (w *Worker) follow(ctx, listing context.Context) error {
	target := w.store.Keys().Moves()
	return w.store.Follow(listing, target, func(u cluster.Update) { w.take(ctx, u) }, func(err error) {
		if cluster.Denied(err) { // who may not read journals has never written one, and no move waits for it
			w.log.Warn("topics do not move: grant readwrite on this prefix, as docs/security.md says", "key", target.Key, "err", err)
			w.take(ctx, cluster.Update{})
		} else {
			w.log.Warn("watch failed, listing again", "what", "moves", "err", err)
		}
	})
}

// SetOrders sets what is acted under. What is under way under others is dropped.
func (w *Worker) SetOrders(o Orders) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o == w.orders {
		return
	}
	w.orders = o
	w.stir()
	for _, u := range w.own {
		u.heard = time.Now() // meanwhile the other side may have had nobody to tell, either
		u.wake()
	}
}

// stir has the drain take a step.
func (w *Worker) stir() {
	select {
	case w.stirred <- struct{}{}:
	default:
	}
}

// take takes journals up as they were read, and has each move carried.
func (w *Worker) take(ctx context.Context, update cluster.Update) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if update.Full {
		w.found = map[string]bool{}
	}
	for _, kv := range update.Puts {
		if topic, ok := w.store.Keys().ParseMove(kv.Key); ok {
			w.learn(topic, kv.Value, kv.ModRevision)
			if w.found != nil && w.own[topic] != nil {
				w.found[topic] = true
			}
		}
	}
	if update.More {
		return
	}
	for topic, u := range w.own {
		gone := w.found != nil && !w.found[topic] || slices.Contains(update.Deletes, w.store.Keys().Move(topic))
		if gone && u.revision <= update.Revision { // it may be older than what we wrote ourselves
			w.log.Warn("the journal of a move was deleted by others: nothing is done about it any more",
				"topic", topic, "move", u.ID, "phase", u.Phase)
			w.doubt(u, update.Revision)
			w.drop(topic)
		}
	}
	w.found = nil
	if !w.known {
		w.stir() // a drain begins nothing before
	}
	w.known = true
	w.hold()
	for topic, u := range w.own {
		if !u.carried {
			u.carried = true
			id := u.ID // what is read later is read with the mutex
			w.tasks.Go(func() { w.carry(ctx, topic, id) })
		}
	}
}

// learn takes up one journal. The caller holds the mutex, and holds the topics after it.
func (w *Worker) learn(topic string, value []byte, revision int64) {
	if w.learnt[topic] >= revision { // heard before what we wrote ourselves was answered, or after it
		return
	}
	was := w.own[topic]
	m, err := moves.Parse(topic, value)
	if was != nil || m.Of(w.set.Me()) != moves.Neither {
		w.learnt[topic] = revision
		switch me := w.set.Me(); { // before the hold may end: what is known of assignments may be older
		case err != nil:
			w.doubt(was, revision)
		case m.Owner() == me:
		case was != nil && was.ID == m.ID && was.Owner() != me: // that was told, and others may have assigned it here since
		default:
			w.topics.SetElsewhere(topic, revision)
		}
	}
	switch {
	case err != nil:
		w.log.Warn("the journal of a move is left alone", "topic", topic, "err", err)
		w.drop(topic)
	case m.Of(w.set.Me()) == moves.Neither, m.Phase.Over(), m.Phase == moves.Returned && m.From == w.set.Me():
		if m.From == w.set.Me() {
			w.noteEnd(m)
		}
		w.drop(topic)
	case was == nil || was.ID != m.ID:
		w.drop(topic)
		w.drain.further = time.Now()
		w.own[topic] = &under{Move: m, revision: revision, heard: time.Now(), changed: make(chan struct{})}
	default:
		anew := was.Phase != m.Phase
		if anew || m.Moved > was.Moved {
			w.drain.further = time.Now()
		}
		if was.Move, was.revision, was.heard = m, revision, time.Now(); anew {
			was.wake()
		}
	}
}

// doubt is for a journal that does not say any more whose the topic is: a source that holds it may have
// handed it over since. The caller holds the mutex.
func (w *Worker) doubt(u *under, revision int64) {
	if side := u.Of(w.set.Me()); side == moves.Source && u.Held(side) && !u.waits(side) {
		w.topics.SetElsewhere(u.Topic, revision)
	}
}

// Forget has the journals listed anew, and the list count however old it is: a backup of etcd was restored.
func (w *Worker) Forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.learnt)
	for _, u := range w.own {
		u.revision = -1 // which no journal has: nothing is written
	}
	w.anew()
}

// drop forgets a move that is over, or none of ours.
func (w *Worker) drop(topic string) {
	if u := w.own[topic]; u != nil {
		u.wake()
		delete(w.own, topic)
		w.stir()
	}
}

// hold keeps everybody else from what is being moved, and says whose turn it is to be withdrawn. What
// waits for its turn is served like any other. The caller holds the mutex.
func (w *Worker) hold() {
	if !w.known { // and nothing is loaded so long
		return
	}
	var held, parted []string
	var waiting []*under
	free := w.set.AtOnce
	for topic, u := range w.own {
		side := u.Of(w.set.Me())
		if u.waits(side) {
			waiting = append(waiting, u)
		} else if u.Held(side) {
			held = append(held, topic)
			switch {
			case side == moves.Target:
			case u.Phase.HandedOver():
				parted = append(parted, topic)
			default:
				free--
			}
		}
	}
	// In this order also after a restart: what has been sealed is not served in between.
	slices.SortFunc(waiting, func(a, b *under) int {
		return cmp.Or(a.Since[moves.Draining].Compare(b.Since[moves.Draining]), older(Shown{Move: a.Move}, Shown{Move: b.Move}))
	})
	for _, u := range waiting[:min(len(waiting), max(free, 0))] {
		u.turn = true
		held = append(held, u.Topic)
		u.wake()
	}
	slices.Sort(held)
	slices.Sort(parted)
	w.topics.SetHeld(held, parted)
	w.metrics.progress(w.own)
}

// look is a move as it is, and the orders. Without a channel it is over.
func (w *Worker) look(topic, id string) (under, Orders) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if u := w.own[topic]; u != nil && u.ID == id {
		return *u, w.orders
	}
	return under{}, w.orders
}

// carry does this broker's part of one move until it is over.
func (w *Worker) carry(ctx context.Context, topic, id string) {
	for ctx.Err() == nil {
		u, o := w.look(topic, id)
		if u.changed == nil {
			return
		}
		var again <-chan time.Time
		if o.Attached && !u.waits(u.Of(w.set.Me())) {
			step := w.next(ctx, u)
			if step.Act != moves.Wait {
				w.do(ctx, u, o, step)
			}
			again = time.After(lookAgain)
		}
		select {
		case <-ctx.Done():
		case <-u.changed:
		case <-again:
		}
	}
}

// next asks package moves what to do, with what etcd says of the other broker and the assignment.
func (w *Worker) next(ctx context.Context, u under) moves.Step {
	m := u.Move
	f := moves.Facts{Side: m.Of(w.set.Me()), Quiet: time.Since(u.heard)}
	if m.Sent {
		return m.Next(f)
	}
	// Also who waits looks: the other may never come back, and what it had be assigned elsewhere.
	switch assigned, err := w.assigned(ctx, m.Owner(), m.Topic); {
	case err != nil: // an error is not an absence, and no leave to act
		return moves.Step{}
	case assigned == 0:
		f.Taken = fmt.Sprintf("others have taken its assignment from %s", m.Owner())
	}
	if f.Side == moves.Source {
		ctx, cancel := context.WithTimeout(ctx, callBound)
		defer cancel()
		reg, mode, err := w.store.Party(ctx, m.To)
		switch {
		case err != nil: // nor is it one here
		case reg == nil:
			f.PeerGone = fmt.Sprintf("broker %s is not registered any more", m.To)
		case mode != cluster.ModeActive:
			f.PeerGone = fmt.Sprintf("broker %s is not active any more: %s", m.To, cmp.Or(mode, "its mode is not known"))
		}
	}
	return m.Next(f)
}

// do does a step and writes down what became of it, unless phase or orders are others by then.
func (w *Worker) do(ctx context.Context, u under, o Orders, step moves.Step) {
	out := w.act(ctx, u, o, step)
	for range tries {
		now, _ := w.look(u.Topic, u.ID)
		if now.changed != u.changed || ctx.Err() != nil || step.Act == moves.GiveUp && now.revision != u.revision {
			return
		}
		next, differs := now.After(step, out, w.set.Me(), time.Now())
		if !differs {
			return
		}
		if err := w.write(ctx, &o.Who, next, now.revision, out.Assigned); err != nil {
			if w.refused.Swap(err.Error()) != err.Error() { // said when it changes
				w.log.Warn("a step of a move is not written yet", "topic", u.Topic, "move", u.ID, "phase", u.Phase, "act", step.Act, "err", err)
			}
			if cluster.Denied(err) {
				return
			}
			continue
		}
		w.refused.Store("")
		w.tell(now.Move, next)
		return
	}
}

var errQuiet = fmt.Errorf("nothing was moved for %s", quiet)

// write writes the journal that follows the one of a revision, and takes it up. After an error it is read,
// since it may be written. assigned: with it the topic is handed over.
func (w *Worker) write(ctx context.Context, who *cluster.Claimant, m moves.Move, seen, assigned int64) error {
	bound, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	write := cluster.JournalWrite{Key: w.store.Keys().Move(m.Topic), Value: m.Value(), Seen: seen}
	if m.Phase == moves.Switched && assigned != 0 {
		write.Topic, write.From, write.To, write.Assigned, write.Locked = m.Topic, m.From, m.To, assigned, w.set.Locks
	}
	revision, err := w.store.WriteJournal(bound, who, write)
	value := write.Value
	if err != nil {
		bound, cancel := context.WithTimeout(ctx, callBound)
		defer cancel()
		kv, failed := w.store.Journal(bound, write.Key)
		if failed != nil || kv == nil {
			return errors.Join(err, failed)
		}
		if value, revision = kv.Value, kv.ModRevision; string(value) == string(write.Value) {
			err = nil
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.learn(m.Topic, value, revision)
	w.hold()
	return err
}

// tell says a step that the journal has.
func (w *Worker) tell(was, now moves.Move) {
	w.metrics.step(was, now)
	if was.Phase == now.Phase {
		w.log.Warn("a step of a move failed and is tried again", "topic", now.Topic, "move", now.ID, "phase", now.Phase, "err", now.Error)
	} else {
		w.log.Info("move", "topic", now.Topic, "move", now.ID, "from", now.From, "to", now.To, "phase", now.Phase, "err", now.Error)
		if now.Phase.Over() || now.Phase == moves.Resumed || now.Phase == moves.Returned { // a list of many topics costs
			w.topics.Kick()
		}
	}
	w.set.Told(now)
}
