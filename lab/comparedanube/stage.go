package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/compare"
	"holdfast/lab/compare/verdict"
	"holdfast/lab/danube"
	"holdfast/lab/harness"
)

const (
	brokers      = 3
	topics       = 6
	mostTopics   = 15              // as many as it takes until each broker has one
	bootBound    = 3 * time.Minute // of a broker and its sidecar, on a busy machine
	calmBound    = 2 * time.Minute // the same, where nobody may come back
	sidecarPause = 2 * time.Second // of a sidecar's supervisor
)

// pair is a broker and its sidecar.
type pair struct {
	*harness.Danube
	number  int
	pidFile string
	sidecar *harness.Sidecar // nil: bare
}

// Launch starts the broker. It writes no pid file, so whoever starts it does.
func (pr *pair) Launch() error {
	if err := pr.Danube.Launch(); err != nil {
		return err
	}
	return os.WriteFile(pr.pidFile, fmt.Append(nil, pr.PID()), 0o600)
}

// supervised is the sidecar as a unit.
type supervised struct{ *harness.Sidecar }

func (s supervised) Launch() error { return s.Start() }

// stage is a cluster with clients, and a fault to come.
type stage struct {
	*compare.Plan
	fault   fault
	say     func(string, ...any)
	lab     *harness.Lab
	etcd    *harness.Etcd
	pairs   []*pair
	victim  *pair
	topics  []string
	traffic *danube.Traffic
	steps   []string     // what somebody would have had to do already
	ended   atomic.Int64 // ends of brokers
	notes   []string
	load    compare.Load
	end     context.CancelFunc // of supervisors
	loops   sync.WaitGroup
}

func (s *stage) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// setUpTries is how often a cluster is started: a real one may have two leaders from the start all
// the same, and then a topic that takes messages at one broker and is read at another.
const setUpTries = 3

// setUp starts all and waits until all is well.
func (f fault) setUp(real string) compare.SetUp {
	return func(ctx context.Context, p *compare.Plan, holdfast bool, say func(string, ...any)) (compare.Side, error) {
		for n := 1; ; n++ {
			lab, err := harness.New()
			if err != nil {
				return nil, err
			}
			loops, end := context.WithCancel(context.Background())
			s := &stage{Plan: p, fault: f, say: say, lab: lab, end: end}
			s.loops.Go(func() { s.load.Watch(loops) })
			if err = s.start(ctx, loops, real, holdfast); err == nil || n == setUpTries || ctx.Err() != nil {
				return s, err
			}
			say("set up again: %v", err)
			s.endClients()
			if err := lab.Close(); err != nil {
				return nil, err
			}
		}
	}
}

func (s *stage) start(ctx, loops context.Context, real string, holdfast bool) (err error) {
	if s.etcd, err = s.lab.StartEtcd(ctx, harness.EtcdOptions{}); err != nil {
		return err
	}
	// One after the other: of brokers that start together two may take themselves for the leader, and
	// each gives every topic to somebody (0.7.3, 2026-11-26).
	for range brokers {
		if err := s.launch(real, holdfast); err != nil {
			return err
		}
		if err := s.awaitWell(ctx, s.pairs[len(s.pairs)-1]); err != nil {
			return err
		}
		if err := s.awaitLeader(ctx); err != nil {
			return err
		}
	}
	s.say("brokers are ready")
	if err := s.createTopics(ctx); err != nil {
		return err
	}
	if s.victim, err = s.choose(ctx); err != nil {
		return err
	}
	var addresses []string
	for _, pr := range s.pairs {
		addresses = append(addresses, pr.ClientAddr())
	}
	if s.traffic, err = danube.StartTraffic(ctx, s.topics, addresses...); err != nil {
		return err
	}
	pause := sidecarPause
	if s.fault.ends == brokers {
		pause = s.fault.restart // they went together
	}
	for _, pr := range s.pairs {
		s.loops.Go(func() { compare.Supervise(loops, pr, s.fault.restart, func() { s.ended.Add(1) }) })
		if pr.sidecar != nil {
			s.loops.Go(func() { compare.Supervise(loops, supervised{pr.sidecar}, pause, func() {}) })
		}
	}
	return nil
}

func (s *stage) launch(real string, holdfast bool) error {
	n := len(s.pairs) + 1
	at := func(host string) string { return fmt.Sprintf("http://%s:%d", host, s.etcd.Port) }
	d, err := s.lab.NewDanube(harness.DanubeOptions{Name: fmt.Sprintf("danube-%d", n), Real: real, Host: fmt.Sprintf("127.0.3.%d", n),
		Etcd: at(compare.BrokersEtcd(n)), Objects: filepath.Join(s.lab.Dir, "objects")})
	if err != nil {
		return err
	}
	pr := &pair{Danube: d, number: n, pidFile: filepath.Join(s.lab.Dir, d.Name+".pid")}
	s.pairs = append(s.pairs, pr)
	if err := pr.Launch(); err != nil || !holdfast {
		return err
	}
	pr.sidecar, err = s.lab.NewSidecar(harness.SidecarOptions{
		Name: d.Name + "-sidecar", Endpoints: []string{at(compare.SidecarsEtcd(n))},
		Flags: []string{"--driver", "danube", "--broker-id", d.Name, "--broker-admin", "http://" + d.AdminAddr(),
			"--danube-lookup", "http://" + d.ClientAddr(), "--danube-metrics", "http://" + d.MetricsAddr(),
			"--data-dir", d.DataDir, "--broker-pid-file", pr.pidFile},
	})
	if err != nil {
		return err
	}
	return pr.sidecar.Start()
}

func (s *stage) awaitLeader(ctx context.Context) error {
	return harness.Await(ctx, harness.Patience, "a leader", func(ctx context.Context) (bool, string) {
		c, err := s.look(ctx)
		return err == nil && c.leader != "", fmt.Sprint("none ", err)
	})
}

// createTopics makes them one after the other, so that the leader knows what it has given to whom.
func (s *stage) createTopics(ctx context.Context) error {
	for n := 0; ; n++ {
		c, err := s.look(ctx)
		if err != nil {
			return err
		}
		without := 0
		for _, pr := range s.pairs {
			if len(c.topicsOf(pr)) == 0 {
				without++
			}
		}
		if n >= topics && without == 0 {
			return nil
		}
		if n == mostTopics {
			return fmt.Errorf("of %d topics %d brokers have none", n, without)
		}
		topic := fmt.Sprintf("/default/lab-%03d", n) // no name is a part of another
		s.topics = append(s.topics, topic)
		if err := s.create(ctx, topic, s.pairs[n%len(s.pairs)]); err != nil {
			return err
		}
	}
}

func (s *stage) create(ctx context.Context, topic string, by *pair) error {
	asking, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	if _, err := by.Topics.CreateTopic(asking, &danubepb.NewTopicRequest{Name: topic, DispatchStrategy: danubepb.DispatchStrategy_Reliable}); err != nil {
		return fmt.Errorf("create %s: %w", topic, err)
	}
	// A client that comes to a broker before that has loaded the topic may create it anew.
	return harness.Await(ctx, harness.Patience, topic+" to be loaded", func(ctx context.Context) (bool, string) {
		c, err := s.look(ctx)
		owner := c.owner(topic)
		if err != nil || owner == nil {
			return false, fmt.Sprint("nobody has it ", err)
		}
		if n := c.owners(topic); n > 1 {
			return false, fmt.Sprintf("%d brokers have it", n)
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		found, err := owner.Discovery.TopicLookup(ctx, &danubepb.TopicLookupRequest{Topic: topic})
		return err == nil && found.ResponseType == danubepb.TopicLookupResponse_Connect, fmt.Sprint(found, err)
	})
}

// choose picks whom the fault hits: the leader, or the follower with the most topics.
func (s *stage) choose(ctx context.Context) (victim *pair, err error) {
	c, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	for _, pr := range s.pairs {
		leads := c.ids[pr] == c.leader
		if leads == s.fault.leader && (victim == nil || len(c.topicsOf(pr)) > len(c.topicsOf(victim))) {
			victim = pr
		}
	}
	if victim == nil {
		return nil, fmt.Errorf("nobody to hit: the leader is %q", c.leader)
	}
	s.say("%s has %d of %d topics, and the fault", victim.Name, len(c.topicsOf(victim)), len(s.topics))
	return victim, nil
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
	if err := harness.Wait(ctx, 10*time.Second); err != nil {
		return o, err
	}
	since, err := s.revision(ctx)
	if err != nil {
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
	last := s.calm(ctx)
	for _, pr := range s.asked(ctx) {
		o.Asked = append(o.Asked, "activate "+pr.Name)
		if err := pr.sidecar.Activate(ctx, "comparison"); err != nil {
			s.steps = append(s.steps, "activate "+pr.Name+": "+err.Error())
		}
	}
	if len(o.Asked) > 0 {
		last = s.calm(ctx)
	}
	o.Brokers, o.Serving, o.Steps = len(s.pairs), last.serving, append(s.steps, last.steps...)
	if err := s.countDestroyed(ctx, &o, since+1, last.dead); err != nil {
		return o, err
	}
	s.countEnds()
	o.Load = s.load.Get()
	s.countMessages(ctx, &o)
	s.say("gap %.1f s, %d acknowledged, %d lost, %d duplicated, %d destroyed, %d consumers hung, %d serving, asked %q, steps %q, notes %q, load %.0f",
		o.GapSeconds, o.Acknowledged, o.Lost, o.Duplicated, o.Destroyed, o.Resubscribed, o.Serving, o.Asked, o.Steps, o.Notes, o.Load)
	return o, ctx.Err()
}

// calm waits until all is well, not for ever: what is not by then wants an operator. A broker
// that an operator is asked to activate waits for that.
func (s *stage) calm(ctx context.Context) (last flaws) {
	_ = harness.Await(ctx, calmBound, "calm", func(ctx context.Context) (bool, string) {
		now := s.flaws(ctx)
		if ctx.Err() == nil {
			last = now
		}
		return len(now.steps) == len(s.asked(ctx)), fmt.Sprint(now.steps)
	})
	return last
}

func (s *stage) countDestroyed(ctx context.Context, o *verdict.Outcome, since int64, dead []string) error {
	gone, err := s.destroyed(ctx, since)
	if err != nil {
		return err
	}
	all := map[string]bool{}
	for _, topic := range append(gone, dead...) {
		all[topic] = true
	}
	o.Destroyed = len(all)
	if len(gone) > 0 {
		s.note("(metadata deleted: %s)", strings.Join(gone, ", "))
	}
	return nil
}

// countEnds notes the brokers' ends that were not the fault's: to stop one may be what helps.
func (s *stage) countEnds() {
	n := int(s.ended.Load()) - s.fault.ends
	if n > 0 {
		s.note("(brokers ended: %d)", n)
	}
}

func (s *stage) countMessages(ctx context.Context, o *verdict.Outcome) {
	o.Topics = map[string]float64{}
	for _, t := range s.traffic.Tallies() {
		o.Topics[t.Topic] = max(t.Gap, t.Deaf).Seconds()
		o.GapSeconds = max(o.GapSeconds, o.Topics[t.Topic])
	}
	for _, t := range s.traffic.Stop(ctx) {
		if t.Hung {
			o.Resubscribed++
		}
		o.Acknowledged += t.Acknowledged
		o.Lost += t.Lost
		o.Duplicated += t.Duplicated
	}
	o.Notes = s.notes
}

// Close implements compare.Side.
func (s *stage) Close(dir string) error {
	s.endClients()
	return errors.Join(compare.KeepLogs(s.lab, dir), s.lab.Close())
}

func (s *stage) endClients() {
	s.end()
	s.loops.Wait()
	if s.traffic != nil {
		s.traffic.Close()
	}
}
