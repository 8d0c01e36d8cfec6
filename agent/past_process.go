package agent

import "holdfast/agent/process"

// pastProcess is a process of the broker that this sidecar, or one before it, recognized.
type pastProcess struct {
	process.Target
	Instance string `json:"instance"` // that it answered with
	Space    string `json:"space"`    // in which the target means that process
}

// rememberProcess notes which process the broker is, for the next life of this sidecar:
// where both end, the next process of the broker is not to be fenced for what the one
// before was registered for. It may need longer to come up than the lease had left.
func (a *agent) rememberProcess(t process.Target, instance string, judged recognition) {
	space, err := process.Space()
	if err != nil || judged != isBroker {
		return
	}
	a.remember(func(m *memory) { m.Process = &pastProcess{Target: t, Instance: instance, Space: space} })
}

// recallProcess takes up which process served before this sidecar began. One that is not
// surely the one that was registered, or is another's pid by now, proves nothing.
func (a *agent) recallProcess() {
	if p := a.memory.Process; p.here() && p.Instance == a.memory.Instance {
		a.served = p.Target
	}
}

// here reports whether the process can be told from all others.
func (p *pastProcess) here() bool {
	if p == nil {
		return false
	}
	space, err := process.Space()
	return err == nil && space == p.Space
}

// expecter is who finds the broker's process, and is to know it from an earlier life
// however the wall clock was set since.
type expecter interface{ Expect(process.Target) }

// expectProcess has everybody know the process that an earlier sidecar recognized.
func (a *agent) expectProcess() {
	p := a.memory.Process
	if a.process == nil || !p.here() {
		return
	}
	a.process.Expect(p.Target)
	for _, one := range []any{a.stopper, a.guard} {
		if e, ok := one.(expecter); ok {
			e.Expect(p.Target)
		}
	}
}

// recognizedBefore reports whether an earlier sidecar recognized that process by what it
// answered with.
func (a *agent) recognizedBefore(t process.Target, instance string) bool {
	p := a.memory.Process
	return p.here() && p.Target == t && p.Instance == instance
}
