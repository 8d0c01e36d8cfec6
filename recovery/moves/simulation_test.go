package moves

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"holdfast/internal/testseed"
)

var (
	schedules = flag.Int("schedules", 0, "how many schedules of moves to run; 0: 1000 with -short, else 10000")
	oneSeed   = flag.Uint64("schedule", 0, "tell the whole story of the schedule with this seed, and run no other")
)

// Any order of acts, crashes, late acts of sidecars that were replaced, lost answers, lost
// registrations, drains, cancels and journals deleted by hand: after each step no acknowledged
// message is lost, no two brokers serve, nothing is removed that was not found at the target, no
// move is called off after the handover, the assignment is of one broker; and in the end, with
// everybody well for long enough, the move is over and the topic is served.
func TestNoScheduleOfAMoveLosesAMessage(t *testing.T) {
	if *oneSeed != 0 {
		if w := play(*oneSeed, t.Logf); w.wrong != "" {
			t.Fatal(w.wrong)
		}
		return
	}
	seen, first := map[string]int{}, testseed.Value()
	n := runs()
	for seed := first; seed < first+n; seed++ {
		w := play(seed, nil)
		if w.wrong != "" {
			t.Fatalf("schedule %d: %s\nits story: go test ./recovery/moves -run %s -schedule %d -v", seed, w.wrong, t.Name(), seed)
		}
		for what, times := range w.seen {
			seen[what] += times
		}
	}
	t.Logf("in %d schedules: %v", n, seen)
	want := []string{"contents differ", "done late", "published", "silent target", "ended as resumed", "ended as verified"}
	for _, p := range Phases {
		if want = append(want, string(p)); p.Over() {
			continue
		}
		want = append(want, "journal deleted as "+string(p))
		if !p.HandedOver() {
			want = append(want, "called off as "+string(p))
		}
	}
	for _, r := range rows {
		for _, when := range []string{": dies before it", ": dies amid it", ": dies before it is written"} {
			want = append(want, string(r.act)+when)
		}
	}
	for _, what := range want {
		if seen[what] == 0 {
			t.Errorf("no schedule had: %s", what)
		}
	}
}

func runs() uint64 {
	switch {
	case *schedules > 0:
		return uint64(*schedules)
	case testing.Short():
		return 1000
	}
	return 10000
}

// steps of a schedule, until everybody is well.
const steps = 400

// play runs one schedule.
func play(seed uint64, loud func(string, ...any)) *world {
	w := newWorld(seed)
	if loud != nil {
		w.loud = loud
	}
	for step := 0; step < steps && w.wrong == ""; step++ {
		w.now = w.now.Add(time.Duration(1+w.rng.IntN(5)) * time.Second)
		w.event()
		w.check()
	}
	w.loud("from here on everybody is well")
	w.calm = true
	var dead *broker // for good: a target that has not been handed the topic yet
	if m := w.journal; m != nil && !m.Phase.HandedOver() && w.chance(25) {
		dead = w.broker(m.To)
		w.loud("but %s, which is gone for good", dead.id)
	}
	if m := w.journal; m != nil && dead == nil && slices.Contains([]Phase{Pending, Draining, Sealed}, m.Phase) && len(w.late) == 0 && w.chance(50) {
		w.broker(m.To).silent = true
		w.seen["silent target"]++
		w.loud("but the sidecar of %s, which knows of no moves", m.To)
	}
	for _, b := range w.brokers {
		switch {
		case b == dead && b != w.owner():
			b.epoch = 0
			w.reconcile(b)
		case b.epoch == 0:
			w.rev++
			b.epoch = w.rev
		}
		b.active = true
	}
	for round := 0; round < 60 && w.wrong == "" && !w.settled(); round++ {
		w.now = w.now.Add(10 * time.Second)
		if w.happensLate(); w.wrong == "" {
			w.check()
		}
		for _, b := range w.brokers {
			w.reconcile(b)
			w.turn(b)
			w.check()
		}
	}
	if w.wrong == "" && !w.settled() {
		m := Move{}
		if w.journal != nil {
			m = *w.journal
		}
		w.violated("all are well, and move %q is %s (%s), assigned to %s, where %s is",
			m.ID, m.Phase, m.Error, w.owner().id, w.owner().kept.is)
	}
	return w
}

func (w *world) settled() bool {
	is := w.owner().kept.is
	over := w.journal == nil || w.journal.Phase.Over() ||
		w.journal.Phase == Returned && (w.broker(w.journal.To).epoch == 0 || w.broker(w.journal.To).silent)
	return over && len(w.late) == 0 && (is == serving || is == half && w.byOthers)
}

func (w *world) anyone() *broker { return w.brokers[w.rng.IntN(len(w.brokers))] }

func (w *world) event() {
	b := w.anyone()
	switch roll := w.rng.IntN(100); {
	case roll < 42:
		for range 4 { // most have nothing to do
			if w.turn(w.anyone()) {
				break
			}
		}
	case roll < 56:
		w.reconcile(b)
	case roll < 68:
		w.publish()
	case roll < 74:
		w.consume()
	case roll < 80:
		if w.chance(w.rough) {
			w.happensLate()
		}
	case roll < 88:
		w.unload()
	case !w.chance(w.rough):
		w.turn(b)
	case roll < 91 && w.chance(50):
		w.cancel()
	case roll < 93 && b.epoch != 0:
		w.loud("%s loses its registration", b.id)
		b.epoch = 0
		w.reconcile(b)
	case roll < 95 && b.epoch == 0:
		w.rev++
		b.epoch = w.rev
		w.loud("%s is registered again", b.id)
	case roll < 96:
		b.active = !b.active
		w.loud("%s is active: %t", b.id, b.active)
		w.reconcile(b)
	case roll < 97:
		w.loud("%s restarts", b.id)
		w.tries++
		b.kept.try = w.tries
	case roll < 98:
		w.loud("the sidecar of %s is dead for a while", b.id)
		b.back = w.now.Add(30 * time.Second)
	case w.chance(30):
		w.byHand()
	}
}

// turn has a broker's sidecar act. It may end before, amid and after that; then the rest happens
// never, or late: it was frozen, and another has its place meanwhile. A broker has one frozen one.
func (w *world) turn(b *broker) bool {
	t := w.next(b)
	if t == nil {
		return false
	}
	w.loud("%s: %s (%s, %s) %s", b.id, t.step.Act, t.m.ID, t.m.Phase, t.step.Why)
	stages := []func(){t.begins, t.ends, t.writes}
	if w.fault(w.rough / 2) {
		done := w.rng.IntN(3)
		for _, stage := range stages[:done] {
			stage()
		}
		b.back = w.now.Add(time.Duration(w.rng.IntN(20)) * time.Second)
		if !b.frozen && w.chance(60) {
			b.frozen = true
			w.later(append(stages[done:], func() { b.frozen = false }))
		}
		w.loud("  it ends after %d of 3 parts", done)
		w.seen[string(t.step.Act)+[]string{": dies before it", ": dies amid it", ": dies before it is written"}[done]]++
		return true
	}
	for _, stage := range stages {
		stage()
	}
	return true
}

// later has the stages happen in their order at any time.
func (w *world) later(stages []func()) {
	if len(stages) > 0 {
		w.late = append(w.late, func() {
			stages[0]()
			if len(stages) > 1 && w.chance(50) {
				w.later(stages[1:])
				return
			}
			for _, stage := range stages[1:] {
				stage()
			}
		})
	}
}

func (w *world) happensLate() {
	if len(w.late) > 0 {
		i := w.rng.IntN(len(w.late))
		what := w.late[i]
		w.late = append(w.late[:i:i], w.late[i+1:]...)
		w.loud("something happens late")
		w.seen["done late"]++
		what()
	}
}

func (w *world) publish() {
	for _, b := range w.brokers {
		k := &b.kept
		if w.published >= most || k.is != serving || w.chance(30) {
			continue
		}
		w.seen["published"]++
		k.msgs = append(k.msgs, message{id: w.published})
		if w.chance(80) { // else its producer tries again with the same
			w.acked |= 1 << w.published
			w.published++
		}
	}
}

func (w *world) consume() {
	for _, b := range w.brokers {
		k := &b.kept
		if k.is != serving || w.tampered {
			continue
		}
		for k.floor = max(k.floor, k.first-1); k.floor < k.last() && w.chance(70); {
			w.consumed |= 1 << k.msgs[k.floor+1-k.first].id
			k.floor++
		}
		w.floor = max(w.floor, k.floor)
		if w.shrinks && w.chance(50) {
			gone := k.floor + 1 - k.first
			k.msgs, k.first = append([]message{}, k.msgs[gone:]...), k.first+gone
		}
	}
}

// unload is an operator who asks for a move, by what is read before; also while one runs.
func (w *world) unload() {
	to, from, mod := w.anyone(), w.owner(), w.mod
	if w.journal != nil && !w.journal.Phase.Over() && w.journal.Phase != Returned || to == from || to.epoch == 0 || !to.active {
		return
	}
	w.moves++
	m := Move{ID: fmt.Sprintf("m%03d", w.moves), Topic: "/d/t", From: from.id, To: to.id, Planned: w.extent(&from.kept)}
	w.later([]func(){func() {
		w.loud("an operator has it moved from %s to %s", m.From, m.To)
		w.commit(m.Begun(w.now), mod)
	}})
	if w.chance(80) {
		w.happensLate()
	}
}

func (w *world) cancel() {
	if w.journal == nil {
		return
	}
	m, mod := *w.journal, w.mod
	n, err := m.Cancel("an operator", w.now)
	if err != nil {
		return
	}
	if w.seen["called off as "+string(m.Phase)]++; n.Phase == Failed {
		w.seen["ended as "+string(m.Phase)]++
	}
	w.later([]func(){func() {
		w.loud("an operator calls %s off, who saw it %s", m.ID, m.Phase)
		w.commit(n, mod)
	}})
	if w.chance(70) {
		w.happensLate()
	}
}

// byHand is what people do beside Holdfast, and what disks do.
func (w *world) byHand() {
	m := w.journal
	switch b := w.anyone(); {
	case m != nil && w.chance(60):
		to := &w.broker(m.To).kept
		// Between the handover and the resume the journal alone knows that the source has it all.
		if m.Phase == Switched && to.is != serving && to.is != withdrawn &&
			(to.is != whole || m.Sealed.Fits(w.extent(to), "here") != nil || len(w.late) > 0) {
			return
		}
		w.loud("somebody deletes the journal of %s, which is %s", m.ID, m.Phase)
		w.seen["journal deleted as "+string(m.Phase)]++
		w.rev++
		w.journal, w.mod, w.byOthers = nil, 0, true
	case m != nil && w.chance(60):
		b = w.broker(m.To)
		if (m.Phase == Sealed || m.Phase == Copied || m.Phase == Switched) && b.kept.is != serving && b.kept.is != withdrawn {
			w.loud("%s loses its disk", b.id)
			b.kept = kept{first: 1}
		}
	case w.chance(30):
		w.loud("somebody assigns the topic to %s", b.id)
		w.tampered, w.byOthers, w.rev = true, true, w.rev+1
		w.assigned = map[string]int64{b.id: w.rev}
	}
}

// check holds all that must hold at any moment.
func (w *world) check() {
	if len(w.assigned) != 1 {
		w.violated("assigned to %d brokers", len(w.assigned))
		return
	}
	owner, served, everywhere := w.owner(), 0, uint64(0)
	for _, b := range w.brokers {
		if b.kept.is == serving {
			served++
			if !w.tampered && b != owner {
				w.violated("%s serves what is %s's", b.id, owner.id)
			}
		}
		if served > 1 && !w.tampered {
			w.violated("two serve it")
		}
		good, _ := b.kept.has()
		everywhere |= good
	}
	want := w.acked
	if w.shrinks {
		want &^= w.consumed
	}
	if lost := want &^ everywhere; lost != 0 {
		w.violated("messages %b are nowhere", lost)
	}
	if w.tampered {
		return
	}
	// Until it has resumed, the target may have lost its copy: the source has all of it.
	unresumed := owner.kept.is == absent || owner.kept.is == half || owner.kept.is == whole
	if m := w.journal; m != nil && m.Phase == Switched && owner.id == m.To && unresumed {
		good, spoiled := w.broker(m.From).kept.has()
		if lost := want &^ (good | spoiled); lost != 0 {
			w.violated("messages %b are not where they would be copied from again", lost)
		}
		return
	}
	good, spoiled := owner.kept.has()
	// What came spoiled is found when the contents are compared, and is elsewhere still.
	if lost := want &^ (good | spoiled); lost != 0 {
		w.violated("messages %b are not at %s", lost, owner.id)
	}
	if owner.kept.floor < w.floor {
		w.violated("the consumer stands at %d at %s, and has acknowledged %d", owner.kept.floor, owner.id, w.floor)
	}
}
