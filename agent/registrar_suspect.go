package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
)

// This file asks whether a broker that was drained because others stood registered had been declared
// dead (safety rule 12): a suspicion, which is lifted by itself when none of them proves to have lived
// on. The member record says that it is open, so a sidecar that is restarted asks on.
//
// Guaranteed: what lifts it is one transaction with the mode, guarded by the state key being as it was
// seen, which is no person's word. Not guaranteed: that it ends while etcd does not let us
// read the records of others; then it waits for an operator, and says so.

// openQuestion is an open suspicion, and whom it looks at. The looks are made beside the Keeper, whose
// time is for renewals.
type openQuestion struct {
	recovery.Suspicion       // once begun
	begun              bool  // the first look was taken
	epoch              int64 // of the registration

	mu    sync.Mutex
	looks bool           // it is being looked, or will be
	seen  *recovery.Look // and was; nil: nothing new
	names []string       // of the others
	stood int64          // a revision at which the registration that was lost stood, by etcd's own memory
}

// suspect reports whether our member record says that a suspicion is open.
func suspect(seen cluster.Snapshot) bool { return seen.Member != nil && seen.Member.Suspect != nil }

func suspectNote(d recovery.Decision) *cluster.Suspect {
	if d.Suspect == nil {
		return nil
	}
	return &cluster.Suspect{Revision: d.Suspect.Lost.Revision, At: d.Suspect.Lost.At.UTC(), Row: string(d.Suspect.Row)}
}

// comesBack adds to the record of a registration that is written anew what others may ask of it
// later: how long its life was unbroken, and since when it was away.
func (r *registrar) comesBack(seen cluster.Snapshot, now life, out outcome, m cluster.Member) cluster.Member {
	m.Suspect = suspectNote(out.decision)
	was := seen.Member
	switch {
	case was == nil:
	case out.decision.Planned:
		m.Since, m.Away, m.Cut = was.LifeSince(0), was.ModRevision, was.Cut
	default:
		if m.Cut = was.Cut; !now.cutFrom.IsZero() && time.Since(now.cutFrom) > r.ttl()-r.cfg.LeaseDetachMargin {
			m.Cut = &cluster.Cut{From: now.cutFrom, Until: time.Now(), Revision: seen.Revision}
		}
	}
	return m
}

// ask begins the question once the drain stands, and has it asked again.
func (r *registrar) ask(client *cluster.Client, seen cluster.Snapshot, out *outcome) {
	s := out.decision.Suspect
	if s == nil {
		r.asks = nil
		return
	}
	q := r.asks
	if q == nil || q.epoch != out.grant.Epoch {
		q = &openQuestion{epoch: out.grant.Epoch}
		r.asks = q
		due := recovery.Begin(*s, 0, recovery.Look{}).Due(r.rules(life{}))
		out.decision.Detail += fmt.Sprintf("; at about %s it is known whether one of them lived on: if none did, it is active again by itself", time.Now().Add(due).UTC().Format(time.RFC3339))
	}
	wait := time.Duration(0)
	if now := time.Duration(r.clock()); q.begun {
		wait = q.Next(now, r.rules(life{})) - now
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.later == nil || q.looks {
		return
	}
	q.looks = true
	r.later(wait, func(ctx context.Context) {
		look, err := r.lookBeside(ctx, client, seen, q, s.Lost)
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.looks = false; err == nil {
			q.seen = &look
		}
	})
}

// review takes up what was seen of the others, and changes what was decided of a registration that
// stands when the suspicion ends.
func (r *registrar) review(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now life, out *outcome) {
	d, q := &out.decision, r.asks
	if d.Suspect == nil || d.Step != recovery.Keep || d.Write || r.paused() || q == nil || q.epoch != seen.Registration.CreateRevision {
		return
	}
	q.mu.Lock()
	look := q.seen
	q.seen = nil
	q.mu.Unlock()
	if look == nil && r.later == nil { // nobody looks beside
		if one, err := r.lookBeside(ctx, client, seen, q, d.Suspect.Lost); err == nil {
			look = &one
		}
	}
	switch {
	case look == nil:
		return
	case !q.begun:
		first := *d.Suspect
		first.Lost.Revision = max(first.Lost.Revision, q.stood)
		q.Suspicion, q.begun = recovery.Begin(first, q.epoch, *look), true
		return
	}
	if seen.Era.Unread == "" {
		look.Era = seen.Era.ModRevision
	}
	next, answer, how := q.Review(*look, r.rules(now))
	q.Suspicion = next
	switch answer {
	case recovery.StillOpen:
		return
	case recovery.NobodyLived:
		d.Mode, d.Write, d.Row = next.Lift(), true, next.Lift().Reason
		d.Detail = "drained only until it was known whether other brokers lived on: " + how
		out.begins = look.OnlySuspects()
		r.log.Info("the drain is lifted", "reason", string(d.Mode.Reason), "detail", how)
	case recovery.SomebodyLived:
		d.Detail = how
		r.log.Warn("the drain stands and waits for an operator: find out why, then 'holdfast activate'", "reason", string(d.Mode.Reason), "detail", how)
	}
	d.Suspect = nil
}

// lookBeside is one look at those whom the question is about.
func (r *registrar) lookBeside(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, q *openQuestion, lost recovery.Proven) (look recovery.Look, err error) {
	defer func() {
		if err != nil {
			q.names = nil
			r.log.Warn("whether other brokers lived on is not known yet", "err", explainOthers(client, err))
		}
	}()
	begins := q.names == nil // the first look
	if begins {
		own := cluster.Who{Name: seen.Name, Registered: seen.BrokerID, Former: seen.Former.BrokerID}
		if q.names, err = client.OthersOf(ctx, own, fmt.Sprintf("%s %d", seen.Name, lost.Revision)); err != nil {
			return look, err
		}
	}
	others, revision, term, err := client.Others(ctx, q.names)
	if err != nil {
		return look, err
	}
	look = recovery.Look{Now: time.Duration(r.clock()), At: revision, Term: term}
	for _, o := range others {
		c := recovery.Companion{Name: o.Name, Epoch: o.Epoch, Since: o.Epoch, Bare: o.Member == nil, Unread: o.Malformed}
		if m := o.Member; m != nil {
			c.Suspect, c.Since, c.Away, c.Written = m.Suspect != nil, m.LifeSince(o.Epoch), m.Away, m.ModRevision
			if m.Cut != nil {
				c.Cut, c.Unread = m.Cut.From, m.Cut.Malformed
			}
			if m.Left != nil && !m.Left.Crash && o.Epoch == 0 {
				c.Left, c.Unread = m.ModRevision, m.Left.Malformed
			}
		}
		look.Companions = append(look.Companions, c)
	}
	if begins {
		q.stood, err = r.stoodBeside(ctx, client, cmp.Or(seen.Former.BrokerID, seen.BrokerID), look, lost.Revision, q.epoch)
	}
	return look, err
}

// stoodBeside is the latest revision, of those at which the others' lives began, at which our own
// registration stood; 0: none after the one that is remembered. A state file may be older than it
// should be, and then they would all seem to have come later.
func (r *registrar) stoodBeside(ctx context.Context, client *cluster.Client, id string, look recovery.Look, after, epoch int64) (stood int64, err error) {
	slices.SortFunc(look.Companions, func(a, b recovery.Companion) int { return cmp.Compare(a.Since, b.Since) })
	for _, c := range look.Companions {
		if c.Since <= after || c.Since >= epoch {
			continue
		}
		there, err := client.RegisteredAt(ctx, id, c.Since)
		if errors.Is(err, cluster.ErrCompacted) || err == nil && !there {
			return stood, nil
		}
		if err != nil {
			return stood, err
		}
		stood = c.Since
	}
	return stood, nil
}

// explainOthers says which right is missing.
func explainOthers(client *cluster.Client, err error) error {
	if !cluster.Denied(err) {
		return err
	}
	return fmt.Errorf("%w: grant this user read on %s and on %s, else the drain waits for 'holdfast activate'", err, client.Keys().Members(), client.Keys().Registrations())
}

// later does something beside the loop then, and has the registrar look again.
func (a *agent) later(d time.Duration, do func(context.Context)) {
	a.tasks.Go(func() {
		if probes.Sleep(a.life0, d); a.life0.Err() != nil {
			return
		}
		ctx, cancel := context.WithTimeout(a.life0, noteTimeout)
		defer cancel()
		do(ctx)
		a.keeper.Reestablish()
	})
}
