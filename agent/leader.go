package agent

import (
	"context"
	"errors"
	"time"
)

// This file is the departure of a broker that may lead a cluster of its own. While none leads
// there nobody sees a registration go, and what was assigned to that broker stays with it for ever.
//
// Not guaranteed: that a leader whose process has just ended, and whose key stands for as long as
// its own lease, is told from one that lives.

// leaderLook is the pause between two looks at who leads.
const leaderLook = time.Second

var errLeads = errors.New("no other broker leads the cluster yet, and nobody would see the registration go")

// mayVanish returns nil when the registration of that id would be seen to go.
func (a *agent) mayVanish(ctx context.Context, id string) error {
	if !a.can.Overlooks {
		return nil
	}
	leader, err := a.leader(ctx)
	if err == nil && (leader == "" || leader == id) {
		return errLeads
	}
	return err
}

// giveUp has the lease of a broker that has left revoked, as soon as that would be seen. Until
// then it runs out.
func (a *agent) giveUp() {
	if !a.can.Overlooks {
		a.keeper.GiveUp(causeLeft)
		return
	}
	l, id := &a.leaving, a.ids.registered.now()
	l.heardBy = a.clock().Add(a.grant.TTL)
	instance, most := l.instance, a.grant.TTL
	a.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(a.life0, most)
		defer cancel()
		for a.mayVanish(ctx, id) != nil {
			if sleep(ctx, leaderLook); ctx.Err() != nil {
				return
			}
		}
		a.tell(a.life0, func() {
			if l.phase == givingUp && l.instance == instance {
				l.heardBy = a.clock().Add(2 * a.cfg.Timing().AttemptTimeout())
				a.keeper.GiveUp(causeLeft)
			}
		})
	})
}

// outlast renews the lease of a broker that has ended and led its cluster a last time: then it
// outlives that leadership, and somebody else sees it go.
func (a *agent) outlast(ctx context.Context) error {
	_, err := a.line.KeepAlive(ctx, a.keeper.View().Grant.LeaseID, false)
	return err
}
