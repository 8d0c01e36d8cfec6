package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"holdfast/lab/harness"
	"holdfast/recovery/moves"
)

// blows are what may happen to either side of a move, and how long it lasts.
var blows = []struct {
	name     string
	who      string
	down, up func(s *trio, c *couple) error
	lasts    time.Duration
}{
	{"source's sidecar", "n1", killSidecar, startSidecar, 2 * time.Second},
	{"target's sidecar", "n2", killSidecar, startSidecar, 2 * time.Second},
	{"source's broker", "n1", killBroker, startBroker, 2 * time.Second},
	{"target's broker", "n2", killBroker, startBroker, 2 * time.Second},
	{"source cut off", "n1", cut, heal, 10 * time.Second}, // two TTLs
	{"target cut off", "n2", cut, heal, 10 * time.Second},
	{"source's sidecar frozen", "n1", freeze, thaw, 10 * time.Second}, // what it had begun comes late
	{"target's sidecar frozen", "n2", freeze, thaw, 10 * time.Second},
	{"source's host", "n1", killHost, startHost, 2 * time.Second},
	{"target's host", "n2", killHost, startHost, 2 * time.Second},
}

func killSidecar(_ *trio, c *couple) error  { return c.Kill() }
func startSidecar(_ *trio, c *couple) error { return c.Start() }
func killBroker(_ *trio, c *couple) error   { return c.nats.Kill() }
func startBroker(_ *trio, c *couple) error  { return c.nats.Launch() }
func cut(s *trio, c *couple) error          { return s.links[c.id].Cut() }
func heal(s *trio, c *couple) error         { return s.links[c.id].Heal() }
func freeze(_ *trio, c *couple) error       { return c.Freeze() }
func thaw(_ *trio, c *couple) error         { return c.Thaw() }
func killHost(_ *trio, c *couple) error     { return c.killBoth() }
func startHost(_ *trio, c *couple) error    { return c.startBoth() }

// Either side is struck in each phase. The move comes to its end all the same: done, or failed
// with the source serving. Nothing acknowledged is lost or given twice, and one broker serves.
func TestAMoveOutlivesWhatStrikesEitherSide(t *testing.T) {
	long(t)
	for _, phase := range moves.Phases[:slices.Index(moves.Phases, moves.Undoing)] {
		for _, blow := range blows {
			t.Run(fmt.Sprintf("%s, %s", phase, blow.name), func(t *testing.T) {
				t.Parallel()
				s := newTrio(t, "--move-rate", "1000000")
				s.fill(16, 1<<16) // sealed and resumed take a second each
				p := s.produce(100)
				p.awaitMore(20, "n1")
				r := s.read(20, func(i int) bool { return i%3 == 0 })
				p.awaitMore(40, "n1") // a server that is killed within 100 ms forgets positions by itself
				from := s.caughtUp()
				verb, end := context.WithCancel(s.ctx)
				defer end()
				go func() { // who asks may be told nothing any more
					_, _ = s.side("n1").Verb(verb, "unload", s.topic, "--to", "n2")
				}()
				s.awaitPhase(from, in(phase), string(phase))
				c := s.side(blow.who)
				s.ok(blow.down(s, c))
				s.caughtUp()
				before := s.phases(from)
				s.ok(harness.Wait(s.ctx, blow.lasts))
				s.ok(blow.up(s, c))
				m := s.awaitOver(from)
				t.Logf("%s; struck after %v of %v", m.Line(), before, s.phases(from))
				at := "n1"
				if m.Phase == moves.Done {
					at = "n2"
				}
				p.awaitMore(10, at)
				p.stop()
				s.servedBy(at)
				other := map[string]string{"n1": "n2", "n2": "n1"}[at]
				if left := s.streams(other); len(left) != 0 {
					t.Errorf("%s has the streams %v, want none", other, left)
				}
				r.finish(at)
				p.allAt(at)
			})
		}
	}
}

// awaitOver waits until the move is over. Who was drained meanwhile is activated, as an operator would.
func (s *trio) awaitOver(after int64) (m moves.Move) {
	s.Helper()
	s.ok(harness.Await(s.ctx, 2*bound, "the move to be over", func(ctx context.Context) (bool, string) {
		for _, c := range s.brokers {
			if st, err := c.Status(ctx); err == nil && st.Mode == "drained" && st.Attachment == "attached" {
				s.Logf("%s is drained (%s), and activated", c.id, st.Reason)
				_ = c.Activate(ctx, "e2e") // or again
			}
		}
		res, err := s.etcd.Client().Get(ctx, s.keys.Move(s.topic))
		if err == nil && len(res.Kvs) == 1 {
			m, err = moves.Parse(s.topic, res.Kvs[0].Value)
		}
		return err == nil && m.Phase.Over(), fmt.Sprint(s.journal(), err)
	}))
	for _, c := range s.brokers { // what was struck is whole again
		s.ok(harness.Await(s.ctx, bound, c.Name+" to be ready", func(ctx context.Context) (bool, string) {
			st, err := c.Status(ctx)
			if err == nil && st.Mode == "drained" {
				_ = c.Activate(ctx, "e2e")
			}
			return c.Ready(ctx), fmt.Sprint(st, err)
		}))
	}
	return m
}

// phases are those that the journal was in, in their order.
func (s *trio) phases(after int64) (all []moves.Phase) {
	for _, c := range s.changesOf(s.keys.Move(s.topic), after) {
		if m, err := moves.Parse(s.topic, []byte(c.Value)); err == nil && (len(all) == 0 || all[len(all)-1] != m.Phase) {
			all = append(all, m.Phase)
		}
	}
	return slices.Clip(all)
}
