package moving

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/recovery/moves"
)

// New returns a worker that does nothing until it has orders and runs.
func New(s Settings, store *cluster.Client, t Topics, log *slog.Logger, reg prometheus.Registerer) *Worker {
	w := &Worker{set: s, store: store, topics: t, log: log, metrics: newMetrics(reg),
		own: map[string]*under{}, learnt: map[string]int64{}, anew: func() {},
		drain:   draining{ends: map[string]end{}, further: time.Now(), alone: make(chan struct{}, 1)},
		stirred: make(chan struct{}, 1), syncing: make(chan struct{}, 1), limit: rate.NewLimiter(rate.Inf, 1<<20)}
	if s.Rate > 0 {
		w.limit = rate.NewLimiter(rate.Limit(s.Rate), max(1, int(s.Rate)/10))
	}
	return w
}

// Shown is a move as people see it. Its JSON is stable.
type Shown struct {
	moves.Move
	// UnderWay: it had begun when it was asked for. Another one Begin begins.
	UnderWay bool `json:"under_way,omitempty"`
	// Stalled says why the move gets no further; empty: it does.
	Stalled string `json:"stalled,omitempty"`
	// Unreadable: the journal cannot be read, and is left alone.
	Unreadable string `json:"unreadable,omitempty"`

	seen int64 // the journal's revision; 0: there was none
}

// List reads moves from etcd, over or not, the younger ones last: the one of an ID, or all.
func (w *Worker) List(ctx context.Context, id string) ([]Shown, error) {
	list := []Shown{}
	err := w.store.Moves(ctx, func(topic string, kv cluster.KV) {
		switch m, err := moves.Parse(topic, kv.Value); {
		case id != "" && m.ID != id:
		case err != nil:
			list = append(list, Shown{Move: moves.Move{Topic: topic}, Unreadable: err.Error()})
		default:
			list = append(list, shown(m, kv.ModRevision))
		}
	})
	slices.SortFunc(list, older)
	return list, err
}

// Own are the moves that this broker has a part in and that are not over, as it knows them.
func (w *Worker) Own() (list []Shown) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, u := range w.own {
		list = append(list, shown(u.Move, u.revision))
	}
	slices.SortFunc(list, older)
	return list
}

func older(a, b Shown) int {
	return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Topic, b.Topic))
}

// shown is a move as people see it now.
func shown(m moves.Move, seen int64) Shown {
	s := Shown{Move: m, seen: seen}
	since := s.Since[s.Phase]
	if s.MovedAt.After(since) {
		since = s.MovedAt
	}
	patience := stalled
	if s.Phase == moves.Pending { // the target need only look
		patience = pendingMost
	}
	if quiet := time.Since(since); !s.Phase.Over() && quiet > patience {
		s.Stalled = s.stall(quiet.Truncate(patience))
	}
	return s
}

// stall names what a move waits for, and the next command.
func (s Shown) stall(d time.Duration) string {
	turn := s.From
	if step := s.Next(moves.Facts{Side: moves.Target}); step.Act != moves.Wait {
		turn = s.To
	}
	why, next := cmp.Or(s.Error, "it has said nothing"), fmt.Sprintf("'holdfast status' at %s", turn)
	if _, err := s.Cancel("", time.Now()); err == nil {
		next += fmt.Sprintf(", or 'holdfast moves cancel %s'", s.ID)
	}
	return fmt.Sprintf("%s for %s, which is %s's turn: %s: %s", s.Phase, d, turn, why, next)
}

// ErrBroker is wrapped by errors of the broker here, and by none of etcd.
var ErrBroker = errors.New("the broker was asked")

// Prepare looks at everything that can be known before a topic is touched. Without m.To the broker
// with the fewest topics takes it, of loads as Targets has them, which count it then; nil: they are read.
func (w *Worker) Prepare(ctx context.Context, m moves.Move, loads map[string]int) (p Shown, err error) {
	refuse := func(format string, args ...any) (Shown, error) {
		return Shown{}, brokerapi.Errorf(brokerapi.ErrRefused, "topic %s: %s", m.Topic, fmt.Sprintf(format, args...))
	}
	m.From, m.Sent = w.set.Me(), w.set.Mover == nil
	journal, err := w.store.Journal(ctx, w.store.Keys().Move(m.Topic))
	if err != nil {
		return p, err
	}
	last := ""
	if journal != nil {
		p.seen = journal.ModRevision
		now, err := moves.Parse(m.Topic, journal.Value)
		last = now.ID
		switch ago := time.Since(now.Since[now.Phase]); {
		case err != nil:
			return refuse("%v: look at %s in etcd, and delete it if nobody moves the topic", err, journal.Key)
		// Each try takes the topic from its clients. An operator who calls one off means it, too.
		case m.By == byPlacement && (now.Phase.Over() && now.Phase != moves.Done || now.Phase == moves.Returned) && ago < carryAgain:
			return refuse("move %s did not succeed: %s: placement tries again %s later, 'holdfast moves %[1]s' says more", now.ID, now.Error, carryAgain)
		case now.Phase.Over(), now.Phase == moves.Returned: // what was copied there a later move replaces
		case now.From == m.From && (m.To == "" || m.To == now.To) && now.Phase != moves.Undoing:
			return Shown{Move: now, UnderWay: true}, nil
		default:
			return refuse("it is being moved from %s to %s (%s): wait for it, or 'holdfast moves cancel %s'", now.From, now.To, now.Phase, now.ID)
		}
	}
	m.ID = moves.NewID(time.Now(), last, rand.Uint32())
	if !m.Sent {
		if revision, err := w.store.Assigned(ctx, m.From, m.Topic); err != nil {
			return p, err
		} else if revision == 0 { // whose it is then costs as much as the cluster has topics
			switch whose, _, err := w.store.Assignees(ctx, []string{m.Topic}); {
			case err != nil:
				return p, err
			case len(whose[m.Topic]) == 0:
				return refuse("no broker has it assigned: 'holdfast topics' lists those of this one")
			case !slices.Contains(whose[m.Topic], m.From):
				return refuse("it is assigned to %s, not to %s: run this there", whose[m.Topic][0], m.From)
			}
		}
		e, err := w.set.Mover.Extent(ctx, m.Topic)
		if err != nil {
			return p, fmt.Errorf("%w: topic %s: %w", ErrBroker, m.Topic, err)
		}
		if e.Active > 0 && !m.Force {
			return refuse("consumers are at work (%d): stop them, or say --force: they lose the connection, and go on at the target where they stood", e.Active)
		}
		if m.Planned = &e; len(m.Value()) > maxPlanned {
			return refuse("the positions of its consumers (%d) are more than etcd takes in one journal: remove those that nobody needs", len(e.Floors))
		}
	} else if held, err := w.set.Sender.Topics(ctx); err != nil {
		return p, fmt.Errorf("%w: %w", ErrBroker, err)
	} else if !slices.Contains(held.Serving, m.Topic) {
		return refuse("this broker does not serve it: 'holdfast topics' lists what it serves")
	}
	chooses := m.Sent && loads == nil // its own cluster does
	if loads == nil {
		if loads, err = w.Targets(ctx, m.To); err != nil {
			return p, err
		}
	}
	if m.To == "" && !chooses {
		m.To = least(loads)
	}
	loads[m.To]++
	p.Move = m
	return p, nil
}

// Allowed returns an error if etcd does not let us do what a move that was prepared writes here and, with
// slots, a drain. What the other broker's sidecar may do is not seen from here.
func (w *Worker) Allowed(ctx context.Context, p Shown, slots int) error {
	write := cluster.JournalWrite{Key: w.store.Keys().Move(p.Topic), Topic: p.Topic, From: p.From}
	if !p.Sent {
		write.To = p.To
	}
	return w.store.MayMove(ctx, write, slots)
}

// maxPlanned is of a journal that begins, in bytes. Three more of what was planned come to it, and etcd takes 1.5 MiB.
const maxPlanned = 300 << 10

// byPlacement is who asks for the moves of placement.
const byPlacement = "placement"

// Carry moves a topic to where placement has it, if nobody is at work on it and no move of it has
// failed of late.
func (w *Worker) Carry(ctx context.Context, topic, to string) error {
	_, err := w.Send(ctx, moves.Move{Topic: topic, To: to, By: byPlacement}, map[string]int{to: 0}, false)
	return err
}

// Send begins a move, if it is not under way, or says what it would be, which then has no ID.
func (w *Worker) Send(ctx context.Context, m moves.Move, loads map[string]int, dry bool) (p Shown, err error) {
	err = errMeanwhile
	for tries := 0; tries < 2 && errors.Is(err, errMeanwhile); tries++ { // another may have begun it, and is joined
		if p, err = w.Prepare(ctx, m, loads); err == nil && loads == nil { // a plan of many has asked already
			err = w.Allowed(ctx, p, 0)
		}
		if err == nil && !dry && !p.UnderWay {
			err = w.Begin(ctx, p)
		}
	}
	if dry && !p.UnderWay {
		p.ID = ""
	}
	return p, err
}

var errMeanwhile = errors.New("not begun: its journal or this broker's registration changed at the same time: repeat")

// Begin writes the journal of a new move.
func (w *Worker) Begin(ctx context.Context, p Shown) error {
	_, o := w.look("", "")
	if !o.Attached {
		return w.detached()
	}
	m := p.Move.Begun(time.Now())
	err := w.write(ctx, &o.Who, m, p.seen, 0)
	if now, _ := w.look(m.Topic, m.ID); now.changed != nil { // written, if others went on with it or not
		err = nil
	}
	if errors.Is(err, cluster.ErrChanged) {
		return errMeanwhile
	}
	if err == nil {
		w.tell(moves.Move{}, m)
	}
	return err
}

func (w *Worker) detached() error {
	return fmt.Errorf("broker %s is not attached: 'holdfast status' says why", w.set.Me())
}

// Cancel calls a move off. Where that cannot be, the error wraps brokerapi.ErrRefused.
func (w *Worker) Cancel(ctx context.Context, id, by string) (moves.Move, error) {
	for {
		list, err := w.List(ctx, id)
		if err != nil {
			return moves.Move{}, err
		}
		if id == "" || len(list) == 0 {
			return moves.Move{}, brokerapi.Errorf(brokerapi.ErrRefused, "move %q: unknown: 'holdfast moves' lists them", id)
		}
		m := list[0].Move
		next, err := m.Cancel(by, time.Now())
		if err != nil {
			return m, brokerapi.Errorf(brokerapi.ErrRefused, "%v", err)
		}
		err = w.write(ctx, nil, next, list[0].seen, 0)
		if err == nil && next.Phase != m.Phase {
			w.tell(m, next)
		}
		if !errors.Is(err, cluster.ErrChanged) {
			return next, err
		}
	}
}
