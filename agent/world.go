package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"holdfast/agent/footprint"
	"holdfast/agent/lease"
	"holdfast/agent/process"
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
	Broker func(Config, *cluster.Client, *slog.Logger) (brokerapi.Broker, error)
	// Etcd returns the main connections and the renewals' own.
	Etcd func(cluster.Config, *slog.Logger) (*cluster.Client, Line, error)
	// Listen opens one listener. Its errors name the setting, the value and the remedy.
	Listen func(Listener) (Server, error)
	// Process watches the broker's process; nil: there is none to watch.
	Process func(Config, *slog.Logger) *probes.Process
	// Stopper ends the broker's process. Nil, or a nil result: there is no way to.
	Stopper func(Config, *slog.Logger) (Stopper, error)
	// Guard starts the dead-man guard, or takes the one of an earlier sidecar over.
	// Nil, or a nil result: there is none.
	Guard func(Config, *slog.Logger) (Guard, error)
	// LeftGuard finds the guard that an earlier sidecar left, for one that is to have none,
	// and returns what lets it end. Nil, or a nil result: there is none.
	LeftGuard func(Config) (dismiss func(), err error)
	// Child makes the supervisor of the broker of `run -- CMD`; nil: nothing is started.
	Child func(process.ChildSettings) *process.Child
	// Reap takes the exit statuses of orphans, beside a child; nil: nobody does.
	Reap func(context.Context) error
	// Systemd is the service manager; nil, or a nil result: there is none.
	Systemd func(*slog.Logger) *Systemd
	// Clocks reads the clocks together; nil: suspensions and clock jumps go unnoticed.
	Clocks func() Clocks
	// Alarm wakes by the boot clock; nil: nothing does after a suspension.
	Alarm func() (Alarm, error)
	// BootID names the host's present boot; nil: the host is asked.
	BootID func() string
	// Trim gives back the memory that only the start needed.
	Trim func()
}

// Line is the renewals' own way to etcd.
type Line interface {
	lease.Line
	// Client is typed access over the same connection.
	Client(ctx context.Context) (*cluster.Client, error)
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
	// Disarm says that nothing is served: quiesced and proven, or the broker is gone.
	Disarm()
}

// Alarm wakes the loop at a moment on the boot clock.
type Alarm interface {
	C() <-chan struct{}
	Set(at lease.Instant) error
	Run(ctx context.Context) error
}

// Listener is what one of the sidecar's servers listens on.
type Listener struct {
	Setting       string // such as "--probe-listen"
	Network, Addr string
	Handler       http.Handler
	Base          context.Context // of every request
}

// Server is a listener that is open. Serve returns nil after Close.
type Server interface {
	Addr() string
	Serve() error
	Close() error
}

// realWorld is the one that there is.
func realWorld() World {
	return World{
		Clock: lease.BootClock,
		Broker: func(c Config, store *cluster.Client, log *slog.Logger) (brokerapi.Broker, error) {
			driver, _ := LookupDriver(c.Driver) // Validate knows it
			return driver.New(c, store, log)
		},
		Etcd:      openEtcd,
		Listen:    openListener,
		Process:   watchProcess,
		Stopper:   openStopper,
		Guard:     openGuard,
		LeftGuard: leftGuard,
		Child:     process.NewChild,
		Reap:      process.ReapOrphans,
		Systemd:   systemd,
		Clocks:    hostClocks,
		Alarm:     func() (Alarm, error) { return newAlarm() },
		Trim:      footprint.Trim,
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

func watchProcess(c Config, log *slog.Logger) *probes.Process {
	if c.BrokerPIDFile == "" && c.BrokerProcess == "" {
		return nil
	}
	return probes.NewProcess(c.BrokerPIDFile, c.BrokerProcess, log)
}

// socketServer serves HTTP on a socket.
type socketServer struct {
	listener net.Listener
	http     *http.Server
}

func openListener(l Listener) (Server, error) {
	open := listen
	if l.Network == "unix" {
		open = listenControl
	}
	socket, err := open(l.Setting, l.Network, l.Addr)
	if err != nil {
		return nil, err
	}
	return &socketServer{socket, &http.Server{Handler: l.Handler, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return l.Base }}}, nil
}

func (s *socketServer) Addr() string { return s.listener.Addr().String() }

func (s *socketServer) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", s.Addr(), err)
	}
	return nil
}

// Close may come before Serve.
func (s *socketServer) Close() error {
	return errors.Join(s.http.Close(), ignoreClosed(s.listener.Close()))
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func listen(setting, network, addr string) (net.Listener, error) {
	l, err := net.Listen(network, addr)
	if err != nil {
		var op *net.OpError
		why := err
		if errors.As(err, &op) {
			why = op.Err
		}
		return nil, &ExitError{ExitUsage, fmt.Errorf("%s %s: %w: free the address or set another", setting, addr, why)}
	}
	return l, nil
}

// listenControl takes the socket over from a sidecar that died. One that lives
// answers, and keeps it.
func listenControl(setting, network, path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if c, err := net.DialTimeout(network, path, time.Second); err == nil {
			c.Close()
			return nil, &ExitError{ExitUsage, fmt.Errorf("%s %s: another process answers on it: give each sidecar its own", setting, path)}
		}
		os.Remove(path)
	}
	l, err := listen(setting, network, path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(&ExitError{ExitUsage, fmt.Errorf("%s %s: %s", setting, path, reason(err))}, l.Close())
	}
	return l, nil
}
