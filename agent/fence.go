package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/process"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// fencing is the fence ladder for one process of the broker, owned by the loop.
// recovery.Ladder decides what comes next; this does it, one step at a time.
type fencing struct {
	ladder   recovery.Ladder
	instance string             // broker process that it is about
	reached  recovery.Fence     // empty: not begun
	restart  string             // see recovery.Rung
	underway recovery.FenceStep // StepNone: none
	looking  bool               // whether what was proven still holds
	waiting  lease.Instant      // since when the stop waits, see stopWaits; 0: it does not
	provenAt lease.Instant      // when nothing was last seen to be served; 0: never since it began
	until    lease.Instant      // when that one must have ended
	cancel   context.CancelFunc // of that one
	number   int                // grows with each process and each detachment: the result of an older one is dropped
	told     map[recovery.FenceStep]bool
	streak   int  // failures of renewals when it came up
	newcomer bool // came up after another process was fenced
	waited   bool // it was registered, so that nobody looked at it
	wentAway bool // was not up at some time since it began, or was stopped
	ill      bool // it is stopped for its illness, whatever --fence says: see stopsIll
}

// mustFence reports whether the broker may be serving what it must not. A sidecar
// that was restarted may find a broker that its predecessor registered, and that one's
// lease may be over: see noteFormer. It may find one that has left, too. One that we
// registered ourselves waits for nothing but to be attached.
//
// One whose storage fences it is only kept away from, unless --fence asks for more, or it was ill
// beside a peer that is well.
//
// In a conflict from the start the broker may be the other sidecar's; that of a copy is its
// own, and is fenced.
func (a *agent) mustFence() bool {
	if a.onlyUnready() && !a.fencing.ill {
		return false
	}
	rival := a.isRival()
	if !a.cfg.Detach || a.attachment != recovery.Detached || a.conflict != "" && !a.everAttached && !rival {
		return false
	}
	return rival || a.everAttached || a.hasLeftBehind() || a.formerOver && !a.registered()
}

// unfenced reports whether a fence of that process is due or under way.
func (a *agent) unfenced(instance string) bool {
	f := &a.fencing
	return a.mustFence() && !(f.instance == instance && f.reached.Proven() && f.underway == recovery.StepNone)
}

func (a *agent) fences(step recovery.FenceStep) bool {
	return slices.Contains(a.cfg.Fence, string(step))
}

// beginFencing starts at the first step after readiness, which is off already.
func (a *agent) beginFencing(verdict probes.Verdict) {
	ill := a.stopsIll()
	a.endFencing()
	a.carryProof()
	a.fencing.ill = ill
	a.fence(verdict)
}

// endFencing forgets the ladder. A step that is under way is ended, and whatever it
// still reports is dropped.
func (a *agent) endFencing() {
	if a.fencing.cancel != nil {
		a.fencing.cancel()
	}
	a.fencing = fencing{number: a.fencing.number + 1, told: map[recovery.FenceStep]bool{}}
}

// fence does the next step of the ladder if one is due. It goes on until the broker
// is proven to serve nothing, and begins anew for every process of it that comes up
// while it may not serve.
func (a *agent) fence(verdict probes.Verdict) {
	a.noteProcess(verdict)
	a.noteUp(verdict, time.Now())
	a.noteFormer()
	if !a.mustFence() {
		return
	}
	a.fenceAnew()
	f := &a.fencing
	if f.underway != recovery.StepNone || f.looking {
		if a.clock() >= f.until { // after a suspension, of which timers know nothing
			f.cancel()
		}
		return
	}
	who, _ := a.identity.get()
	another := who.Instance != f.instance || f.reached == recovery.FenceGone && f.wentAway
	if f.reached != "" && verdict == probes.Up && another {
		a.endFencing()
		f.newcomer, f.streak = true, a.keeper.View().FailureStreak
	}
	if f.ill && verdict == probes.Up { // it came to itself before it was stopped
		a.endFencing()
	}
	if !a.mustFence() {
		return
	}
	if f.reached == "" {
		f.instance = who.Instance
	}
	f.wentAway = f.wentAway || verdict != probes.Up
	if waits := a.stopWaits(verdict); waits != (f.waiting != 0) {
		f.waiting = 0
		if waits {
			f.waiting = a.clock()
		}
	}
	r := f.ladder.Next(a.ladderFacts(verdict))
	a.noteFence(r)
	a.noteProof()
	if r.Step != recovery.StepNone {
		a.climb(r)
	}
}

// noteProof notes when nothing was served for certain. A process that has ended serves
// nothing. One that runs in its place and has not answered yet is starting: it may take
// longer than a proof counts, and the guard would end each one before it could answer.
// The ladder fences it when it answers, and the guard when our loop stops.
func (a *agent) noteProof() {
	f := &a.fencing
	switch {
	case f.reached == recovery.FenceQuiesced:
		f.provenAt = lease.Instant(f.ladder.ProvenAt())
		if a.endsUnseen() {
			f.provenAt = a.clock()
		}
	case f.reached == recovery.FenceGone:
		f.provenAt = a.clock()
	}
}

// provenUntil is until when the last proof counts that nothing is served; 0: there is none
// since the detachment, or since another process of the broker came up. The loop may look
// less often than the broker's health is.
func (a *agent) provenUntil() lease.Instant {
	if a.attachment != recovery.Detached || a.fencing.provenAt == 0 {
		return 0
	}
	return a.fencing.provenAt.Add(recovery.ProofLooks * a.lookEvery())
}

// lookEvery is how often the loop sees to it that the broker is looked at.
func (a *agent) lookEvery() time.Duration { return max(a.settings().HealthInterval, loopEvery) }

// looker is a Stopper that must see the process while it lives, so that its end is
// proven when its pid file has gone with it.
type looker interface {
	Target() (process.Target, bool)
}

// noteProcess remembers the process that serves, so that its end is proven when the
// kernel says so. One that is not judged yet counts too, unless it is found to be
// another's: it may end before it is judged.
func (a *agent) noteProcess(verdict probes.Verdict) {
	target := a.brokerTarget()
	if verdict != probes.Up || target.Pid == 0 || target == a.served {
		return
	}
	switch {
	case a.child != nil || a.recognizer.Refuses(target) == nil:
		a.served, a.unjudged = target, process.Target{}
		if l, ok := a.stopper.(looker); ok {
			a.tasks.Go(func() { l.Target() })
		}
	case a.recognizer.Foreign() == "":
		a.unjudged = target
	case target == a.unjudged:
		a.unjudged = process.Target{}
	}
}

func (a *agent) ladderFacts(verdict probes.Verdict) recovery.LadderFacts {
	registered := a.registered()
	handed, held := a.handedTo(a.fencing.instance)
	f := recovery.LadderFacts{
		Now: time.Duration(a.clock()), Margin: a.cfg.LeaseDetachMargin,
		Quiesce: a.fences(recovery.StepQuiesce), Stop: (a.fences(recovery.StepStop) || a.fencing.ill && !a.paused()) && a.stopper != nil && !(verdict == probes.Up && a.welcome()) && !a.suspected(),
		// A process that came up since never had the registration that is gone, and one
		// that has it again waits for nothing but the recover window.
		MustStop: a.mustStop() && !registered &&
			(a.fencing.instance == a.memory.Instance || handed != nil && !held),
		Registered: a.waitsToBeAttached(), Leaves: a.goesAway(),
		Down: verdict == probes.Down, Gone: verdict != probes.Up && a.processEnded(),
		Lost: a.brokeSinceUp(),
		// Where nothing tells of the end of a process, one that hangs looks like one that ended.
		Served: a.fencing.instance != "" && a.fencing.instance == a.memory.Instance &&
			(a.reached.Load() || a.process != nil),
	}
	if a.mustGo() != "" { // registered as it is
		f.MustStop, f.Registered = true, false
	}
	f.Waits = a.fencing.waiting != 0 && a.clock().Sub(a.fencing.waiting) < stopPatience
	// Else it may serve what it is given. What is owned by locks is given by nobody but us.
	if (!f.Registered || a.cfg.OwnershipLocks == "on") && !held {
		f.Look = a.settings().HealthInterval
	}
	v, granted := a.validity(), a.grant.LeaseID != 0
	if !a.everAttached && !granted {
		v, granted = a.former, true
	}
	// A registration that was deleted has no deadline to come.
	if v.Known() && granted {
		f.Deadline, f.Margin, f.StopAt = time.Duration(v.Deadline()), v.Margin, time.Duration(v.StopAt())
	}
	return f
}

// stopPatience bounds the wait for what decides whether a process may be stopped.
const stopPatience = time.Second

// stopWaits reports whether a process that answers is just being judged, or never had the
// registration that is gone, and etcd did not fail to answer since: then its own is only a
// question away, and stopped at each start it would never be registered.
func (a *agent) stopWaits(verdict probes.Verdict) bool {
	if verdict != probes.Up {
		return false
	}
	asked := a.fencing.newcomer && a.conflict == "" && a.keeper.View().FailureStreak == a.fencing.streak
	return asked || a.recognizer.Judging()
}

// welcome reports whether the process never had the registration that is gone, and has
// the present one: it waits for nothing but the recover window.
func (a *agent) welcome() bool { return a.fencing.newcomer && a.registered() }

// brokeSinceUp reports whether the broker's process was seen to end, or its port to refuse, since
// the broker was last up.
func (a *agent) brokeSinceUp() bool { return a.breaks.Load() != a.upBreaks }

// noteUp takes the breaks until now for over. One that was just seen is not: the verdict
// may not have followed yet.
func (a *agent) noteUp(verdict probes.Verdict, now time.Time) {
	if b := a.breaks.Load(); b != a.lastBreaks {
		a.lastBreaks, a.brokeAt = b, now
	}
	if verdict == probes.Up && now.Sub(a.brokeAt) > a.settings().HealthInterval+a.settings().HealthTimeout {
		a.upBreaks = a.lastBreaks
	}
}

// lastServing is the process that served last; zero: none was seen.
func (a *agent) lastServing() process.Target {
	if a.unjudged.Pid != 0 && a.recognizer.Foreign() == "" {
		return a.unjudged
	}
	return a.served
}

// processEnded reports whether the process that served is proven to have ended.
func (a *agent) processEnded() bool { last := a.lastServing(); return last.Pid != 0 && last.Gone() }

// noteFence takes up what the ladder has reached, and tells of it once.
func (a *agent) noteFence(r recovery.Rung) {
	f := &a.fencing
	if r.Restart != f.restart {
		f.restart = r.Restart
		if r.Restart != "" {
			a.log.Error("the broker must be restarted: /broker/live fails", "why", r.Restart)
		}
	}
	if f.reached == r.Fence {
		return
	}
	before := f.reached
	f.reached = r.Fence
	switch {
	case before == recovery.FenceQuiesced && r.Fence != recovery.FenceGone && f.ladder.Quiesced == recovery.Done:
		a.log.Warn("the broker was quiesced and does not say any more what it serves: it may serve again", "epoch", a.memory.Epoch)
	case r.Fence == recovery.FenceGone && f.ladder.Stopped != recovery.Done:
		a.log.Info("fenced: the broker's process has ended", "epoch", a.memory.Epoch)
		a.event(control.Event{Kind: "fence", To: "gone", Epoch: a.memory.Epoch})
	case r.Fence == recovery.FenceAwaiting && len(a.cfg.Fence) > 1:
		a.log.Warn("the broker does not answer and cannot be stopped: it is fenced as soon as it answers", "epoch", a.memory.Epoch)
		a.event(control.Event{Kind: "fence", To: "awaiting", Epoch: a.memory.Epoch})
	}
}

// climb does one step, in the background and within its bound.
func (a *agent) climb(r recovery.Rung) {
	f := &a.fencing
	again := f.ladder.Quiesced == recovery.Done
	var do func(context.Context) (string, error)
	switch {
	case r.Step == recovery.StepQuiesce && again:
		do = func(ctx context.Context) (string, error) {
			n, err := a.reconciler.FenceAgain(ctx)
			if n == 0 {
				return "", err
			}
			return control.Plural(n, "topic") + " served again and quiesced", err
		}
	case r.Step == recovery.StepQuiesce:
		fence := a.reconciler.BeginFence() // here, so that it cannot hold a broker that is attached again
		do = func(ctx context.Context) (string, error) {
			n, err := fence.Finish(ctx)
			return control.Plural(n, "topic") + " quiesced", err
		}
	case r.Step == recovery.StepStop:
		do = func(ctx context.Context) (string, error) {
			how, err := a.stopper.Stop(ctx)
			if err != nil {
				return how, err
			}
			return "process stopped: " + how, nil
		}
	}
	f.until, f.looking = lease.Instant(r.Until), again && r.Step == recovery.StepQuiesce
	if !f.looking {
		f.underway = r.Step
	}
	ctx, cancel := context.WithTimeout(a.life0, f.until.Sub(a.clock()))
	f.cancel = cancel
	number, look := f.number, f.looking
	a.tasks.Go(func() {
		defer cancel()
		began := a.clock()
		what, err := do(ctx)
		took := a.clock().Sub(began)
		if !look || what != "" {
			a.metrics.fenceDuration.WithLabelValues(string(r.Step)).Observe(took.Seconds())
		}
		a.tell(a.life0, func() {
			if a.fencing.number == number {
				a.stepEnded(r.Step, what, took, err)
			}
		})
	})
}

// stepEnded takes the result of a step up; the loop does the next one at once. Nobody need
// hear of a look that found nothing, for which what is empty.
func (a *agent) stepEnded(step recovery.FenceStep, what string, took time.Duration, err error) {
	f := &a.fencing
	f.underway, f.looking, f.cancel = recovery.StepNone, false, nil
	facts := a.ladderFacts(a.verdict)
	if errors.Is(err, topics.ErrUnseen) {
		f.ladder = f.ladder.Unseen(facts)
		return
	}
	f.ladder = f.ladder.Ended(step, err == nil, facts)
	epoch, took := a.memory.Epoch, took.Round(time.Millisecond)
	if err == nil && what == "" || err != nil && f.reached == recovery.FenceAwaiting {
		return
	}
	if err != nil {
		a.metrics.fenceFailures.WithLabelValues(string(step)).Inc()
		if f.told[step] {
			return
		}
		if f.told == nil { // begun for the broker of an earlier sidecar
			f.told = map[recovery.FenceStep]bool{}
		}
		f.told[step] = true
		if step == recovery.StepStop && a.verdict == probes.Down && a.cfg.StopCommand == "" && a.brokerTarget().Pid == 0 {
			a.log.Warn("the broker does not answer and no process of it is seen: there is nothing to stop, unless it runs where this sidecar cannot see it",
				"step", string(step), "took", took, "err", err)
			a.event(control.Event{Kind: "fence", To: "failed", Reason: string(step), Epoch: epoch, Detail: "no process of the broker is seen: " + err.Error()})
			return
		}
		a.log.Error("fence step failed: stop the broker by hand if in doubt", "step", string(step), "took", took, "done", what, "err", err)
		a.event(control.Event{Kind: "fence", To: "failed", Reason: string(step), Epoch: epoch, Detail: err.Error()})
		return
	}
	to, reason := "quiesced", ""
	if step == recovery.StepStop {
		to = "stopped"
		if f.ill {
			reason = control.StopReasonIll
		}
		f.wentAway = false
		a.identity.forget() // whoever answers next is another process
	}
	a.log.Info(a.shadow.saying("fenced"), "step", string(step), "done", what, "took", took, "epoch", epoch)
	a.event(control.Event{Kind: "fence", To: to, Reason: reason, Epoch: epoch, Detail: fmt.Sprintf("%s in %s", what, took)})
}

// tendGuard keeps the dead-man guard at the deadline for as long as the broker may
// serve. A proof that nothing is served moves its moment a little later, so that a
// sidecar that goes on proving it keeps the broker's process, and one that freezes does
// not; in any doubt the guard keeps what it has. A lease that holds for longer than the
// proof counts is the word: a broker that waits to be attached under it is not looked at
// any more. That the process has ended is proof enough here: one that is starting is left
// alone while our loop runs, and fenced by the ladder when it answers.
func (a *agent) tendGuard() {
	if a.guard == nil {
		return
	}
	v, now := a.validity(), a.clock()
	if at := a.provenUntil(); at > max(now, v.StopAt()) && a.fencing.reached.Proven() && a.fencing.underway == recovery.StepNone {
		if !a.condemned(now) {
			a.restsUntil = max(a.restsUntil, at)
			a.guard.Postpone(at)
		}
		return
	}
	// One that has passed is armed already, or has nothing to add: a process that comes
	// up after it is for the ladder.
	if v.Known() && (a.restsUntil != 0 || v != a.armed) && now < v.StopAt() {
		a.armed, a.restsUntil = v, 0
		a.guard.Arm(v)
	}
}

// condemned reports whether the guard's moment has passed and no process was up since: what
// was there at the moment is being stopped, and a proof that it serves nothing now would
// only be the moment at which the next one, which may be starting, is stopped for it.
func (a *agent) condemned(now lease.Instant) bool {
	moment := max(a.armed.StopAt(), a.restsUntil)
	return moment != 0 && now >= moment && a.verdict != probes.Up
}
