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
	p := a.memory.Process
	if p == nil || p.Instance != a.memory.Instance {
		return
	}
	if space, err := process.Space(); err == nil && space == p.Space {
		a.served = p.Target
	}
}
