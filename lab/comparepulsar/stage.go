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
	gap     float64  // seconds; before that
	notes   []string
	load    highestLoad
	end     context.CancelFunc // of supervisors
	loops   sync.WaitGroup
}

// setUp starts all and waits until all is well. The stage is to be closed, also with an error; it may be nil.
func (p plan) setUp(ctx context.Context, f fault, holdfast bool, say func(string, ...any)) (*stage, error) {
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
		s.loops.Go(func() { supervise(loops, pr.ApacheBroker, f.restart, func() { pr.ends.Add(1) }) })
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
	if pr.sidecar, err = pulsar.NewSidecar(s.lab, etcd, b, beside...); err != nil {
		return err
	}
	return pr.sidecar.Start()
}

// awaitWell waits until the broker and its sidecar say that they are ready.
func (s *stage) awaitWell(ctx context.Context, pr *pair) error {
	return harness.Await(ctx, bootBound, pr.Name+" to be well", func(ctx context.Context) (bool, string) {
		ill := cmp.Or(s.ill(ctx, pr), unready(ctx, pr.Name, pr.sidecar))
		return ill == "", ill
	})
}

// measure does the harm and sees what came of it.
func (s *stage) measure(ctx context.Context) (o outcome, err error) {
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
	o.gap = max(s.gap, s.longest())
	steps := append(s.steps, s.flaws(ctx)...)
	o.brokers = len(s.pairs)
	var found []string
	o.serving, found = s.serving(ctx)
	o.steps = append(steps, found...)
	for _, pr := range s.pairs {
		o.stopped += int(pr.ends.Load())
	}
	o.stopped = max(0, o.stopped-s.fault.ends)
	o.notes, o.load = s.notes, s.load.get()
	acknowledged := 0
	for _, t := range s.traffic.Stop(ctx) {
		if t.Hung {
			o.hung++
		}
		acknowledged += t.Acknowledged
		o.lost += t.Lost
		o.duplicated += t.Duplicated
	}
	s.say("gap %.1f s, %d acknowledged, %d lost, %d duplicated, %d consumers hung, %d serving, %d stopped, steps %q, load %.0f",
		o.gap, acknowledged, o.lost, o.duplicated, o.hung, o.serving, o.stopped, o.steps, o.load)
	return o, ctx.Err()
}

// longest is the longest gap of all topics, in seconds.
func (s *stage) longest() (gap float64) {
	for _, t := range s.traffic.Tallies() {
		gap = max(gap, t.Gap.Seconds())
	}
	return gap
}

// close ends all and keeps the logs in the directory, if they are to be kept.
func (s *stage) close(dir string) error {
	s.end()
	s.loops.Wait()
	if s.traffic != nil {
		s.traffic.Close()
	}
	var err error
	if s.logs != "" {
		err = keepLogs(s.lab, dir)
	}
	return errors.Join(err, s.lab.Close())
}
