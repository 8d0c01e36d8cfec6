//go:build pulsar

package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
	"holdfast/lab/pulsar"
)

// fault is one row.
type fault struct {
	name    string
	restart time.Duration // the pause of each broker's supervisor; 0: there is none
	ends    int           // of brokers, that are the fault's
	do      func(context.Context, *stage) error
	cuts    bool // it drops packets
}

// usual is the supervisor's pause where the row is about something else.
const usual = 5 * time.Second

var faults = []fault{
	{name: "kill -9, not restarted", ends: 1, do: killForGood},
	{name: "kill -9, back in 4 s", restart: 4 * time.Second, ends: 1, do: kill},
	{name: "kill -9, back in 40 s", restart: 40 * time.Second, ends: 1, do: kill},
	{name: "SIGTERM, rolling over all", restart: time.Second, ends: brokers, do: roll},
	{name: "SIGSTOP for 10 s", restart: usual, do: freeze(10 * time.Second)},
	{name: "SIGSTOP for 45 s", restart: usual, do: freeze(45 * time.Second)},
	{name: "etcd down for 40 s", restart: usual, do: etcdDown(40 * time.Second)},
	{name: "etcd restarted", restart: usual, do: etcdRestarted},
	{name: "bookie frozen for 42 s", restart: usual, do: freezeBookie(42 * time.Second)},
	{name: "lease revoked", restart: usual, do: revoke},
	{name: "odd lookup", restart: usual, do: lookOddUp},
	{name: "drained, bundles moving for 3 min", restart: usual, do: drained(3 * time.Minute)},
	{name: "activated", restart: usual, do: activated},
	{name: "broker and sidecar cut off for 15 s", restart: usual, do: cut(15*time.Second, dropped, brokersEtcd(1), sidecarsEtcd(1)), cuts: true},
	{name: "broker and sidecar cut off for 60 s", restart: usual, do: cut(time.Minute, dropped, brokersEtcd(1), sidecarsEtcd(1)), cuts: true},
	{name: "broker and sidecar reset for 15 s", restart: usual, do: cut(15*time.Second, refused, brokersEtcd(1), sidecarsEtcd(1)), cuts: true},
	{name: "broker and sidecar reset for 60 s", restart: usual, do: cut(time.Minute, refused, brokersEtcd(1), sidecarsEtcd(1)), cuts: true},
	{name: "broker cut off for 60 s", restart: usual, do: cut(time.Minute, dropped, brokersEtcd(1)), cuts: true},
	{name: "sidecar cut off for 60 s", restart: usual, do: cut(time.Minute, dropped, sidecarsEtcd(1)), cuts: true},
}

// cut keeps the first broker, its sidecar or both from etcd.
func cut(d time.Duration, how []string, addresses ...string) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		return cutOff(ctx, d, s.cluster.Etcd.Port, how, addresses...)
	}
}

func kill(_ context.Context, s *stage) error { return s.pairs[0].Kill() }

func killForGood(_ context.Context, s *stage) error {
	s.pairs[0].gone = true
	return s.pairs[0].Kill()
}

// roll stops each broker, and goes on when it and its sidecar are ready again. Where it does not
// become so, the others are left alone, as whoever rolls would do.
func roll(ctx context.Context, s *stage) error {
	for _, pr := range s.pairs {
		if err := s.restart(ctx, pr); err != nil {
			return err
		}
		if err := s.awaitWell(ctx, pr); err != nil {
			s.say("%v", err)
			return ctx.Err()
		}
	}
	return nil
}

// stopPatience is when systemd kills a service that was told to end and has not.
const stopPatience = 90 * time.Second

// restart ends a broker as a supervisor does, and awaits the next one.
func (s *stage) restart(ctx context.Context, pr *pair) error {
	was := pr.PID()
	another := func(context.Context) (bool, string) { return pr.PID() != was, "the same process" }
	if err := pr.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	err := harness.Await(ctx, stopPatience, pr.Name+" to end", another)
	if err == nil || ctx.Err() != nil {
		return err
	}
	s.notes = append(s.notes, fmt.Sprintf("(%s did not end by SIGTERM, and was killed after %v)", pr.Name, stopPatience))
	if err := pr.Kill(); err != nil {
		return err
	}
	return harness.Await(ctx, bootBound, pr.Name+" to be started again", another)
}

// freeze is ended early by whoever ends the broker.
func freeze(d time.Duration) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		pr := s.pairs[0]
		if err := pr.Freeze(); err != nil {
			return err
		}
		frozen := pr.Exited()
		if err := harness.Wait(ctx, d); err != nil {
			return err
		}
		select {
		case <-frozen:
			return nil
		default:
			return pr.Thaw()
		}
	}
}

func etcdDown(d time.Duration) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		if err := s.cluster.Etcd.Kill(); err != nil {
			return err
		}
		if err := harness.Wait(ctx, d); err != nil {
			return err
		}
		if err := s.cluster.Etcd.Start(ctx); err != nil {
			return err
		}
		return s.mendBookie(ctx)
	}
}

func etcdRestarted(ctx context.Context, s *stage) error {
	if err := s.cluster.Etcd.Stop(ctx); err != nil {
		return err
	}
	return s.cluster.Etcd.Start(ctx)
}

func freezeBookie(d time.Duration) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		if err := s.cluster.Bookie.Freeze(); err != nil {
			return err
		}
		if err := harness.Wait(ctx, d); err != nil {
			return err
		}
		if err := s.cluster.Bookie.Thaw(); err != nil {
			return err
		}
		return s.mendBookie(ctx)
	}
}

// mendBookie restarts the bookie where it does not register again by itself, as an operator must:
// else its absence would be all that is seen of the brokers. The pause that this makes is the
// operator's and not the fault's, and hits one side only where the other bookie goes later.
func (s *stage) mendBookie(ctx context.Context) error {
	if err := harness.Wait(ctx, 10*time.Second); err != nil {
		return err
	}
	if there, err := s.cluster.BookieRegistered(ctx); err != nil || there {
		return err
	}
	s.steps = append(s.steps, "restart the bookie: it is not registered")
	s.gap = s.longest()
	if err := s.cluster.RestartBookie(ctx); err != nil {
		return err
	}
	if err := s.traffic.AwaitFlow(ctx, bootBound); err != nil {
		return err
	}
	s.traffic.ForgetGaps()
	return nil
}

// revoke ends the session of a broker that is well and connected.
func revoke(ctx context.Context, s *stage) error {
	etcd := s.cluster.Etcd.Client()
	key := "/loadbalance/brokers/" + s.pairs[0].Advertised()
	found, err := etcd.Get(ctx, key)
	if err != nil {
		return err
	}
	if len(found.Kvs) != 1 {
		return fmt.Errorf("there is no %s", key)
	}
	_, err = etcd.Revoke(ctx, clientv3.LeaseID(found.Kvs[0].Lease))
	return err
}

// lookOddUp makes a bundle of a namespace of the first form.
func lookOddUp(ctx context.Context, s *stage) error {
	_, err := s.pairs[0].Owner(ctx, "/public~default/we/ird")
	return err
}

// drain empties the first broker. The nearest that a bare cluster has is to unload its bundles.
func (s *stage) drain(ctx context.Context) error {
	pr := s.pairs[0]
	if pr.sidecar == nil {
		for _, topic := range s.topics[:harness.PulsarBundles] {
			if owner, err := pr.Owner(ctx, topic); err != nil || owner != pr.URL() {
				continue // it is elsewhere
			}
			if err := pulsar.Unload(ctx, pr.ApacheBroker, topic, ""); err != nil {
				return err
			}
		}
		return nil
	}
	if err := s.verb(ctx, "drain"); err != nil {
		return err
	}
	_, err := pr.sidecar.Await(ctx, bootBound, "drained", func(st harness.Status) bool { return st.Mode == "drained" })
	return err
}

// activate ends drain.
func (s *stage) activate(ctx context.Context) error {
	if s.pairs[0].sidecar == nil {
		return nil
	}
	return s.verb(ctx, "activate")
}

func (s *stage) verb(ctx context.Context, name string) error {
	res, err := s.pairs[0].sidecar.Verb(ctx, name, "--reason", "comparison")
	if err == nil && res.Exit != 0 {
		err = fmt.Errorf("%s: exit code %d: %s", name, res.Exit, res.Stderr)
	}
	return err
}

// drained moves a bundle each few seconds, as shedding does, and notes how often the drained
// broker had one.
func drained(d time.Duration) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		if err := s.drain(ctx); err != nil {
			return err
		}
		held, looks := 0, 0
		for end := time.Now().Add(d); time.Now().Before(end); looks++ {
			if looks%10 == 9 {
				if err := pulsar.Unload(ctx, s.pairs[1].ApacheBroker, s.topics[looks/10%harness.PulsarBundles], ""); err != nil {
					s.say("move a bundle: %v", err)
				}
			}
			if err := harness.Wait(ctx, time.Second); err != nil {
				return err
			}
			if owned, err := s.owned(ctx); err != nil {
				return err
			} else if owned > 0 {
				held++
			}
		}
		s.notes = append(s.notes, fmt.Sprintf("(the drained broker had bundles in %d of %d looks)", held, looks))
		return s.activate(ctx)
	}
}

// owned counts the first broker's bundles that have topics.
func (s *stage) owned(ctx context.Context) (n int, err error) {
	shared, _, err := s.pairs[0].Owned(ctx)
	return len(shared), err
}

// activated measures from the end of a drain on.
func activated(ctx context.Context, s *stage) error {
	if err := s.drain(ctx); err != nil {
		return err
	}
	if err := harness.Wait(ctx, 10*time.Second); err != nil {
		return err
	}
	s.traffic.ForgetGaps()
	return s.activate(ctx)
}
