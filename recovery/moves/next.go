package moves

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"time"
)

// patience is how long an act may fail before the handover, until it counts as refused: the
// topic is not served meanwhile, and its source could.
const patience = time.Minute

// silence is how long the target may write nothing while it is its turn before the handover. An act
// of it that lives says so each few seconds, and one that does not has ended and failed by then: it is
// a sidecar that does not know of moves, or may not write them.
const silence = 3 * time.Minute

// Side is what a broker is to a move.
type Side int

// The sides.
const (
	Neither Side = iota
	Source
	Target
)

// Of is the broker's side.
func (m Move) Of(broker string) Side {
	switch broker {
	case m.From:
		return Source
	case m.To:
		return Target
	}
	return Neither
}

// Owner is the broker that the topic was assigned to when the journal was written; empty: others had taken it.
func (m Move) Owner() string {
	switch {
	case m.Taken:
		return ""
	case m.Phase.HandedOver() || !m.Since[Switched].IsZero(): // one that has failed since, too
		return m.To
	}
	return m.From
}

// Held reports whether the side's broker may neither load the topic nor take it for a stray: it
// is the move's. That is all that the rest of Holdfast knows of one.
func (m Move) Held(side Side) bool {
	switch {
	case m.Sent || m.Phase.Over():
		return false
	case side == Source:
		return m.Phase != Pending && m.Phase != Returned
	case side == Target:
		return m.Phase != Resumed && m.Phase != Verified
	}
	return false
}

// Act is one step of a move at one broker. Each may be repeated.
type Act string

// The acts.
const (
	Wait     Act = ""
	Accept   Act = "accept"   // look whether the topic can be taken; nothing is changed
	Seal     Act = "seal"     // withdraw, pause, flush, and say where it stands
	Copy     Act = "copy"     // away with what an earlier try has left, copy, and say where it stands
	HandOver Act = "handover" // look where it stands, and give the assignment away
	Resume   Act = "resume"   // serve it from where it was sealed
	Compare  Act = "compare"  // compare the messages of both
	Remove   Act = "remove"   // the data that was left at the source
	Restore  Act = "restore"  // serve it again as before
	Discard  Act = "discard"  // what was copied
	Send     Act = "send"     // ask the brokers' own cluster, and await that the target has it
	GiveUp   Act = "give up"  // no act at the broker: the move is called off
)

// row is what a phase asks of one side.
type row struct {
	phase Phase
	side  Side
	act   Act
	then  Phase // when it is done
	fails Phase // when it is refused for good; empty: it is tried for ever
}

// rows is the table. The other side waits.
var rows = []row{
	{Pending, Target, Accept, Draining, Failed},
	{Draining, Source, Seal, Sealed, Undoing},
	{Sealed, Target, Copy, Copied, Undoing},
	{Copied, Source, HandOver, Switched, Undoing},
	{Switched, Target, Resume, Resumed, ""},
	{Resumed, Target, Compare, Verified, Failed},   // served by the target; what the source has is kept
	{Verified, Source, Remove, Done, Failed},       // as above
	{Undoing, Source, Restore, Returned, Returned}, // no longer held, it is served as any other
	{Returned, Target, Discard, Failed, Failed},
}

// Facts are what one side knows beside the journal.
type Facts struct {
	Side Side
	// PeerGone: the other broker is not registered, or not active, and etcd said so.
	PeerGone string // why, for people; empty: it is there
	// Quiet is how long the journal has stood as it is, on this side's clock alone.
	Quiet time.Duration
	// Taken: the topic is not assigned to Owner, and etcd said so after the journal was read.
	Taken string // for people; empty: it is
}

// Step is what to do now.
type Step struct {
	Act   Act
	Why   string // of GiveUp
	then  Phase
	fails Phase
	taken bool
}

// Next is the step of one side.
func (m Move) Next(f Facts) Step {
	if m.Sent {
		if m.Phase == Pending && f.Side == Source {
			return Step{Act: Send, then: Done, fails: Failed}
		}
		return Step{}
	}
	if f.Quiet > silence && (m.Phase == Pending || m.Phase == Sealed) {
		f.PeerGone = cmp.Or(f.PeerGone, fmt.Sprintf("broker %s has said nothing for %s: see whether its sidecar is of this version, and may write journals", m.To, silence))
	}
	switch {
	case f.Side == Neither || m.Phase.Over():
		return Step{}
	case f.Taken != "": // by other hands: whoever it is assigned to serves it, and all data is kept
		return Step{Act: GiveUp, Why: f.Taken, then: Failed, taken: true}
	// Who is to take the topic cannot: the source goes on serving. What is handed over waits.
	case f.Side == Source && f.PeerGone != "" && m.Phase == Pending:
		return Step{Act: GiveUp, Why: f.PeerGone, then: Failed}
	case f.Side == Source && f.PeerGone != "" && m.Phase.before():
		return Step{Act: GiveUp, Why: f.PeerGone, then: Undoing}
	case f.Side == Target && m.Again && m.Phase == Switched: // one act a step: a late one must not serve
		return Step{Act: Copy, then: Switched}
	}
	for _, r := range rows {
		if r.phase == m.Phase && r.side == f.Side {
			return Step{Act: r.act, then: r.then, fails: r.fails}
		}
	}
	return Step{}
}

// Outcome is what became of an act.
type Outcome struct {
	Err      error    // nil: it is done
	Final    bool     // the error is a refusal: trying again changes nothing
	Extent   *Extent  // of Seal, Copy, HandOver, Resume, and of the target after Compare
	Content  *Content // of Compare
	Assigned int64    // of HandOver: the revision of the assignment that it is to give away
	Seen     string   // of Send: what was seen, in words
}

// After is the journal after the step, and whether it is another than before.
func (m Move) After(s Step, o Outcome, broker string, now time.Time) (Move, bool) {
	switch s.Act {
	case Wait:
		return m, false
	case GiveUp:
		m.Taken = s.taken
		return m.giveUp(s.then, s.Why, broker, now), true
	}
	err := o.Err
	if err == nil {
		if err = m.wrong(s.Act, o); err != nil {
			o.Final = true
			if s.Act == Resume { // it is served, and is not what it should be
				s.fails, m.Served = Failed, o.Extent
			}
		}
	}
	if err != nil {
		return m.refused(s, err, o.Final, broker, now)
	}
	n := m
	n.Failing, n.Error, n.Where, n.Again = time.Time{}, n.Why, "", false
	switch s.Act {
	case Seal:
		n.Sealed = o.Extent
	case Copy:
		n.Copied = o.Extent
	case Resume:
		n.Served = o.Extent
	case Compare:
		n.Same = o.Content
	case Send:
		n.Same = &Content{Observed: o.Seen}
	}
	if s.then == m.Phase {
		return n, true
	}
	return n.enter(s.then, now), true
}

// wrong compares what an act has found with the journal. An error is final.
func (m Move) wrong(a Act, o Outcome) error {
	switch a {
	case Copy:
		return m.Sealed.Fits(o.Extent, "at the target")
	case Resume: // by whom the messages were compared before it served: producers may be back by now
		if !m.Sealed.reached(o.Extent) {
			return fmt.Errorf("at the target: it resumed at %s, sealed was %s", o.Extent.text(), m.Sealed.text())
		}
	case HandOver:
		if o.Extent != nil && o.Extent.Served { // it may be appended to before the other has it
			return errors.New("at the source: it was sealed, and is served again by other hands")
		}
		return m.Sealed.Fits(o.Extent, "at the source by now")
	case Compare:
		if o.Content == nil {
			return errors.New("it was not said what was compared")
		}
		if c := o.Content; c.Differs != "" {
			return fmt.Errorf("the contents differ: %s", c.Differs)
		} else if c.Observed == "" && !m.Sealed.Shrinks && c.Compared+c.Gone < m.Sealed.Count {
			return fmt.Errorf("compared: %s, gone: %d, sealed: %d", plural(c.Compared, "message"), c.Gone, m.Sealed.Count)
		}
		if !m.Sealed.reached(o.Extent) { // where messages go by themselves, or none is read, nothing else says so
			return fmt.Errorf("at the target: it was lost since it resumed, and is at %s; sealed was %s", o.Extent.text(), m.Sealed.text())
		}
	}
	return nil
}

func (m Move) refused(s Step, err error, final bool, broker string, now time.Time) (Move, bool) {
	n := m
	n.Error, n.Where = err.Error(), broker
	if !final && m.Phase.before() && !m.Sent {
		if m.Failing.IsZero() || m.Failing.After(now) { // or the clock was set back
			n.Failing = now.UTC().Truncate(time.Millisecond)
		}
		final = now.Sub(n.Failing) > patience
	}
	if final && s.fails != "" {
		return n.giveUp(s.fails, err.Error(), broker, now), true
	}
	n.Again = m.Phase == Switched && (m.Again != final) // copy and resume by turns, as each is refused
	return n, n.Error != m.Error || n.Where != m.Where || n.Failing != m.Failing || n.Again != m.Again
}

// giveUp ends a move, or has it undone: before the handover only. The first reason stays.
func (m Move) giveUp(p Phase, why, broker string, now time.Time) Move {
	m.Failing, m.Error, m.Where = time.Time{}, why, broker
	switch {
	case m.Why != "":
		m.Error = m.Why + "; then: " + why
	case p == Undoing:
		m.Why = why
	}
	return m.enter(p, now)
}

// before: the handover is to come, and the move goes on.
func (p Phase) before() bool { return p == Pending || p == Draining || p == Sealed || p == Copied }

// Cancel is the journal of a move that an operator calls off. What the brokers' own cluster was asked for is only not
// awaited any more. One that the target serves already
// ends as failed: nothing is undone, and nothing more is compared or removed.
func (m Move) Cancel(by string, now time.Time) (Move, error) {
	switch {
	case m.Phase.Over():
		return m, fmt.Errorf("move %s of %s is over: %s", m.ID, m.Topic, m.Phase)
	case m.Phase == Switched:
		return m, fmt.Errorf("move %s of %s: the topic is handed over to %s, which cannot be called off: move it back with 'holdfast unload %s --to %s' there", m.ID, m.Topic, m.To, m.Topic, m.From)
	case m.Phase.HandedOver():
		return m.giveUp(Failed, "called off: "+by, "", now), nil
	case m.Phase == Undoing || m.Phase == Returned:
		m.CalledOff = true
		return m, nil
	}
	m.CalledOff = true
	p := Undoing
	if m.Phase == Pending {
		p = Cancelled
	}
	return m.giveUp(p, "called off: "+by, "", now), nil
}

// enter goes on to a phase; who was called off by an operator ends as that.
func (m Move) enter(p Phase, now time.Time) Move {
	if p == Returned && m.Sealed == nil { // nothing was ever copied
		p = Failed
	}
	if p == Failed && m.CalledOff {
		p = Cancelled
	}
	m.Phase, m.Moved, m.MovedAt = p, 0, time.Time{}
	m.Since = maps.Clone(m.Since)
	if m.Since == nil {
		m.Since = map[Phase]time.Time{}
	}
	m.Since[p] = now.UTC().Truncate(time.Millisecond)
	return m
}

// Fits compares what is there with what was sealed. Consumers may have acknowledged more since,
// never less; messages may be fewer only where they go by themselves.
func (e *Extent) Fits(now *Extent, where string) error {
	switch {
	case now == nil:
		return fmt.Errorf("%s: it was not said where the topic stands", where)
	case e.Config != now.Config:
		return fmt.Errorf("%s: another configuration (%s) than was sealed (%s)", where, now.Config, e.Config)
	case e.Schema != now.Schema:
		return fmt.Errorf("%s: another schema (%s) than was sealed (%s)", where, now.Schema, e.Schema)
	case e.Empty != now.Empty:
		return fmt.Errorf("%s: %s, sealed was %s", where, now.text(), e.text())
	case e.Empty: // its numbers say nothing
	case e.Last != now.Last:
		return fmt.Errorf("%s: the last message is %d, sealed was %d", where, now.Last, e.Last)
	case !e.Shrinks && (e.First != now.First || e.Count != now.Count || e.Bytes != now.Bytes):
		return fmt.Errorf("%s: %s, sealed was %s", where, now.text(), e.text())
	case now.First < e.First || now.Count > e.Count || now.Bytes > e.Bytes:
		return fmt.Errorf("%s: %s, sealed was %s: more than there was", where, now.text(), e.text())
	}
	for consumer, floor := range e.Floors {
		if at, ok := now.Floors[consumer]; !ok || at < floor {
			return fmt.Errorf("%s: consumer %q stands at %d, sealed was %d", where, consumer, at, floor)
		}
	}
	return nil
}

// reached: a topic that serves has been as far as it was sealed, so it was not made anew.
func (e *Extent) reached(now *Extent) bool {
	return now != nil && (e.Empty || !now.Empty && now.Last >= e.Last)
}

func (e *Extent) text() string {
	switch {
	case e == nil:
		return "nothing that was said"
	case e.Empty:
		return "empty"
	}
	return fmt.Sprintf("%s with %s, %d to %d", plural(e.Count, "message"), plural(e.Bytes, "byte"), e.First, e.Last)
}

func plural(n uint64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// Progress is the journal while an act moves bytes.
func (m Move) Progress(bytes int64, now time.Time) Move {
	m.Moved, m.MovedAt = bytes, now.UTC().Truncate(time.Millisecond)
	return m
}

// Begun is the journal of a move that begins, not before At: a clock that was set back makes no move
// older than the drain that wants it.
func (m Move) Begun(now time.Time) Move {
	if at := now.UTC().Truncate(time.Millisecond); at.After(m.At) {
		m.At = at
	}
	return m.enter(Pending, now)
}

// Target is who takes the topic, for people.
func (m Move) Target() string { return cmp.Or(m.To, "whom their cluster chooses") }

// Line says in one sentence how far a move is.
func (m Move) Line() string {
	line := fmt.Sprintf("topic %s from %s to %s", m.Topic, m.From, m.Target())
	switch {
	case m.Phase == Done && m.Same != nil && m.Same.Observed != "":
		line += ": " + m.Same.Observed
	case m.Phase == Done:
		line += ": moved, " + m.Sealed.text()
	case m.Phase == Sealed && m.Error == "":
		line += ": sealed, " + m.Sealed.text()
	case m.Error != "":
		line += ": " + m.Error
	}
	return line
}
