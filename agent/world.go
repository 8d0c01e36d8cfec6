package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strconv"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/agent/web"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/probes"
)

// ErrKilled as the cause of a context's end makes Live end at once and undo
// nothing, as SIGKILL would.
var ErrKilled = errors.New("killed")

// World is what one sidecar touches outside of itself and of its state directory.
// Run makes the real one; package simulation makes others, so that the same sidecar
// lives in virtual time.
type World struct {
	Clock  func() lease.Instant // boot clock
	Broker func(config.Config, *cluster.Client, *slog.Logger) (brokerapi.Broker, error)
	// Etcd returns the main connections and the renewals' own.
	Etcd func(cluster.Config, *slog.Logger) (*cluster.Client, Line, error)
	// Listen opens one listener. Its errors name the setting, the value and the remedy.
	Listen func(web.Listener) (web.Server, error)
	// Process watches the broker's process; nil: there is none to watch.
	Process func(config.Config, *slog.Logger) *probes.Process
	// Hold keeps a connection to the broker until ctx ends; nil: nobody does.
	Hold func(ctx context.Context, c config.Config, say func(probes.Held)) error
	// Stopper ends the broker's process. Nil, or a nil result: there is no way to.
	Stopper func(config.Config, *slog.Logger) (Stopper, error)
	// Guard starts the dead-man guard, or takes the one of an earlier sidecar over.
	// Nil, or a nil result: there is none.
	Guard func(config.Config, *slog.Logger) (Guard, error)
	// LeftGuard finds the guard that an earlier sidecar left, for one that is to have none,
	// and returns what lets it end. Nil, or a nil result: there is none.
	LeftGuard func(config.Config) (dismiss func(), err error)
	// Child makes the supervisor of the broker of `run -- CMD`; nil: nothing is started.
	Child func(process.ChildSettings) *process.Child
	// Reap takes the exit statuses of orphans, beside a child; nil: nobody does.
	Reap func(context.Context) error
	// Systemd is the service manager; nil, or a nil result: there is none.
	Systemd func(*slog.Logger) *Systemd
	// Clocks reads the clocks together.
	Clocks func() lease.Clocks
	// BootID names the host's present boot; nil: the host is asked.
	BootID func() string
	// Hangups asks for a reload at each value; nil: nobody does so.
	Hangups <-chan os.Signal
	// SetLogLevel changes what is logged; nil: nothing does.
	SetLogLevel func(level string)
	// Try reads the files that settings name, as they will be used, before they are taken
	// up; nil: nothing is tried. shownAnew: etcd is to be shown other files than before.
	Try func(_ context.Context, _ config.Config, shownAnew bool) (found []string, err error)
	// NoDirEvents: the kernel tells of no change of the data directory.
	NoDirEvents bool
}

// Line is the renewals' own way to etcd.
type Line interface {
	lease.Line
	// Client is typed access over the same connection.
	Client() *cluster.Client
	Close() error
}

// Stopper ends the broker's process.
type Stopper interface {
	// Stop asks the process to end and kills it when half of the time that ctx
	// leaves is over. It returns nil only when the process is proven gone; how says
	// what ended it.
	Stop(ctx context.Context) (how string, err error)
}

// Guard is the process that stops the broker before the deadline if this one cannot.
// Its methods do not block.
type Guard interface {
	// Arm sets until when the broker may serve. It is called before the broker may
	// serve, and again with each confirmed renewal.
	Arm(v lease.Validity)
	// Postpone says that nothing is served, which was just proven: the guard acts at stopAt
	// instead, unless it is proven again. It never brings the moment nearer.
	Postpone(stopAt lease.Instant)
	// Beat says that the loop runs. It is called in each run, and costs next to nothing.
	Beat(now lease.Instant)
	// Disarm says that there is nothing to stop any more: the registration is given up in
	// order.
	Disarm()
}

// realWorld is the one that there is.
func realWorld() World {
	return World{
		Clock: lease.BootClock,
		Broker: func(c config.Config, store *cluster.Client, log *slog.Logger) (brokerapi.Broker, error) {
			return config.Drivers[c.Driver].New(c, store, log) // Validate knows it
		},
		Etcd:      openEtcd,
		Listen:    web.Open,
		Process:   watchProcess,
		Hold:      holdBroker,
		Stopper:   openStopper,
		Guard:     openGuard,
		LeftGuard: leftGuard,
		Child:     process.NewChild,
		Reap:      process.ReapOrphans,
		Systemd:   systemd,
		Clocks:    lease.HostClocks,
		Try:       tryAccess,
	}
}

func openEtcd(c cluster.Config, log *slog.Logger) (*cluster.Client, Line, error) {
	c.Identity = &cluster.Identity{}
	client, err := cluster.Open(c, log)
	if err != nil {
		return nil, nil, err
	}
	line, err := cluster.OpenLine(c, log)
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return client, renewalLine{line}, nil
}

// holdBroker holds the admin port, or the one that the driver names instead.
func holdBroker(ctx context.Context, c config.Config, say func(probes.Held)) error {
	if hold := config.Drivers[c.Driver].Hold; hold != nil {
		c.BrokerAdmin = hold(c)
	}
	host, port, ok := recognize.AdminAddress(c)
	if !ok {
		<-ctx.Done()
		return nil
	}
	return probes.Hold(ctx, net.JoinHostPort(host, strconv.Itoa(int(port))), say)
}

func watchProcess(c config.Config, log *slog.Logger) *probes.Process {
	if c.BrokerPIDFile == "" && c.BrokerProcess == "" {
		return nil
	}
	return probes.NewProcess(recognize.Finder(c), log)
}

// unable is why clients are not well served by a broker whose process is well; nil: they are, or
// nobody can tell. It decides readiness alone: what the broker needs for it may fail all brokers.
func (a *agent) unable() error {
	who, _ := a.identity.get()
	return who.Unable
}

// staleView says that the broker does not see what changes in its cluster any more, with the
// remedy; empty: it does, or does not tell.
func (a *agent) staleView() string {
	who, _ := a.identity.get()
	for _, n := range who.Notes {
		if n.Kind == brokerapi.StaleView {
			return n.Text
		}
	}
	return ""
}

// noteView tells of a broker that has become blind. Nothing else is done: it may serve what
// it has, and its lease says whether it may.
func (a *agent) noteView() {
	detail := a.staleView()
	if (detail != "") == a.viewStale {
		return
	}
	a.viewStale = detail != ""
	if a.viewStale {
		a.log.Error("the broker does not see what changes in etcd any more", "detail", detail, "epoch", a.memory.Epoch)
		a.event(control.Event{Kind: "broker", To: "stale_view", Reason: "stale_view", Epoch: a.memory.Epoch, Detail: detail})
		return
	}
	a.log.Info("the broker's view is not known to be stale any more", "epoch", a.memory.Epoch)
	a.event(control.Event{Kind: "broker", From: "stale_view", To: "view_cleared", Epoch: a.memory.Epoch})
}
