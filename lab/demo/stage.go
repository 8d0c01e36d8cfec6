package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/lab/harness"
	"holdfast/lab/prom"
)

// The timing of the demo: the defaults' shape, shorter. A cut of up to
// TTL − margin − renew interval − 1.25 s = 3.65 s detaches nobody.
const (
	ttl         = 8 * time.Second
	shortCut    = 3 * time.Second
	comeBack    = time.Minute // bound for what should take about a second, on any machine
	expiryBound = ttl + comeBack
)

var sidecarFlags = []string{
	"--lease-ttl", ttl.String(),
	"--renew-interval", "500ms",
	"--lease-detach-margin", "2600ms",
	"--detachment-recover-window", "500ms",
	"--health-interval", "200ms",
}

// node is one broker, its sidecar and what watches them.
type node struct {
	id      string
	topics  []string
	link    harness.Link
	nats    *harness.NATS
	sidecar *harness.Sidecar
	probes  *harness.Recorder
}

// stage is everything that is on it.
type stage struct {
	mu    sync.Mutex // for out: alerts are told while scenarios are
	out   io.Writer
	start time.Time

	lab     *harness.Lab
	etcd    *harness.Etcd
	keys    harness.Keys
	history *harness.History
	nodes   []*node // n1, n2, n3
	prom    *prom.Prometheus
	told    atomic.Int64 // changes of alerts that were printed, or came before all
	byHand  atomic.Bool  // the scenarios are over, and somebody may play
}

// say prints one line with the seconds since the start.
func (s *stage) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "[%5.1fs] %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

// setUp builds and starts everything and waits until all brokers are ready.
func (s *stage) setUp(ctx context.Context) error {
	s.say("building holdfast, etcd and nats-server from source (the first time takes a while)")
	for _, p := range []harness.Program{harness.Holdfast, harness.EtcdServer, harness.NATSServer} {
		if _, err := harness.Build(p); err != nil {
			return err
		}
	}
	s.start = time.Now()
	var err error
	if s.etcd, err = s.lab.StartEtcd(ctx, harness.EtcdOptions{}); err != nil {
		return err
	}
	if s.history, err = s.lab.Watch(ctx, s.etcd, "/cluster/"); err != nil {
		return err
	}
	s.say("etcd runs at %s", s.etcd.Endpoint())
	for i, names := range [][]string{{"orders", "bills", "stock"}, {"users", "sessions"}, {"logs", "clicks", "views"}} {
		n := &node{id: fmt.Sprintf("n%d", i+1)}
		for _, name := range names {
			n.topics = append(n.topics, "/default/"+name)
		}
		if err := s.keys.Assign(ctx, s.etcd.Client(), n.id, n.topics...); err != nil {
			return err
		}
		if err := s.add(ctx, n); err != nil {
			return err
		}
	}
	for _, n := range s.nodes {
		if err := n.sidecar.AwaitReady(ctx, comeBack); err != nil {
			return err
		}
		if err := n.publish(ctx); err != nil {
			return err
		}
		state, err := s.keys.ReadState(ctx, s.etcd.Client(), n.id)
		if err != nil {
			return err
		}
		s.say("%s is ready: %s, reason %s; topics loaded that take messages: %d (%s)",
			n.id, state.Mode, state.Reason, len(n.topics), strings.Join(n.topics, " "))
	}
	return s.startAlerts(ctx)
}

func (s *stage) add(ctx context.Context, n *node) (err error) {
	// The proxy needs no rights, so the demo is the same for everybody.
	if n.link, err = harness.NewProxyLink(s.lab, s.etcd); err != nil {
		return err
	}
	if n.nats, err = s.lab.StartNATS(ctx, harness.NATSOptions{Name: n.id}); err != nil {
		return err
	}
	n.sidecar, err = s.lab.NewSidecar(harness.SidecarOptions{
		Broker: n.nats, Endpoints: []string{n.link.Endpoint()}, Flags: sidecarFlags,
	})
	if err != nil {
		return err
	}
	if n.id == "n3" { // one of them may stop its broker, and has a guard
		n.sidecar.SetFlags("--broker-pid-file", n.nats.PIDFile)
	}
	if err := n.sidecar.Start(); err != nil {
		return err
	}
	n.probes = s.lab.Record(n.sidecar)
	s.nodes = append(s.nodes, n)
	s.say("NATS server %s and its sidecar started, processes %d and %d", n.id, n.nats.PID(), n.sidecar.PID())
	return nil
}

// publish stores one message in each topic of the node, as a new client.
func (n *node) publish(ctx context.Context) error {
	_, err := n.publishSeq(ctx)
	return err
}

// publishSeq is publish that returns the sequence in the first topic.
func (n *node) publishSeq(ctx context.Context) (first uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	c, err := n.nats.Connect()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	for i, topic := range n.topics {
		seq, err := harness.Publish(ctx, c, topic, []byte("demo"))
		if err != nil {
			return 0, err
		}
		if i == 0 {
			first = seq
		}
	}
	return first, nil
}

// allReady is the state from which each scenario begins.
func (s *stage) allReady(ctx context.Context) error {
	var errs []error
	for _, n := range s.nodes {
		errs = append(errs, n.sidecar.AwaitReady(ctx, comeBack))
	}
	return errors.Join(errs...)
}

// remain prints what is there to play with, and waits for the end.
func (s *stage) remain(ctx context.Context) {
	s.print(s.playthings())
	s.byHand.Store(true)
	<-ctx.Done()
}

// playthings is the addresses, and commands to copy.
func (s *stage) playthings() string {
	var b strings.Builder
	bin := filepath.Join("lab", ".bin", "holdfast")
	fmt.Fprintf(&b, "\nEverything keeps running until Ctrl-C. etcd: %s\n", s.etcd.Endpoint())
	for _, n := range s.nodes {
		fmt.Fprintf(&b, "%s  status page %s/  metrics %s/metrics  probes %s\n    client %s  monitor %s\n    control socket %s  log %s\n",
			n.id, n.sidecar.WebURL(), n.sidecar.WebURL(), n.sidecar.ProbeURL(),
			n.nats.URL(), n.nats.MonitorURL(), n.sidecar.ControlSocket, n.sidecar.LogPath())
	}
	first, last := s.nodes[0], s.nodes[len(s.nodes)-1]
	fmt.Fprintf(&b, `
Ask, in the directory of the repository:
  %[1]s status --control-socket %[2]s
  %[1]s fleet --etcd-endpoints %[3]s
  %[1]s topics --control-socket %[2]s
  %[1]s events --control-socket %[2]s
  curl -i '%[4]s/ready?full=1'
`, bin, first.sidecar.ControlSocket, s.etcd.Endpoint(), first.sidecar.ProbeURL())
	fmt.Fprintf(&b, `
Play a fault. Alerts are told here when they fire, with what to do, and when they are resolved:
  kill -STOP %[1]d   # freeze %[2]s's broker: HoldfastBrokerDown; nothing here may stop it, so HoldfastFencingFailed, too
      # Undo: kill -CONT %[1]d; it comes back drained (HoldfastDrainedWaiting), so then:
      #   %[6]s activate --control-socket %[7]s
  kill -STOP %[3]d   # freeze %[4]s's sidecar: HoldfastDown. Undo: kill -CONT %[3]d
      # then its guard stops the broker: HoldfastGuardFired, HoldfastBrokerDown, and nobody starts it again here
  kill -STOP %[5]d   # freeze etcd: HoldfastManyLeasesLost. Undo: kill -CONT %[5]d
  %[6]s drain --control-socket %[7]s --reason "a look around"
      # an operator's own drain alarms nobody. Undo: the same with activate
`, first.nats.PID(), first.id, last.sidecar.PID(), last.id, s.etcd.PID(), bin, first.sidecar.ControlSocket)
	return b.String()
}

// print prints text as it is.
func (s *stage) print(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprint(s.out, text)
}
