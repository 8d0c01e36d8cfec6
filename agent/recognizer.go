package agent

import (
	"cmp"
	"context"
	"errors"

	"holdfast/agent/control"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/brokerapi"
	"holdfast/probes"
	"holdfast/recovery"
)

// brokerGone reports whether the broker that was last known is proven to have ended,
// whatever its health was when last asked. It is safe for concurrent use.
func (a *agent) brokerGone() bool {
	if a.child != nil {
		t, runs := a.child.Target()
		return !runs && a.childRan.Load() || runs && t.Gone()
	}
	who, _ := a.identity.get()
	return a.recognizer.Gone(who.Instance, a.identity.asked())
}

// refuser is a Stopper or a Guard that lets itself be told whom to leave alone.
type refuser interface {
	Refuse(func(process.Target) error)
}

// introduce has everybody who may signal the broker's process ask the recognizer first.
func (a *agent) introduce() {
	if a.process == nil {
		return
	}
	a.expectProcess()
	for _, one := range []any{a.stopper, a.guard} {
		if r, ok := one.(refuser); ok {
			r.Refuse(a.recognizer.Refuses)
		}
	}
}

// recognizeProcess has the process that is watched judged as soon as the broker answers,
// and again whenever another process answers or is watched.
func (a *agent) recognizeProcess(verdict probes.Verdict, who brokerapi.Report) {
	if a.process == nil {
		return
	}
	seen := a.process.Snapshot()
	t := seen.Target
	ask, isNew := a.recognizer.Begin(t, who.Instance, a.identity.asked(), verdict == probes.Up)
	if isNew {
		a.identity.forget() // it may be another broker that answers now
	}
	if p := a.memory.Process; p != nil && !p.Strict && p.Target == t && a.process.Finder.Strict() { // others were seen since
		a.remember(func(m *memory) { again := *p; again.Strict = true; m.Process = &again })
	}
	if !ask {
		return
	}
	before := a.recognizedBefore(t, who.Instance)
	a.tasks.Go(func() {
		judged, why := recognize.IsBroker, ""
		if !before {
			judged, why = recognize.Process(a.life0, a.cfg, seen, who)
		}
		if a.recognizer.End(t, who.Instance, judged, why) {
			a.shun(t, judged)
			if judged == recognize.IsForeign {
				a.process.Finder.Forget(t)
			}
			a.tell(a.life0, func() {
				a.noteRecognition(seen, judged, why)
				a.rememberProcess(t, who.Instance, judged)
			})
		}
		a.wakeGuard()
	})
}

// recognizeNow judges the process that is watched, for a stop that follows while the loop
// does not run any more.
func (a *agent) recognizeNow(ctx context.Context) {
	if a.process == nil {
		return
	}
	seen := a.process.Snapshot()
	if seen.Pid == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recovery.LateQuiesce)
	defer cancel()
	who, err := a.broker.Probe(ctx)
	if err != nil && who.Instance == "" && !errors.Is(err, brokerapi.ErrUnseen) {
		a.recognizer.Silent()
		return
	}
	known, _ := a.identity.get()
	who.Instance = cmp.Or(who.Instance, known.Instance) // not every broker tells it
	judged, why := recognize.Process(ctx, a.cfg, seen, who)
	a.recognizer.Settle(seen.Target, who.Instance, judged, why)
}

// shun tells the guard, which is a process of its own.
func (a *agent) shun(t process.Target, judged recognize.Verdict) {
	g, ok := a.guard.(interface{ Shun(process.Target) })
	switch {
	case !ok:
	case judged == recognize.IsForeign:
		g.Shun(t)
	default:
		g.Shun(process.Target{})
	}
}

func (a *agent) noteRecognition(seen probes.ProcessView, judged recognize.Verdict, why string) {
	switch judged {
	case recognize.IsBroker:
		a.log.Info("the broker's process is recognized", "pid", seen.Pid, "name", seen.Name)
	case recognize.IsForeign:
		a.log.Error("not the broker's process: it is left alone, and nothing stops the broker", "pid", seen.Pid, "detail", why)
		a.event(control.Event{Kind: "process", To: "foreign", Epoch: a.memory.Epoch, Detail: why})
	case recognize.Unknown:
		a.log.Warn("cannot tell whether this is the broker's process: it is taken for it", "pid", seen.Pid, "name", seen.Name, "detail", why)
	}
}

// rememberProcess notes which process the broker is, for the next life of this sidecar:
// where both end, the next process of the broker is not to be fenced for what the one
// before was registered for. It may need longer to come up than the lease had left.
func (a *agent) rememberProcess(t process.Target, instance string, judged recognize.Verdict) {
	space, err := process.Space()
	if err != nil || judged != recognize.IsBroker {
		return
	}
	a.remember(func(m *memory) {
		m.Process = &recognize.Past{Target: t, Instance: instance, Space: space, Strict: a.process.Finder.Strict()}
	})
}

// recallProcess takes up which process served before this sidecar began. One that is not
// surely the one that was registered, or is another's pid by now, proves nothing.
func (a *agent) recallProcess() {
	if p := a.memory.Process; p.Here() && p.Instance == a.memory.Instance {
		a.served = p.Target
	}
}

// seeker is who finds the broker's process beside the watch of it.
type seeker interface{ Use(*probes.Finder) }

// expectProcess has everybody find the process in one way, and know the one that an earlier sidecar
// recognized, however the wall clock was set since.
func (a *agent) expectProcess() {
	if p := a.memory.Process; p.Here() {
		a.process.Finder.Expect(p.Target, probes.Clues{Strict: p.Strict})
	}
	for _, one := range []any{a.stopper, a.guard} {
		if s, ok := one.(seeker); ok {
			s.Use(a.process.Finder)
		}
	}
}

// recognizedBefore reports whether an earlier sidecar recognized that process by what it
// answered with.
func (a *agent) recognizedBefore(t process.Target, instance string) bool {
	p := a.memory.Process
	return p.Here() && p.Target == t && p.Instance == instance
}
