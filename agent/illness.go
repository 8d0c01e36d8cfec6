package agent

import (
	"context"
	"errors"
	"time"

	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
)

// A broker that is ill is not renewed, as one that has ended is not. Shortly before its fence
// point its sidecar looks at the others, and renews it again unless one of them is well.
//
// Guaranteed: while it is held its lease is renewed, clients are kept away and nothing is
// stopped; a look that etcd does not answer changes nothing, so the deadline rules stand. Not
// guaranteed: that a broker is held whose end nobody would see (its process is not watched, and
// its driver holds no connection to it), which was ill already when its sidecar started, which
// was detached already when it fell ill, or which notices before its peers do, where the time
// from the verdict to the fence point is shorter than theirs to notice; that a peer which is
// well is seen, where more than cluster.MostPeers others are registered. With --registration
// none there is no record of peers, and nobody is held.

// illness is that of the broker's present process, owned by the loop.
type illness struct {
	number  int // grows with each: a look that began before is dropped
	ruling  recovery.Illness
	awaits  bool          // the lease of a peer that says it is well is to be looked at once more
	looking bool          // at the others
	looked  lease.Instant // when that was done last; 0: it was not
	seen    *recovery.Witnesses
}

// sightPeers is a look at the others.
type sightPeers func(ctx context.Context) (term uint64, seen []recovery.PeerSeen, err error)

// ails reports whether the process of the broker lives while its calls fail.
func (a *agent) ails(verdict probes.Verdict) bool {
	if verdict != probes.Down || a.brokerGone() {
		return false
	}
	if a.process != nil || a.child != nil {
		return a.servingLives()
	}
	return a.reached.Load() && a.everAttached && !a.brokeSinceUp()
}

// tendIllness decides what becomes of the registration of a broker that is ill. It is called
// before the gate is set.
func (a *agent) tendIllness(verdict probes.Verdict) {
	i := &a.illness
	if verdict == probes.Unknown && !a.brokerGone() || a.sightPeers == nil {
		return
	}
	if !a.ails(verdict) {
		if i.seen != nil {
			a.rule(recovery.Illness{}, verdict == probes.Up)
			*i = illness{number: i.number + 1}
		}
		return
	}
	if i.seen == nil {
		i.seen = &recovery.Witnesses{}
	}
	facts := a.illFacts(verdict)
	a.rule(recovery.RuleIllness(facts), false)
	if facts.Held && !i.looking && a.clock() >= a.nextLook() {
		a.lookBeside()
	}
}

func (a *agent) illFacts(verdict probes.Verdict) recovery.IllFacts {
	v := a.keeper.View().Validity
	return recovery.IllFacts{
		Ill: a.ails(verdict), Before: a.illness.ruling,
		Held: a.grant.LeaseID != 0 && v.Known() && v.HeldAt(a.clock()) && a.attachment != recovery.Detached &&
			!a.departing.HoldsBack() && a.conflict == "",
	}
}

// nextLook is when the others are looked at next.
func (a *agent) nextLook() lease.Instant {
	i, v := &a.illness, a.keeper.View().Validity
	return lease.Instant(recovery.NextLook(i.ruling, i.awaits, time.Duration(i.looked), time.Duration(v.FencePoint()), a.cfg.Timing().RenewInterval, v.TTL))
}

// lookBeside looks at the others, in the background and within the bound of a renewal.
func (a *agent) lookBeside() {
	i := &a.illness
	i.looking = true
	ctx, cancel := context.WithTimeout(a.life0, a.cfg.Timing().AttemptTimeout())
	number, witnesses := i.number, i.seen
	a.tasks.Go(func() {
		defer cancel()
		term, seen, err := a.sightPeers(ctx)
		a.tell(a.life0, func() {
			if a.illness.number != number {
				return
			}
			i.looking, i.looked = false, a.clock()
			if err != nil {
				a.log.Debug("no look at the health of other brokers", "err", err)
				return
			}
			others := witnesses.Look(term, seen, time.Since(a.started))
			i.awaits = others.Well == "" && others.Awaits != ""
			facts := a.illFacts(a.verdict)
			facts.Looked, facts.Others = true, others
			a.rule(recovery.RuleIllness(facts), false)
		})
	})
}

// rule applies a ruling, and reports it when it differs from the one before.
func (a *agent) rule(next recovery.Illness, well bool) {
	before := a.illness.ruling
	a.illness.ruling = next
	if next.Care == before.Care && next.Reason == before.Reason {
		return
	}
	e := control.Event{Kind: "broker", From: string(before.Care), To: string(next.Care), Reason: string(next.Reason), Epoch: a.grant.Epoch, Detail: next.Detail}
	switch next.Care {
	case recovery.CareHold:
		a.log.Warn("the broker is ill and keeps its registration", "held", recovery.HeldWords(next.Reason), "detail", next.Detail, "epoch", a.grant.Epoch)
	case recovery.CareLetGo:
		a.log.Warn("the broker is ill and loses its registration", "why", next.Detail, "epoch", a.grant.Epoch)
	default:
		if before.Care != recovery.CareHold {
			return
		}
		e.To = "hold_over"
		if well {
			e.Detail = "the broker answers again"
		}
		a.log.Info("the broker is not held any more", "answers", well, "epoch", a.grant.Epoch)
	}
	a.event(e)
}

// held is why a broker that is ill keeps its registration; empty: it is not held.
func (i *illness) held() recovery.Reason {
	if i.ruling.Care != recovery.CareHold {
		return ""
	}
	return i.ruling.Reason
}

// What follows is what a sidecar tells others of its broker's health, and what it asks of theirs.

// beside is the way to the health of the others, and of ours to them; nil: there are no others,
// or nothing is done.
type beside struct {
	sightPeers   sightPeers
	noteHealthOf func(context.Context, cluster.HealthNote) (bool, error)
}

func (a *agent) newBeside() (b beside) {
	if a.presence == nil {
		b.sightPeers = a.peersSighted
		if a.shadow == nil {
			b.noteHealthOf = a.main.NoteHealth
		}
	}
	return b
}

// healthEvery is how often the member record may say another health, and be tried again.
const healthEvery = 5 * time.Second

// healthTold is what the member record says of the broker, owned by the loop.
type healthTold struct {
	known bool           // something is known of it
	now   cluster.Health // how it is; empty: nothing is to be said
	told  cluster.Health // how the record has it
	epoch int64          // of the registration that the record goes with
	busy  bool
	next  lease.Instant // not before
}

// tendHealthNote has the member record say how the broker is. One whose work fails is no proof
// that another could do better, one whose work was not tried is neither well nor ill, and one that
// is drained or leaves takes nothing over. An unknown verdict changes nothing, and neither does
// the end of a process: its lease tells.
func (a *agent) tendHealthNote(verdict probes.Verdict) {
	h := &a.healthTold
	h.known = h.known || verdict == probes.Up || a.ails(verdict)
	switch {
	case verdict == probes.Up && (a.mode.Mode != recovery.Active || a.departing.HoldsBack()):
		h.now = cluster.HealthAway
	case verdict == probes.Up && errors.Is(a.unable(), brokerapi.ErrUntried):
		h.now = ""
	case verdict == probes.Up && a.unable() == nil:
		h.now = cluster.HealthWell
	case verdict == probes.Up, a.ails(verdict):
		h.now = cluster.HealthIll
	}
	epoch := a.grant.Epoch
	if a.noteHealthOf == nil || !h.known || a.grant.LeaseID == 0 || h.busy || h.told == h.now && h.epoch == epoch || a.clock() < h.next {
		return
	}
	h.busy = true
	n := cluster.HealthNote{Who: cluster.Who{Name: a.brokerID, Registered: a.ids.registered.now()},
		Epoch: epoch, LeaseID: a.grant.LeaseID, Incarnation: a.memory.Incarnation, Health: h.now}
	a.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(a.life0, noteTimeout)
		defer cancel()
		written, err := a.noteHealthOf(ctx, n)
		a.tell(a.life0, func() {
			h.busy = false
			if written || err != nil {
				h.next = a.clock().Add(healthEvery)
			}
			if err == nil {
				h.told, h.epoch = n.Health, n.Epoch
			}
			if err != nil && !errors.Is(err, cluster.ErrChanged) {
				a.log.Debug("member record does not tell the broker's health yet", "err", err)
			}
		})
	})
}

// peersSighted is the agent's sightPeers. Of those that say they are well, a few leases are
// enough: one that rises decides, and none that does is the safe answer.
func (a *agent) peersSighted(ctx context.Context) (term uint64, seen []recovery.PeerSeen, err error) {
	peers, term, err := a.main.PeersHealth(ctx, cluster.Who{Name: a.view.Load().brokerID, Registered: a.ids.registered.now()})
	if cluster.Denied(err) {
		why := "etcd does not show how other brokers are: grant this user read on " + a.main.Keys().Members() + " and " + a.main.Keys().Registrations()
		return 0, []recovery.PeerSeen{{Sighting: recovery.Sighting{Refused: why}}}, nil
	}
	if err != nil {
		return 0, nil, err
	}
	asked := 0
	for _, p := range peers {
		one := recovery.PeerSeen{Health: recovery.Health(p.Health), Sighting: recovery.Sighting{Peer: p.Name, Lease: p.LeaseID}}
		if p.Health == cluster.HealthWell {
			if asked++; asked > asksFirst {
				continue
			}
			if err := askLease(ctx, a.main, term, a.started, &one.Sighting); err != nil {
				return 0, nil, err
			}
			if one.Lease == 0 {
				continue
			}
		}
		seen = append(seen, one)
	}
	return term, seen, nil
}

// asksFirst is how many leases etcd is asked about in one look.
const asksFirst = 8

// askLease asks about one lease; its moments count from begun. One that is gone takes its key
// with it, or is nobody's life. An answer of another raft term tells nothing of when it ends.
func askLease(ctx context.Context, client *cluster.Client, term uint64, begun time.Time, s *recovery.Sighting) error {
	s.Asked = time.Since(begun)
	left, err := client.LeaseLeft(ctx, s.Lease)
	s.Answered = time.Since(begun)
	switch {
	case cluster.Denied(err):
		s.Refused = "etcd does not let this user ask about leases: grant it read on " +
			client.Keys().Registrations() + ", and on whatever else the leases of other brokers hold"
		return nil
	case err != nil:
		return err
	case !left.Found:
		s.Lease = 0
	default:
		s.Left, s.Granted, s.Unknown = left.Left, left.Granted, left.Unknown || left.Term != term
	}
	return nil
}
