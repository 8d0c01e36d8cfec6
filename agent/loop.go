package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/note"
	"holdfast/agent/process"
	"holdfast/agent/registration"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// loopEvery is the longest pause between two runs of the loop.
const loopEvery = time.Second

// loopState is owned by the loop. Everybody else reads the snapshot.
type loopState struct {
	brokerID string // its stable name
	memory   memory
	value    []byte // registration: what to write, or what the broker wrote
	valueOf  string // the id that the broker wrote it under; with byInstance
	mode     recovery.ModeRecord
	modeRev  int64 // store revision up to which the mode is known
	boot     control.BootStatus
	decided  *control.DecisionStatus // that the mode comes from; nil: others set it. Immutable
	grant    lease.Grant

	attachment   recovery.Attachment
	everAttached bool
	healthySince lease.Instant // renewals have been confirmed since
	unwell       bool          // they were not at the last run
	verified     bool          // etcd showed the registration to be ours since the detachment
	askedVerify  bool
	askedBoot    string // broker process for which the startup decision was asked
	losses       int
	conflict     string
	gate         bool   // the lease is renewed
	rests        string // why it is not; empty: it is
	detachedBy   recovery.Why
	cutFrom      time.Time // see registration.Life
	cutOver      int64     // see registration.Life
	unsure       int       // see registration.Life
	unread       string    // see registration.Outcome
	suspect      bool      // the drain is a suspicion, which may be lifted by itself
	fencing      fencing
	upBreaks     int64          // breaks counted when the broker was last up
	lastBreaks   int64          // and at the last run
	brokeAt      time.Time      // when that one had changed
	served       process.Target // the broker's process when it was last up; zero: not watched
	unjudged     process.Target // one that was up since and is not judged yet; zero: none
	keyAt        int64          // store revision at which the registration was seen or written
	succeeding   lease.Instant  // since when another process answers than was decided about; 0: none does
	seenKey      *keySeen       // the registration as the watch last showed it; nil: not yet
	early        func()         // the state key as the watch saw it before the first decision
	tookUp       bool           // the Registrar's word was taken up in this run
	heldBack     []func()       // wait for that
	armed        lease.Validity // what the guard was armed with last
	restsUntil   lease.Instant  // to where a proof has put its moment off since; 0: none has
	guarding     guarding
	answered     string // the broker's process that answered last
	illness      illness
	healthTold   healthTold

	reassert    bool // the state key must be written again
	stateGuard  int64
	reasserting bool
	assertFrom  lease.Instant // the next write of it may begin then

	session     session
	departing   recovery.Departure
	leavers     []chan<- error     // who waits for the broker to leave
	leaveWithin time.Duration      // what was asked for last may take
	endDepart   context.CancelFunc // of what is under way for the departure; nil: nothing was yet
	endRelease  context.CancelFunc // of what an ended process held; nil: none is under way
	steering    topics.SteerView   // as it was told of last
	viewStale   bool               // and the broker's view

	ready, everReady bool
	verdict          probes.Verdict
	guardTripped     bool
	gateOpenedBy     string
	quarantined      int
	deniedTold       []cluster.Denial
	conflicts        int       // topics that turned out to be another broker's, so far
	progress         time.Time // when the progress of a long load was last told
	saving           chan struct{}
	clocks           atomic.Pointer[lease.Clocks] // at the last run, and what they told is published; nil: not yet, or nobody reads them
	doubt            doubt
	dataOf           string    // process of the broker for which its data is looked at
	dataFrom         time.Time // and since when
	goneFrom         time.Time // since when the data directory is not there, see dataGone
	dataLate         string    // process for which that took too long
	noted            time.Time // when the revision of the last confirmed renewal was noted on disk
	lastNoted        note.Renewal
	former           lease.Validity // by the last renewal of the sidecar before this one; zero: not known
	formerOver       bool           // and its fence point has passed, without our being attached
}

func (a *agent) initLoop() {
	a.value = nil
	if a.cfg.Registration != "adopt" {
		// Encoding strings cannot fail.
		a.value, _ = registration.Value(a.cfg, a.memory.Incarnation, a.run, a.version)
	}
	if a.traits.Registers && !a.memory.Released {
		a.value, a.valueOf = a.memory.Value, a.memory.Instance
	}
	a.boot = control.BootStatus{Kind: "unknown", Evidence: []string{}}
	if a.memory.Boot.Kind != "" {
		a.boot = a.memory.Boot // the broker may have been started before this sidecar
	}
	a.incarnation = a.memory.Incarnation
	a.reconciler.SetWhole(a.memory.Whole)
	a.decided = a.memory.Decided
	a.saving = make(chan struct{}, 1)
	a.endFencing()
	a.restorePause()
	a.recallLeft(a.memory.Left)
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
	var childChanges <-chan struct{}
	if a.child != nil {
		childChanges = a.child.Changes()
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
		case <-a.steerer.Changes():
		case <-processChanges:
			a.wakeGuard()
		case <-childChanges:
			a.wakeGuard()
		case <-timer.C:
		}
		a.ranAt(time.Now())
		if a.guard != nil {
			a.guard.Beat(a.clock())
		}
		if err := a.step(); err != nil {
			return err
		}
		timer.Reset(a.untilNext())
	}
}

// untilNext is the time to the next moment at which something changes by itself.
func (a *agent) untilNext() time.Duration {
	next := probes.UntilTick(loopEvery)
	v := a.keeper.View()
	now := a.clock()
	if d := v.Validity.FencePoint().Add(-a.uncounted()).Sub(now); v.Validity.Known() && d > 0 {
		next = min(next, d)
	}
	if a.doubted() && a.countsFrom() > now {
		next = min(next, a.countsFrom().Sub(now))
	}
	if a.attachment == recovery.Detached {
		if d := a.healthySince.Add(a.recoverWindow()).Sub(now); d > 0 {
			next = min(next, d)
		}
	}
	if d := lease.Instant(a.fencing.ladder.RetryAt(a.settings().HealthInterval)).Sub(now); d > 0 {
		next = min(next, d)
	}
	if d := a.formerFencePoint().Sub(now); d > 0 && !a.everAttached {
		next = min(next, d)
	}
	if d := a.fencing.waiting.Add(stopPatience).Sub(now); d > 0 && a.fencing.waiting != 0 {
		next = min(next, d)
	}
	if d := a.departing.Until - time.Duration(now); d > 0 {
		next = min(next, d)
	}
	if a.illness.seen != nil && a.nextLook() > now {
		next = min(next, a.nextLook().Sub(now))
	}
	if left := a.pauseLeft(); left > 0 {
		next = min(next, left)
	}
	if a.awaitsGuard() && a.guarding.since != 0 {
		next = min(next, guardLook)
	}
	return next
}

// step takes stock and acts on what changed. Detachment comes first.
func (a *agent) step() error {
	who, id := a.identity.get()
	health := a.health.Snapshot()
	verdict := health.At(time.Now())
	if err := a.identity.fatal(); err != nil && a.brokerID == "" {
		return control.UsageError(err)
	}
	a.noteClocks()
	a.recognizeProcess(verdict, who)
	a.watchPresence()
	a.watchGuard(verdict)
	a.attach(verdict)
	a.noteRenewal()
	a.noteHealth(verdict, health.LastError)
	a.tendHealthNote(verdict)
	a.watchPause()
	if err := a.judgeSession(who.Instance); err != nil {
		return err
	}
	a.depart(recovery.DepartEvent{Kind: recovery.Looked})
	a.tendRelease()
	a.fence(verdict)
	a.tendGuard() // before the reconciler may load
	a.name(id, verdict)
	a.noteInstance(who)
	a.publishLife(who) // before the gate opens: the registrar decides by it
	a.remindRegistrar(who)
	a.tendIllness(verdict)
	a.orderLease(verdict)
	a.order()
	a.forgetFormer(who.Instance) // after the orders: what is listed anew is not acted on before the decision
	a.letIn()
	a.orderPlacer()
	a.assertMode()
	a.noteTopics()
	a.noteSteering()
	a.noteView()
	a.noteGuard()
	a.noteConflicts()
	a.noteDenied()
	a.noteConfirmed(time.Now())
	a.noteData(who.Instance)
	a.noteReadiness()
	a.publish()
	return nil
}

// name fixes the broker's id, once. What depends on it starts then.
func (a *agent) name(id string, verdict probes.Verdict) {
	if a.brokerID != "" || id == "" || verdict != probes.Up {
		return
	}
	a.brokerID = id
	if !a.traits.Registers {
		a.ids.registered.set(id)
		a.ids.answering.set(id)
		a.ids.assigned.set(id)
	}
	close(a.named)
	a.log.Info("broker found", "broker_id", id)
}

// remindRegistrar asks etcd again where the answer may be another by now: another
// broker process answers, or we were detached and renewals are confirmed again.
func (a *agent) remindRegistrar(who brokerapi.Report) {
	v := a.keeper.View()
	if v.Phase != lease.Holding {
		return
	}
	if who.Instance != "" && who.Instance != a.memory.Instance && a.askedBoot != who.Instance && a.verdict == probes.Up && a.dataSeen(who.Instance) {
		a.askedBoot = who.Instance
		a.keeper.Reestablish()
	}
	if a.attachment == recovery.Detached && a.everAttached && !a.verified && !a.askedVerify && v.FailureStreak == 0 {
		a.askedVerify = true
		a.keeper.Reestablish()
	}
}

var leaseOrders = map[recovery.LeaseOrder]lease.Order{
	recovery.Renew: lease.Renew, recovery.RunsOut: lease.RunOut, recovery.Rests: lease.Rest, recovery.Revokes: lease.Revoke}

// orderLease has the lease renewed, or not.
func (a *agent) orderLease(verdict probes.Verdict) {
	order, why := recovery.OrderLease(a.renewalFacts(verdict))
	a.gate, a.rests = order == recovery.Renew, ""
	if !a.gate {
		a.rests = why
	}
	a.keeper.Order(leaseOrders[order])
}

func (a *agent) renewalFacts(verdict probes.Verdict) recovery.RenewalFacts {
	who, _ := a.identity.get()
	return recovery.RenewalFacts{
		Up: verdict == probes.Up, Down: verdict == probes.Down, Renewed: a.gate, Held: a.keeper.View().Validity.HeldAt(a.clock()),
		Gone: a.brokerGone(), Lives: a.brokerTarget().Pid != 0, Refuses: a.identity.unseen.Load() && a.brokerThere(),
		Ails: a.ails(verdict), HeldIll: a.illness.held() != "",
		GivenUp: a.departing.GivenUp() && a.departing.Process == who.Instance, Ending: a.endsUnderLease(verdict),
		Note: a.departing.OwesNote(a.fencesItself()), Noted: a.departing.Revokes(),
		Unnamed: a.brokerID == "", Unread: a.dataDir.Path() != "" && a.dataDir.Snapshot().State == probes.DirUnknown,
		Unseen: !a.dataSeen(who.Instance), Overdue: verdict == probes.Up && a.overdue(who.Instance),
		Registers: a.traits.Registers, MustStop: a.mustStop(), FencesSelf: a.fencesItself(), Paused: a.paused(),
	}
}

// order tells what may be done to topics.
func (a *agent) order() {
	c := a.circumstances(a.known)
	a.orderSteerer(!c.Holds(recovery.Steer), !c.Holds(recovery.Tell)) // first: it says whether topics may follow
	a.setOrders(a.orders(!c.Holds(recovery.Topics)))
}

// letIn ends the waits for the Registrar's word, once its mode is ordered.
func (a *agent) letIn() {
	if !a.tookUp {
		return
	}
	for _, f := range a.heldBack {
		f()
	}
	a.tookUp, a.heldBack = false, nil
}

func (a *agent) orders(attached bool) recovery.Orders {
	return recovery.Orders{Epoch: a.memory.Epoch, Mode: a.mode.Mode, Instance: a.memory.Instance, Attached: attached,
		Paused: a.paused() && a.mode.HeldByPause(), Steering: a.steerer.View().Steering}
}

// tell queues work for the loop.
func (a *agent) tell(ctx context.Context, f func()) {
	select {
	case a.inbox <- f:
	case <-ctx.Done():
	}
}

// publish makes what the loop knows visible to everybody else.
func (a *agent) publish() { a.view.Store(a.known()) }

// known is what the loop knows now.
func (a *agent) known() *snapshot {
	ended := a.departing.HoldsBack() && (a.brokerGone() || a.processEnded())
	leaving := a.departing.Words(ended)
	if a.departing.Phase == recovery.Left && leaving != "" {
		leaving += fmt.Sprintf("; within %s its next start is %s again", config.FormatDuration(a.cfg.ReturnWithin), a.mode.Mode)
	}
	return &snapshot{brokerID: a.brokerID, registeredAs: a.ids.registered.now(), Circumstances: recovery.Circumstances{
		WasRegistered: a.wasRegistered(), EverReady: a.everReady, Attachment: a.attachment, Conflict: a.conflict, Leaving: leaving, Rests: a.rests,
		Restart: a.fencing.restart, Foreign: a.recognizer.Foreign(), AwaitGuard: a.awaitsGuard(), NoGuard: a.guarding.standby == standbyWithout,
		Mode: a.mode, Suspect: a.suspect,
	}, doubted: a.doubted(), boot: a.boot, decided: a.decided, left: a.departing.Planned(), reassert: a.reassert, instance: a.memory.Instance,
		fence: a.fencing.reached, failure: a.session.verdict, guarded: a.guarding.target, held: a.illness.held()}
}

func (a *agent) publishLife(who brokerapi.Report) {
	started := who.StartedAt
	if started.IsZero() {
		started = a.brokerProcessStart()
	}
	told := ""
	if a.cfg.DataDir == "" {
		told = who.DataDir
	} else if who.DataDir != a.statedDir {
		a.statedDir = who.DataDir
		a.tasks.Go(func() { // a disk may hang
			if text := elsewhere(a.cfg.DataDir, who.DataDir); text != "" {
				a.log.Warn("a setting is probably not what is meant", "detail", text)
			}
		})
	}
	a.dataDir.Expect(told, started)
	seen := a.dataSeen(who.Instance)
	dir := a.dataDir.Snapshot()
	boot := bootFacts(started, dir)
	gone, doubtful := a.dataGone(who.Instance)
	if gone {
		boot.DirGone = a.dataDir.Path()
	}
	confirmed := a.confirmed() // renewed since it was noted
	a.memory.Confirm(note.Confirmed{Deadline: confirmed.Deadline})
	m := a.memory.Past
	m.ConfirmedAt, m.Revision = max(m.ConfirmedAt, confirmed.Revision), max(m.Revision, confirmed.Revision)
	value := a.value
	if a.traits.Registers && a.valueOf != who.Instance {
		value = nil // another process's
	}
	var modeRev int64
	if !a.traits.Registers { // else it may be of another process's key
		modeRev = a.modeRev
	}
	a.life.Store(&registration.Life{Name: a.brokerID, Past: m, Mode: a.mode, ModeRev: modeRev, Instance: who.Instance, Boot: boot, Data: a.dataFound(who.Instance, dir), Unseen: !seen, Vanished: doubtful, Value: value,
		RetriesUsed: a.retriesUsed(), Unfenced: a.unfenced(who.Instance), Leaves: a.departing.Bars(who.Instance), Recalls: a.mode.Mode == "" && !a.departing.Recalled, CutFrom: a.cutFrom, CutOver: a.cutOver, Unsure: a.unsure, Health: a.healthTold.now})
}

// bootFacts is the evidence of the boot kind that is on this host.
func bootFacts(started time.Time, dir probes.DirView) recovery.BootFacts {
	facts := recovery.BootFacts{BrokerStartedAt: started, OldestMarker: dir.OldestMarker, MarkerPath: dir.OldestPath}
	if dir.State == probes.DirUnreadable {
		facts.DirError = dir.Error
	}
	return facts
}
