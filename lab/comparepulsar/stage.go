//go:build pulsar

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/lab/compare"
	"holdfast/lab/compare/verdict"
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
	*compare.Plan
	fault   fault
	say     func(string, ...any)
	lab     *harness.Lab
	cluster *harness.Apache
	pairs   []*pair
	topics  []string
	traffic *pulsar.Traffic
	steps   []string // what somebody had to do already
	gap     float64  // seconds; before that
	notes   []string
	load    compare.Load
	end     context.CancelFunc // of supervisors
	loops   sync.WaitGroup
}

// setUp starts all and waits until all is well.
func (f fault) setUp(ctx context.Context, p *compare.Plan, holdfast bool, say func(string, ...any)) (compare.Side, error) {
	lab, err := harness.New()
	if err != nil {
		return nil, err
	}
	loops, end := context.WithCancel(context.Background())
	s := &stage{Plan: p, fault: f, say: say, lab: lab, topics: pulsar.Topics(topics), end: end}
	s.loops.Go(func() { s.load.Watch(loops) })
	s.cluster, err = lab.StartApache(ctx, harness.ApacheOptions{LoadManager: managers[p.Kind], EtcdHost: compare.BrokersEtcd,
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
		s.loops.Go(func() { compare.Supervise(loops, pr, f.restart, func() { pr.ends.Add(1) }) })
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
	etcd := fmt.Sprintf("http://%s:%d", compare.SidecarsEtcd(len(s.pairs)), s.cluster.Etcd.Port)
	if pr.sidecar, err = pulsar.NewSidecar(s.lab, etcd, b, beside...); err != nil {
		return err
	}
	return pr.sidecar.Start()
}

// awaitWell waits until the broker and its sidecar say that they are ready.
func (s *stage) awaitWell(ctx context.Context, pr *pair) error {
	return harness.Await(ctx, bootBound, pr.Name+" to be well", func(ctx context.Context) (bool, string) {
		ill := cmp.Or(s.ill(ctx, pr), compare.Unready(ctx, pr.Name, pr.sidecar))
		return ill == "", ill
	})
}

// Measure implements compare.Side.
func (s *stage) Measure(ctx context.Context) (o verdict.Outcome, err error) {
	if err := harness.Wait(ctx, 5*time.Second); err != nil {
		return o, err
	}
	s.load.Forget()
	s.traffic.ForgetGaps()
	s.say("fault")
	if err := s.fault.do(ctx, s); err != nil {
		return o, fmt.Errorf("do the harm: %w", err)
	}
	s.say("fault is over")
	if err := harness.Wait(ctx, s.Watch); err != nil {
		return o, err
	}
	// Nobody waits for ever: what is not well by then wants an operator.
	_ = harness.Await(ctx, calmBound, "calm", func(ctx context.Context) (bool, string) {
		return len(s.flaws(ctx)) == 0, ""
	})
	o.GapSeconds = max(s.gap, s.longest())
	steps := append(s.steps, s.flaws(ctx)...)
	o.Brokers = len(s.pairs)
	var found []string
	o.Serving, found = s.serving(ctx)
	o.Steps = append(steps, found...)
	for _, pr := range s.pairs {
		o.Stopped += int(pr.ends.Load())
	}
	o.Stopped = max(0, o.Stopped-s.fault.ends)
	o.Notes, o.Load = s.notes, s.load.Get()
	for _, t := range s.traffic.Stop(ctx) {
		if t.Hung {
			o.Hung++
		}
		o.Acknowledged += t.Acknowledged
		o.Lost += t.Lost
		o.Duplicated += t.Duplicated
	}
	s.say("gap %.1f s, %d acknowledged, %d lost, %d duplicated, %d consumers hung, %d serving, %d stopped, steps %q, load %.0f",
		o.GapSeconds, o.Acknowledged, o.Lost, o.Duplicated, o.Hung, o.Serving, o.Stopped, o.Steps, o.Load)
	return o, ctx.Err()
}

// longest is the longest gap of all topics, in seconds.
func (s *stage) longest() (gap float64) {
	for _, t := range s.traffic.Tallies() {
		gap = max(gap, t.Gap.Seconds())
	}
	return gap
}

// Close implements compare.Side.
func (s *stage) Close(dir string) error {
	s.end()
	s.loops.Wait()
	if s.traffic != nil {
		s.traffic.Close()
	}
	return errors.Join(compare.KeepLogs(s.lab, dir), s.lab.Close())
}
