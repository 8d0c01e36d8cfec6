package simulation

import (
	"math/rand/v2"
	"slices"
	"time"
)

// shortHang is the least TTL for which brokers that hang together are held for sure: each needs
// the time to notice (health checks of a second, three of them) before the first fence point.
const shortHang = 8 * time.Second

// drawHang is something that all brokers depend on, which hangs when all else is over, in one of
// ten schedules that roll nothing. It has a source of its own: the rest of a seed stays what it was.
func drawHang(s schedule) []event {
	r := rand.New(rand.NewPCG(s.Seed, 6))
	rolls := slices.ContainsFunc(s.Events, func(e event) bool { return e.Do == roll })
	if r.IntN(10) > 0 || rolls || s.Settings.TTL < shortHang {
		return nil
	}
	e := event{Do: hang, For: time.Duration(float64(pick(r, 1, 2, 4)) * 1.3 * float64(s.Settings.TTL)).Round(time.Millisecond)}
	for _, other := range s.Events {
		e.At = max(e.At, other.At+other.For+s.Settings.granted()+4*soon)
	}
	return []event{e}
}

// hang freezes all brokers together. Who was in service must be there all the while, and after.
func (f *fleet) hang(e event) {
	before := f.checks.inService()
	for i, n := range f.nodes {
		f.checks.unwell(i, 1)
		n.broker.freeze()
	}
	time.Sleep(e.For)
	f.checks.stillThere(before)
	for i, n := range f.nodes {
		n.broker.thaw()
		f.checks.unwell(i, -1)
	}
}

// stands is a broker's registration, and the process that it is of.
type stands struct {
	create   int64
	instance int
}

// inService are those that run under a registration, with a sidecar and a way to etcd that have
// been well for long.
func (c *checks) inService() map[int]stands {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, found := time.Now(), map[int]stands{}
	for i, w := range c.nodes {
		if w.registered && w.running && !w.frozen && w.sidecar && w.instance == w.registrant && w.wellFor(now) > 2*soon && w.netFor(now) > 2*soon {
			found[i] = stands{w.create, w.instance}
		}
	}
	return found
}

func (c *checks) stillThere(before map[int]stands) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, was := range before {
		if w := c.nodes[i]; !w.registered || w.create != was.create || !w.running || w.instance != was.instance {
			c.violated("%s hung together with all others and lost its registration (%s), or was stopped", c.f.nodes[i].id, w.why)
		}
	}
}
