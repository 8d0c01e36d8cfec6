package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/check"
	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/moving"
	"holdfast/agent/note"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/agent/registration"
	"holdfast/agent/web"
	"holdfast/agent/web/page"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

const (
	// loopBound is how old the loop's last run may be before /live fails. The loop
	// runs at least every second and never waits for I/O.
	loopBound = 10 * time.Second
	// authProbeTimeout bounds the question, at start, whether etcd takes our password.
	authProbeTimeout = 3 * time.Second
	// authProbeAgain is the time from a refusal to the second one: what is being renewed, or restarts, is
	// well by then.
	authProbeAgain = 3 * time.Second
)

// agent is one sidecar. Its loop owns everything under "owned by the loop"; all
// else is safe for concurrent use or set before anything runs.
type agent struct {
	cfg     config.Config
	world   World
	version string
	log     *slog.Logger
	clock   func() lease.Instant
	started time.Time
	begun   lease.Instant // the same moment on the boot clock
	metrics *metrics
	// wouldHave counts what a shadow would have done.
	wouldHave *prometheus.CounterVec

	dir        *stateDir
	journal    *control.Journal
	renewals   *note.Notes // nil: none are noted
	feed       *page.Feed  // who watches the status page
	broker     brokerapi.Broker
	traits     brokerapi.Traits // of that broker
	keeps      atomic.Bool      // it said that nothing but its end takes a topic from it
	risk       string           // why it is not stopped when it must be, and a person knows; empty: none
	identity   *identityCheck
	health     *probes.Health
	process    *probes.Process  // nil: none to watch
	recognizer recognize.Judged // of that process
	dataDir    *probes.DataDir
	statedDir  string                    // by the broker, where --data-dir is given
	ran        atomic.Pointer[time.Time] // when the loop last did; no lock, which it may be stuck with
	main       *cluster.Client
	line       Line
	denials    cluster.Denials    // of both
	presence   *registration.None // nil: there is an etcd
	stopper    Stopper            // nil: the broker's process cannot be stopped
	guard      Guard              // nil: none
	leftGuard  func()             // dismisses the one of an earlier sidecar; nil: there is none
	shadow     *shadow            // nil: what is decided is done
	keeper     *lease.Keeper
	registrar  *registration.Registrar
	reconciler *topics.Reconciler
	steerer    *topics.Steerer
	ownership  *topics.Ownership // nil: without locks
	placer     *topics.Placer    // nil: others assign the topics
	moves      *moving.Worker    // nil: the broker's topics cannot be moved

	mayStart     func() (ok bool, word, detail string) // the broker, whoever starts it
	child        *process.Child                        // nil: somebody else starts the broker
	childRan     atomic.Bool                           // in this life
	childEnded   atomic.Bool                           // and is not started again
	systemd      *Systemd                              // nil: no service manager waits for us
	notifyFailed atomic.Bool

	assigning    sync.Mutex // held while a list of the assignments is compared and taken up
	assignedFrom int64      // store revision below which a list of them is too old
	relists      bool       // somebody follows them

	misspelt sync.Map                 // of each topic whose record was read the fields that do nothing; empty: none does
	ignored  atomic.Pointer[[]string] // keys that look like assignments and are none, sorted; nil: none was read yet

	reloading reloading

	upAtStop atomic.Bool                                         // the broker was up when an orderly stop was asked for
	note     func(context.Context, registration.Departure) error // that the broker leaves on purpose
	beside

	ids    brokerIDs
	handed atomic.Pointer[handover] // that is not over; nil: none

	inbox    chan func() // work for the loop
	named    chan struct{}
	breaks   atomic.Int64 // how often the broker's process was seen to end, or its port to refuse
	reached  atomic.Bool  // its port took a connection, and has not refused one since
	portAway atomic.Bool  // its port took a connection, and not the last one that was tried
	refuses  chan struct{}
	view     atomic.Pointer[snapshot]
	life     atomic.Pointer[registration.Life]
	recalled note.Confirmed // see registration.Deps
	tasks    sync.WaitGroup // goroutines that do I/O for the loop
	life0    context.Context
	endLife  context.CancelFunc

	incarnation string
	place       string                         // of the state directory
	run         string                         // names this process in the registration
	bootID      string                         // of the host's present boot
	pausing     atomic.Pointer[recovery.Pause] // nil: recovery is not paused
	fileMu      sync.Mutex                     // held while the state file is written
	saveMu      sync.Mutex
	unsaved     memory       // for the saver
	saveFails   atomic.Value // a string: why the last save failed

	loopState
}

// Run is one sidecar from start to end. It returns nil after an orderly stop,
// which the end of ctx asks for. Errors that are about settings carry ExitUsage and
// come before anything was written to etcd. SIGHUP makes it read the settings anew; level
// is then set to the log level that they have.
func Run(ctx context.Context, c config.Config, log *slog.Logger, level *slog.LevelVar, version string) error {
	// A sidecar is idle beside every broker: memory is dearer than the collector's time, and
	// a second thread would be woken to find nothing to do.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	w := realWorld()
	w.Hangups = hangups
	w.SetLogLevel = func(name string) { _ = level.UnmarshalText([]byte(name)) } // validated
	return Live(ctx, c, w, log, version)
}

// Live is Run in another world.
func Live(ctx context.Context, c config.Config, w World, log *slog.Logger, version string) error {
	c = c.Effective()
	if err := c.Validate(); err != nil {
		return control.UsageError(err)
	}
	a := &agent{cfg: c, world: w, version: version, log: log, clock: w.Clock, started: time.Now(), begun: w.Clock(),
		inbox: make(chan func()), named: make(chan struct{}), wouldHave: newWouldHave(), relists: true}
	a.enterShadow()
	c, w, log = a.cfg, a.world, a.log
	a.life0, a.endLife = context.WithCancel(context.WithoutCancel(ctx))
	defer a.endLife()

	a.run = randomID()
	var err error
	if a.dir, err = openStateDir(c.StateDir); err != nil {
		return control.UsageError(err)
	}
	defer a.dir.close()
	a.place = a.dir.first
	if a.memory, err = a.dir.load(); err != nil {
		return control.UsageError(err)
	}
	if a.shadow != nil { // what was only supposed is no past
		a.memory = newMemory()
	}
	if err := a.keepPlace(); err != nil {
		return control.UsageError(err)
	}
	a.recallProcess()
	if a.memory.Distrust != "" {
		log.Error("state file corrupt: the broker will be drained until an operator activates it", "detail", a.memory.Distrust)
	}
	if c.DataDir != "" {
		if err := probes.CheckReadable(c.DataDir); err != nil {
			return control.UsageError(err)
		}
	}
	// Who has an incarnation that is kept nowhere is another one after its next start, and in
	// conflict with itself. Else the broker has more from a sidecar that forgets than from none.
	unsaved := a.dir.save(a.memory)
	if unsaved != nil && a.dir.fresh {
		return control.UsageError(a.dir.refused(unsaved))
	}
	a.unsaved = a.memory
	a.recallRenewal()
	a.journal = control.OpenJournal(c.StateDir, log)
	defer a.journal.Close()
	a.noteSaved(unsaved)
	defer a.tasks.Wait()
	defer a.endLife()

	a.reloading.shown = shownToEtcd(c)
	if a.presence == nil {
		etcd := c.Cluster()
		etcd.Denials = &a.denials
		if a.main, a.line, err = w.Etcd(etcd, log.With("part", "etcd")); err != nil {
			return control.UsageError(err)
		}
		defer a.main.Close()
		defer a.line.Close()
	}
	if a.broker, err = w.Broker(c, a.main, log.With("part", "broker")); err != nil {
		return control.UsageError(err)
	}
	defer a.broker.Close()
	a.traits = c.Traits()
	if err := a.refuseUnstoppable(); err != nil {
		return err
	}
	if w.Stopper != nil {
		if a.stopper, err = w.Stopper(c, log.With("part", "process")); err != nil {
			return control.UsageError(err)
		}
	}
	if err := a.findGuard(); err != nil {
		return &control.ExitError{Code: control.ExitFailed, Err: err}
	}
	return a.serve(ctx)
}

// refuseWrongCredentials asks etcd. That it does not answer is no error: etcd may come later. That
// it refuses us twice is a setting. One that answers is asked for its version, too.
func (a *agent) refuseWrongCredentials(ctx context.Context) error {
	for refused := false; ctx.Err() == nil; refused = true {
		probe, cancel := context.WithTimeout(ctx, authProbeTimeout)
		defer cancel()
		err := a.main.Reach(probe)
		switch {
		case err == nil:
			if stale := check.StaleReads(probe, a.main, a.cfg.EtcdEndpoints); stale != "" {
				a.log.Warn("etcd is too old: its word on a registration may be stale", "detail", stale)
			}
		case cluster.Classify(err) != cluster.ClassAuth || ctx.Err() != nil:
		case refused:
			return control.EtcdError(a.cfg, err)
		default:
			probes.Sleep(ctx, authProbeAgain)
			continue
		}
		break
	}
	<-ctx.Done()
	return nil
}

// serve builds the parts, runs them until ctx ends or one fails, and ends in order.
func (a *agent) serve(ctx context.Context) error {
	reg := prometheus.NewRegistry()
	a.metrics = newMetrics(reg, a)
	a.identity = newIdentityCheck(a.broker, a.cfg, a.memory.BrokerID)
	past, registered := a.memory.Process, a.memory.Instance
	a.identity.lives = func() (string, bool) {
		return registered, past.Here() && past.Instance == registered && !past.Gone()
	}
	a.identity.there = a.brokerThere
	a.identity.process = func() (process.Target, int64) {
		if a.child == nil && a.process == nil {
			return process.Target{}, a.breaks.Load()
		}
		return a.brokerTarget(), 0
	}
	a.openChild()
	if err := a.refuseStranger(ctx); err != nil {
		return err
	}

	lost := a.brokerLoss()
	a.introduce()
	a.health = probes.NewHealth(healthSettings(*a.settings()), a.identity.check, lost, a.log.With("part", "health"), reg)
	a.dataDir = probes.NewDataDir(a.cfg.DataDir, a.cfg.DataMarkers, a.world.NoDirEvents, a.log.With("part", "datadir"))
	reconciling := reconcilerSettings(*a.settings())
	reconciling.OwnershipLocks = a.locking()
	a.reconciler = a.newReconciler(reconciling, a.main, reg)
	a.steerer = a.newSteerer(reg)
	a.ownership = a.newOwnership(reg)
	a.placer = a.newPlacer(reg)
	a.moves = a.newMoves(reg)
	a.registrar = a.newRegistrar()
	a.note = func(ctx context.Context, d registration.Departure) error {
		return registration.NoteDeparture(ctx, a.main, d)
	}
	a.beside = a.newBeside()
	leases := prometheus.Registerer(reg)
	var registrar lease.Registrar = a.registrar
	var line lease.Line = a.line
	switch {
	case a.presence != nil:
		a.presence.Registrar = a.registrar
		registrar, line = a.presence, a.presence
		leases = prometheus.NewRegistry() // what is renewed is no lease that anybody knows
	case a.shadow != nil:
		registrar = registration.NewShadow(a.registrar, a.shadow.would, &a.shadow.store)
	}
	keeping := lease.Settings{
		Timing: a.cfg.Timing(), RestartGrace: a.cfg.RestartGrace, Clock: a.clock,
		Classify: classify, Classes: failureClasses(), Explain: a.explainRefused,
	}
	a.keeper = lease.NewKeeper(keeping, line, registrar, a.memory.LeaseID, a.log.With("part", "lease"), leases)
	if a.presence != nil {
		lease.NewKeeper(keeping, nil, nil, 0, a.log, reg) // never runs: its metrics say that no lease is held
	}
	watchEndpoints(a.line, reg)
	a.ranAt(time.Now())
	a.initLoop()
	if a.world.Systemd != nil {
		a.systemd = a.world.Systemd(a.log)
	}

	parts, stop := context.WithCancel(a.life0)
	defer stop()
	a.feed = web.NewFeed(a.status, a.journal, a.settings)
	servers, err := a.listen(parts, reg)
	if err != nil {
		return err
	}
	var g run.Group
	add := func(f func(context.Context) error) {
		pctx, cancel := context.WithCancel(parts)
		g.Add(func() error { return f(pctx) }, func(error) { cancel() })
	}
	add(func(pctx context.Context) error {
		select {
		case <-ctx.Done():
			a.stopAsked()
		case <-pctx.Done():
		}
		return nil
	})
	add(a.loop)
	if a.world.Hangups != nil {
		add(a.followHangups)
	}
	add(a.feed.Run)
	add(a.health.Run)
	add(a.dataDir.Run)
	add(a.reconciler.Run)
	add(a.steerer.Run)
	if a.ownership != nil {
		add(a.onceNamed(a.ownership.Run))
	}
	add(a.onceNamed(a.keeper.Run))
	if a.presence == nil {
		add(a.refuseWrongCredentials)
		add(a.onceNamed(following(&a.ids.registered, a.followState)))
		add(a.onceNamed(following(&a.ids.answering, a.followRegistration)))
	}
	if a.moves != nil {
		add(a.onceNamed(a.moves.Run))
	}
	switch {
	case a.traits.Places: // assignments in etcd say nothing
	case a.placer != nil:
		add(a.onceNamed(following(&a.ids.assigned, a.followBrokers)))
		add(a.onceNamed(a.followFleet))
		add(a.onceNamed(a.followTopics))
		add(a.onceNamed(a.placer.Run))
	default:
		add(a.onceNamed(following(&a.ids.assigned, a.followAssignments)))
	}
	if a.process != nil {
		add(a.process.Run)
	}
	if a.world.Hold != nil {
		add(func(pctx context.Context) error { return a.world.Hold(pctx, a.cfg, a.onHeld) })
	}
	if p, ok := a.guard.(guardProcess); ok {
		add(p.Run)
	}
	if a.child != nil {
		add(a.runChild)
		add(a.child.Forward)
		if a.world.Reap != nil {
			add(a.world.Reap)
		}
	}
	if a.systemd != nil {
		add(a.notify)
		if a.systemd.Watchdog > 0 {
			add(a.feedWatchdog)
		}
	}
	for _, server := range servers {
		g.Add(server.Serve, func(error) { server.Close() })
	}
	etcd := strings.Join(a.cfg.EtcdEndpoints, ",")
	if a.presence != nil {
		etcd = unleased
	}
	a.log.Info("holdfast starts", "version", a.version, "driver", a.cfg.Driver, "broker_admin", a.cfg.BrokerAdmin,
		"etcd", etcd, "probes", servers[0].Addr(), "web", servers[1].Addr())
	for _, w := range a.cfg.Warnings() {
		a.log.Warn("a setting is probably not what is meant", "detail", w)
	}
	a.event(control.Event{Kind: "agent", To: "started", Detail: "holdfast " + a.version})
	if a.risk != "" {
		a.event(control.Event{Kind: "agent", To: "unstoppable", Detail: a.risk})
	}
	err = g.Run()
	if errors.Is(context.Cause(ctx), ErrKilled) {
		return errors.Join(err, ErrKilled)
	}
	a.noteLastConfirmed()
	var end *registration.SessionEnd
	if errors.As(err, &end) {
		return a.endSession(end)
	}
	left := a.leave()
	if err != nil {
		a.event(control.Event{Kind: "agent", To: "shutdown", Epoch: a.memory.Epoch, Detail: strings.ReplaceAll(err.Error(), "\n", "; ")})
	}
	return errors.Join(err, left)
}

// listen opens the listeners for probes, web and control, in this order.
func (a *agent) listen(base context.Context, reg *prometheus.Registry) (servers []web.Server, err error) {
	for _, l := range []web.Listener{
		{Setting: "--probe-listen", Network: "tcp", Addr: a.cfg.ProbeListen, Handler: a.probeHandler()},
		{Setting: "--web-listen", Network: "tcp", Addr: a.cfg.WebListen, Handler: a.webHandler(reg), WebConfig: a.cfg.WebConfigFile},
		{Setting: "--control-socket", Network: "unix", Addr: a.cfg.ControlSocket, Handler: a.controlHandler()},
	} {
		if l.Network == "unix" && !a.dir.fresh {
			l.Later = unwritable
		}
		l.Base, l.Log = base, a.log.With("part", strings.TrimPrefix(l.Setting, "--"))
		server, err := a.world.Listen(l)
		if err != nil {
			for _, open := range servers {
				err = errors.Join(err, open.Close())
			}
			return nil, err
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// onceNamed waits until the broker's id is known.
func (a *agent) onceNamed(f func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-a.named:
			if err := f(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			return nil
		}
	}
}

// onHeld takes up what became of the connection that is held to the broker.
func (a *agent) onHeld(what probes.Held) {
	switch what {
	case probes.HeldBegun:
		a.reached.Store(true)
		a.portAway.Store(false)
		return
	case probes.HeldAway:
		a.portAway.Store(true)
		return
	case probes.HeldGone:
		a.reached.Store(false)
		a.portAway.Store(true)
		select {
		case a.refuses <- struct{}{}:
		default:
		}
		return
	}
	a.identity.forget() // whoever answers next may be another process
	a.health.Look()
}

// brokerThere reports whether nothing says that the broker is away: its port took the last
// connection that was tried, or its process lives. It is safe for concurrent use.
func (a *agent) brokerThere() bool {
	if !a.portAway.Load() {
		return true
	}
	t := a.brokerTarget()
	return t.Pid != 0 && !t.Gone()
}

// brokerLoss merges what knows at once that the broker's process ended: its end is seen, or its
// port refuses where a connection was held.
func (a *agent) brokerLoss() <-chan struct{} {
	var exited <-chan struct{}
	if a.process = a.world.Process(a.cfg, a.log.With("part", "process")); a.process != nil {
		exited = a.process.Lost()
	}
	var childGone <-chan struct{}
	if a.child != nil {
		childGone = a.child.Lost()
	}
	merged := make(chan struct{}, 1)
	a.refuses = make(chan struct{}, 1)
	a.tasks.Go(func() {
		for {
			select {
			case <-a.life0.Done():
				return
			case <-exited:
				if a.recognizer.Foreign() != "" {
					continue
				}
			case <-childGone:
			case <-a.refuses:
			}
			a.identity.forget() // whoever answers next may be another process
			a.breaks.Add(1)
			select {
			case merged <- struct{}{}:
			default:
			}
		}
	})
	return merged
}

func (a *agent) webHandler(reg *prometheus.Registry) http.Handler {
	return web.Site{Metrics: reg, Status: a.status, Live: a.liveChecks, Ready: a.readyChecks, Feed: a.feed, Reload: a.serveWebReload, Log: a.log}.Handler()
}
