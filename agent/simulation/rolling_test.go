package simulation

import (
	"testing"
	"testing/synctest"
	"time"

	"holdfast/recovery"
)

// departs has the node leave by 'holdfast leave', and nobody stop its broker yet.
func (n *node) departs() { n.leave(event{Arg: 1}) }

// ways in which a node is made to leave before its broker is restarted.
var departures = []struct {
	name string
	of   func(n *node)
}{
	{"leave", (*node).departs},
	{"the sidecar is stopped, and started with the broker", (*node).stopSidecar},
	{"leave, and the sidecar is restarted before the broker", func(n *node) {
		n.departs()
		n.stopSidecar()
		n.startSidecar()
		time.Sleep(5 * time.Second)
	}},
	{"leave, and the sidecar is killed with the broker", func(n *node) {
		n.departs()
		n.crashSidecar(0)
	}},
}

// restart has the node leave, and start again after away.
func (n *node) restart(leave func(n *node), away time.Duration) {
	leave(n)
	n.broker.kill()
	time.Sleep(away)
	n.broker.start()
	n.startSidecar() // unless it runs
}

// careful is added to the way of a rolling restart before which somebody makes all well.
const careful = 100

// roll restarts one node after the other. Each waits until the one before is ready, though
// not for ever. If nothing else is done to them meanwhile, all end as they began: active.
func (f *fleet) roll(e event) {
	if e.Arg >= careful {
		f.makeWell()
	}
	calm := f.isCalm()
	for i := range f.nodes {
		n, way := f.nodes[(e.Node+i)%len(f.nodes)], departures[(e.Arg+i)%len(departures)]
		stops := n.guard.stopped()
		n.restart(way.of, e.For)
		for bound := time.Now().Add(f.settings.granted() + 20*time.Second); !n.ready() && time.Now().Before(bound); {
			time.Sleep(time.Second)
		}
		if n.guard.stopped() != stops {
			calm.begun = 0 // a restart more than was asked for: see README.md
		}
	}
	if !calm.lasts(f) {
		return
	}
	for _, n := range f.nodes {
		if s, ok := n.status(); !ok || s.Mode != string(recovery.Active) || !n.ready() {
			f.checks.fail("%s is %s (%s) after a rolling restart: %s", n.id, s.Mode, s.Reason, n.why())
		}
	}
}

// makeWell is somebody who starts and activates whatever is not.
func (f *fleet) makeWell() {
	for _, n := range f.nodes {
		n.broker.start()
		n.startSidecar()
	}
	for bound := time.Now().Add(f.settings.granted() + 20*time.Second); f.unsettled() != "" && time.Now().Before(bound); {
		time.Sleep(time.Second)
	}
	for _, n := range f.nodes {
		if s, ok := n.status(); ok && s.Mode != string(recovery.Active) {
			n.steer("activate")
		}
	}
	time.Sleep(soon)
}

// calm is a time in which nothing but one deed happens to the fleet. Zero: there is none.
type calm struct{ begun int }

// isCalm reports whether all serve, and nothing else has been done to them for a TTL.
func (f *fleet) isCalm() calm {
	f.mu.Lock()
	begun, quiet := f.begun, f.going == 1 && time.Since(f.done) > f.settings.granted()+soon
	f.mu.Unlock()
	for _, n := range f.nodes {
		s, _ := n.status()
		quiet = quiet && s.Mode == string(recovery.Active)
	}
	if !quiet || f.unsettled() != "" {
		return calm{}
	}
	return calm{begun}
}

func (c calm) lasts(f *fleet) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return c.begun != 0 && c.begun == f.begun
}

// counted does a deed, and has it seen that it goes on.
func (f *fleet) counted(do func()) {
	f.mu.Lock()
	f.begun, f.going = f.begun+1, f.going+1
	f.mu.Unlock()
	do()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.going, f.done = f.going-1, time.Now()
}

// Each is away for longer than the TTL.
func TestARollingRestartEndsWithAllActive(t *testing.T) {
	for _, way := range departures {
		t.Run(way.name, func(t *testing.T) {
			dir := scratch(t)
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(schedule{Settings: settings{Nodes: 3, Topics: 3, TTL: 4 * time.Second, Policy: "drain", Latency: time.Millisecond}})
				end := f.build(dir)
				for i, n := range f.nodes {
					key := f.keys.Assignment(n.id, f.topic(i))
					f.txn(key, false, put(key))
					n.broker.start()
					n.startSidecar()
				}
				f.settle("after the start")
				for _, n := range f.nodes {
					n.restart(func(n *node) {
						way.of(n)
						if f.checks.wanted(n.index).registered {
							t.Errorf("%s has left, and is registered", n.id)
						}
					}, 8*time.Second)
					f.settle("after the restart of " + n.id)
					if s, ok := n.status(); !ok || s.Mode != string(recovery.Active) || s.Reason != string(recovery.ReasonPlannedRestart) {
						t.Errorf("%s is %s (%s), want active, planned_restart", n.id, s.Mode, s.Reason)
					}
				}
				for _, n := range f.nodes {
					if s, ok := n.status(); !ok || s.Mode != string(recovery.Active) {
						t.Errorf("%s ends %s (%s)", n.id, s.Mode, s.Reason)
					}
				}
				for _, n := range f.nodes {
					n.stopSidecar()
				}
				f.close(end)
				for _, v := range f.checks.found() {
					t.Error(v)
				}
			})
		})
	}
}
