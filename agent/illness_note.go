package agent

import (
	"context"
	"errors"
	"time"

	"holdfast/agent/lease"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
)

// This file is what a sidecar tells others of its broker's health, and what it asks of theirs.

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
	case verdict == probes.Up && (a.mode.Mode != recovery.Active || a.leaving.holdsBack()):
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

// healthNote is the health that goes with a registration which is kept: as its record has it,
// or, where there is none yet, as the broker is.
func healthNote(seen cluster.Snapshot, now life) cluster.Health {
	if m := seen.Member; m != nil && seen.Registration != nil && m.ModRevision >= seen.Registration.CreateRevision {
		return m.Health
	}
	return now.health
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
