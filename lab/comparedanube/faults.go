package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/compare"
	"holdfast/lab/harness"
)

// fault is one row.
type fault struct {
	name    string
	restart time.Duration // the pause of each broker's supervisor
	ends    int           // of brokers, that are the fault's
	leader  bool          // it hits the cluster's leader, else a follower
	do      func(context.Context, *stage) error
	cuts    bool // it drops packets
}

// usual is the supervisor's pause where the row is about something else: what the page for Danube
// recommends.
const usual = time.Second

var faults = []fault{
	{name: "kill -9, back in 5 s", restart: 5 * time.Second, ends: 1, do: kill},
	{name: "kill -9, back in 45 s", restart: 45 * time.Second, ends: 1, do: kill},
	{name: "all killed, back in 40 s", restart: 40 * time.Second, ends: brokers, do: killAll},
	{name: "SIGTERM, rolling over all", restart: time.Second, ends: brokers, do: roll},
	{name: "etcd stalled for 5 s", restart: usual, do: stall(5 * time.Second)},
	{name: "etcd stalled for 14 s", restart: usual, do: stall(14 * time.Second)},
	{name: "etcd stalled for 40 s", restart: usual, do: stall(40 * time.Second)},
	{name: "drained", restart: usual, do: drained},
	{name: "drained with a backlog", restart: usual, do: drainedWithBacklog},
	{name: "activated", restart: usual, do: activated},
	{name: "broker and sidecar cut off for 15 s", restart: usual, do: cut(15*time.Second, compare.Dropped, both), cuts: true},
	{name: "broker and sidecar reset for 15 s", restart: usual, do: cut(15*time.Second, compare.Refused, both), cuts: true},
	{name: "follower and sidecar cut off for 60 s", restart: usual, do: cut(time.Minute, compare.Dropped, both), cuts: true},
	{name: "leader and sidecar cut off for 60 s", restart: usual, leader: true, do: cut(time.Minute, compare.Dropped, both), cuts: true},
	{name: "broker cut off for 60 s", restart: usual, do: cut(time.Minute, compare.Dropped, brokerAlone), cuts: true},
}

func both(n int) []string        { return []string{compare.BrokersEtcd(n), compare.SidecarsEtcd(n)} }
func brokerAlone(n int) []string { return []string{compare.BrokersEtcd(n)} }

// cut keeps the victim, or its sidecar too, from etcd.
func cut(d time.Duration, how []string, whom func(int) []string) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		return compare.Cut(ctx, d, s.etcd.Port, how, whom(s.victim.number)...)
	}
}

func kill(_ context.Context, s *stage) error { return s.victim.Kill() }

// killAll is a cut of the power: sidecars go too, and come back with their brokers.
func killAll(_ context.Context, s *stage) (err error) {
	for _, pr := range s.pairs {
		err = errors.Join(err, pr.Signal(syscall.SIGKILL))
		if pr.sidecar != nil {
			err = errors.Join(err, pr.sidecar.Signal(syscall.SIGKILL))
		}
	}
	return err
}

// roll stops each broker, and goes on when it and its sidecar are ready again. Where it does not
// become so, the others are left alone, as whoever rolls would do.
func roll(ctx context.Context, s *stage) error {
	for _, pr := range s.pairs {
		was := pr.PID()
		if err := pr.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		if err := harness.Await(ctx, bootBound, pr.Name+" to be started again", func(context.Context) (bool, string) {
			return pr.PID() != was, "the same process"
		}); err != nil {
			return err
		}
		if err := s.awaitWell(ctx, pr); err != nil {
			s.say("%v", err)
			return ctx.Err()
		}
	}
	return nil
}

func stall(d time.Duration) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		if err := s.etcd.Freeze(); err != nil {
			return err
		}
		return errors.Join(harness.Wait(ctx, d), s.etcd.Thaw())
	}
}

// drain empties the victim, as whoever has Holdfast or has it not would do. What the cluster
// answers is a note: it may call a topic moved that it has destroyed.
func (s *stage) drain(ctx context.Context) error {
	pr := s.victim
	if pr.sidecar != nil {
		if err := s.verb(ctx, "drain", "--timeout", bootBound.String()); err != nil {
			return err
		}
		_, err := pr.sidecar.Await(ctx, bootBound, "drained", func(st harness.Status) bool { return st.Mode == "drained" })
		return err
	}
	c, err := s.look(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bootBound)
	defer cancel()
	answer, err := pr.Brokers.UnloadBroker(ctx, &danubepb.UnloadBrokerRequest{BrokerId: c.ids[pr], MaxParallel: 1, TimeoutSeconds: 60})
	if err != nil {
		s.note("(unload: %v)", err)
		return nil
	}
	s.note("(unload: %d of %d succeeded)", answer.Succeeded, answer.Total)
	return nil
}

// activate ends drain.
func (s *stage) activate(ctx context.Context) error {
	pr := s.victim
	if pr.sidecar != nil {
		return s.verb(ctx, "activate")
	}
	c, err := s.look(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := pr.Brokers.ActivateBroker(ctx, &danubepb.ActivateBrokerRequest{BrokerId: c.ids[pr], Reason: "comparison"}); err != nil {
		s.steps = append(s.steps, "activate "+pr.Name+": refused")
		s.say("activate: %v", err)
	}
	return nil
}

// verb asks the victim's sidecar. What it refuses is for an operator to do in another way.
func (s *stage) verb(ctx context.Context, name string, flags ...string) error {
	res, err := s.victim.sidecar.Verb(ctx, name, append(flags, "--reason", "comparison")...)
	if err == nil && res.Exit != 0 {
		s.say("%s: exit code %d: %s", name, res.Exit, res.Stderr)
		s.steps = append(s.steps, fmt.Sprintf("%s %s: refused: %s", name, s.victim.Name, firstLine(res.Stderr)))
	}
	return err
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

func drained(ctx context.Context, s *stage) error {
	if err := s.drain(ctx); err != nil {
		return err
	}
	if err := harness.Wait(ctx, 30*time.Second); err != nil {
		return err
	}
	c, err := s.look(ctx)
	if err != nil {
		return err
	}
	if n := len(c.topicsOf(s.victim)); n > 0 {
		s.note("(30 s after the drain %d topics were assigned to it)", n)
	}
	return s.activate(ctx)
}

// drainedWithBacklog has consumers away before the drain, and back while it lasts: 200 messages, at the usual pace. A
// broker that runs gives a consumer that comes back only the last 258 (0.7.3, 2026-11-26).
func drainedWithBacklog(ctx context.Context, s *stage) error {
	s.traffic.Hold(true)
	if err := harness.Wait(ctx, 7*time.Second); err != nil {
		return err
	}
	back := make(chan error, 1)
	go func() {
		err := harness.Wait(ctx, 3*time.Second)
		s.traffic.Hold(false)
		back <- err
	}()
	return errors.Join(drained(ctx, s), <-back)
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
