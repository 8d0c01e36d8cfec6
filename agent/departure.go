package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
)

// This file is the note of a planned stop: who may leave one, and how it is written. It is
// written after the broker is proven to serve nothing and before its lease is revoked, and
// says that nobody needs to look at this broker when it comes back.

// departure is a registration that is about to be given up on purpose.
type departure struct {
	who         cluster.Who
	grant       lease.Grant
	instance    string // broker process
	data        recovery.DataID
	incarnation string
	stop, crash bool      // see cluster.Left
	at          time.Time // zero: now
}

// stopAsked is called at the moment at which an orderly stop is asked for. A broker that has
// ended by then has ended by itself.
func (a *agent) stopAsked() {
	a.upAtStop.Store(a.health.Snapshot().At(time.Now()) == probes.Up && !a.brokerGone())
}

// errNothingToLeave is why a broker leaves no note that could not come back by one.
var errNothingToLeave = errors.New("no planned stop is noted")

// mayLeave says why a planned stop of the broker may not be noted; nil: it may. Something
// else than the stop keeps such a broker from serving, or may have had it declared dead, and
// that has to be looked at when it comes back. The caller has asked that nothing is served.
func (a *agent) mayLeave() error {
	why := ""
	who, _ := a.identity.get()
	switch v := a.keeper.View(); {
	case a.shadow != nil:
		why = "a shadow registers nothing"
	case a.presence != nil:
		why = "with --registration none there is no registration to give up"
	case a.conflict != "":
		why = a.conflict
	case a.mode.Mode == "":
		why = "what becomes of the broker is not decided yet (the note of an earlier planned stop stands until then)"
	case a.mode.Mode != recovery.Active:
		why = fmt.Sprintf("the broker is %s (%s)", a.mode.Mode, a.mode.Reason)
	case a.grant.LeaseID == 0 || v.Grant.LeaseID != a.grant.LeaseID || !v.Validity.HeldAt(a.clock()):
		why = "its registration is not surely held"
	case a.fellOut():
		why = "it is detached from the cluster"
	case who.Instance != a.memory.Instance:
		why = "the decision about the process that answers is to come"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", errNothingToLeave, why)
}

// fellOut reports whether it is detached after it was attached. Who was registered a moment ago, and
// waits for that or for its guard, has lost nothing.
func (a *agent) fellOut() bool { return a.attachment == recovery.Detached && a.everAttached }

func (a *agent) departure() departure {
	return departure{who: cluster.Who{Name: a.brokerID, Registered: a.ids.registered.now()}, grant: a.grant,
		instance: a.memory.Instance, data: a.memory.Data, incarnation: a.memory.Incarnation, stop: a.leaving.toEnd() && !a.leaving.briefly}
}

// noteTimeout bounds the writing of a note, and by that the age of what was proven before it.
const noteTimeout = 2 * time.Second

// noteSoon notes the departure of a broker that was just proven to serve nothing.
func (a *agent) noteSoon(ctx context.Context, d departure) error {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	return a.note(ctx, d)
}

// noteLeft notes the departure, on what etcd holds at that moment. ErrChanged is not
// returned: what changed decides, and is named.
func noteLeft(ctx context.Context, client *cluster.Client, d departure) (err error) {
	for range tries {
		var seen cluster.Snapshot
		if seen, err = client.SnapshotOf(ctx, d.who); err != nil {
			return err
		}
		if err := d.stands(seen); err != nil {
			return err
		}
		at := d.at
		if at.IsZero() {
			at = time.Now()
		}
		_, err = client.Leave(ctx, cluster.LeaveRequest{Seen: seen, Epoch: d.grant.Epoch, LeaseID: d.grant.LeaseID,
			Left: cluster.Left{At: at, Epoch: d.grant.Epoch, Instance: d.instance, Data: string(d.data), Revision: seen.Revision, Stop: d.stop, Crash: d.crash}})
		if !errors.Is(err, cluster.ErrChanged) {
			return err
		}
	}
	return err
}

// stands says what keeps the broker from leaving, of what is in etcd; nil: nothing.
func (d departure) stands(seen cluster.Snapshot) error {
	why := ""
	switch reg, state, m := seen.Registration, seen.State, seen.Member; {
	case reg == nil || reg.CreateRevision != d.grant.Epoch || reg.LeaseID != d.grant.LeaseID:
		why = "the registration is not the one that this sidecar holds"
	case state == nil:
		why = "its mode cannot be read"
	case state.Mode != cluster.ModeActive:
		why = fmt.Sprintf("it is %s (%s) by now", state.Mode, state.Reason)
	case seen.MemberMalformed != "":
		why = "its member record cannot be read: " + seen.MemberMalformed
	case m == nil || m.Incarnation != d.incarnation:
		why = "its member record is not ours"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", errNothingToLeave, why)
}

// What follows carries 'holdfast leave' over a restart of the sidecar: whoever asked for it is
// about to stop that process of the broker, and knows nothing of sidecars that end meanwhile.

// leftProcess is a process of the broker that has left and is to be stopped.
type leftProcess struct {
	Instance string    `json:"instance"`
	At       time.Time `json:"at"`
}

// rest is for how long its end is still waited for; not positive: it is not. A clock that was
// set meanwhile makes that no longer than --leave-timeout.
func (l leftProcess) rest(c config.Config) time.Duration {
	return c.LeaveTimeout - max(0, time.Since(l.At))
}

// waits says what becomes of it while its end is waited for.
func (l leftProcess) waits(c config.Config) string {
	return fmt.Sprintf("this process of the broker has left on purpose: it is registered again if it still runs in %s; "+
		"at once when it is another process, or by 'holdfast activate'", l.rest(c).Round(time.Second))
}

func (a *agent) rememberLeft(instance string) {
	left := &leftProcess{Instance: instance, At: time.Now()}
	a.remember(func(m *memory) { m.Left = left })
}

// recallLeft has the process that left under the sidecar before this one stay away for the
// rest of its time.
func (a *agent) recallLeft() {
	left := a.memory.Left
	if left == nil {
		return
	}
	a.leftFound = true
	rest := left.rest(a.cfg)
	if rest <= 0 {
		a.remember(func(m *memory) { m.Left = nil })
		return
	}
	a.leaving = leaving{phase: hasLeft, instance: left.Instance, until: a.clock().Add(rest)}
	a.log.Info("the broker has left on purpose: its process is registered again only if it stays", "for", rest.Round(time.Second))
}

// recallNoted is recallLeft for a sidecar that was killed after it had noted the departure in etcd
// and before it could remember that. The lease, if it still lives, runs out by itself.
func (a *agent) recallNoted(left leftProcess) {
	if a.leftFound || a.leaving.phase != notLeaving || a.mode.Mode != "" {
		return
	}
	a.remember(func(m *memory) { m.Left = &left })
	a.recallLeft()
}

// goesAway reports whether the process that is fenced has left and is to be stopped by
// somebody else, who has a while for it. It closes its admin API before it ends, and may take
// leave of its clients for minutes.
func (a *agent) goesAway() bool {
	l := &a.leaving
	return l.noted() && a.fencing.instance == l.instance && a.clock() < l.until
}

// carryProof has the ladder begin at what was proven before the registration was given up:
// whoever stops the broker now may be faster than another proof. A ladder without that step
// stops the broker itself.
func (a *agent) carryProof() {
	l := &a.leaving
	if who, _ := a.identity.get(); a.detachedBy == recovery.WhyLeft && l.provenAt != 0 && a.fences(recovery.StepQuiesce) && who.Instance == l.instance {
		a.fencing.instance, a.fencing.ladder = l.instance, recovery.ProvenIdle(time.Duration(l.provenAt))
	}
}

// endsUnseen reports whether a process that has left does not say any more what it serves,
// so that the looks at it do not move the guard's moment.
func (a *agent) endsUnseen() bool {
	return a.goesAway() && a.clock().Sub(lease.Instant(a.fencing.ladder.ProvenAt())) > (recovery.ProofLooks-1)*a.lookEvery()
}

// hasLeftBehind reports whether the process that answers is one that has left: nothing may
// be served by it.
func (a *agent) hasLeftBehind() bool {
	if a.leaving.phase != hasLeft {
		return false
	}
	who, _ := a.identity.get()
	return who.Instance == a.leaving.instance
}

// awaitDecided waits a moment for the mode of a broker that was just taken back by a sidecar
// that has decided none yet.
func (a *agent) awaitDecided(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, activateWait)
	defer cancel()
	for s := a.view.Load(); ctx.Err() == nil && s.brokerID != "" && s.mode.Mode == ""; s = a.view.Load() {
		probes.Sleep(ctx, 20*time.Millisecond)
	}
}
