package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/registration"
	"holdfast/brokerapi"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// sidecarLife is a sidecar in virtual time, with a broker that is well and an etcd
// that answers or does not. It is the sidecar's Line and Registrar.
type sidecarLife struct {
	*agent
	t        *testing.T
	born     time.Time
	reg      *prometheus.Registry
	lostLine chan struct{} // says that the broker's connection broke
	halt     func()        // ends the parts, as the end of Run does before leave

	mu       sync.Mutex
	away     bool                     // etcd does not answer
	heard    error                    // what is heard of it then; nil: nothing with a class
	over     *registration.SessionEnd // what the loop returned
	storeErr bool                     // it answers renewals only
	jumped   time.Duration            // how long the host was suspended
	lost     bool                     // the lease is gone
	contest  bool                     // another incarnation is registered
	waits    bool                     // the registration waits, though etcd answers
	slow     time.Duration            // how long a renewal takes
	sent     int                      // renewals
	answered int
	renewTTL time.Duration // what a renewal is answered with; 0: the TTL
	revision int64         // of the store; 0: 10
	leaseID  int64         // of the registration
	asked    int           // how often etcd was asked for the registration

	process  int   // which life of the broker's process this is
	ended    bool  // the process
	frozen   bool  // the process
	replies  error // every call is answered with it; nil: with what it asks for
	serving  bool  // the one topic
	loads    int
	listed   int
	mumbles  bool // it lists nothing
	quiesces int
	refuses  int          // that many more are refused
	quiesced func() error // instead, with l locked; nil: what is there happens
	unableTo error

	steers  []string // what it was told to be, and when
	steered brokerapi.Mode
	balks   error         // what Steer ends with
	takes   time.Duration // how long Steer takes

	immortal bool            // the stopper cannot stop it
	dies     time.Duration   // how long a stop takes
	stops    []time.Duration // at which ages the broker was stopped
	words    []string        // what the guard was told
	arming   time.Duration   // how long it takes to arm it
	moment   lease.Instant   // at which it acts
	revokes  int

	stood int64         // the lease that was registered under last
	moved time.Duration // by how much the wall clock was moved
}

// answer is the way of every call to the broker.
func (l *sidecarLife) answer(ctx context.Context) error {
	for {
		l.mu.Lock()
		ended, frozen, replies := l.ended, l.frozen, l.replies
		l.mu.Unlock()
		switch {
		case ended:
			return errors.New("connection refused")
		case !frozen:
			return replies
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *sidecarLife) Probe(ctx context.Context) (brokerapi.Report, error) {
	err := l.answer(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		return brokerapi.Report{}, err
	}
	return brokerapi.Report{Name: "n1", Instance: fmt.Sprintf("process-%d", l.process), Unable: l.unableTo}, nil
}
func (l *sidecarLife) Topics(ctx context.Context) (brokerapi.Held, error) {
	err := l.answer(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listed++
	if l.mumbles {
		return brokerapi.Held{}, errors.New("the broker is busy")
	}
	if l.serving {
		return brokerapi.Held{Serving: []string{telltale}}, err
	}
	return brokerapi.Held{Withdrawn: []string{telltale}}, err
}
func (l *sidecarLife) Serve(ctx context.Context, topic string, _ []byte) error {
	err := l.answer(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if topic != telltale {
		return errors.New("the broker has but the one topic")
	}
	if err == nil {
		l.loads++
		l.serving = true
		l.words = append(l.words, "load")
	}
	return err
}
func (l *sidecarLife) Withdraw(ctx context.Context, _ string) error {
	err := l.answer(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		return err
	}
	l.quiesces++
	if f := l.quiesced; f != nil {
		return f()
	}
	if l.refuses > 0 {
		l.refuses--
		return errors.New("the broker refuses")
	}
	l.serving = false
	return nil
}
func (l *sidecarLife) Records(context.Context, []string) (map[string][]byte, error) { return nil, nil }
func (l *sidecarLife) Close() error                                                 { return nil }

// Steer is the broker's: drained, it gives up what it has.
func (l *sidecarLife) SetMode(ctx context.Context, mode brokerapi.Mode, reason string) error {
	l.set(func() { l.steers = append(l.steers, fmt.Sprintf("%s (%s)", mode, reason)) })
	if err := l.answer(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	takes, balks := l.takes, l.balks
	l.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	if balks == nil {
		l.set(func() {
			l.steered = mode
			l.serving = l.serving && mode == brokerapi.Active
		})
	}
	return balks
}

// End is the broker's: its process ends.
func (l *sidecarLife) End(ctx context.Context) error {
	if err := l.answer(ctx); err != nil {
		return err
	}
	l.set(func() { l.ended, l.serving = true, false })
	return nil
}

// Stop is the Stopper's.
func (l *sidecarLife) Stop(ctx context.Context) (string, error) {
	l.mu.Lock()
	l.stops = append(l.stops, l.age())
	immortal, dies, ended := l.immortal, l.dies, l.ended
	l.mu.Unlock()
	if ended {
		return "had ended", nil
	}
	select {
	case <-time.After(dies):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if immortal {
		<-ctx.Done()
		return "", ctx.Err()
	}
	l.set(func() { l.ended, l.frozen, l.serving = true, false, false })
	return "SIGTERM", nil
}

// start is a supervisor that starts the broker again. It serves what it has at once.
func (l *sidecarLife) start() {
	l.set(func() { l.process++; l.ended, l.serving = false, true })
}

// fakeGuard writes down what it is told.
type fakeGuard struct{ l *sidecarLife }

func (g fakeGuard) Arm(v lease.Validity) {
	time.Sleep(g.l.arming)
	g.l.set(func() {
		g.l.moment = v.StopAt()
		g.l.words = append(g.l.words, fmt.Sprintf("arm %v", time.Duration(v.Deadline())-time.Hour))
	})
}

// Postpone is written down once for each outage, Beat never.
func (g fakeGuard) Postpone(stopAt lease.Instant) {
	g.l.set(func() {
		g.l.moment = max(g.l.moment, stopAt)
		if w := g.l.words; len(w) == 0 || w[len(w)-1] != "postpone" {
			g.l.words = append(w, "postpone")
		}
	})
}
func (g fakeGuard) Beat(lease.Instant) {}
func (g fakeGuard) Disarm()            { g.l.set(func() { g.l.words = append(g.l.words, "disarm") }) }

func (l *sidecarLife) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

func (l *sidecarLife) asks() (n int)    { l.set(func() { n = l.sent }); return n }
func (l *sidecarLife) answers() (n int) { l.set(func() { n = l.answered }); return n }

func (l *sidecarLife) KeepAlive(ctx context.Context, _ int64, _ bool) (lease.Renewal, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent++
	defer func() { l.answered++ }()
	if slow := l.slow; slow > 0 {
		l.mu.Unlock()
		probes.Sleep(ctx, slow)
		l.mu.Lock()
	}
	switch {
	case l.away:
		return lease.Renewal{}, l.silence()
	case l.renewTTL < 0:
		return lease.Renewal{Revision: 10}, nil
	case l.lost:
		return lease.Renewal{}, lease.ErrLost
	}
	return lease.Renewal{Granted: cmp.Or(l.renewTTL, l.cfg.LeaseTTL), Revision: cmp.Or(l.revision, 10)}, nil
}

// Prove has the registration go with its lease.
func (l *sidecarLife) Prove(context.Context, lease.Grant) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.away:
		return 0, l.silence()
	case l.lost || l.renewTTL < 0:
		return 0, lease.ErrLost
	}
	return 0, nil
}

func (l *sidecarLife) wallMoved() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moved
}

// silence is what a call to an etcd that is away ends with. The lock is held.
func (l *sidecarLife) silence() error {
	if l.heard != nil {
		return l.heard
	}
	return errors.New("etcd does not answer")
}

func (l *sidecarLife) suspended() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.jumped
}

func (l *sidecarLife) AwaitReconnect(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (l *sidecarLife) Revoke(ctx context.Context, _ int64) error {
	time.Sleep(5 * time.Millisecond) // etcd writes it down first
	if ctx.Err() != nil {
		return ctx.Err()
	}
	l.set(func() { l.revokes++ })
	return nil
}

func (l *sidecarLife) Establish(ctx context.Context, _ int64, _ bool) (lease.Grant, error) {
	sent := l.clock()
	l.mu.Lock()
	away, contest, waits, process, silence := l.away || l.storeErr, l.contest, l.waits, l.process, l.silence()
	l.asked++
	if l.lost && !away {
		l.lost = false
		l.leaseID++
	}
	id, step := l.leaseID, recovery.Register
	if !away && !contest && !waits && l.stood == id {
		step = recovery.Keep
	} else if !away && !contest && !waits {
		l.stood = id
	}
	l.mu.Unlock()
	switch {
	case away:
		return lease.Grant{}, silence
	case contest:
		return lease.Grant{}, fmt.Errorf("%w: another sidecar", lease.ErrConflict)
	case waits:
		return lease.Grant{}, lease.ErrDeferred
	}
	ttl := l.cfg.LeaseTTL
	if l.renewTTL > ttl {
		ttl = l.renewTTL
	}
	g := lease.Grant{LeaseID: id, SentAt: sent, TTL: ttl, Epoch: id, Revision: 10}
	mode := recovery.ModeRecord{Mode: recovery.Active, Reason: recovery.ReasonBoot, By: recovery.ByHoldfast}
	return g, l.deliver(ctx, registration.Outcome{Decision: recovery.Decision{Step: step, Mode: mode}, Grant: g, Instance: fmt.Sprintf("process-%d", process)})
}

// inLife runs claim beside a sidecar that is attached and ready.
func inLife(t *testing.T, change func(c *config.Config), claim func(l *sidecarLife)) {
	t.Helper()
	inLifeAfter(t, change, nil, func(l *sidecarLife) {
		if causes := l.notReady(); len(causes) > 0 || l.state() != recovery.Attached {
			t.Errorf("after 9 s: %s, %v", l.state(), causes)
			return
		}
		claim(l)
	})
}

// inLifeAfter runs claim beside a sidecar that has run for 9 s, after past was given to it.
func inLifeAfter(t *testing.T, change func(c *config.Config), past, claim func(l *sidecarLife)) {
	t.Helper()
	inLifeOf(t, kind{}, change, past, claim)
}

// inLifeOf is inLifeAfter beside a broker that can do more.
// kind is how a broker is, and whether it has a mode of its own.
type kind struct {
	brokerapi.Traits
	steers bool
}

var (
	mustStop     = kind{Traits: brokerapi.Traits{AtDeadline: brokerapi.Stop}}
	fencesItself = kind{Traits: brokerapi.Traits{AtDeadline: brokerapi.Nothing}}
)

func inLifeOf(t *testing.T, can kind, change func(c *config.Config), past, claim func(l *sidecarLife)) {
	t.Helper()
	lifeOf(t, can, change, past, func(l *sidecarLife) {
		l.until(9 * time.Second)
		claim(l)
	})
}

// lifeFromTheStart is inLifeAfter from its first moment on.
func lifeFromTheStart(t *testing.T, change func(c *config.Config), past, claim func(l *sidecarLife)) {
	t.Helper()
	lifeOf(t, kind{}, change, past, claim)
}

func lifeOf(t *testing.T, can kind, change func(c *config.Config), past, claim func(l *sidecarLife)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		quiet := slog.New(slog.DiscardHandler)
		c := natsDefaults()
		if change != nil {
			change(&c)
		}
		c = c.Effective()
		l := &sidecarLife{t: t, born: time.Now(), leaseID: 1, process: 1, serving: true, lostLine: make(chan struct{}, 1)}
		l.agent = &agent{cfg: c, version: "test", log: quiet, started: time.Now(), inbox: make(chan func()), named: make(chan struct{}),
			world: World{}}
		l.world.Clocks = func() lease.Clocks {
			return lease.Clocks{Boot: l.clock(), Mono: time.Since(l.born), Wall: time.Now().Add(l.suspended() + l.wallMoved())}
		}
		l.clock = func() lease.Instant { return lease.Instant(time.Hour + time.Since(l.born) + l.suspended()) }
		l.begun = l.clock()
		l.reloading.shown = shownToEtcd(c)
		l.life0, l.endLife = context.WithCancel(context.Background())
		var err error
		if l.dir, err = openStateDir(dir); err != nil {
			t.Fatal(err)
		}
		defer l.dir.close()
		l.memory = newMemory()
		l.journal = control.OpenJournal(dir, quiet)
		defer l.journal.Close()
		reg := prometheus.NewPedanticRegistry()
		l.reg = reg
		l.broker = l
		if !can.steers {
			l.broker = struct{ brokerapi.Broker }{l}
		}
		if c.CanStop() {
			l.stopper = l
			l.guard = fakeGuard{l}
		}
		if c.Shadow {
			l.wouldHave = newWouldHave()
			l.shadow = &shadow{count: l.wouldHave, log: quiet, event: l.event}
			l.broker, l.stopper, l.guard = newShadowBroker(l.broker, l.shadow), shadowStopper{l.shadow}, nil
		}
		l.traits = can.Traits
		l.reached.Store(can.AtDeadline == brokerapi.Nothing)
		l.agent.metrics = newMetrics(reg, l.agent)
		l.identity = newIdentityCheck(l.broker, c, "")
		l.identity.there = l.brokerThere
		l.health = probes.NewHealth(probes.HealthSettings{Interval: c.HealthInterval, Timeout: c.HealthTimeout, Rise: c.HealthRise, Fall: c.HealthFall},
			l.identity.check, l.lostLine, quiet, reg)
		l.dataDir = probes.NewDataDir("", nil, false, quiet)
		l.reconciler = l.newReconciler(topics.ReconcilerSettings{Concurrency: 16, LoadTimeout: 30 * time.Second, AuditInterval: 30 * time.Second}, l, reg)
		l.steerer = l.newSteerer(reg)
		l.reconciler.SetAssigned(1, true, []string{telltale}, nil)
		l.registrar = &registration.Registrar{}
		l.keeper = lease.NewKeeper(lease.Settings{Timing: c.Timing(), RestartGrace: c.RestartGrace, Clock: l.clock, Classify: classify, Classes: failureClasses()}, l, l, 0, quiet, reg)
		l.ranAt(time.Now())
		l.initLoop()
		if past != nil {
			past(l)
		}

		var parts sync.WaitGroup
		ctx, stop := context.WithCancel(l.life0)
		l.halt = func() { stop(); parts.Wait() }
		runs := []func(context.Context) error{l.loop, l.health.Run, l.reconciler.Run, l.steerer.Run, l.onceNamed(l.keeper.Run)}
		for _, run := range runs {
			parts.Go(func() {
				err := run(ctx)
				var end *registration.SessionEnd
				switch {
				case errors.As(err, &end):
					l.set(func() { l.over = end })
					l.endLife() // as the run group does
				case err != nil:
					t.Error(err)
				}
			})
		}
		claim(l)
		l.halt()
		l.endLife()
		l.tasks.Wait()
	})
}

func (l *sidecarLife) age() time.Duration { return time.Since(l.born) }

// until lets time pass. What is written from now on comes after what the test has read.
func (l *sidecarLife) until(age time.Duration) {
	l.set(func() {})
	time.Sleep(age - l.age())
	synctest.Wait()
}

func (l *sidecarLife) state() recovery.Attachment { return l.view.Load().Attachment }

// detached is the age at which a's attachment becomes that one, to the nanosecond
// if it follows from the clock.
func (l *sidecarLife) becomes(want recovery.Attachment, bound time.Duration) time.Duration {
	l.t.Helper()
	for l.state() != want {
		if l.age() > bound {
			l.t.Fatalf("not %s within %v", want, bound)
		}
		l.until(l.age() + time.Millisecond)
	}
	return l.age()
}

// fencePoint is when the broker must be detached if nothing is renewed any more.
func (l *sidecarLife) fencePoint() time.Duration {
	return time.Duration(l.keeper.View().Validity.FencePoint()) - time.Hour
}

func (l *sidecarLife) why(kind string) string {
	events, _ := l.journal.Since(0)
	var list []string
	for _, e := range events {
		if e.Kind == kind {
			list = append(list, e.To+":"+e.Reason)
		}
	}
	return strings.Join(list, " ")
}

// The tests that follow are those of the detachment document, by their names there.

func TestDetachOnKeepAliveLoss(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		at := l.fencePoint()
		l.until(at - time.Nanosecond)
		if l.state() != recovery.Degraded || len(l.notReady()) > 0 {
			t.Errorf("a nanosecond before the fence point: %s, %v", l.state(), l.notReady())
		}
		l.until(at)
		if l.state() != recovery.Detached || len(l.notReady()) == 0 {
			t.Errorf("at the fence point: %s, %v", l.state(), l.notReady())
		}
		l.until(at + time.Second)
		if l.quiesces != 1 {
			t.Errorf("%d topics quiesced", l.quiesces)
		}
		if got := l.why("attachment"); got != "attached:registered degraded:renewals_failing detached:fence_point" {
			t.Error(got)
		}
	})
}

// A store call that fails detaches nobody while renewals are confirmed; without them
// the lease's deadline decides, as for renewals; an answer that the lease is gone does
// at once.
func TestDetachOnStoreError(t *testing.T) {
	t.Run("renewals are confirmed", func(t *testing.T) {
		inLife(t, nil, func(l *sidecarLife) {
			asked := l.asked
			l.set(func() { l.storeErr = true })
			l.keeper.Reestablish()
			l.until(l.age() + 2*time.Minute)
			if l.asked < asked+5 || l.state() != recovery.Attached {
				t.Errorf("%s after %d store calls that failed", l.state(), l.asked-asked)
			}
		})
	})
	t.Run("renewals are not", func(t *testing.T) {
		inLife(t, nil, func(l *sidecarLife) {
			l.set(func() { l.storeErr, l.away = true, true })
			l.keeper.Reestablish()
			at := l.fencePoint()
			l.until(at - time.Nanosecond)
			if l.state() == recovery.Detached {
				t.Error("detached while the lease surely holds")
			}
			l.until(at)
			if l.state() != recovery.Detached {
				t.Errorf("%s at the fence point", l.state())
			}
		})
	})
	t.Run("the lease is gone", func(t *testing.T) {
		inLife(t, nil, func(l *sidecarLife) {
			l.set(func() { l.lost, l.storeErr = true, true })
			for l.keeper.View().Losses == 0 {
				l.until(l.age() + time.Millisecond)
			}
			if l.state() != recovery.Detached {
				t.Errorf("%s when etcd had said so", l.state())
			}
		})
	})
}

func TestKeepAliveAnsweredWithTTL0(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.set(func() { l.renewTTL, l.storeErr = -1, true })
		for l.keeper.View().Losses == 0 {
			l.until(l.age() + time.Millisecond)
		}
		if got := l.why("attachment"); l.state() != recovery.Detached || got != "attached:registered detached:lease_lost" {
			t.Errorf("%s: %s", l.state(), got)
		}
	})
}

// etcd raises a TTL that is below its minimum: what it granted counts.
func TestTTLBelowTheServersMinimum(t *testing.T) {
	granted := 0 * time.Second
	inLife(t, func(c *config.Config) { c.LeaseTTL = 5 * time.Second }, func(l *sidecarLife) {
		granted = 20 * time.Second
		l.set(func() { l.renewTTL = granted })
		l.until(l.age() + 2*time.Second)
		l.set(func() { l.away = true })
		v := l.keeper.View().Validity
		if at := l.becomes(recovery.Detached, time.Minute); at != (l.fencePoint()+time.Millisecond-1).Truncate(time.Millisecond) || v.TTL != granted {
			t.Errorf("detached at %v, fence point %v, TTL %v", at, l.fencePoint(), v.TTL)
		}
	})
}

func TestDetachedLoopsSkipWork(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.becomes(recovery.Detached, time.Minute)
		l.until(l.age() + time.Second)
		loads := l.loads
		l.reconciler.SetAssigned(1, false, []string{"/tenant-a/more"}, nil)
		l.reconciler.Kick()
		l.until(l.age() + 10*time.Minute)
		if l.loads != loads || l.serving {
			t.Errorf("%d loads while detached", l.loads-loads)
		}
		l.set(func() { l.away = false })
		l.becomes(recovery.Attached, time.Hour)
		l.until(l.age() + 5*time.Second)
		if l.loads == loads {
			t.Error("nothing loaded after it was attached again")
		}
	})
}

func TestReattachAfterRecoveryWindow(t *testing.T) {
	t.Run("sustained health", func(t *testing.T) {
		inLife(t, nil, func(l *sidecarLife) {
			l.set(func() { l.away = true })
			l.becomes(recovery.Detached, time.Minute)
			l.until(l.age() + 300*time.Millisecond)
			l.set(func() { l.away = false })
			for l.keeper.View().FailureStreak > 0 {
				l.until(l.age() + time.Millisecond)
			}
			confirmed := l.age()
			back := l.becomes(recovery.Attached, 2*time.Minute)
			if d := back - confirmed; d < 2*time.Second-time.Millisecond || d > 2100*time.Millisecond {
				t.Errorf("attached %v after the first confirmed renewal, want the window of 2 s", d)
			}
			if got := l.why("attachment"); !strings.HasSuffix(got, "detached:fence_point attached:recover_window") {
				t.Error(got)
			}
		})
	})
	t.Run("and a successful store call", func(t *testing.T) {
		inLife(t, nil, func(l *sidecarLife) {
			l.set(func() { l.away = true })
			l.becomes(recovery.Detached, time.Minute)
			l.set(func() { l.away, l.storeErr = false, true })
			l.until(l.age() + 3*time.Minute)
			if v := l.keeper.View(); l.state() != recovery.Detached || v.FailureStreak > 0 {
				t.Errorf("%s without a store call, %d failures", l.state(), v.FailureStreak)
			}
			l.set(func() { l.storeErr = false })
			l.becomes(recovery.Attached, l.age()+30*time.Second)
		})
	})
}

func TestUnhealthySignalResetsWindow(t *testing.T) {
	inLife(t, func(c *config.Config) { c.RenewInterval = 500 * time.Millisecond }, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.becomes(recovery.Detached, time.Minute)
		l.set(func() { l.away = false })
		for l.keeper.View().FailureStreak > 0 {
			l.until(l.age() + time.Millisecond)
		}
		l.until(l.age() + 1200*time.Millisecond)
		l.set(func() { l.away = true })
		for l.keeper.View().FailureStreak == 0 {
			l.until(l.age() + time.Millisecond)
		}
		l.set(func() { l.away = false })
		for l.keeper.View().FailureStreak > 0 {
			l.until(l.age() + time.Millisecond)
		}
		confirmed := l.age()
		if d := l.becomes(recovery.Attached, 2*time.Minute) - confirmed; d < 2*time.Second-time.Millisecond {
			t.Errorf("attached %v after the last failure ended", d)
		}
	})
}

func TestALostLeaseDetachesAndTheNewOneIsKept(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.set(func() { l.lost = true })
		l.becomes(recovery.Detached, time.Minute)
		l.until(l.age() + time.Second)
		if l.keeper.View().Grant.LeaseID != 2 || l.quiesces != 1 {
			t.Errorf("%+v, %d quiesced", l.keeper.View(), l.quiesces)
		}
		l.becomes(recovery.Attached, time.Minute)
		if got := l.why("attachment"); got != "attached:registered detached:lease_lost attached:recover_window" {
			t.Error(got)
		}
		if got := l.why("registration"); strings.Count(got, "lost:lease_expired") != 1 {
			t.Error(got)
		}
	})
}

func TestAConflictIsToldOnceAndLastsUntilItIsOver(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.set(func() { l.contest = true })
		l.keeper.Reestablish()
		l.becomes(recovery.Detached, time.Minute)
		l.until(l.age() + time.Minute)
		if got := l.why("registration"); strings.Count(got, "contested") != 1 {
			t.Error(got)
		}
		var refused *control.ExitError
		if err := l.setModeByOperator(t.Context(), recovery.Active, ""); !errors.As(err, &refused) || refused.Code != control.ExitRefused {
			t.Errorf("activate: %v", err)
		}
		l.set(func() { l.contest = false })
		l.becomes(recovery.Attached, l.age()+time.Minute)
	})
}

func TestDetachmentDisabled(t *testing.T) {
	inLife(t, func(c *config.Config) { c.Detach = false }, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.until(l.age() + 5*time.Minute)
		if l.state() != recovery.Degraded || l.quiesces != 0 {
			t.Errorf("%s, %d quiesced", l.state(), l.quiesces)
		}
	})
}
