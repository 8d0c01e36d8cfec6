package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/moving"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/moves"
	"holdfast/recovery/topics"
)

// movers are by whom this broker's topics are moved: with its own help, or by its cluster; nil: they
// are not.
func (a *agent) movers() (mover brokerapi.Mover, sender brokerapi.Sender) {
	if a.presence == nil && a.shadow == nil {
		mover, _ = a.broker.(brokerapi.Mover)
		sender, _ = a.broker.(brokerapi.Sender)
	}
	return mover, sender
}

// newMoves makes the part that moves topics. Its metrics are there in any case.
func (a *agent) newMoves(reg prometheus.Registerer) *moving.Worker {
	mover, sender := a.movers()
	w := moving.New(moving.Settings{Me: a.ids.registered.now, Mover: mover, Sender: sender,
		Driver: a.cfg.Driver, AtOnce: a.cfg.MovesAtOnce, Locks: a.locking(), Rate: a.cfg.MoveRate, DrainsAtOnce: a.cfg.DrainsAtOnce, Told: a.noteMove, Sync: a.syncData,
		Drained: func(ctx context.Context, why string) error {
			return a.setModeByOperator(ctx, recovery.Drained, why)
		}}, a.main, topics.Locked{Reconciler: a.reconciler, Locks: a.ownership}, a.log.With("part", "moves"), reg)
	if mover == nil && sender == nil {
		return nil
	}
	return w
}

// syncData has the file system of the data directory write what it holds. A mount for reading only is
// enough; one that is not there, or that may not be opened, says nothing of the broker's disk.
func (a *agent) syncData() (dir string, err error) {
	dir = a.dataDir.Path()
	f, err := os.Open(dir)
	if err != nil {
		return "", nil
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return "", fmt.Errorf("sync the file system of %s: %w", dir, err)
	}
	return dir, nil
}

func (a *agent) moveOrders(o recovery.Orders) moving.Orders {
	return moving.Orders{Attached: o.Attached && a.grant.LeaseID != 0, Mode: string(o.Mode),
		Who: cluster.Claimant{BrokerID: a.ids.registered.now(), Incarnation: a.memory.Incarnation, Epoch: o.Epoch, LeaseID: a.grant.LeaseID}}
}

// noteMove tells of a step that this broker has done.
func (a *agent) noteMove(m moves.Move) {
	e := control.Event{Kind: "move", To: string(m.Phase), Reason: m.By, Detail: m.Line()}
	a.tell(a.life0, func() { a.event(e) })
}

type unloadOrder struct {
	Topic  string `json:"topic"`
	To     string `json:"to"`
	Reason string `json:"reason"`
	Force  bool   `json:"force"`
	DryRun bool   `json:"dry_run"`
}

// unload begins to move a topic, or says what would be done, which then has no ID. It changes nothing
// before everything that can be known was looked at.
func (a *agent) unload(ctx context.Context, o unloadOrder) (p moving.Shown, err error) {
	if _, _, err := brokerapi.SplitTopic(o.Topic); err != nil {
		return p, control.UsageError(err)
	}
	if err := cmp.Or(control.CheckReason(o.Reason), a.cannotMove()); err != nil {
		return p, err
	}
	p, err = a.moves.Send(ctx, moves.Move{Topic: o.Topic, To: o.To, By: cmp.Or(o.Reason, "operator"), Force: o.Force}, nil, o.DryRun)
	return p, a.moveError(err)
}

// moveError is a refusal, or an error of etcd in words for operators.
func (a *agent) moveError(err error) error {
	switch {
	case errors.Is(err, brokerapi.ErrRefused):
		return control.Refused("%w", err)
	case err == nil, errors.Is(err, moving.ErrBroker), cluster.Classify(err) == cluster.ClassOther:
		return err
	}
	return control.EtcdError(a.cfg, err)
}

// cannotMove is why no topic can be moved from here now; nil: it may.
func (a *agent) cannotMove() error {
	s, health := a.view.Load(), a.health.Snapshot()
	switch why := config.Drivers[a.cfg.Driver].Unmoved; {
	case a.shadow != nil:
		return a.refuseInShadow("moving topics")
	case a.moves == nil && why != "" && a.presence == nil:
		return control.Refused("%s", why)
	case a.moves == nil:
		return control.Refused("topics of a %s broker cannot be moved here: the moves' journal is kept in etcd, and this broker has none: use its own tool", a.cfg.Driver)
	case a.placer != nil:
		return control.Refused("with --assignment rendezvous the sidecars place the topics: it cannot be said here who takes one")
	case s.Attachment == recovery.Detached, s.registeredAs == "":
		return control.Refused("this broker is not attached: %s", firstCause(a.notReady()))
	case health.Verdict != probes.Up:
		return control.Refused("the broker does not answer: %s", health.LastError)
	}
	return nil
}

type drainOrder struct {
	Reason          string  `json:"reason"`
	To              string  `json:"to"`
	DeadlineSeconds float64 `json:"deadline_seconds"` // from now
	LeaveUnmoved    bool    `json:"leave_unmoved"`
	DryRun          bool    `json:"dry_run"`
}

// drainMoving plans a drain that moves topics, and begins it if nothing is in its way.
func (a *agent) drainMoving(ctx context.Context, o drainOrder) (plan moving.DrainPlan, err error) {
	if err := cmp.Or(control.CheckReason(o.Reason), a.cannotMove()); err != nil {
		return plan, err
	}
	if a.traits.Places {
		return plan, control.Refused("the brokers' own cluster moves what a drained %s broker serves: 'holdfast drain' without --move has it do so", a.cfg.Driver)
	}
	if !o.DryRun && !a.moves.Drain().State.Over() { // joined
		return moving.DrainPlan{Begun: true}, nil
	}
	plan, err = a.moves.PlanDrain(ctx, o.To)
	switch stay := plan.Stay; {
	case err != nil:
		return plan, a.moveError(err)
	case o.DryRun:
		return plan, nil
	case len(stay) > 0 && !o.LeaveUnmoved:
		return plan, control.Refused("%s cannot be moved: %s; move nothing, or say --leave-unmoved: the others go, and what stays is served here",
			control.Plural(len(stay), "topic"), stay[slices.Min(slices.Collect(maps.Keys(stay)))])
	}
	d := moves.Drain{By: cmp.Or(o.Reason, "operator"), To: o.To, Topics: len(plan.Moves) + len(plan.Stay),
		Deadline: time.Now().Add(time.Duration(o.DeadlineSeconds * float64(time.Second))).UTC()}
	if err := a.moves.BeginDrain(ctx, d); err != nil {
		return plan, a.moveError(err)
	}
	plan.Begun = true
	return plan, nil
}

// endDrain calls off a drain that moves topics, if one is under way.
func (a *agent) endDrain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, setModeTimeout)
	defer cancel()
	err := patiently(ctx, func() error { return a.moves.EndDrain(ctx, "activated by an operator") })
	if err != nil {
		return fmt.Errorf("not activated: a drain that moves topics may go on: %w; repeat when etcd does it", control.EtcdError(a.cfg, err))
	}
	return nil
}

// drainSentence is what a drain that moves topics adds to the state in one sentence; empty: nothing.
func (a *agent) drainSentence() string {
	if a.moves != nil {
		if d := a.moves.Drain(); !d.State.Over() {
			return fmt.Sprintf(" Its topics are being moved away (%s): %s; 'holdfast activate' ends that; what is on its way goes on, but for 'holdfast moves cancel ID'.", d.By, d.Line())
		}
	}
	return ""
}

// serveDrained says how far the drain is.
func (a *agent) serveDrained(w http.ResponseWriter, r *http.Request) {
	if a.moves != nil {
		if d := a.moves.Drain(); d.State != "" {
			control.Reply(w, d)
			return
		}
	}
	control.Refuse(w, control.Refused("no drain has moved topics of this broker: 'holdfast drain --move' begins one"))
}

// serveMoves lists moves, or shows one: from memory while it goes on here, since who waits for one
// asks often.
func (a *agent) serveMoves(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), setModeTimeout)
	defer cancel()
	id, list, err := r.URL.Query().Get("id"), []moving.Shown{}, error(nil)
	if a.moves != nil {
		list = slices.DeleteFunc(a.moves.Own(), func(s moving.Shown) bool { return s.ID != id })
		if len(list) == 0 {
			list, err = a.moves.List(ctx, id)
		}
	}
	switch {
	case err != nil:
		control.Refuse(w, control.EtcdError(a.cfg, err))
	case id != "" && len(list) == 0:
		control.Refuse(w, control.UsageError(fmt.Errorf("move %q: unknown: 'holdfast moves' lists them", id)))
	default:
		control.ReplyEach(w, list)
	}
}

func (a *agent) serveMoveCancel(w http.ResponseWriter, r *http.Request) {
	if a.moves == nil {
		control.Refuse(w, control.Refused("this broker's topics cannot be moved: there is nothing to cancel"))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), setModeTimeout)
	defer cancel()
	m, err := a.moves.Cancel(ctx, r.PathValue("id"), "by an operator at "+a.view.Load().registeredAs)
	control.Respond(w, moving.Shown{Move: m}, a.moveError(err))
}
