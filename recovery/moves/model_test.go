package moves

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// The model: a store with revisions and guarded writes, and brokers that keep what package
// brokerapi promises of a Mover. A sidecar has nothing of its own: it is whoever acts for a broker.

// here is what a broker has of the topic.
type here int

const (
	absent here = iota
	withdrawn
	serving
	sealed
	half  // a copy that is not whole
	whole // a copy that nobody has resumed
)

func (h here) String() string {
	return [...]string{"nothing", "withdrawn", "serving", "sealed", "half a copy", "a whole copy"}[h]
}

// message is one that was taken; whoever published it knows its id, and tries again with it.
type message struct {
	id      int
	spoiled bool
}

// kept is the topic at one broker.
type kept struct {
	is     here
	move   string // that has sealed or copied it last
	try    int    // the Copy that makes it
	msgs   []message
	first  uint64 // sequence of msgs[0]
	floor  uint64 // of the one consumer
	config string
}

func (k *kept) last() uint64 { return k.first + uint64(len(k.msgs)) - 1 }

// has are the ids that are here in order, and those that are here spoiled.
func (k *kept) has() (good, spoiled uint64) {
	for _, m := range k.msgs {
		if m.spoiled {
			spoiled |= 1 << m.id
		} else {
			good |= 1 << m.id
		}
	}
	return good, spoiled &^ good
}

type broker struct {
	id     string
	kept   kept
	epoch  int64 // of its registration; 0: it has none
	active bool
	silent bool      // its sidecar knows of no moves
	back   time.Time // when there is a sidecar again
	frozen bool      // and one that acts late
}

type world struct {
	rng     *rand.Rand
	rough   int  // how often something goes wrong, in percent of the roughest
	calm    bool // no more faults
	now     time.Time
	brokers []*broker
	loud    func(format string, args ...any)
	wrong   string // the first invariant that was broken

	rev      int64
	journal  *Move
	mod      int64
	written  time.Time        // the journal
	assigned map[string]int64 // by broker: mod revision
	moves    int
	tries    int

	published int
	acked     uint64 // ids that a producer knows to be taken
	consumed  uint64 // ids that the consumer has acknowledged
	floor     uint64 // and the last sequence of them
	shrinks   bool
	handed    map[string]bool // moves that have handed over
	same      map[string]bool // moves whose contents were found to be the same
	tampered  bool            // the assignment was changed by hand
	byOthers  bool            // it, or a journal: half a copy may be all that the assigned broker has, and it says so
	late      []func()        // what was begun and has not happened yet, of sidecars that others have replaced
	seen      map[string]int
}

const most = 60 // messages: their ids are bits

func newWorld(seed uint64) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 28)), now: time.Unix(1e9, 0), rev: 10,
		assigned: map[string]int64{"a": 1}, handed: map[string]bool{}, same: map[string]bool{}, seen: map[string]int{},
		loud: func(string, ...any) {},
	}
	w.shrinks = w.chance(30)
	w.rough = []int{10, 30, 100}[w.rng.IntN(3)]
	for i, id := range []string{"a", "b", "c"}[:2+w.rng.IntN(2)] {
		w.brokers = append(w.brokers, &broker{id: id, epoch: int64(2 + i), active: true, kept: kept{first: 1}})
	}
	w.brokers[0].kept = kept{is: serving, first: 1, config: "c1"}
	return w
}

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

// fault is chance while there are any.
func (w *world) fault(percent int) bool { return !w.calm && w.chance(percent) }

func (w *world) broker(id string) *broker {
	for _, b := range w.brokers {
		if b.id == id {
			return b
		}
	}
	return nil
}

func (w *world) owner() *broker {
	for _, b := range w.brokers {
		if w.assigned[b.id] != 0 {
			return b
		}
	}
	return nil
}

func (w *world) violated(format string, args ...any) {
	if w.wrong == "" {
		w.wrong = fmt.Sprintf(format, args...)
		w.loud("VIOLATED: %s", w.wrong)
	}
}

// commit writes a journal that nobody has written since it was read.
func (w *world) commit(m Move, seen int64) bool {
	if seen != w.mod {
		w.loud("  not written: the journal is another by now")
		return false
	}
	w.rev++
	w.journal, w.mod, w.written = &m, w.rev, w.now
	w.seen[string(m.Phase)]++
	w.loud("  journal %s: %s %s", m.ID, m.Phase, m.Error)
	if w.handed[m.ID] && !m.Phase.HandedOver() && m.Phase != Failed {
		w.violated("move %s was called off after the handover", m.ID)
	}
	return true
}

var errSome = errors.New("some error")

func refuse(format string, args ...any) Outcome {
	return Outcome{Err: fmt.Errorf(format, args...), Final: true}
}

func (w *world) extent(k *kept) *Extent {
	e := &Extent{Config: k.config, Shrinks: w.shrinks, Floors: map[string]uint64{"c": k.floor}}
	if e.Empty = k.last() == 0; !e.Empty {
		e.First, e.Last, e.Count, e.Bytes = k.first, k.last(), uint64(len(k.msgs)), 10*uint64(len(k.msgs))
	}
	return e
}

func (w *world) accept(b *broker) Outcome {
	switch {
	case !b.active:
		return refuse("%s is drained", b.id)
	case b.kept.is != absent && b.kept.is != half && b.kept.is != whole:
		return refuse("a topic of that name is at %s", b.id)
	case w.fault(3):
		return refuse("no room")
	}
	return Outcome{}
}

func (w *world) seal(b *broker, move string) Outcome {
	k := &b.kept
	switch {
	case k.is == absent || k.is == half || k.is == whole:
		return refuse("%s has no such topic", b.id)
	case k.is == sealed && k.move != move, k.move > move:
		return refuse("move %s has it", k.move)
	case k.is == sealed:
		return Outcome{Extent: w.extent(k)}
	case k.move == move:
		return refuse("it was served again")
	case w.fault(3):
		return refuse("consumers are active")
	}
	k.is, k.move = sealed, move
	if w.fault(10) { // before what is on its way has been awaited
		return Outcome{Err: errSome}
	}
	return Outcome{Extent: w.extent(k)}
}

// copyBegins makes half a copy. The second result reports that there is no more to do.
func (w *world) copyBegins(b *broker, m Move) (try int, o Outcome, over bool) {
	k := &b.kept
	switch {
	case k.is == whole && k.move == m.ID && m.Sealed.Fits(w.extent(k), "here") == nil:
		return 0, Outcome{Extent: w.extent(k)}, true
	case k.is != absent && k.is != half && k.is != whole:
		return 0, refuse("a topic of that name is at %s", b.id), true
	case k.move > m.ID:
		return 0, refuse("move %s has it", k.move), true
	}
	w.tries++
	b.kept = kept{is: half, move: m.ID, try: w.tries, first: 1}
	return w.tries, Outcome{}, false
}

func (w *world) copyEnds(b *broker, m Move, try int) Outcome {
	k, from := &b.kept, &w.broker(m.From).kept
	if k.is != half || k.try != try || from.is == absent || from.last() < m.Sealed.Last || w.fault(10) {
		return Outcome{Err: errSome}
	}
	n := kept{is: whole, move: m.ID, first: from.first, floor: from.floor, config: from.config}
	if m.Sealed.Empty {
		n.first = 1
	} else {
		n.msgs = append(n.msgs, from.msgs[:m.Sealed.Last+1-min(from.first, m.Sealed.Last+1)]...)
	}
	if w.fault(20) {
		switch w.rng.IntN(4) {
		case 0:
			n.floor = 0
		case 1:
			n.config = "c2"
		case 2:
			n.msgs = n.msgs[:len(n.msgs)/2]
		case 3:
			if len(n.msgs) > 0 {
				n.msgs[w.rng.IntN(len(n.msgs))].spoiled = true
			}
		}
	}
	*k = n
	return Outcome{Extent: w.extent(k)}
}

func (w *world) resume(b *broker, move string, at *Extent) Outcome {
	k := &b.kept
	switch {
	case k.is == absent || k.is == half:
		return refuse("%s does not have it", b.id)
	case at == nil && (k.is == serving || k.is == withdrawn):
	case k.move != move:
		return refuse("it is of move %q", k.move)
	case k.is == sealed || k.is == whole:
		if at != nil {
			if err := at.Fits(w.extent(k), "here"); err != nil {
				return refuse("%w", err)
			}
		}
	}
	k.is = serving
	return Outcome{Extent: w.extent(k)}
}

func (w *world) compare(b *broker, m Move) Outcome {
	from, to := &w.broker(m.From).kept, &b.kept
	if from.is == absent || w.fault(10) {
		return Outcome{Err: errSome}
	}
	c := &Content{}
	for seq := min(from.first, to.first); seq <= m.Sealed.Last && !m.Sealed.Empty; seq++ {
		switch {
		case seq < from.first || seq < to.first || seq > from.last() || seq > to.last():
			if c.Gone++; !w.shrinks {
				c.Differs = fmt.Sprintf("message %d is missing", seq)
			}
		case from.msgs[seq-from.first] != to.msgs[seq-to.first]:
			c.Differs = fmt.Sprintf("message %d", seq)
		default:
			c.Compared++
		}
	}
	if c.Differs != "" {
		w.seen["contents differ"]++
	}
	return Outcome{Content: c, Extent: w.extent(to)}
}

func (w *world) remove(b *broker, move string) Outcome {
	k := &b.kept
	switch {
	case k.is == absent:
		return Outcome{}
	case k.is == serving, k.is == withdrawn, k.move != move:
		return refuse("it is not of move %s", move)
	}
	if k.is == sealed && !w.same[move] && !w.tampered {
		w.violated("%s was removed from %s before its contents were found to be at the target", k.move, b.id)
	}
	b.kept = kept{first: 1}
	return Outcome{}
}

// task is one act of one sidecar, by the journal as it had read it.
type task struct {
	w        *world
	b        *broker
	epoch    int64
	m        Move
	mod      int64
	assigned int64
	step     Step
	try      int
	over     bool
	out      Outcome
}

// next is what the broker's sidecar finds to do.
func (w *world) next(b *broker) *task {
	if b.epoch == 0 || b.silent || w.now.Before(b.back) || w.journal == nil {
		return nil
	}
	t := &task{w: w, b: b, epoch: b.epoch, m: *w.journal, mod: w.mod, assigned: w.assigned[w.journal.From]}
	f := Facts{Side: t.m.Of(b.id), Quiet: w.now.Sub(w.written)}
	if f.Side == Neither {
		return nil
	}
	if peer := w.broker(map[Side]string{Source: t.m.To, Target: t.m.From}[f.Side]); !w.fault(5) { // else etcd did not say
		if peer.epoch == 0 {
			f.PeerGone = "not registered"
		} else if !peer.active {
			f.PeerGone = "drained"
		}
	}
	if w.assigned[t.m.Owner()] == 0 {
		f.Taken = "assigned to others"
	}
	t.step = t.m.Next(f)
	if t.step.Act == Wait || !b.active && (t.step.Act == Resume || t.step.Act == Restore) {
		return nil
	}
	return t
}

// begins does the first half of an act, if it has two.
func (t *task) begins() {
	w := t.w
	if t.step.Act == Copy {
		t.try, t.out, t.over = w.copyBegins(t.b, t.m)
	}
}

// ends does the rest of it.
func (t *task) ends() {
	w, b, m := t.w, t.b, t.m
	if t.over {
		return
	}
	if t.step.Act != GiveUp && t.step.Act != Copy && w.fault(5) {
		t.out.Err = errSome
		return
	}
	switch t.step.Act {
	case Accept:
		t.out = w.accept(b)
	case Seal:
		t.out = w.seal(b, m.ID)
	case Copy:
		t.out = w.copyEnds(b, m, t.try)
	case HandOver:
		if t.out = refuse("%s does not have it", b.id); b.kept.is != absent {
			t.out = Outcome{Extent: w.extent(&b.kept)}
		}
	case Resume:
		t.out = w.resume(b, m.ID, m.Sealed)
	case Restore:
		t.out = w.resume(b, m.ID, m.Sealed)
	case Compare:
		t.out = w.compare(b, m)
	case Remove, Discard:
		if t.out = w.remove(b, m.ID); t.out.Err == nil && b.kept.is == half {
			w.violated("half a copy is left at %s, and the move says that it is removed", b.id)
		}
	}
}

// writes writes down what became of it, guarded by what was seen before it.
func (t *task) writes() {
	w := t.w
	w.loud("%s writes what became of %s (%s): %v", t.b.id, t.step.Act, t.m.ID, t.out.Err)
	n, changed := t.m.After(t.step, t.out, t.b.id, w.now)
	if !changed || n.Phase == t.m.Phase && n.Error == t.m.Error && n.Failing == t.m.Failing && n.Again == t.m.Again {
		return
	}
	there := t.b.epoch == t.epoch
	switches := t.step.Act == HandOver && n.Phase == Switched
	if switches {
		there = there && w.broker(n.To).epoch != 0
	}
	if !there {
		w.loud("  not written: not registered, or anew")
		return
	}
	if !switches {
		if w.commit(n, t.mod) && n.Phase == Verified {
			w.same[n.ID] = true
		}
		return
	}
	if t.assigned == 0 || w.assigned[n.From] != t.assigned {
		w.loud("  not written: the assignment is another")
		return
	}
	if w.commit(n, t.mod) {
		if !there {
			w.violated("handed over by, or to, a broker that is not registered")
		}
		delete(w.assigned, n.From)
		w.assigned[n.To] = w.rev
		w.handed[n.ID] = true
	}
}

// reconcile is the rest of the sidecar, which knows of a move only that the topic is held.
func (w *world) reconcile(b *broker) {
	k := &b.kept
	if b.epoch == 0 || !b.active {
		if k.is == serving {
			k.is = withdrawn
		}
		return
	}
	if w.now.Before(b.back) {
		return
	}
	if w.journal != nil {
		side := w.journal.Of(b.id)
		if w.journal.Held(side) {
			return
		}
	}
	switch wanted := w.assigned[b.id] != 0; {
	case !wanted && k.is == serving:
		k.is = withdrawn
	case !wanted || k.is == serving || k.is == half:
	case k.is == absent:
		b.kept = kept{is: serving, first: 1, config: "c1"}
		w.loud("%s makes the topic anew", b.id)
	default:
		k.is = serving
		w.loud("%s serves the topic", b.id)
	}
}
