package simulation

import (
	"sync"
	"time"

	"holdfast/cluster/memory"
)

// misdo is do for what machines do, and hands other than ours.
func (f *fleet) misdo(e event) {
	n := f.nodes[e.Node]
	switch e.Do {
	case lyingLeader:
		f.checks.networks(1, true)
		f.elect(func() { f.members[e.Arg].Depose(0) })
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
		if e.Arg == 1 {
			f.withoutSidecars(e, func() { f.rewind(backup) })
			return
		}
		f.rewind(backup)
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

func (f *fleet) rewind(backup memory.Content) {
	f.checks.elected()
	f.store.Rewind(backup)
}

// withoutSidecars has all sidecars away while do is done, each killed or stopped in order.
func (f *fleet) withoutSidecars(e event, do func()) {
	var ends sync.WaitGroup
	for i, n := range f.nodes {
		if (e.At/time.Millisecond+time.Duration(i))%2 == 0 { // as good as random, and the same each time
			ends.Go(func() { n.crashSidecar(0) })
		} else {
			ends.Go(n.stopSidecar)
		}
	}
	ends.Wait()
	do()
	for _, n := range f.nodes {
		n.startSidecar()
	}
}
