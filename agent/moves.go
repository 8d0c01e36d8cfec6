package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/moving"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/moves"
)

// movable reports whether topics of this broker can be moved, and may be.
func (a *agent) movable() bool {
	_, moves := a.broker.(brokerapi.Mover)
	_, sends := a.broker.(brokerapi.Sender)
	return (moves || sends) && a.presence == nil && a.shadow == nil
}

// newMoves makes the part that moves topics. Its metrics are there in any case.
func (a *agent) newMoves(reg prometheus.Registerer) *moving.Worker {
	mover, _ := a.broker.(brokerapi.Mover)
	sender, _ := a.broker.(brokerapi.Sender)
	w := moving.New(moving.Settings{Me: func() string { return a.brokerID }, Mover: mover, Sender: sender,
		AtOnce: a.cfg.MovesAtOnce, Rate: a.cfg.MoveRate, Told: a.noteMove}, a.main, a.reconciler, a.log.With("part", "moves"), reg)
	if !a.movable() {
		return nil
	}
	return w
}

func (a *agent) moveOrders(o recovery.Orders) moving.Orders {
	return moving.Orders{Attached: o.Attached && a.grant.LeaseID != 0, Mode: string(o.Mode),
		Who: cluster.Claimant{BrokerID: a.brokerID, Incarnation: a.memory.Incarnation, Epoch: o.Epoch, LeaseID: a.grant.LeaseID}}
}

// noteMove tells of a step that this broker has done.
func (a *agent) noteMove(m moves.Move) {
	e := Event{Kind: "move", To: string(m.Phase), Reason: m.By, Detail: m.Line()}
	a.tell(a.life0, func() { a.event(e) })
}

// MovePlan says what moving a topic means. Its JSON is stable.
type MovePlan struct {
	ID       string `json:"id"` // of the move; empty: it was not begun
	Topic    string `json:"topic"`
	From     string `json:"from"`
	To       string `json:"to"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	// Rests is on what the promise rests that no message is lost.
	Rests    string `json:"rests"`
	Observed bool   `json:"observed"`  // the brokers' own cluster moves it: nothing is compared
	UnderWay bool   `json:"under_way"` // it had begun before
}

type unloadOrder struct {
	Topic  string `json:"topic"`
	To     string `json:"to"`
	Reason string `json:"reason"`
	Force  bool   `json:"force"`
	DryRun bool   `json:"dry_run"`
}

func (a *agent) serveUnload(w http.ResponseWriter, r *http.Request) {
	var o unloadOrder
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&o); err != nil {
		refuse(w, &ExitError{ExitUsage, fmt.Errorf("request body: %w", err)})
		return
	}
	plan, err := a.unload(r.Context(), o)
	if err != nil {
		refuse(w, err)
		return
	}
	reply(w, plan)
}

// unload begins to move a topic, or says what would be done. It changes nothing before
// everything that can be known was looked at.
func (a *agent) unload(ctx context.Context, o unloadOrder) (plan MovePlan, err error) {
	if err := a.cannotMove(o.Topic); err != nil {
		return plan, err
	}
	me := a.view.Load().registeredAs
	journal, err := a.main.MoveOf(ctx, o.Topic)
	if err != nil {
		return plan, EtcdError(a.cfg, err)
	}
	seen := int64(0)
	if journal != nil {
		seen = journal.ModRevision
		m, err := moves.Parse(o.Topic, journal.Value)
		switch {
		case err != nil:
			return plan, refusal("%v: look at it with 'etcdctl get %s', and delete it if nobody moves the topic", err, journal.Key)
		case m.Phase.Over():
		case m.From == me && (o.To == "" || o.To == m.To) && m.Phase != moves.Undoing && m.Phase != moves.Returned:
			return planOf(m, true), nil
		default:
			return plan, refusal("topic %s is being moved from %s to %s (%s, move %s): wait for it, or 'holdfast moves cancel %s'", o.Topic, m.From, m.To, m.Phase, m.ID, m.ID)
		}
	}
	if err := a.assignedHere(ctx, me, o.Topic); err != nil {
		return plan, err
	}
	m := moves.Move{ID: "m" + randomID()[:10], Topic: o.Topic, From: me, By: cmp.Or(o.Reason, "operator"), Force: o.Force}
	if mover, ok := a.broker.(brokerapi.Mover); ok {
		e, err := mover.Extent(ctx, o.Topic)
		if err != nil {
			return plan, asRefusal(err)
		}
		if e.Active > 0 && !o.Force {
			return plan, refusal("topic %s has %s at work here: stop them, or say --force: they lose the connection to it, and go on at the target where they stood", o.Topic, plural(e.Active, "consumer"))
		}
		m.Planned = &e
	} else {
		m.Sent = true
	}
	if m.To, err = a.target(ctx, me, o.To); err != nil {
		return plan, err
	}
	if o.DryRun {
		m.ID = ""
		return planOf(m, false), nil
	}
	if err := a.moves.Begin(ctx, m, seen); err != nil {
		if errors.Is(err, cluster.ErrChanged) {
			return plan, errors.New("not begun: its journal or this broker's registration changed at the same time: repeat")
		}
		return plan, fmt.Errorf("not begun: %w", err)
	}
	return planOf(m, false), nil
}

func planOf(m moves.Move, underWay bool) MovePlan {
	p := MovePlan{ID: m.ID, Topic: m.Topic, From: m.From, To: m.To, Observed: m.Sent, UnderWay: underWay}
	if e := m.Planned; e != nil {
		p.Messages, p.Bytes, p.Rests = e.Count, e.Bytes, e.Rests
	}
	return p
}

func refusal(format string, args ...any) error {
	return &ExitError{ExitRefused, fmt.Errorf(format, args...)}
}

// asRefusal is a broker's refusal as one of ours.
func asRefusal(err error) error {
	if errors.Is(err, brokerapi.ErrRefused) {
		return &ExitError{ExitRefused, err}
	}
	return err
}

// cannotMove is why no topic, or not this one, can be moved from here now; nil: it may.
func (a *agent) cannotMove(topic string) error {
	if err := a.refuseInShadow("unload"); err != nil {
		return err
	}
	if _, _, err := brokerapi.SplitTopic(topic); err != nil {
		return &ExitError{ExitUsage, err}
	}
	if why := drivers[a.cfg.Driver].Unmoved; a.moves == nil && why != "" && a.presence == nil {
		return refusal("%s", why)
	}
	switch s := a.view.Load(); {
	case a.moves == nil:
		return refusal("topics of a %s broker cannot be moved here: the moves' journal is kept in etcd, and this broker has none: use its own tool", a.cfg.Driver)
	case a.placer != nil:
		return refusal("with --assignment rendezvous the sidecars place the topics: drain this broker to have its topics go elsewhere")
	case s.conflict != "":
		return refusal("%s", s.conflict)
	case s.attachment == recovery.Detached, s.registeredAs == "":
		return refusal("this broker is not attached: %s", firstCause(a.notReady()))
	case a.health.Snapshot().Verdict != probes.Up:
		return refusal("the broker does not answer: %s", a.health.Snapshot().LastError)
	}
	return nil
}

func (a *agent) assignedHere(ctx context.Context, me, topic string) error {
	if a.traits.Places {
		return nil // its own cluster says so when it is asked
	}
	to, _, err := a.main.Assignees(ctx, []string{topic})
	switch whose := to[topic]; {
	case err != nil:
		return EtcdError(a.cfg, err)
	case slices.Contains(whose, me):
		return nil
	case len(whose) > 0:
		return refusal("topic %s is assigned to %s, not to %s: run this there", topic, whose[0], me)
	}
	return &ExitError{ExitUsage, fmt.Errorf("topic %s: no broker has it assigned: 'holdfast topics' lists those of this one", topic)}
}

// target is who takes a topic: the broker that was named, or the active one with the fewest topics.
func (a *agent) target(ctx context.Context, me, named string) (string, error) {
	fleet, err := a.main.Fleet(ctx)
	if err != nil {
		return "", EtcdError(a.cfg, err)
	}
	var best *cluster.FleetBroker
	for i, b := range fleet {
		switch {
		case named != "" && b.BrokerID == named && b.BrokerID == me:
			return "", &ExitError{ExitUsage, fmt.Errorf("--to %s: the topic is there already", named)}
		case named != "" && b.BrokerID == named && !b.Registered:
			return "", refusal("--to %s: that broker is not registered: is it running?", named)
		case named != "" && b.BrokerID == named && b.Mode != cluster.ModeActive:
			return "", refusal("--to %s: that broker is %s: 'holdfast activate' there first", named, cmp.Or(b.Mode, "of a mode that cannot be read"))
		case named != "" && b.BrokerID == named && b.Driver != a.cfg.Driver:
			return "", refusal("--to %s: that broker's driver is %s, this one's is %s", named, cmp.Or(b.Driver, "not known"), a.cfg.Driver)
		case named != "" && b.BrokerID == named:
			return named, nil
		case named != "" || b.BrokerID == me || !b.Registered || b.Mode != cluster.ModeActive || b.Driver != a.cfg.Driver:
		case best == nil || b.Topics < best.Topics:
			best = &fleet[i]
		}
	}
	switch {
	case named != "":
		return "", &ExitError{ExitUsage, fmt.Errorf("--to %s: no such broker: 'holdfast fleet' lists them", named)}
	case best == nil:
		return "", refusal("no other %s broker is registered and active: nobody could take the topic", a.cfg.Driver)
	}
	return best.BrokerID, nil
}

func (a *agent) serveMoves(w http.ResponseWriter, r *http.Request) {
	list, err := a.listMoves(r.Context())
	if err != nil {
		refuse(w, err)
		return
	}
	if id := r.URL.Query().Get("id"); id != "" {
		list = slices.DeleteFunc(list, func(s moving.Shown) bool { return s.ID != id })
		if len(list) == 0 {
			refuse(w, &ExitError{ExitUsage, fmt.Errorf("move %q: unknown: 'holdfast moves' lists them", id)})
			return
		}
	}
	reply(w, list)
}

func (a *agent) listMoves(ctx context.Context) ([]moving.Shown, error) {
	if a.moves == nil {
		return []moving.Shown{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, setModeTimeout)
	defer cancel()
	list, err := a.moves.List(ctx)
	if err != nil {
		return nil, EtcdError(a.cfg, err)
	}
	return list, nil
}

func (a *agent) serveMoveCancel(w http.ResponseWriter, r *http.Request) {
	if a.moves == nil {
		refuse(w, refusal("this broker's topics cannot be moved: there is nothing to cancel"))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), setModeTimeout)
	defer cancel()
	m, err := a.moves.Cancel(ctx, r.PathValue("id"), "by an operator at "+a.view.Load().registeredAs)
	if err != nil {
		refuse(w, &ExitError{ExitRefused, err})
		return
	}
	reply(w, moving.Shown{Topic: m.Topic, Move: m})
}
