package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/guard"
	"holdfast/agent/lease"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/probes"
	"holdfast/recovery"
)

// guardProcess is what a guard that is a process has beside a Guard's word.
type guardProcess interface {
	Guard
	// Run sees to it that the process lives while there is a broker.
	Run(ctx context.Context) error
	// News are the events since the last call.
	News() []guard.Event
	// Stands reports whether it keeps the word for that process of the broker.
	Stands(process.Target) bool
	// Fired reports whether it stopped that process of the broker.
	Fired(process.Target) bool
	// Wake has it look for the broker's process at once.
	Wake()
	// Goodbye lets the process end.
	Goodbye()
	// Standing is what goes on when the sidecar ends; false: nothing does.
	Standing() (guard.Standing, bool)
	Alive() bool
	Starts() int64
}

var _ guardProcess = (*guard.Client)(nil)

// openGuard prepares the guard, or takes over the one of an earlier sidecar. The result
// is nil if there is no way to stop the broker, or nothing is to be done to it.
func openGuard(c config.Config, log *slog.Logger) (Guard, error) {
	if c.Shadow {
		return nil, nil
	}
	stopper, err := recognize.Stopper(c, log)
	if stopper == nil || err != nil {
		return nil, err
	}
	found, err := guard.Open(guard.Settings{
		Dir: c.StateDir, Find: stopper.Target, Clues: stopper.Clues, NotSeen: notSeen, Log: log,
		Broker: guardedBroker(c),
	})
	if err != nil {
		return nil, err
	}
	return &processGuard{found, stopper}, nil
}

// guardedBroker is what the guard is told.
func guardedBroker(c config.Config) guard.Broker {
	b := guard.Broker{PIDFile: c.BrokerPIDFile, Name: c.BrokerProcess, StopCommand: c.StopCommand}
	if len(c.Command) > 0 {
		b.Record = recognize.ChildRecord(c)
	}
	return b
}

// processGuard is the guard with what finds the broker's process for it.
type processGuard struct {
	*guard.Client
	stopper *process.Stopper
}

// Refuse implements refuser.
func (g *processGuard) Refuse(f func(process.Target) error) { g.stopper.Refuse(f) }

// Use implements seeker.
func (g *processGuard) Use(f *probes.Finder) { g.stopper.Use(f) }

// findGuard opens the guard, or finds the one that must not stay.
func (a *agent) findGuard() (err error) {
	w := a.world
	if w.Guard != nil && a.cfg.Guard == "on" {
		if a.guard, err = w.Guard(a.cfg, a.log.With("part", "guard")); err != nil {
			return err
		}
	}
	if w.LeftGuard != nil && a.guard == nil {
		a.leftGuard, err = w.LeftGuard(a.cfg)
	}
	return err
}

// leftGuard is World.LeftGuard.
func leftGuard(c config.Config) (dismiss func(), err error) {
	left, err := guard.Left(c.StateDir)
	if left == nil || err != nil {
		return nil, err
	}
	return left.Goodbye, nil
}

// dismissLeftGuard lets the guard of an earlier sidecar go, once: it hears of no renewal
// of ours, and would stop a healthy broker. Until the registration is confirmed to be
// ours its word was the right one.
func (a *agent) dismissLeftGuard() {
	if a.leftGuard == nil {
		return
	}
	a.leftGuard()
	a.leftGuard = nil
	a.log.Info("the guard of an earlier sidecar is dismissed", "guard", a.cfg.Guard)
	a.event(control.Event{Kind: "guard", To: "dismissed", Epoch: a.memory.Epoch})
}

// notSeen is why there is no guard for a broker that runs.
const notSeen = "the broker answers, but its process is not seen from here: check --broker-pid-file and --broker-process; in a pod, set shareProcessNamespace: true"

// guardPatience bounds the wait for a guard before a process of the broker is served
// without one.
const guardPatience = 5 * time.Second

// guardLook is the pause between two looks at a guard that is waited for.
const guardLook = 50 * time.Millisecond

// standby says how the broker's process is guarded.
type standby int

const (
	standbyAwaited standby = iota // it is not served before this is over
	standbyThere                  // for this process of the broker there was a guard; one that dies is replaced
	standbyWithout                // none came within guardPatience
)

// guarding is what is known of the guard of the broker's process, owned by the loop.
type guarding struct {
	target  process.Target
	standby standby
	since   lease.Instant // it is all that is waited for since; 0: it is not
}

// watchGuard looks whether the broker's process is guarded. A sidecar that froze right
// after it let clients to an unguarded broker would leave it serving past the deadline;
// one that let nobody to it for want of a guard would be the outage itself. So it waits,
// within a bound, for each process of the broker and for each return.
func (a *agent) watchGuard(verdict probes.Verdict) {
	p, ok := a.guard.(guardProcess)
	if !ok {
		return
	}
	g, target := &a.guarding, a.brokerTarget()
	switch {
	case p.Stands(target):
		*g = guarding{target: target, standby: standbyThere}
	case g.standby == standbyThere && (g.target != target || a.attachment == recovery.Detached):
		*g = guarding{target: target}
	}
	if g.standby != standbyAwaited {
		return
	}
	now := a.clock()
	switch {
	case verdict != probes.Up || !a.keeper.View().Validity.HeldAt(now):
		g.since = 0
	case g.since == 0:
		g.since = now
		p.Wake()
	case now.Sub(g.since) >= guardPatience:
		g.standby = standbyWithout
		a.log.Error("the broker is served without a guard: nothing stops it if this process dies or hangs", "waited", guardPatience)
		a.event(control.Event{Kind: "guard", To: "absent", Epoch: a.memory.Epoch, Detail: fmt.Sprintf("none stood by within %s", guardPatience)})
	}
}

// awaitsGuard reports whether the broker's process may not be served yet, for want of a
// guard.
func (a *agent) awaitsGuard() bool {
	_, ok := a.guard.(guardProcess)
	return ok && a.guarding.standby == standbyAwaited
}

// wakeGuard tells the guard's keeper that the broker's process is another.
func (a *agent) wakeGuard() {
	if p, ok := a.guard.(guardProcess); ok {
		p.Wake()
	}
}

// noteGuard takes up what the guard did.
func (a *agent) noteGuard() {
	p, ok := a.guard.(guardProcess)
	if !ok {
		return
	}
	for _, e := range p.News() {
		if e.What != guard.Stopped {
			a.event(control.Event{Kind: "guard", To: string(e.What), Epoch: a.memory.Epoch, Detail: e.Detail})
			continue
		}
		a.metrics.guard.fired(e.Acted.At)
		a.metrics.fenceDuration.WithLabelValues(guardStep).Observe((time.Duration(e.Acted.TookMS) * time.Millisecond).Seconds())
		a.journal.AddShot(e.Acted, a.memory.Epoch)
	}
}

// guardStatus is safe for concurrent use.
func (a *agent) guardStatus(s *snapshot, down bool) control.GuardStatus {
	p, ok := a.guard.(guardProcess)
	switch {
	case a.guard == nil:
		return control.GuardStatus{State: "off"}
	case s.NoGuard:
		return control.GuardStatus{State: "absent"}
	case !ok || p.Alive() && s.guarded.Pid != 0:
		return control.GuardStatus{State: "stands_by", Pid: s.guarded.Pid}
	case s.AwaitGuard && s.brokerID != "" && !down:
		return control.GuardStatus{State: "awaited"}
	}
	return control.GuardStatus{State: "idle"}
}

// guardStep is the label of the guard's stop beside the steps of the ladder.
const guardStep = "guard"
