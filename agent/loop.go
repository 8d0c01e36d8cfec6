package agent

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"holdfast/agent/lease"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
)

// loopEvery is the longest pause between two runs of the loop.
const loopEvery = time.Second

// progressEvery is the pause between two lines about a long load.
const progressEvery = 2 * time.Second

// loopState is owned by the loop. Everybody else reads the snapshot.
type loopState struct {
	brokerID string
	memory   memory
	value    []byte // registration: what to write, or what the broker wrote
	mode     recovery.ModeRecord
	modeRev  int64 // store revision up to which the mode is known
	boot     BootStatus
	grant    lease.Grant

	attachment   recovery.Attachment
	everAttached bool
	healthySince lease.Instant // renewals have been confirmed since
	verified     bool          // etcd showed the registration to be ours since the detachment
	askedVerify  bool
	askedBoot    string // broker process for which the startup decision was asked
	losses       int
	conflict     string
	gate         bool

	reassert    bool // the state key must be written again
	guard       int64
	reasserting bool

	ready, everReady bool
	verdict          probes.Verdict
	guardTripped     bool
	gateOpenedBy     string
	progress         time.Time // when the progress of a long load was last told
	saving           chan struct{}
}

func (a *agent) initLoop() {
	a.value = nil
	if a.cfg.Registration == "own" {
		// Encoding strings cannot fail.
		a.value, _ = registrationValue(a.cfg, a.memory.Incarnation, a.version)
	}
	a.boot = BootStatus{Kind: "unknown", Evidence: []string{}}
	a.incarnation = a.memory.Incarnation
	a.saving = make(chan struct{}, 1)
	a.publish()
}

// loop is the sidecar's one decider. It reads what the parts know, decides, and
// tells them; it does no I/O.
func (a *agent) loop(ctx context.Context) error {
	a.tasks.Go(a.saver)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var processChanges <-chan struct{}
	if a.process != nil {
		processChanges = a.process.Changes()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-a.inbox:
			f()
		case <-a.keeper.Changes():
		case <-a.health.Changes():
		case <-a.dataDir.Changes():
		case <-a.reconciler.Changes():
		case <-processChanges:
		case <-timer.C:
		}
		a.freshness.Touch(time.Now())
		if err := a.step(); err != nil {
			return err
		}
		timer.Reset(a.untilNext())
	}
}

// untilNext is the time to the next moment at which something changes by itself.
func (a *agent) untilNext() time.Duration {
	next := loopEvery
	v := a.keeper.View()
	now := a.clock()
	if d := v.Validity.FencePoint().Sub(now); v.Validity.Known() && d > 0 {
		next = min(next, d)
	}
	if a.attachment == recovery.Detached {
		if d := a.healthySince.Add(a.cfg.DetachmentRecoverWindow).Sub(now); d > 0 {
			next = min(next, d)
		}
	}
	return next
}

// step takes stock and acts on what changed. Detachment comes first.
func (a *agent) step() error {
	who, id := a.identity.get()
	health := a.health.Snapshot()
	verdict := health.At(time.Now())
	if err := a.identity.fatal(); err != nil && a.brokerID == "" {
		return &ExitError{ExitUsage, err}
	}
	a.attach(verdict)
	a.noteHealth(verdict, health.LastError, who)
	a.name(id, verdict)
	if a.cfg.DataDir == "" && who.DataDir != "" {
		a.dataDir.SetPath(who.DataDir)
	}
	a.publishLife(who) // before the gate opens: the registrar decides by it
	a.remindRegistrar(who)
	a.setGate(verdict)
	a.order(verdict, who)
	a.assertMode()
	a.noteTopics()
	a.noteReadiness()
	a.publish()
	return nil
}

// attach moves the attachment, and fences when it was lost.
func (a *agent) attach(verdict probes.Verdict) {
	v, now := a.keeper.View(), a.clock()
	if v.Losses > a.losses {
		a.losses = v.Losses
		a.metrics.lost(v.LostCause)
		a.event(Event{Kind: "registration", From: "held", To: "lost", Reason: v.LostCause, Epoch: a.grant.Epoch})
		a.grant = lease.Grant{}
	}
	contested := v.Phase == lease.Contested
	if contested != (a.conflict != "") {
		a.conflict = ""
		if contested {
			a.conflict = v.LastError
			a.log.Error("identity conflict", "err", v.LastError)
			a.event(Event{Kind: "registration", To: "contested", Reason: "identity_conflict", Detail: v.LastError})
		}
	}
	held := v.Validity.Known() && a.grant.LeaseID != 0
	failing := v.FailureStreak > 0
	if !held || failing || v.Phase == lease.Paused || contested {
		a.healthySince = now
	}
	next, why := recovery.NextAttachment(a.attachment, recovery.AttachFacts{
		Now: time.Duration(now), Held: held, FencePoint: time.Duration(v.Validity.FencePoint()),
		Failing: failing, Paused: v.Phase == lease.Paused, Contested: contested, Enabled: a.cfg.Detach,
		EverAttached: a.everAttached, HealthySince: time.Duration(a.healthySince),
		RecoverWindow: a.cfg.DetachmentRecoverWindow, Verified: a.verified,
	})
	if next == a.attachment {
		return
	}
	from := a.attachment
	a.attachment = next
	a.everAttached = a.everAttached || next == recovery.Attached
	level := a.log.Info
	if next != recovery.Attached {
		level = a.log.Warn
	}
	level("attachment", "from", from.String(), "to", next.String(), "reason", string(why), "epoch", a.grant.Epoch)
	a.event(Event{Kind: "attachment", From: from.String(), To: next.String(), Reason: string(why), Epoch: a.grant.Epoch, Detail: v.LastError})
	if next == recovery.Detached {
		a.verified, a.askedVerify = false, false
		a.metrics.detachments.WithLabelValues(string(why)).Inc()
		a.publish() // readiness is off from here on
		a.fence(v, verdict)
	}
}

func (a *agent) fences(step string) bool {
	for _, s := range a.cfg.Fence {
		if s == step {
			return true
		}
	}
	return false
}

// fence is the ladder after a detachment: readiness is off already; then nothing
// may be served any more. It ends before the deadline if there is one to come.
func (a *agent) fence(v lease.View, verdict probes.Verdict) {
	a.reconciler.SetOrders(recovery.Orders{})
	if !a.fences("quiesce") || verdict == probes.Down {
		return
	}
	left := v.Validity.Deadline().Sub(a.clock())
	if !v.Validity.Known() || left <= 0 {
		left = 5 * time.Second
	}
	epoch := a.grant.Epoch
	a.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(a.life0, left)
		defer cancel()
		start := time.Now()
		n, err := a.reconciler.Fence(ctx)
		took := time.Since(start)
		a.metrics.fenceDuration.WithLabelValues("quiesce").Observe(took.Seconds())
		e := Event{Kind: "fence", To: "quiesced", Epoch: epoch,
			Detail: fmt.Sprintf("%s quiesced in %s", plural(n, "topic"), took.Round(time.Millisecond))}
		if err != nil {
			a.metrics.fenceFailures.WithLabelValues("quiesce").Inc()
			a.log.Error("fence step failed", "step", "quiesce", "quiesced", n, "err", err)
			e.To, e.Reason, e.Detail = "failed", "quiesce", err.Error()
		} else {
			a.log.Info("fenced", "step", "quiesce", "topics", n, "took", took.Round(time.Millisecond))
		}
		a.event(e)
	})
}

func (a *agent) noteHealth(verdict probes.Verdict, lastErr string, who brokerapi.Identity) {
	if verdict == a.verdict {
		return
	}
	a.event(Event{Kind: "broker", From: a.verdict.String(), To: verdict.String(), Epoch: a.grant.Epoch, Detail: lastErr})
	a.verdict = verdict
}

// name fixes the broker's id, once. What depends on it starts then.
func (a *agent) name(id string, verdict probes.Verdict) {
	if a.brokerID != "" || id == "" || verdict != probes.Up {
		return
	}
	a.brokerID, a.registrar.brokerID = id, id
	close(a.named)
	a.log.Info("broker found", "broker_id", id)
}

// remindRegistrar asks etcd again where the answer may be another by now: another
// broker process answers, or we were detached and renewals are confirmed again.
func (a *agent) remindRegistrar(who brokerapi.Identity) {
	v := a.keeper.View()
	if v.Phase != lease.Holding {
		return
	}
	if who.Instance != "" && who.Instance != a.memory.Instance && a.askedBoot != who.Instance && a.verdict == probes.Up {
		a.askedBoot = who.Instance
		a.keeper.Reestablish()
	}
	if a.attachment == recovery.Detached && a.everAttached && !a.verified && !a.askedVerify && v.FailureStreak == 0 {
		a.askedVerify = true
		a.keeper.Reestablish()
	}
}

// setGate ties the renewal to the broker's life. An unknown verdict changes nothing.
func (a *agent) setGate(verdict probes.Verdict) {
	switch verdict {
	case probes.Up:
		a.gate = a.brokerID != "" && (a.dataDir.Path() == "" || a.dataDir.Snapshot().State != probes.DirUnknown)
	case probes.Down:
		a.gate = false
	}
	a.keeper.SetGate(a.gate)
}

// order tells the reconciler what it may do.
func (a *agent) order(verdict probes.Verdict, who brokerapi.Identity) {
	a.reconciler.SetOrders(recovery.Orders{
		Epoch: a.grant.Epoch, Mode: a.mode.Mode, Instance: a.memory.Instance,
		Attached: a.attachment != recovery.Detached && a.mode.Mode.Known() && verdict != probes.Down &&
			who.Instance == a.memory.Instance,
	})
}

// deliver has the loop take up what the registrar found, and waits until it did.
func (a *agent) deliver(ctx context.Context, o outcome) error {
	done := make(chan struct{})
	f := func() { a.takeUp(o); close(done) }
	select {
	case a.inbox <- f:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tell queues work for the loop.
func (a *agent) tell(ctx context.Context, f func()) {
	select {
	case a.inbox <- f:
	case <-ctx.Done():
	}
}

// takeUp makes an outcome ours. A loss that led to it is dealt with first, so that
// it fences even if the new registration stands already.
func (a *agent) takeUp(o outcome) {
	a.attach(a.verdict)
	d := o.decision
	if o.boot != "" {
		a.boot = BootStatus{Kind: string(o.boot), Reason: string(d.Mode.Reason), Evidence: o.evidence}
		a.metrics.boots.WithLabelValues(string(o.boot), a.metrics.bootReason(d.Mode.Reason)).Inc()
		a.log.Info("broker boot", "kind", string(o.boot), "mode", string(d.Mode.Mode), "reason", string(d.Mode.Reason), "detail", d.Detail)
		a.event(Event{Kind: "boot", To: string(o.boot), Reason: string(d.Mode.Reason), Epoch: o.grant.Epoch, Detail: d.Detail})
	}
	if o.grant.Epoch != a.memory.Epoch || o.grant.LeaseID != a.grant.LeaseID {
		to := "held"
		if d.Step == recovery.Register {
			to = "registered"
		}
		a.log.Info("registration", "to", to, "lease", strconv.FormatInt(o.grant.LeaseID, 16), "ttl", o.grant.TTL, "epoch", o.grant.Epoch, "detail", d.Detail)
		a.event(Event{Kind: "registration", To: to, Epoch: o.grant.Epoch, Detail: d.Detail})
	}
	if o.repaired != "" {
		if o.grant.Adopted {
			a.metrics.adoptions.Inc()
		}
		a.log.Warn("registration repaired", "was", o.repaired, "epoch", o.grant.Epoch)
		a.event(Event{Kind: "registration", From: o.repaired, To: "repaired", Epoch: o.grant.Epoch})
	}
	a.grant, a.value, a.verified = o.grant, o.value, true
	a.setMode(d.Mode, o.stateRevision, d.Detail)
	a.remember(func(m *memory) {
		m.BrokerID, m.FirstBootDone, m.Distrust = a.brokerID, true, ""
		m.Instance, m.LeaseID, m.Epoch = o.instance, o.grant.LeaseID, o.grant.Epoch
		m.Revision, m.ConfirmedAt = max(o.grant.Revision, o.stateRevision), o.grant.Revision
	})
}

// setMode takes up a mode that stands in etcd at that revision.
func (a *agent) setMode(m recovery.ModeRecord, revision int64, detail string) {
	a.modeRev = max(a.modeRev, revision)
	a.reassert = false
	if m == a.mode {
		return
	}
	from := a.mode
	a.mode = m
	a.log.Info("mode", "from", string(from.Mode), "to", string(m.Mode), "reason", string(m.Reason), "by", m.By, "epoch", a.grant.Epoch)
	a.event(Event{Kind: "mode", From: string(from.Mode), To: string(m.Mode), Reason: string(m.Reason), Epoch: a.grant.Epoch, Detail: detail})
	if m.Mode == recovery.Drained && m.By == recovery.ByHoldfast {
		a.log.Warn("the broker is drained and waits for a person: find out why, then 'holdfast activate'", "reason", string(m.Reason))
	}
	a.remember(func(k *memory) { k.Mode, k.Reason, k.By = string(m.Mode), string(m.Reason), m.By })
}

// stateSeen takes up what the watch saw of the state key. guard is the mod revision
// to write against, 0 if the key is absent.
func (a *agent) stateSeen(seen *recovery.ModeRecord, garbled string, revision, guard int64) {
	if a.mode.Mode == "" || revision <= a.modeRev {
		return // the startup decision is to come, or we know better already
	}
	switch ruling, m := recovery.JudgeState(a.mode, seen); ruling {
	case recovery.Unchanged:
		a.modeRev, a.reassert = revision, false
	case recovery.Accept:
		detail := "changed in etcd"
		if m.By == recovery.ByHoldfast {
			detail = "" // our own write, seen by the watch before the registrar told of it
		}
		a.setMode(m, revision, detail)
	case recovery.Reassert:
		what := "deleted"
		switch {
		case garbled != "":
			what = garbled
		case seen != nil:
			what = fmt.Sprintf("%s (%s) by %q", seen.Mode, seen.Reason, seen.By)
		}
		a.modeRev, a.guard, a.reassert = revision, guard, true
		a.log.Warn("state key is not ours to lose: writing it again", "was", what, "mode", string(a.mode.Mode))
		a.event(Event{Kind: "mode", From: what, To: string(a.mode.Mode), Reason: "reasserted", Epoch: a.grant.Epoch})
	}
}

// assertMode writes the mode again if it must be, unless we may have been declared
// dead: then the registrar decides first.
func (a *agent) assertMode() {
	v := a.keeper.View()
	if !a.reassert || a.reasserting || a.attachment == recovery.Detached || v.Phase != lease.Holding || v.FailureStreak > 0 {
		return
	}
	a.reasserting = true
	m, guard := a.mode, a.guard
	a.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(a.life0, 5*time.Second)
		defer cancel()
		rev, err := a.main.PutState(ctx, a.brokerID, *stateWrite(m), guard)
		a.tell(a.life0, func() {
			a.reasserting = false
			switch {
			case err == nil:
				a.modeRev, a.reassert = max(a.modeRev, rev), false
			case errors.Is(err, cluster.ErrChanged):
				a.reassert = false // the watch brings what changed
			default:
				a.log.Warn("state key not written, trying again", "err", err)
			}
		})
	})
}

// registrationSeen takes up what the watch saw of the registration; kv nil: gone.
func (a *agent) registrationSeen(kv *cluster.KV, revision int64) {
	a.metrics.present.Store(kv != nil)
	if kv == nil {
		if a.conflict != "" || a.grant.LeaseID != 0 && revision > a.grant.Revision {
			a.keeper.Reestablish()
		}
		return
	}
	if a.cfg.Registration == "adopt" {
		a.value = kv.Value
		if revision > a.grant.Revision || kv.Lease != a.grant.LeaseID {
			a.keeper.Reestablish()
		}
		return
	}
	v, err := cluster.Registration{BrokerID: a.brokerID, Value: kv.Value}.Parse()
	ours := err == nil && v.Incarnation == a.memory.Incarnation
	if a.grant.LeaseID == 0 || revision <= a.grant.Revision {
		return
	}
	if ours {
		a.value = kv.Value // somebody changed what is advertised: it stays
	}
	if !ours || kv.Lease != a.grant.LeaseID {
		a.keeper.Reestablish()
	}
}

func (a *agent) noteTopics() {
	p := a.reconciler.Snapshot()
	a.noteProgress(p, time.Now())
	if p.GuardTripped != a.guardTripped {
		a.guardTripped = p.GuardTripped
		e := Event{Kind: "topics", To: "guard_tripped", Reason: "mass_change", Epoch: a.grant.Epoch, Detail: p.GuardDetail}
		if !p.GuardTripped {
			e = Event{Kind: "topics", From: "guard_tripped", To: "guard_cleared", Epoch: a.grant.Epoch}
		}
		a.event(e)
	}
	if p.GateOpenedBy != a.gateOpenedBy {
		a.gateOpenedBy = p.GateOpenedBy
		if p.GateOpenedBy != "" {
			a.event(Event{Kind: "topics", To: "reconciled", Reason: p.GateOpenedBy, Epoch: a.grant.Epoch,
				Detail: fmt.Sprintf("%d of %s served", p.Served, plural(p.Assigned, "assigned topic"))})
		}
	}
}

// noteProgress tells how far a long load is, so that whoever starts a broker with
// many topics sees it move.
func (a *agent) noteProgress(p recovery.Progress, now time.Time) {
	switch {
	case p.Reconciled || p.Missing == 0 || !p.ServedKnown:
		a.progress = time.Time{}
	case a.progress.IsZero():
		a.progress = now // a short load says nothing
	case now.Sub(a.progress) >= progressEvery:
		a.progress = now
		a.log.Info("loading topics", "served", p.Served, "of", p.Assigned, "failed", p.Failed)
	}
}

func (a *agent) noteReadiness() {
	a.publish()
	causes := a.notReady()
	ready := len(causes) == 0
	a.everReady = a.everReady || ready
	if ready == a.ready {
		return
	}
	a.ready = ready
	e := Event{Kind: "readiness", From: "ready", To: "not_ready", Epoch: a.grant.Epoch}
	if ready {
		e.From, e.To = e.To, e.From
		a.log.Info("ready: clients may come", "epoch", a.grant.Epoch)
	} else {
		e.Reason, e.Detail = causes[0].Name, causes[0].Message
		a.log.Warn("not ready: clients are kept away", "cause", causes[0].Name, "detail", causes[0].Message)
	}
	a.event(e)
}

// publish makes what the loop knows visible to everybody else.
func (a *agent) publish() {
	a.view.Store(&snapshot{brokerID: a.brokerID, attachment: a.attachment, mode: a.mode,
		boot: a.boot, everReady: a.everReady, conflict: a.conflict})
}

func (a *agent) publishLife(who brokerapi.Identity) {
	started := who.StartedAt
	if started.IsZero() && a.process != nil {
		started = a.process.StartedAt()
	}
	dir := a.dataDir.Snapshot()
	boot := recovery.BootFacts{BrokerStartedAt: started, OldestMarker: dir.OldestMarker, MarkerPath: dir.OldestPath}
	if dir.State == probes.DirUnreadable {
		boot.DirError = dir.Error
	}
	a.life.Store(&life{memory: a.memory, mode: a.mode, instance: who.Instance, boot: boot, value: a.value})
}

func (a *agent) event(e Event) { a.journal.add(e) }

// remember changes what the next life of this sidecar will know. It is written by
// the saver; the loop never waits for a disk.
func (a *agent) remember(change func(*memory)) {
	a.saveMu.Lock()
	change(&a.memory)
	a.unsaved = a.memory
	a.saveMu.Unlock()
	select {
	case a.saving <- struct{}{}:
	default:
	}
}

// saveAgain is the pause after which a save that failed is tried again.
const saveAgain = 5 * time.Second

// saver writes the memory whenever it changed, the last time at the very end.
func (a *agent) saver() {
	failed := false
	again := time.NewTimer(saveAgain)
	again.Stop()
	defer again.Stop()
	save := func() {
		a.saveMu.Lock()
		m := a.unsaved
		a.saveMu.Unlock()
		if m.Format == 0 {
			return
		}
		err := a.dir.save(m)
		if err != nil {
			again.Reset(saveAgain)
		}
		if (err != nil) != failed {
			failed = err != nil
			if failed {
				a.log.Error("state not saved: a restart of this sidecar would know less", "err", err)
				a.event(Event{Kind: "agent", To: "state_unsaved", Detail: err.Error()})
			} else {
				a.log.Info("state saved again")
			}
		}
	}
	for {
		select {
		case <-a.life0.Done():
			save()
			return
		case <-a.saving:
			save()
		case <-again.C:
			save()
		}
	}
}
