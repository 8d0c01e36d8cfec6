package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/agent/lease"
	"holdfast/cluster"
)

// Some brokers that register themselves keep all of their keys under one lease, and put and
// delete a key only if it is as they left it. To bind such a key to another lease would
// break what they do next, and separate it from the others. So the lease itself is adopted:
// it is renewed by us too, and every key of the broker lives exactly as long as the
// registration does. What was lost is written again under the same lease: registrar_session.go.

// joins reports whether the lease of the broker's own registration is joined.
func (r *registrar) joins() bool { return r.cfg.layout() != nil }

// leastShare is how much of --lease-ttl the broker's lease must last, in percent: the
// margins are made for that time.
const leastShare = 75

// join renews the lease that the registration is under, whoever granted it.
func (r *registrar) join(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, held int64, now life, out *outcome) error {
	reg := *seen.Registration
	sent := r.clock()
	renewal, err := client.KeepAlive(ctx, reg.LeaseID)
	switch {
	case errors.Is(err, cluster.ErrLeaseNotFound):
		return stillThere(reg.LeaseID, err)
	case err != nil:
		return err
	case renewal.Granted < r.cfg.LeaseTTL*leastShare/100:
		return fmt.Errorf("the broker's session lasts %v, too short for --lease-ttl %v: set --lease-ttl to %v, or give the broker a longer session (Pulsar: metadataStoreSessionTimeoutMillis)",
			renewal.Granted, r.cfg.LeaseTTL, renewal.Granted)
	}
	taken := reg.LeaseID != held || seen.Member == nil || seen.Member.ModRevision < reg.CreateRevision || noted(seen)
	if taken || outlivedCut(seen, now) {
		stand := r.standing(seen, now, out)
		joined, err := client.Join(ctx, reg, stand)
		if err != nil {
			return err
		}
		if stand.State != nil {
			out.stateRevision = joined
		}
		if taken {
			out.repaired = underItsOwn
		}
	} else if out.decision.Write {
		out.stateRevision, err = client.PutState(ctx, r.brokerID, *stateWrite(out.decision.Mode), seen.StateRevision)
		if err != nil {
			return err
		}
	}
	r.session = renewal.Granted
	grant := renewed(reg.LeaseID, sent, renewal)
	grant.Adopted, grant.Epoch, grant.ID = true, reg.CreateRevision, reg.BrokerID
	grant.Revision = max(grant.Revision, seen.Revision, reg.ModRevision)
	out.grant = grant
	out.joined, out.value, out.seenAt = true, reg.Value, max(seen.Revision, reg.ModRevision)
	return nil
}

// givenUp is a registration that its broker has deleted, of that epoch, while its session lived.
type givenUp struct {
	epoch int64
	at    time.Time // when that was seen first
}

// giveUpTime is the least that such a broker has to go, or to register under its next session.
// Pulsar 4.0.7 deletes its registration first when it is stopped, closes its port 0.12 s later and
// ends after 3 to 7 s; for another session it puts each key again 0.1 s after it was deleted.
const giveUpTime = 2 * time.Second

// noteGivenUp finds out whether a broker whose storage fences it has deleted its registration while
// its session lives: then nobody declared it dead.
func (r *registrar) noteGivenUp(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now life) error {
	m := now.memory
	if seen.Registration != nil || r.foretells || !r.cfg.fencesItself() || !m.Joined || m.LeaseID == 0 ||
		m.Instance != now.instance || r.givenUp.epoch == m.Epoch || r.regranted == m.LeaseID {
		return nil
	}
	lives, err := sessionLives(ctx, client, seen.BrokerID, m.LeaseID)
	if err != nil && !cluster.Denied(err) {
		return err
	}
	if err == nil && !lives {
		return nil // the key went with its session
	}
	r.givenUp = givenUp{m.Epoch, time.Now()}
	if err == nil && r.goes != nil {
		r.goes(ctx, m.Epoch, seen.Revision)
	}
	return nil
}

// noteTakenOver finds out whether the registration was put anew while the session that it was under
// lives: by a process that is back at once and has taken it over, or by the same one, under its next
// session or since the key was not as it expected. Nobody declared that broker dead.
func (r *registrar) noteTakenOver(ctx context.Context, client *cluster.Client, seen cluster.Snapshot, now life) error {
	m, reg := now.memory, seen.Registration
	if r.takenOver = false; reg == nil || !r.cfg.fencesItself() || !m.Joined || m.LeaseID == 0 || reg.CreateRevision == m.Epoch ||
		m.LeaseID == reg.LeaseID && m.Instance != now.instance || noted(seen) {
		return nil
	}
	lives, err := sessionLives(ctx, client, seen.BrokerID, m.LeaseID)
	if err != nil && !cluster.Denied(err) {
		return err
	}
	r.takenOver = err == nil && lives
	return nil
}

// sessionLives reports whether a lease is there. A leader that was deposed and does not know it
// still has what ended since: a read that is sent afterwards tells (DESIGN, safety rule 11).
func sessionLives(ctx context.Context, client *cluster.Client, id string, leaseID int64) (bool, error) {
	left, err := client.LeaseLeft(ctx, leaseID)
	if err != nil {
		return false, err
	}
	_, term, err := client.Registered(ctx, id)
	if err != nil {
		return false, err
	}
	return left.Found, lease.SameTerm(left.Term, term)
}

// letGo holds back a registration that its broker has deleted so. It is going, or it comes back
// under another session; what is written now would send clients to a broker that ends. One that
// is still there afterwards is registered again.
func (r *registrar) letGo(now life) error {
	wait := max(giveUpTime, r.ttl()/8)
	if r.givenUp.epoch != now.memory.Epoch || now.memory.Instance != now.instance {
		return nil
	}
	if left := wait - time.Since(r.givenUp.at); left > 0 {
		r.askLater(left)
		return fmt.Errorf("%w: the broker has deleted its registration, as one that ends or begins another session does: it is registered again at %s if it is still there",
			lease.ErrDeferred, r.givenUp.at.Add(wait).UTC().Format(time.RFC3339))
	}
	return nil
}
