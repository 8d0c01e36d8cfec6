package simulation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast/agent/lease"
	"holdfast/brokerapi"
	"holdfast/probes"
)

// gate holds up whoever passes while it is closed. Closings add up.
type gate struct {
	mu     sync.Mutex
	closed int
	open   chan struct{} // closed when the gate opens
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == 0 {
		g.open = make(chan struct{})
	}
	g.closed++
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed--; g.closed == 0 {
		close(g.open)
	}
}

func (g *gate) isShut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed > 0
}

// opened is closed as soon as the gate is open; nil: it is.
func (g *gate) opened() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == 0 {
		return nil
	}
	return g.open
}

// pass returns when the gate is open, and the process behind it runs.
func (g *gate) pass() {
	for c := g.opened(); c != nil; c = g.opened() {
		<-c
	}
}

// shut is closed.
var shut = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

var (
	errRefused = errors.New("connection refused")
	errLeaving = errors.New("the server takes leave of its clients")
)

// broker is a broker's process, and the disk that outlives it.
type broker struct {
	id      string
	latency time.Duration
	boot    time.Duration // how long a process takes before it serves, and answers anybody
	forgets bool
	data    string           // its data directory; empty: it does not tell
	changed func(why string) // called with the broker locked
	clock   func() lease.Instant
	beside  func(func()) // runs what goes on by itself
	ended   func()       // called when somebody has stopped the process

	frozen gate

	mu       sync.Mutex
	running  bool // the process is there
	booted   bool // and it answers
	instance int
	started  time.Time
	born     lease.Instant
	exited   chan struct{} // closed at the end of this process
	topics   map[string]bool
	leaving  bool // it says that it ends, and does nothing else any more
	slow     time.Duration
	refusing int
	stopping time.Duration // how long an orderly end takes
	// unstoppable counts why signals and stop commands do nothing.
	unstoppable int
	backlog     []func() // sent to a process that is frozen
	watchers    map[chan struct{}]struct{}
}

func newBroker(id string, boot time.Duration, forgets bool) *broker {
	return &broker{id: id, latency: 2 * time.Millisecond, boot: boot, forgets: forgets, topics: map[string]bool{},
		watchers: map[chan struct{}]struct{}{}}
}

// start runs a new process. It serves what it finds on its disk as soon as it has booted.
func (b *broker) start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running {
		return
	}
	b.leaving = false
	b.running, b.booted, b.started, b.born, b.exited = true, b.boot == 0, time.Now(), b.clock(), make(chan struct{})
	b.instance++
	if !b.booted {
		exited := b.exited
		b.beside(func() { b.boots(exited) })
	}
	if b.forgets {
		for topic := range b.topics {
			b.topics[topic] = true
		}
	}
	b.changed("broker started")
}

// boots lets the process answer when its time has come, unless it has ended.
func (b *broker) boots(exited <-chan struct{}) {
	select {
	case <-time.After(b.boot):
	case <-exited:
		return
	}
	b.frozen.pass()
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-exited:
	default:
		b.booted = true
		b.changed("broker booted")
	}
}

// answers reports whether there is a process, and has booted.
func (b *broker) answers() bool { return b.running && b.booted }

// kill ends the process, frozen or not.
func (b *broker) kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.running {
		return
	}
	b.running, b.backlog = false, nil
	close(b.exited)
	for w := range b.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
	b.changed("broker ended")
}

// freeze stops the process until thaw; what is sent to it waits for it.
func (b *broker) freeze() {
	b.frozen.shut()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed("broker frozen")
}

func (b *broker) thaw() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frozen.release()
	if b.frozen.isShut() {
		return
	}
	work := b.backlog
	b.backlog = nil
	b.changed("broker thawed")
	for _, do := range work {
		do()
	}
}

func (b *broker) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
	b.changed("broker set")
}

// serveByHand makes one topic that is quiesced served again, as somebody does who restores
// a subject or a lookup that brings a bundle back.
func (b *broker) serveByHand() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, topic := range slices.Sorted(maps.Keys(b.topics)) {
		if !b.topics[topic] && b.answers() && !b.frozen.isShut() {
			b.topics[topic] = true
			b.changed("brought back by hand: " + topic)
			return
		}
	}
}

// serving is what clients can use, if the process does anything at all.
func (b *broker) serving() []string {
	var list []string
	for topic, serves := range b.topics {
		if serves {
			list = append(list, topic)
		}
	}
	slices.Sort(list)
	return list
}

// ask is one call to the process. A call whose context ends on the way may have been
// carried out, and one that was sent to a frozen process will be.
func (b *broker) ask(ctx context.Context, do func() error) error {
	b.mu.Lock()
	if !b.answers() {
		b.mu.Unlock()
		return fmt.Errorf("broker %s: %w", b.id, errRefused)
	}
	instance, exited, wait := b.instance, b.exited, b.latency+b.slow
	b.mu.Unlock()
	carryOut := func() (err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.running || b.instance != instance {
			return errors.New("connection broke")
		}
		if b.frozen.isShut() {
			b.backlog = append(b.backlog, func() { _ = do() })
			return context.DeadlineExceeded
		}
		return do()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-exited:
		return errors.New("connection broke")
	case <-ctx.Done():
		_ = carryOut()
		return ctx.Err()
	}
	for c := b.frozen.opened(); c != nil; c = b.frozen.opened() {
		select {
		case <-c:
		case <-exited:
			return errors.New("connection broke")
		case <-ctx.Done():
			_ = carryOut()
			return ctx.Err()
		}
	}
	return carryOut()
}

// driver is the broker as one sidecar life sees it.
type driver struct {
	b    *broker
	life *life
}

func newDriver(b *broker, l *life) *driver {
	return &driver{b: b, life: l}
}

// hold is the connection that one sidecar life holds.
func (b *broker) hold(ctx context.Context, l *life, say func(probes.Held)) error {
	broke := make(chan struct{}, 1)
	b.mu.Lock()
	b.watchers[broke] = struct{}{}
	b.mu.Unlock()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for held := false; ; {
		b.mu.Lock()
		begins := !held && b.answers()
		b.mu.Unlock()
		if begins {
			l.pass()
			say(probes.HeldBegun)
			held = true
		}
		select {
		case <-ctx.Done():
			b.mu.Lock()
			defer b.mu.Unlock()
			delete(b.watchers, broke)
			return nil
		case <-broke:
			l.pass()
			if held {
				say(probes.HeldEnded)
				say(probes.HeldGone)
			}
			held = false
		case <-again.C:
		}
	}
}

// ask is a call from this life: nothing leaves a process that is frozen, and nothing
// happens after its death.
func (d *driver) ask(ctx context.Context, do func() error) error {
	d.life.pass()
	if d.life.dead.Load() {
		return errDead
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := d.b.ask(ctx, func() error {
		if err := do(); err != nil || !d.b.leaving {
			return err
		}
		return errLeaving
	})
	d.life.pass()
	return err
}

func (d *driver) Probe(ctx context.Context) (brokerapi.Report, error) {
	var who brokerapi.Report
	err := d.ask(ctx, func() error {
		who = brokerapi.Report{Name: d.b.id, Instance: fmt.Sprintf("%s-%d", d.b.id, d.b.instance), StartedAt: d.b.started, DataDir: d.b.data}
		if d.b.leaving {
			who.Leaving = errLeaving.Error()
		}
		return nil
	})
	if err != nil && !errors.Is(err, errLeaving) {
		return brokerapi.Report{}, err
	}
	return who, err
}

func (d *driver) Topics(ctx context.Context) (brokerapi.Held, error) {
	var held brokerapi.Held
	err := d.ask(ctx, func() error {
		for _, topic := range slices.Sorted(maps.Keys(d.b.topics)) {
			if d.b.topics[topic] {
				held.Serving = append(held.Serving, topic)
			} else {
				held.Withdrawn = append(held.Withdrawn, topic)
			}
		}
		return nil
	})
	if err != nil { // it may still be carried out
		return brokerapi.Held{}, err
	}
	return held, nil
}

func (d *driver) Serve(ctx context.Context, topic string, _ []byte) error {
	return d.ask(ctx, func() error {
		if !d.b.topics[topic] && !d.b.leaving {
			d.b.topics[topic] = true
			d.b.changed("loaded " + topic)
		}
		return nil
	})
}

func (d *driver) Withdraw(ctx context.Context, topic string) error {
	return d.ask(ctx, func() error {
		if d.b.refusing > 0 {
			return errors.New("the broker refuses to quiesce")
		}
		if _, here := d.b.topics[topic]; here && d.b.topics[topic] {
			d.b.topics[topic] = false
			d.b.changed("quiesced " + topic)
		}
		return nil
	})
}

func (d *driver) Close() error { return nil }
