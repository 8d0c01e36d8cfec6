package moving

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/recovery/moves"
)

// draining is this broker's drain that moves its topics. Who changes it holds the mutex, and has
// the step as well but for state, error, bytes and what is left.
type draining struct {
	moves.Drain
	revision int64
	known    bool     // the record was read
	listed   bool     // queue holds what was assigned when it was listed last
	queue    []string // not begun yet
	loads    map[string]int
	saved    string
}

// endedDrain is the last word that no drain goes on which began before it. It outlives a record
// that was not read, or not written.
type endedDrain struct {
	at  time.Time
	why string
}

// heed calls a drain off that began before the word.
func (e endedDrain) heed(d *moves.Drain) bool {
	if d.State == "" || d.State.Over() || d.At.After(e.at) {
		return false
	}
	d.State, d.Error = moves.CalledOff, e.why
	return true
}

// Drain returns this broker's drain as far as it is; nil: there was none.
func (w *Worker) Drain() *moves.Drain {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.drain.State == "" {
		return nil
	}
	d := w.drain.Drain
	d.Left = slices.Clone(d.Left)
	return &d
}

// BeginDrain begins to move all topics away, or joins the drain that is under way.
func (w *Worker) BeginDrain(ctx context.Context, d moves.Drain) error {
	w.stepping.Lock()
	defer w.stepping.Unlock()
	w.mu.Lock()
	o, now := w.orders, w.drain
	w.mu.Unlock()
	switch {
	case !o.Attached || !now.known:
		return w.detached()
	case now.State != "" && !now.State.Over():
		return nil
	}
	d.At, d.State, d.Waits = time.Now().UTC().Truncate(time.Millisecond), moves.Waiting, "its turn"
	revision, err := w.store.WriteDrain(ctx, o.Who, d.Value(), now.revision)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drain = draining{Drain: d, revision: revision, known: true, saved: string(d.Value())}
	w.stir()
	return nil
}

// EndDrain calls the drain off that is under way; moves that have begun go on.
func (w *Worker) EndDrain(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = endedDrain{time.Now(), why}
	if w.ended.heed(&w.drain.Drain) {
		w.stir()
	}
}

// drains carries out this broker's drain.
func (w *Worker) drains(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		w.mu.Lock()
		o := w.orders
		w.mu.Unlock()
		var again <-chan time.Time // who has no drain is not woken for it
		if o.Attached {
			bounded, cancel := context.WithTimeout(ctx, quiet)
			err := w.drainStep(bounded, o)
			cancel()
			if err != nil && ctx.Err() == nil && err.Error() != said {
				said = err.Error()
				w.log.Warn("a drain waits", "err", err)
			}
			if d := w.Drain(); err != nil || d != nil && !d.State.Over() {
				again = time.After(lookAgain)
			}
		}
		select {
		case <-ctx.Done():
		case <-w.stirred:
		case <-again:
		}
	}
}

func (w *Worker) drainStep(ctx context.Context, o Orders) (err error) {
	w.stepping.Lock()
	defer w.stepping.Unlock()
	if !w.drain.known {
		if err := w.readDrain(ctx); err != nil {
			return err
		}
	}
	w.mu.Lock()
	state, told := w.drain.State, w.drain.saved == string(w.drain.Value())
	w.mu.Unlock()
	switch {
	case state == "" || state.Over() && told:
		return nil
	case state == moves.Waiting:
		err = w.takeTurn(ctx, o)
	case state == moves.Moving:
		err = w.moveOn(ctx, o)
	}
	if now := w.Drain(); now.State.Over() {
		err = errors.Join(err, w.store.UnlockDrain(ctx, o.Who, w.set.DrainsAtOnce))
	}
	return errors.Join(err, w.saveDrain(ctx, o, err))
}

func (w *Worker) readDrain(ctx context.Context) error {
	kv, err := w.store.DrainOf(ctx, w.set.Me())
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drain = draining{known: true}
	if kv == nil {
		return nil
	}
	w.drain.revision, w.drain.saved = kv.ModRevision, string(kv.Value)
	if w.drain.Drain, err = moves.ParseDrain(kv.Value); err != nil {
		w.drain.Drain = moves.Drain{}
		w.log.Warn("the record of a drain cannot be read: nothing is done about it, and the next drain replaces it", "err", err)
	}
	w.ended.heed(&w.drain.Drain)
	return nil
}

// saveDrain writes the record if it is another.
func (w *Worker) saveDrain(ctx context.Context, o Orders, failed error) error {
	w.mu.Lock()
	d := &w.drain
	switch {
	case failed != nil:
		d.Error = failed.Error()
	case d.State != moves.CalledOff:
		d.Error = ""
	}
	d.Moved = max(0, d.Topics-len(d.Left)-len(d.queue)-w.leaving())
	if d.State == moves.Moving && !d.listed {
		d.Moved = 0
	}
	value, revision := d.Value(), d.revision
	w.mu.Unlock()
	if string(value) == d.saved {
		return nil
	}
	revision, err := w.store.WriteDrain(ctx, o.Who, value, revision)
	if err != nil {
		d.known = false // as it stands there
		return err
	}
	w.mu.Lock()
	d.revision, d.saved = revision, string(value)
	ratio := 1.0
	if !d.State.Over() {
		ratio = float64(d.Moved) / float64(max(d.Topics, 1))
	}
	w.metrics.drain.Set(ratio)
	w.mu.Unlock()
	return nil
}

// leaving counts the moves away from here that are not over. The caller holds the mutex.
func (w *Worker) leaving() (n int) {
	for _, u := range w.own {
		if u.From == w.set.Me() {
			n++
		}
	}
	return n
}

// takeTurn waits until no more than so many drain at once.
func (w *Worker) takeTurn(ctx context.Context, o Orders) error {
	holders, err := w.store.LockDrain(ctx, o.Who, w.set.DrainsAtOnce)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drain.Waits = ""
	if len(holders) > 0 {
		w.drain.Waits = "the drain of " + strings.Join(holders, ", ")
	} else if w.drain.State == moves.Waiting {
		w.drain.State = moves.Moving
		w.stir()
	}
	return nil
}

// moveOn begins as many moves as may be under way, and ends the drain when nothing is left to begin.
func (w *Worker) moveOn(ctx context.Context, o Orders) error {
	d := &w.drain
	if time.Now().After(d.Deadline) {
		w.callOff(ctx)
	}
	for {
		w.mu.Lock()
		underWay := w.leaving()
		w.mu.Unlock()
		switch {
		case underWay >= w.set.AtOnce, underWay > 0 && len(d.queue) == 0:
			return nil
		case len(d.queue) > 0:
			if err := w.moveNext(ctx); err != nil {
				return err
			}
			continue
		}
		if more, err := w.relist(ctx); err != nil {
			return err
		} else if !more {
			return w.endDrain(ctx, o)
		}
	}
}

// relist reads what is assigned here and not left.
func (w *Worker) relist(ctx context.Context) (more bool, err error) {
	assigned, err := w.store.Assignments(ctx, w.set.Me())
	if err != nil {
		return false, err
	}
	loads, err := w.Targets(ctx, w.drain.To)
	if err != nil && !errors.Is(err, brokerapi.ErrRefused) { // of etcd: it is not that nobody is there
		return false, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	d := &w.drain
	left := map[string]bool{}
	for _, u := range d.Left {
		left[u.Topic] = true
	}
	d.queue = slices.DeleteFunc(assigned, func(topic string) bool { return left[topic] || w.own[topic] != nil })
	d.loads, d.listed = loads, true
	if err != nil && len(d.queue) > 0 { // nobody takes them
		for _, topic := range d.queue {
			d.Left = append(d.Left, moves.Unmoved{Topic: topic, Why: err.Error()})
		}
		d.queue = nil
	}
	return len(d.queue) > 0, nil
}

// moveNext begins the next move, or leaves its topic.
func (w *Worker) moveNext(ctx context.Context) error {
	w.mu.Lock()
	d := &w.drain
	topic := d.queue[0]
	to, by, late := least(d.loads), "drain: "+d.By, time.Now().After(d.Deadline)
	w.mu.Unlock()
	err := errLate
	if !late {
		var p Ready
		if p, err = w.Prepare(ctx, moves.Move{Topic: topic, To: to, By: by, Force: true}, d.loads); err == nil && !p.UnderWay {
			err = w.Begin(ctx, p)
		}
	}
	said := errors.Is(err, errLate) || errors.Is(err, brokerapi.ErrRefused) || errors.Is(err, ErrBroker)
	if err != nil && (ctx.Err() != nil || !said) {
		return err // of etcd: it says nothing of the topic
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	d.queue = d.queue[1:]
	d.loads[to]++
	if err != nil {
		d.Left = append(d.Left, moves.Unmoved{Topic: topic, Why: err.Error()})
	}
	return nil
}

var errLate = errors.New("the drain's deadline has passed")

// least is who has the fewest topics.
func least(loads map[string]int) string {
	return slices.MinFunc(slices.Sorted(maps.Keys(loads)), func(a, b string) int { return cmp.Compare(loads[a], loads[b]) })
}

// callOff calls off what is not handed over.
func (w *Worker) callOff(ctx context.Context) {
	w.mu.Lock()
	var ids []string
	for _, u := range w.own {
		if u.From == w.set.Me() && !u.Phase.HandedOver() && !u.CalledOff {
			ids = append(ids, u.ID)
		}
	}
	w.mu.Unlock()
	for _, id := range ids {
		_, _ = w.Cancel(ctx, id, errLate.Error())
	}
}

// noteEnd remembers a topic whose move away has ended badly. The caller holds the mutex.
func (w *Worker) noteEnd(m moves.Move) {
	d := &w.drain
	if d.State != moves.Moving || m.From != w.set.Me() || m.At.Before(d.At) {
		return
	}
	if m.Phase == moves.Done {
		if m.Sealed != nil {
			d.Bytes += m.Sealed.Bytes
		}
		return
	}
	d.Left = append(d.Left, moves.Unmoved{Topic: m.Topic, Why: m.End()})
}

// endDrain drains the broker if nothing is left on it.
func (w *Worker) endDrain(ctx context.Context, o Orders) error {
	w.mu.Lock()
	left := len(w.drain.Left)
	w.mu.Unlock()
	end := moves.Left
	if left == 0 {
		end = moves.Drained
		if err := w.set.Drained(ctx, w.drain.By); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.drain.State.Over() {
		w.drain.State = end
	}
	return nil
}

// Targets are the brokers that may take topics, with how many they have: those that are active,
// registered and of our driver, or the one that was named. An error says why there is none.
func (w *Worker) Targets(ctx context.Context, named string) (map[string]int, error) {
	fleet, err := w.store.Fleet(ctx)
	if err != nil {
		return nil, err
	}
	loads := map[string]int{}
	why := brokerapi.Errorf(brokerapi.ErrRefused, "no other %s broker is registered and active: nobody could take it", w.set.Driver)
	if named != "" {
		why = brokerapi.Errorf(brokerapi.ErrRefused, "--to %s: no such broker: 'holdfast fleet' lists them", named)
	}
	for _, b := range fleet {
		unfit := ""
		switch {
		case named != "" && b.BrokerID != named:
			continue
		case b.BrokerID == w.set.Me():
			unfit = "the topic is there already"
		case !b.Registered:
			unfit = "that broker is not registered: is it running?"
		case b.Mode != cluster.ModeActive:
			unfit = fmt.Sprintf("that broker is %s: 'holdfast activate' there first", cmp.Or(b.Mode, "of a mode that cannot be read"))
		case b.Driver != w.set.Driver:
			unfit = fmt.Sprintf("that broker's driver is %s, this one's is %s", cmp.Or(b.Driver, "not known"), w.set.Driver)
		}
		if unfit == "" {
			loads[b.BrokerID] = b.Topics
		} else if named != "" {
			why = brokerapi.Errorf(brokerapi.ErrRefused, "--to %s: %s", named, unfit)
		}
	}
	if len(loads) == 0 {
		return nil, why
	}
	return loads, nil
}

// PlanDrain looks at every topic that is assigned here: which would go where, and which would stay.
func (w *Worker) PlanDrain(ctx context.Context, to string) (plans []Ready, stay []moves.Unmoved, err error) {
	loads, err := w.Targets(ctx, to)
	if err != nil {
		return nil, nil, err
	}
	topics, err := w.store.Assignments(ctx, w.set.Me())
	for _, topic := range topics {
		p, err := w.Prepare(ctx, moves.Move{Topic: topic, To: least(loads), Force: true}, loads)
		switch {
		case err == nil:
			loads[p.To]++
			plans = append(plans, p)
		case errors.Is(err, brokerapi.ErrRefused):
			stay = append(stay, moves.Unmoved{Topic: topic, Why: err.Error()})
		default:
			return nil, nil, err
		}
	}
	return plans, stay, err
}
