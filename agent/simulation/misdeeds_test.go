package simulation

import "time"

// misdo is do for what machines do, and hands other than ours.
func (f *fleet) misdo(e event) {
	n := f.nodes[e.Node]
	switch e.Do {
	case lyingLeader:
		f.checks.networks(1, true)
		f.members[e.Arg].Depose(0)
		f.checks.elected()
		time.Sleep(e.For)
		f.members[e.Arg].Rejoin()
		f.checks.networks(-1, true)
	case noQuorum:
		f.checks.networks(1, false)
		f.members[e.Arg].Isolate()
		time.Sleep(e.For)
		f.members[e.Arg].Rejoin()
		f.checks.networks(-1, false)
	case restore:
		backup := f.store.Content()
		time.Sleep(e.For)
		f.checks.elected()
		if err := f.store.Rewind(backup); err != nil {
			f.checks.fail("restore a backup: %v", err)
		}
	case hands:
		until := time.Now().Add(e.For)
		for time.Now().Before(until) {
			if !f.checks.wanted(e.Node).registered {
				f.checks.meddled(e.Node)
				n.broker.serveByHand()
			}
			time.Sleep(700 * time.Millisecond)
		}
	case slowStop:
		slow := time.Duration(e.Arg) * time.Millisecond
		n.broker.set(func() { n.broker.stopping += slow })
		time.Sleep(e.For)
		n.broker.set(func() { n.broker.stopping -= slow })
	case refuseStop:
		f.checks.unstoppable(e.Node, 1)
		n.broker.set(func() { n.broker.unstoppable++ })
		time.Sleep(e.For)
		n.broker.set(func() { n.broker.unstoppable-- })
		f.checks.unstoppable(e.Node, -1)
	case suspend:
		n.stands(e.For, 0, &n.host.suspended)
	case pauseVM:
		n.stands(e.For, time.Duration(e.Arg)*time.Millisecond, &n.host.paused)
	case stepWall:
		n.host.mu.Lock()
		defer n.host.mu.Unlock()
		n.host.stepped += time.Duration(e.Arg) * time.Second
	case killBoth:
		f.checks.unguarded(e.Node, 1)
		n.crashSidecar(0)
		n.guard.die()
		time.Sleep(e.For)
		n.startSidecar()
		f.checks.unguarded(e.Node, -1)
	case freezeBoth:
		f.checks.unguarded(e.Node, 1)
		n.guard.frozen.shut()
		n.freezeSidecar(e.For)
		n.guard.frozen.release()
		f.checks.unguarded(e.Node, -1)
	case killGuard:
		f.checks.unguarded(e.Node, 1)
		n.guard.die()
		f.aside.Go(func() {
			tick := time.NewTicker(look)
			defer tick.Stop()
			for !n.guard.lives() {
				select {
				case <-f.life.Done():
					return
				case <-tick.C:
				}
			}
			f.checks.unguarded(e.Node, -1)
		})
	}
}
