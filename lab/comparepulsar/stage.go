//go:build pulsar

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/lab/comparepulsar/verdict"
	"holdfast/lab/harness"
	"holdfast/lab/pulsar"
)

const (
	brokers   = 3
	topics    = 8
	bootBound = 5 * time.Minute // of a broker and its sidecar, on a busy machine
	calmBound = 3 * time.Minute // the same, where nobody may come back
)

// pair is a broker and its sidecar.
type pair struct {
	*harness.ApacheBroker
	sidecar *harness.Sidecar // nil: bare
	ends    atomic.Int32     // how often the broker ended
	gone    bool             // by the fault, for good
}

// stage is a cluster with clients, and a fault to come.
type stage struct {
	plan
	fault   fault
	say     func(string, ...any)
	lab     *harness.Lab
	cluster *harness.Apache
	pairs   []*pair
	topics  []string
	traffic *pulsar.Traffic
	steps   []string // what somebody had to do already
	notes   []string
	load    highest
	end     context.CancelFunc // of supervisors
	loops   sync.WaitGroup
}

// setUp starts all and waits until all is well. What it returns is to be closed, also with an error.
func setUp(ctx context.Context, p plan, f fault, holdfast bool, say func(string, ...any)) (*stage, error) {
	lab, err := harness.New()
	if err != nil {
		return nil, err
	}
	loops, end := context.WithCancel(context.Background())
	s := &stage{plan: p, fault: f, say: say, lab: lab, topics: pulsar.Topics(topics), end: end}
	s.loops.Go(func() { s.load.watch(loops) })
	s.cluster, err = lab.StartApache(ctx, harness.ApacheOptions{LoadManager: managers[p.manager], EtcdHost: brokersEtcd,
		Broker: map[string]string{"loadBalancerSheddingEnabled": "false", "loadBalancerAutoBundleSplitEnabled": "false"}})
	if err != nil {
		return s, err
	}
	for range brokers {
		if err := s.launch(holdfast); err != nil {
			return s, err
		}
	}
	for _, pr := range s.pairs {
		if err := s.awaitWell(ctx, pr); err != nil {
			return s, err
		}
	}
	say("brokers are ready")
	if err := pulsar.MakeNamespaces(ctx, s.pairs[0].ApacheBroker, "public/default"); err != nil {
		return s, err
	}
	for i := range harness.PulsarBundles {
		if err := pulsar.LeadBundle(ctx, s.pairs[i%brokers].ApacheBroker, s.topics[i]); err != nil {
			return s, err
		}
	}
	var all []*harness.ApacheBroker
	for _, pr := range s.pairs {
		all = append(all, pr.ApacheBroker)
	}
	if s.traffic, err = pulsar.StartTraffic(ctx, s.topics, all...); err != nil {
		return s, err
	}
	for _, pr := range s.pairs {
		s.loops.Go(func() { pr.supervise(loops, f.restart) })
	}
	return s, nil
}

func (s *stage) launch(holdfast bool) error {
	b, err := s.cluster.NewBroker()
	if err != nil {
		return err
	}
	pr := &pair{ApacheBroker: b}
	s.pairs = append(s.pairs, pr)
	if err := b.Launch(); err != nil || !holdfast {
		return err
	}
	etcd := fmt.Sprintf("http://%s:%d", sidecarsEtcd(len(s.pairs)), s.cluster.Etcd.Port)
	if pr.sidecar, err = pulsar.NewSidecar(s.lab, etcd, b, placements[s.placement]...); err != nil {
		return err
	}
	return pr.sidecar.Start()
}

// supervise starts the broker again, pause after each of its ends; never: 0.
func (pr *pair) supervise(ctx context.Context, pause time.Duration) {
	for {
		select {
		case <-pr.Exited():
		case <-ctx.Done():
			return
		}
		pr.ends.Add(1)
		if pause == 0 {
			return
		}
		if harness.Wait(ctx, pause) != nil || pr.Launch() != nil {
			return
		}
	}
}

// awaitWell waits until the broker and its sidecar say that they are ready.
func (s *stage) awaitWell(ctx context.Context, pr *pair) error {
	return harness.Await(ctx, bootBound, pr.Name+" to be well", func(ctx context.Context) (bool, string) {
		ill := cmp.Or(s.ill(ctx, pr), pr.unready(ctx))
		return ill == "", ill
	})
}

// measure does the harm and sees what came of it.
func (s *stage) measure(ctx context.Context) (o verdict.Outcome, err error) {
	if err := harness.Wait(ctx, 5*time.Second); err != nil {
		return o, err
	}
	s.load.forget()
	s.traffic.ForgetGaps()
	s.say("fault")
	if err := s.fault.do(ctx, s); err != nil {
		return o, fmt.Errorf("do the harm: %w", err)
	}
	s.say("fault is over")
	if err := harness.Wait(ctx, s.watch); err != nil {
		return o, err
	}
	// Nobody waits for ever: what is not well by then wants an operator.
	_ = harness.Await(ctx, calmBound, "calm", func(ctx context.Context) (bool, string) {
		return len(s.flaws(ctx)) == 0, ""
	})
	for _, t := range s.traffic.Tallies() {
		o.GapSeconds = max(o.GapSeconds, t.Gap.Seconds())
	}
	steps := append(s.steps, s.flaws(ctx)...)
	o.Brokers = len(s.pairs)
	var found []string
	o.Serving, found = s.serving(ctx)
	o.Steps = append(steps, found...)
	for _, pr := range s.pairs {
		o.Stopped += int(pr.ends.Load())
	}
	o.Stopped = max(0, o.Stopped-s.fault.ends)
	o.Notes, o.Load = s.notes, s.load.get()
	for _, t := range s.traffic.Stop(ctx) {
		o.Acknowledged += t.Acknowledged
		o.Lost += t.Lost
		o.Duplicated += t.Duplicated
	}
	s.say("gap %.1f s, %d acknowledged, %d lost, %d duplicated, %d serving, %d stopped, steps %q, load %.0f",
		o.GapSeconds, o.Acknowledged, o.Lost, o.Duplicated, o.Serving, o.Stopped, o.Steps, o.Load)
	return o, ctx.Err()
}

// close ends all and keeps the logs in dir.
func (s *stage) close(dir string) error {
	if s == nil {
		return nil // it has not begun
	}
	s.end()
	s.loops.Wait()
	if s.traffic != nil {
		s.traffic.Close()
	}
	return errors.Join(s.keepLogs(dir), s.lab.Close())
}

func (s *stage) keepLogs(dir string) error {
	logs, err := filepath.Glob(filepath.Join(s.lab.Dir, "*.log"))
	if err != nil {
		return err
	}
	errs := []error{os.MkdirAll(dir, 0o755)}
	for _, log := range logs {
		text, err := os.ReadFile(log)
		errs = append(errs, err, os.WriteFile(filepath.Join(dir, filepath.Base(log)), text, 0o644))
	}
	return errors.Join(errs...)
}

// highest is the highest load of the machine.
type highest struct {
	mu   sync.Mutex
	load float64
}

func (h *highest) watch(ctx context.Context) {
	for harness.Wait(ctx, time.Second) == nil {
		text, err := os.ReadFile("/proc/loadavg")
		if err != nil {
			continue
		}
		var now float64
		if _, err := fmt.Sscan(string(text), &now); err == nil {
			h.mu.Lock()
			h.load = max(h.load, now)
			h.mu.Unlock()
		}
	}
}

func (h *highest) forget() { h.mu.Lock(); h.load = 0; h.mu.Unlock() }

func (h *highest) get() float64 { h.mu.Lock(); defer h.mu.Unlock(); return h.load }
