package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/agent/lease"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/recovery"
)

// This file is the proof of life: a broker was declared dead only if somebody lived on who
// could see it (DESIGN, safety rule 12). A registration that stands proves nothing: it stands
// until its lease ends, whatever became of its broker.
//
// Not asked for, though the leases could be read: of a broker that registers itself, and of one
// that can only be stopped. The first is registered from its start, with the mode that etcd
// holds: while its sidecar waited, for up to a TTL, all others would see it registered and active
// before that is decided (safety rule 5). The second may not run while it waits: each process
// that comes up would be stopped, and its supervisor gives up after a few. Both are judged at
// once, by what stands, and the peers are looked at afterwards: see registrar_review.go.

// lifeWatch is what was seen of the peers since one loss, or one start of the broker.
type lifeWatch struct {
	recovery.Vigil
	epoch int64     // of the registration that was lost
	begun time.Time // its monotonic reading stands while the host is suspended
	since int64     // the store's revision then
	stood int64     // a revision at which our registration stood
	gone  int64     // and one at which it did not any more; 0: none is known
	// ids are the brokers that may tell, in the order in which they are looked at, once they
	// are listed. Whoever cannot tell is taken off.
	ids    []string
	listed bool
}

// asksAtOnce is how many leases etcd is asked about at the same time, asksFirst about how many
// before it is known that none of them rises: a fleet that waits must not keep etcd busy.
const (
	asksAtOnce = 4
	asksFirst  = 8
)

// decideAlive is decide, which may have to know first whether a peer lived on. Nobody waits
// for that here: the caller asks again.
func (r *registrar) decideAlive(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now life) (outcome, error) {
	r.lived, r.livedHow = recovery.Unwatched, ""
	if r.hasty {
		r.lived, r.livedHow = recovery.Alive, "other brokers are registered, and are taken to be alive"
	}
	out := r.decide(seen, now)
	if out.decision.Step == recovery.Await {
		if err := r.watchPeers(ctx, client, seen, now); err != nil {
			return outcome{}, err
		}
		out = r.decide(seen, now)
	}
	await := out.decision.Step == recovery.Await
	if await {
		until := r.peersSeen.begun.Add(r.peersSeen.Until())
		out.decision.Detail = fmt.Sprintf("whether the cluster lived on without this broker is known at %s at the latest: %s",
			until.UTC().Format(time.RFC3339), out.decision.Detail)
	}
	if r.awaits != nil {
		r.awaits(await)
	}
	return out, nil
}

// hasty reports whether the broker can only be stopped while it may not serve. To wait for
// proof of life would stop each process of it that comes up, until somebody starts another.
func hasty(c Config, t brokerapi.Traits) bool {
	quiesces := slices.Contains(c.Fence, string(recovery.StepQuiesce))
	return t.AtDeadline == brokerapi.Stop || slices.Contains(c.Fence, string(recovery.StepStop)) && !quiesces
}

// watchPeers looks at the leases of other brokers, if the last look was long enough ago.
func (r *registrar) watchPeers(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now life) error {
	w := r.peersSeen
	if w == nil || w.epoch != now.memory.Epoch {
		w = &lifeWatch{epoch: now.memory.Epoch, begun: time.Now(), since: seen.Revision}
		r.peersSeen = w
	}
	if known, _ := w.Verdict(); known != recovery.Alive && w.Due(r.cfg.RenewInterval, time.Since(w.begun)) {
		sightings, term, err := r.sight(ctx, client, seen, now)
		if err != nil {
			return err
		}
		w.Look(term, sightings, r.ttl(), time.Since(w.begun))
		apart := recovery.Apart(r.cfg.RenewInterval)
		r.askLater(apart + rand.N(apart/4)) // a fleet that starts at once does not look at once
	}
	r.lived, r.livedHow = w.Verdict()
	return nil
}

// ttl is how long a lease of ours lasts.
func (r *registrar) ttl() time.Duration { return max(r.cfg.LeaseTTL, r.granted) }

// sight asks about the leases of up to MostPeers peers whose life tells of the time since our
// registration went. They are spread over the fleet, and drawn once: who registers later has
// not seen us go. A few will do for a first look under one leader, in which nothing can have
// risen, and as long as one of them rises.
func (r *registrar) sight(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now life) (all []recovery.Sighting, term uint64, err error) {
	w := r.peersSeen
	if !w.listed {
		if w.ids, err = client.PeerIDs(ctx, fmt.Sprintf("%s %d", seen.Name, w.since), seen.BrokerID, seen.Former.BrokerID); err != nil {
			return nil, 0, err
		}
		w.listed = true
	}
	for most := asksFirst; len(all) < min(len(w.ids), cluster.MostPeers); most = cluster.MostPeers {
		batch := w.ids[len(all):min(len(w.ids), most)]
		some, read, err := r.sightOf(ctx, client, batch, term, seen, now)
		if err != nil {
			return nil, 0, err
		}
		rest := w.ids[len(all)+len(batch):]
		all, term = append(all, some...), read
		if slices.ContainsFunc(some, func(s recovery.Sighting) bool { return w.Rose(term, s) }) {
			break
		}
		w.ids = nil
		for _, s := range all {
			w.ids = append(w.ids, s.Peer)
		}
		w.ids = append(w.ids, rest...)
		if len(all) > 0 && w.First(term) {
			break
		}
	}
	return all, term, nil
}

// sightOf asks about the leases of these peers. An answer of another raft term than the first
// read of registrations, before it, is none; 0: this is the first.
func (r *registrar) sightOf(ctx context.Context, client *cluster.Client, ids []string, term uint64, seen cluster.Snapshot, now life) ([]recovery.Sighting, uint64, error) {
	peers, read, err := client.Peers(ctx, ids)
	if err != nil {
		return nil, 0, err
	}
	term = cmp.Or(term, read)
	silent, err := r.silent(ctx, client, peers, seen, now)
	if err != nil {
		return nil, 0, err
	}
	var sightings []recovery.Sighting
	for _, p := range peers {
		s, untold := silent[p.BrokerID]
		if !untold || s != (recovery.Sighting{}) {
			s.Peer, s.Lease = p.BrokerID, p.LeaseID
			sightings = append(sightings, s)
		}
	}
	if err := r.askAll(ctx, client, term, sightings); err != nil {
		return nil, 0, err
	}
	gone := func(s recovery.Sighting) bool { return s.Lease == 0 }
	return slices.DeleteFunc(sightings, gone), term, nil
}

// askAll asks about these leases, until one has risen: then the others need not be asked
// about. A lease of which there is no answer is unknown, unless there is none of any.
func (r *registrar) askAll(ctx context.Context, client *cluster.Client, term uint64, of []recovery.Sighting) error {
	errs := make([]error, len(of))
	places := make(chan struct{}, asksAtOnce)
	var all sync.WaitGroup
	var risen, answered atomic.Bool
	for i := range of {
		s := &of[i]
		if s.Refused != "" || s.Unread != "" {
			continue
		}
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			if risen.Load() {
				s.Lease = 0
				return
			}
			if errs[i] = askLease(ctx, client, term, r.peersSeen.begun, s); errs[i] != nil {
				return
			}
			answered.Store(true)
			if r.peersSeen.Rose(term, *s) {
				risen.Store(true)
			}
		})
	}
	all.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 && !answered.Load() {
		return errs[i]
	}
	for i := range of {
		of[i].Unknown = of[i].Unknown || errs[i] != nil
	}
	return nil
}

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

// silent says whose life tells nothing of the time since we were last confirmed: a peer that
// registered after our registration went, unless its member record says that it did so while
// we were gone for sure; and one that stood by its registration anew since we look, or since
// we were confirmed, which came back as we do, unless its broker's process is the one from
// before: then only its sidecar was restarted. Two TTLs after that renewal whoever lives has
// lived on. A time in our future is not known. Of one of whom etcd, or a record that cannot be
// read, does not let us know, it says so.
func (r *registrar) silent(ctx context.Context, client *cluster.Client, peers []cluster.Registration, seen cluster.Snapshot, now life) (map[string]recovery.Sighting, error) {
	w := r.peersSeen
	last := now.memory.ConfirmedAt
	if last != 0 && seen.Member != nil {
		last = max(last, seen.Member.ModRevision)
	}
	w.stood = max(w.stood, last)
	early := w.begun.Before(now.memory.Deadline.Add(r.ttl()))
	silent := map[string]recovery.Sighting{}
	var younger, anew []string
	for _, p := range peers {
		after, err := false, error(nil)
		if w.stood != 0 { // else nobody knows, and each counts
			if after, err = r.after(ctx, client, seen.BrokerID, p.CreateRevision); err != nil {
				return nil, err
			}
		}
		switch {
		case p.ModRevision > w.since && after:
		case after:
			younger = append(younger, p.BrokerID)
		case p.ModRevision > w.since, early && last != 0 && p.ModRevision > max(last, p.CreateRevision):
			anew = append(anew, p.BrokerID)
		default:
			continue
		}
		silent[p.BrokerID] = recovery.Sighting{}
	}
	if err := r.unmoved(ctx, client, anew, cmp.Or(last, w.since), silent); err != nil {
		return nil, err
	}
	if now.memory.Deadline.IsZero() || early {
		return silent, nil
	}
	records, err := client.Members(ctx, younger, 0)
	denied := cluster.Denied(err)
	if err != nil && !denied {
		return nil, err
	}
	for _, id := range younger {
		m, there := records[id]
		switch {
		case denied:
			silent[id] = recovery.Sighting{Refused: "etcd does not show when other brokers registered: grant this user read on " + client.Keys().Members()}
		case there && m == nil:
			silent[id] = recovery.Sighting{Unread: "the record of " + id + ", which lives now, cannot be read (" + client.Keys().Member(id) + ")"}
		case m != nil && m.At.After(now.memory.Deadline) && !m.At.After(time.Now()):
			delete(silent, id)
		}
	}
	return silent, nil
}

// unmoved takes those off whose broker's process is the one that was registered at a revision.
// Where etcd does not tell, they stay.
func (r *registrar) unmoved(ctx context.Context, client *cluster.Client, ids []string, revision int64, silent map[string]recovery.Sighting) error {
	then, err := client.Members(ctx, ids, revision)
	var now map[string]*cluster.Member
	if err == nil {
		now, err = client.Members(ctx, ids, 0)
	}
	if err != nil && !cluster.Denied(err) && !errors.Is(err, cluster.ErrCompacted) {
		return err
	}
	for _, id := range ids {
		was, is := then[id], now[id]
		if was != nil && is != nil && was.Instance != "" && was.Instance == is.Instance {
			delete(silent, id)
		}
	}
	return nil
}

// after reports whether a revision is one at which our registration was gone. A past that
// etcd has forgotten was after the last renewal that we know of.
func (r *registrar) after(ctx context.Context, client *cluster.Client, id string, revision int64) (bool, error) {
	w := r.peersSeen
	switch {
	case revision <= w.stood:
		return false, nil
	case w.gone != 0 && revision >= w.gone:
		return true, nil
	}
	there, err := client.RegisteredAt(ctx, id, revision)
	if err != nil && !errors.Is(err, cluster.ErrCompacted) {
		return false, err
	}
	if there {
		w.stood = revision
	} else {
		w.gone = revision
	}
	return !there, nil
}

// What follows is the way back from a planned stop: what the registrar makes of the note in the
// member record.

// noted reports whether the member record holds a note of a planned stop, readable or not.
// Whoever takes the registration up takes it away, before clients come: left there it would
// excuse a crash that is still to come.
func noted(seen cluster.Snapshot) bool { return seen.Member != nil && seen.Member.Left != nil }

func plannedStop(seen cluster.Snapshot, found recovery.DataID) *recovery.PlannedStop {
	if !noted(seen) {
		return nil
	}
	left := seen.Member.Left
	return &recovery.PlannedStop{At: left.At, Data: recovery.DataID(left.Data), Found: found, Crash: left.Crash, Unread: left.Malformed}
}

// returning says how long a note counts from here.
func (r *registrar) returning() recovery.Return {
	back := recovery.Return{Now: time.Now(), Ahead: r.cfg.LeaseTTL, Within: r.cfg.ReturnWithin, Lease: r.ttl()}
	if r.pauseEnds != nil {
		back.Pause = r.pauseEnds()
	}
	return back
}

// recalled holds a process back that is to be stopped by the note of a sidecar before this one,
// which did not live to remember it.
func (r *registrar) recalled(ctx context.Context, seen cluster.Snapshot, now life) error {
	if !now.recalls || !noted(seen) || r.holder(seen, now.memory) == recovery.Another {
		return nil
	}
	note := seen.Member.Left
	left := leftProcess{Instance: note.Instance, At: note.At}
	if note.Malformed != "" || !note.Stop || note.Epoch != now.memory.Epoch || left.Instance != now.instance || left.rest(r.cfg) <= 0 {
		return nil
	}
	if r.recall != nil {
		r.recall(ctx, left)
	}
	return fmt.Errorf("%w: %s", lease.ErrDeferred, left.waits(r.cfg))
}

// leaves holds a take-up back while the departure of that very process is being noted, and
// after it: it would take the note away, and who is stopped then would not be excused. What
// is asked here was set before the note was begun, and etcd was looked at before that is
// asked: a take-up that saw no note is refused by the guard of the member record.
func (r *registrar) leaves(out outcome) error {
	if out.decision.Step == recovery.Conflict || !r.life().leaves {
		return nil
	}
	return fmt.Errorf("%w: the broker leaves on purpose", lease.ErrDeferred)
}
