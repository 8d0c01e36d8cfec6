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

const (
	ahead     = 4   // times --moves-at-once begins a drain: the next ones wait, served, until one can be withdrawn
	lastMoves = 100 // by whose times a drain is foretold
)

// draining is what a drain goes by beside its record in etcd. Nothing of it need outlive the process.
type draining struct {
	alone chan struct{} // held by who reads, changes and writes the record

	// Under the worker's mutex.
	moves.Drain                // the record, as it was last read or written
	ends        map[string]end // by topic, of its last move from here, or why none began
	further     time.Time      // when one of those last got further
}

// end is how a move has ended; why is empty where it went well.
type end struct {
	began time.Time
	bytes uint64
	why   string
}

// Drain returns this broker's drain as far as it is. Without a state there was none.
func (w *Worker) Drain() moves.Drain {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.drain.Drain
}

// BeginDrain begins to move all topics away, or joins the drain that is under way.
func (w *Worker) BeginDrain(ctx context.Context, d moves.Drain) error {
	_, o := w.look("", "")
	if !o.Attached {
		return w.detached()
	}
	d.At, d.State = time.Now().UTC().Truncate(time.Millisecond), moves.Waiting
	defer w.stir()
	return w.change(ctx, &o.Who, func(now *moves.Drain) error {
		if now.State.Over() {
			*now = d
		}
		return nil
	})
}

// EndDrain calls the drain off that is under way; moves that have begun go on. After an error the
// drain may go on, too.
func (w *Worker) EndDrain(ctx context.Context, why string) error {
	defer w.stir()
	return w.change(ctx, nil, func(now *moves.Drain) error {
		if !now.State.Over() {
			now.State, now.Error, now.Stalled = moves.CalledOff, why, ""
		}
		return nil
	})
}

// change reads the record, has it changed, and writes it if it is another then, while no other does.
// A record that cannot be read is as none.
func (w *Worker) change(ctx context.Context, who *cluster.Claimant, do func(now *moves.Drain) error) error {
	select {
	case w.drain.alone <- struct{}{}:
		defer func() { <-w.drain.alone }()
	case <-ctx.Done():
		return ctx.Err()
	}
	d, seen, key := moves.Drain{}, int64(0), w.store.Keys().Drain(w.set.Me())
	kv, err := w.store.Journal(ctx, key)
	if err != nil && !cluster.Denied(err) { // who may not read it has never written one
		return err
	}
	if kv != nil {
		seen = kv.ModRevision
		if d, err = moves.ParseDrain(kv.Value); err != nil {
			w.log.Warn("the record of a drain cannot be read: nothing is done about it, and the next drain replaces it", "err", err)
		}
	}
	was := string(d.Value())
	err = do(&d)
	if value := d.Value(); string(value) != was {
		if _, failed := w.store.WriteJournal(ctx, who, cluster.JournalWrite{Key: key, Value: value, Seen: seen}); failed != nil {
			return cmp.Or(err, failed)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.drain.Drain = d; d.State != moves.Moving {
		w.metrics.drain.Set(1)
	}
	return err
}

// drains carries out this broker's drain.
func (w *Worker) drains(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		w.mu.Lock()
		o, known := w.orders, w.known
		w.mu.Unlock()
		var again <-chan time.Time // who has no drain is not woken for it
		if o.Attached && known {
			bounded, cancel := context.WithTimeout(ctx, quiet)
			err := w.drainStep(bounded, o)
			cancel()
			if err != nil && ctx.Err() == nil && err.Error() != said {
				said = err.Error()
				w.log.Warn("a drain waits", "err", err)
			}
			if err != nil || !w.Drain().State.Over() {
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

// drainStep does what can be done of a drain now, by what etcd says.
func (w *Worker) drainStep(ctx context.Context, o Orders) error {
	err := w.change(ctx, &o.Who, func(d *moves.Drain) (err error) {
		if !d.State.Over() {
			if err, d.Error = w.goOn(ctx, o, d), ""; err != nil {
				d.Error = err.Error()
			}
			if cluster.Denied(err) { // that does not pass by waiting, and what is here goes on being served
				d.State = moves.Left
			}
		}
		return err
	})
	if d := w.Drain(); d.State != "" && d.State.Over() {
		if unlock := w.store.UnlockDrain(ctx, o.Who, w.set.DrainsAtOnce); !cluster.Denied(unlock) { // whose lock it never was
			err = cmp.Or(err, unlock)
		}
	}
	return err
}

var errLate = brokerapi.Errorf(brokerapi.ErrRefused, "the drain's deadline has passed")

// goOn begins moves if few are under way, and ends the drain when nothing is left to begin.
func (w *Worker) goOn(ctx context.Context, o Orders, d *moves.Drain) error {
	late := time.Now().After(d.Deadline)
	if late {
		w.callOff(ctx)
	}
	busy, standing := w.tally(d)
	holders, err := w.store.LockDrain(ctx, o.Who, w.set.DrainsAtOnce) // anew under each lease
	if err != nil {
		return err
	}
	if d.State, d.Stalled = moves.Moving, ""; len(holders) > 0 && !late {
		d.State = moves.Waiting
		return fmt.Errorf("the drain of %s comes first", strings.Join(holders, ", "))
	}
	switch {
	case standing < stalled:
	case late: // what was handed over goes on, and may do so for ever
		for _, s := range w.Own() {
			if busy[s.Topic] {
				d.Left[s.Topic] = s.stall(standing)
				delete(busy, s.Topic)
			}
		}
	default:
		d.Stalled = w.blocked(standing.Truncate(time.Minute), d.Error)
	}
	if !late && len(busy) >= w.set.AtOnce {
		return nil
	}
	topics, err := w.store.Assignments(ctx, w.set.Me())
	topics = slices.DeleteFunc(topics, func(topic string) bool { return busy[topic] || d.Left[topic] != "" })
	if err != nil || len(topics) == 0 && len(busy) > 0 {
		return err
	}
	loads, err := w.Targets(ctx, d.To)
	if err != nil && !errors.Is(err, brokerapi.ErrRefused) { // of etcd: it is not that nobody is there
		return err
	}
	var failed error
	for i := 0; i < len(topics) && len(busy) < ahead*w.set.AtOnce; i++ {
		topic, why := topics[i], err
		if late {
			why = errLate
		}
		if why == nil {
			_, why = w.Send(ctx, moves.Move{Topic: topic, By: "drain: " + d.By, At: d.At, Force: true}, loads, false)
		}
		switch {
		case why == nil:
			busy[topic] = true
		case errors.Is(why, brokerapi.ErrRefused), errors.Is(why, ErrBroker) && standing >= stalled:
			w.mu.Lock()
			w.drain.ends[topic] = end{began: d.At, why: why.Error()}
			w.mu.Unlock()
			d.Left[topic] = why.Error()
		case errors.Is(why, ErrBroker) && ctx.Err() == nil: // it may be restarted
			failed = cmp.Or(failed, why)
		default:
			return why // of etcd: it says nothing of the topic
		}
	}
	if failed != nil || len(busy) > 0 {
		return failed
	}
	return w.endDrain(ctx, d, late) // at once: what came back meanwhile is left, and has been moved, too
}

// endDrain drains the broker if nothing is left on it, and others are active.
func (w *Worker) endDrain(ctx context.Context, d *moves.Drain, late bool) error {
	if len(d.Left) > 0 {
		d.State = moves.Left
		return nil
	}
	_, err := w.Targets(ctx, "")
	if err == nil {
		err = w.set.Drained(ctx, d.By)
	}
	if err == nil {
		d.State = moves.Drained
	} else if late {
		d.State = moves.Left
	}
	return err
}

// tally counts what has become of the topics. busy are those that are on their way, and standing is
// for how long none has got further.
func (w *Worker) tally(d *moves.Drain) (busy map[string]bool, standing time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d.Moved, d.Bytes, d.Left, d.More, busy = 0, 0, map[string]string{}, 0, map[string]bool{}
	for topic, e := range w.drain.ends {
		switch {
		case e.began.Before(d.At):
		case e.why != "":
			d.Left[topic] = e.why
		default:
			d.Moved++
			d.Bytes += e.bytes
		}
	}
	done := float64(d.Moved)
	for topic, u := range w.own {
		if u.From == w.set.Me() {
			busy[topic] = true
			done += u.Part()
		}
	}
	d.Topics = max(d.Topics, d.Moved+len(d.Left)+len(busy))
	w.metrics.drain.Set(min(done/float64(max(d.Topics, 1)), 0.999))
	if d.State == moves.Waiting {
		w.drain.further = time.Now()
	}
	return busy, time.Since(w.drain.further)
}

// noteEnd remembers how a move from here has ended. The caller holds the mutex.
func (w *Worker) noteEnd(m moves.Move) {
	e := end{began: m.At}
	if m.Phase != moves.Done {
		e.why = m.End()
	} else if m.Sealed != nil {
		e.bytes = m.Sealed.Bytes
	}
	w.drain.ends[m.Topic], w.drain.further = e, time.Now()
}

// blocked names what is in the way, and the next command.
func (w *Worker) blocked(standing time.Duration, failed string) (why string) {
	for _, s := range w.Own() {
		if s.From == w.set.Me() && (why == "" || s.Error != "") {
			why = s.Topic + ": " + s.stall(standing)
		}
	}
	return cmp.Or(why, fmt.Sprintf("nothing moves for %s: %s: 'holdfast status' at %s", standing, cmp.Or(failed, "no move begins"), w.set.Me()))
}

// callOff calls off what is not handed over.
func (w *Worker) callOff(ctx context.Context) {
	for _, u := range w.Own() {
		if u.From == w.set.Me() && !u.Phase.HandedOver() && !u.CalledOff {
			_, _ = w.Cancel(ctx, u.ID, errLate.Error())
		}
	}
}

// least is who has the fewest topics.
func least(loads map[string]int) string {
	return slices.MinFunc(slices.Sorted(maps.Keys(loads)), func(a, b string) int { return cmp.Compare(loads[a], loads[b]) })
}

// Targets are the brokers that may take topics, with how many they have: those that are active,
// registered, of our driver and not being emptied, or the one that was named. An error says why there is none.
func (w *Worker) Targets(ctx context.Context, named string) (map[string]int, error) {
	fleet, err := w.store.Fleet(ctx)
	if err != nil {
		return nil, err
	}
	emptied, err := w.store.Draining(ctx, w.set.DrainsAtOnce)
	if err != nil && !cluster.Denied(err) { // who may not read it drains nothing
		return nil, err
	}
	loads, why := map[string]int{}, "no such broker: 'holdfast fleet' lists them"
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
		case slices.Contains(emptied, b.BrokerID):
			unfit = "that broker's own topics are being moved away: 'holdfast activate' there ends that"
		case b.Driver != w.set.Driver:
			unfit = fmt.Sprintf("that broker's driver is %s, this one's is %s", cmp.Or(b.Driver, "not known"), w.set.Driver)
		}
		if why = unfit; unfit == "" {
			loads[b.BrokerID] = b.Topics
		}
	}
	switch {
	case len(loads) > 0:
		return loads, nil
	case named != "":
		return nil, brokerapi.Errorf(brokerapi.ErrRefused, "--to %s: %s", named, why)
	}
	return nil, brokerapi.Errorf(brokerapi.ErrRefused, "no other %s broker is registered and active: nobody could take it", w.set.Driver)
}

// DrainPlan says what a drain that moves topics means. Its JSON is stable.
type DrainPlan struct {
	Begun bool              `json:"begun"` // by this request or before
	Moves []Shown           `json:"moves"`
	Stay  map[string]string `json:"stay"` // why, of each topic that cannot be moved
	// Rate is how many bytes a second the last moves of this broker had together; 0: none has measured it.
	Rate float64 `json:"bytes_per_second"`
}

// PlanDrain looks at every topic that is assigned here.
func (w *Worker) PlanDrain(ctx context.Context, to string) (plan DrainPlan, err error) {
	loads, err := w.Targets(ctx, to)
	if err != nil {
		return plan, err
	}
	topics, err := w.store.Assignments(ctx, w.set.Me())
	if err != nil {
		return plan, err
	}
	plan.Stay = map[string]string{}
	for _, topic := range topics {
		p, err := w.Prepare(ctx, moves.Move{Topic: topic, Force: true}, loads)
		switch {
		case err == nil:
			plan.Moves = append(plan.Moves, p)
		case errors.Is(err, brokerapi.ErrRefused), errors.Is(err, ErrBroker):
			plan.Stay[topic] = err.Error()
		default:
			return plan, err
		}
	}
	if len(plan.Moves) > 0 { // etcd grants prefixes: of the others it says the same
		if err := w.Allowed(ctx, plan.Moves[0], w.set.DrainsAtOnce); err != nil {
			return plan, err
		}
	}
	list, err := w.List(ctx, "")
	var ours []moves.Move
	for _, s := range list {
		if s.From == w.set.Me() || s.To == w.set.Me() {
			ours = append(ours, s.Move)
		}
	}
	plan.Rate = moves.Rate(ours[max(0, len(ours)-lastMoves):])
	return plan, err
}
