package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
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
// seen, which is no operator's word. Not guaranteed: that it ends while etcd does not let us
// read the records of others; then it waits for an operator, and says so.

// openQuestion is an open suspicion, and whom it looks at. The looks are made beside the Keeper, whose
// time is for renewals.
type openQuestion struct {
	recovery.Suspicion       // once begun; before that what is asked
	begun              bool  // the first look was taken
	epoch              int64 // of the registration

	mu     sync.Mutex
	looks  bool           // it is being looked, or will be
	seen   *recovery.Look // and was; nil: nothing new
	stood  int64          // see stoodBeside; with seen
	looked bool           // it was looked once, whatever was seen
	names  []string       // of the others. Of the one who looks
}

// lookTimeout bounds one look at the others.
const lookTimeout = 2 * time.Second

// suspect reports whether our member record says that a suspicion is open.
func suspect(seen cluster.Snapshot) bool { return seen.Member != nil && seen.Member.Suspect != nil }

func suspectNote(d recovery.Decision) *cluster.Suspect {
	if d.Suspect == nil {
		return nil
	}
	return &cluster.Suspect{Revision: d.Suspect.Lost.Revision, At: d.Suspect.Lost.At.UTC(), Row: string(d.Suspect.Row)}
}

// comesBack is the member record of a registration that is written anew, with what others may ask of it
// later: how long its life was unbroken, and since when it was away.
func (r *Registrar) comesBack(seen cluster.Snapshot, now Life, out *Outcome) cluster.Member {
	m := cluster.Member{Incarnation: now.Past.Incarnation, Data: string(out.Data), Instance: out.Instance, At: time.Now(),
		Health: now.Health, Suspect: suspectNote(out.Decision)}
	was := seen.Member
	switch {
	case was == nil:
	case out.Decision.Planned:
		m.Since, m.Away, m.Cut = was.LifeSince(now.Past.Epoch), was.ModRevision, was.Cut
	case out.Decision.Row == recovery.ReasonFastRestart: // under another id: the one before stood until now
		m.Since, m.Away, m.Cut = was.LifeSince(now.Past.Epoch), seen.Revision, was.Cut
	default:
		if m.Cut = was.Cut; !now.CutFrom.IsZero() && time.Since(now.CutFrom) > r.ttl()-r.Config.LeaseDetachMargin {
			m.Cut = &cluster.Cut{From: now.CutFrom, Until: time.Now(), Revision: seen.Revision}
		}
	}
	return m
}

// ask begins the question once the drain stands, and has it asked again.
func (r *Registrar) ask(client *cluster.Client, seen cluster.Snapshot, out *Outcome) {
	s := out.Decision.Suspect
	if s == nil {
		r.asks = nil
		return
	}
	q, rules := r.asks, r.rules(Life{})
	if q == nil || q.epoch != out.Grant.Epoch {
		q = &openQuestion{epoch: out.Grant.Epoch, Suspicion: recovery.Suspicion{Suspect: *s}}
		r.asks = q
		due := recovery.Begin(*s, 0, recovery.Look{}).Due(rules)
		out.Decision.Detail += fmt.Sprintf("; at about %s it is known whether one of them lived on: if none did, it is active again by itself", time.Now().Add(due).UTC().Format(time.RFC3339))
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	wait := rules.Renewal
	switch now := time.Duration(r.Clock()); {
	case q.begun:
		wait = q.Next(now, rules) - now
	case !q.looked: // a fleet that starts at once does not look at once
		wait = rand.N(rules.Renewal)
	}
	if r.Beside == nil || q.looks {
		return
	}
	q.looks = true
	begun := q.begun
	r.Beside(func(ctx context.Context) {
		if probes.Sleep(ctx, wait); ctx.Err() != nil {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		r.lookBeside(ctx, client, seen, q, s.Lost, begun)
	})
}

// lookBeside is one look at those whom the question is about.
func (r *Registrar) lookBeside(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, q *openQuestion, lost recovery.Proven, begun bool) {
	look, stood, err := r.seenBeside(ctx, client, seen, q, lost, begun)
	q.mu.Lock()
	defer q.mu.Unlock()
	first := !q.looked
	q.looks, q.looked = false, true
	switch {
	case err == nil:
		q.seen, q.stood = &look, stood
	case first:
		r.Log.Warn("whether other brokers lived on is not known yet", "err", explainOthers(client, err))
	default:
		r.Log.Debug("whether other brokers lived on is not known yet", "err", err)
	}
}

// review takes up what was seen of the others, and changes what was decided of a registration that
// stands when the suspicion ends.
func (r *Registrar) review(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now Life, out *Outcome) {
	d, q := &out.Decision, r.asks
	if d.Suspect == nil || d.Step != recovery.Keep || q == nil || q.epoch != seen.Registration.CreateRevision {
		return
	}
	if r.Beside == nil { // nobody looks beside
		r.lookBeside(ctx, client, seen, q, d.Suspect.Lost, q.begun)
	}
	q.mu.Lock()
	look, stood := q.seen, q.stood
	q.seen = nil
	if look != nil && !q.begun {
		first := q.Suspect
		first.Lost.Revision = max(first.Lost.Revision, stood)
		q.Suspicion, q.begun, look = recovery.Begin(first, q.epoch, *look), true, nil
	}
	q.mu.Unlock()
	if look == nil || d.Write || now.paused() {
		return
	}
	if m := seen.Member; seen.Era.Unread == "" && m != nil && seen.Era.N > m.Era {
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
	case recovery.SomebodyLived:
		d.Detail = how
		r.Log.Warn("the drain stands and waits for an operator: find out why, then 'holdfast activate'", "reason", string(d.Mode.Reason), "detail", how)
	}
	d.Suspect = nil
}

func (r *Registrar) seenBeside(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, q *openQuestion, lost recovery.Proven, begun bool) (look recovery.Look, stood int64, err error) {
	if q.names == nil {
		own := cluster.Who{Name: seen.Name, Registered: seen.BrokerID, Former: seen.Former.BrokerID}
		if q.names, err = client.OthersOf(ctx, own, fmt.Sprintf("%s %d", seen.Name, lost.Revision)); err != nil {
			return look, 0, err
		}
	}
	others, revision, term, err := client.Others(ctx, q.names)
	if err != nil {
		return look, 0, err
	}
	look = recovery.Look{Now: time.Duration(r.Clock()), At: revision, Term: term}
	for _, o := range others {
		c := recovery.Companion{Name: o.Name, Epoch: o.Epoch, Since: o.Epoch, Bare: o.Member == nil, Unread: o.Malformed}
		if m := o.Member; m != nil {
			c.Suspect, c.Since, c.Away, c.Written = m.Suspect != nil, m.LifeSince(o.Epoch), m.LeftBefore(o.Epoch), m.ModRevision
			if m.Cut != nil && m.Cut.Malformed == "" {
				c.Cut = m.Cut.From
			}
			if m.Left != nil && !m.Left.Crash && o.Epoch == 0 {
				c.Left, c.Unread = m.ModRevision, m.Left.Malformed
			}
		}
		look.Companions = append(look.Companions, c)
	}
	if !begun {
		stood, err = r.stoodBeside(ctx, client, cmp.Or(seen.Former.BrokerID, seen.BrokerID), look, lost.Revision, q.epoch)
	}
	return look, stood, err
}

// stoodBeside is the latest revision, of those at which the others' lives began, at which our own
// registration stood; 0: none after the one that is remembered. A state file may be older than it
// should be, and then they would all seem to have come later. What etcd has forgotten counts as
// stood: that they came later is not known.
func (r *Registrar) stoodBeside(ctx context.Context, client *cluster.Client, id string, look recovery.Look, after, epoch int64) (stood int64, err error) {
	var lives []int64
	for _, c := range look.Companions {
		if c.Since > after && c.Since < epoch {
			lives = append(lives, c.Since)
		}
	}
	slices.Sort(lives)
	n := sort.Search(len(lives), func(i int) bool {
		there, failed := client.RegisteredAt(ctx, id, lives[i])
		if errors.Is(failed, cluster.ErrCompacted) {
			return false
		}
		err = cmp.Or(err, failed)
		return failed != nil || !there
	})
	if n == 0 {
		return 0, err
	}
	return lives[n-1], err
}

// explainOthers says which right is missing.
func explainOthers(client *cluster.Client, err error) error {
	if !cluster.Denied(err) {
		return err
	}
	return fmt.Errorf("%w: grant this user read on %s and on %s, else the drain waits for 'holdfast activate'", err, client.Keys().Members(), client.Keys().Registrations())
}
