package move

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"holdfast/lab/bench/kit"
	"holdfast/lab/harness"
	"holdfast/recovery/moves"
)

// pace is how often the producer publishes, and tries again.
const pace = 5 * time.Millisecond

// producer publishes to a subject, at the server that took the last message, or at the other one.
type producer struct {
	sides []*side
	topic string
	stop  func()

	mu   sync.Mutex
	at   *side // who took the last one
	gaps []time.Duration
	last error
}

func (r *rig) produce(ctx context.Context, topic string) *producer {
	ctx, cancel := context.WithCancel(ctx)
	p := &producer{sides: r.sides, topic: topic}
	var running sync.WaitGroup
	running.Go(func() { p.run(ctx) })
	p.stop = func() { cancel(); running.Wait() }
	return p
}

func (p *producer) run(ctx context.Context) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for at, acked := p.sides[0], time.Now(); ; {
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		_, err := harness.Publish(bounded, at.conn, p.topic, []byte("message"))
		cancel()
		p.mu.Lock()
		now := time.Now()
		switch {
		case err != nil:
			at = p.sides[1-slices.Index(p.sides, at)]
		case p.at != nil && p.at != at:
			p.gaps = append(p.gaps, now.Sub(acked))
		}
		if p.last = err; err == nil {
			p.at, acked = at, now
		}
		p.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// follows waits until it publishes at a server.
func (p *producer) follows(ctx context.Context, to *side) error {
	return harness.Await(ctx, kit.StartBound, "the producer to be at "+to.id, func(context.Context) (bool, string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.at == to && p.last == nil, fmt.Sprint(p.last)
	})
}

// small moves a topic while its producer goes on.
func small(ctx context.Context, r *rig, out io.Writer, p plan) ([]kit.Limit, error) {
	one := newPair("small")
	if err := r.make(ctx, messageSize, one); err != nil {
		return nil, err
	}
	moved, plain := r.produce(ctx, one.topic), r.produce(ctx, "/"+one.plainSubject())
	defer moved.stop()
	defer plain.stop()
	if err := errors.Join(moved.follows(ctx, r.sides[0]), plain.follows(ctx, r.sides[0])); err != nil {
		return nil, err
	}
	var all []moves.Move
	for n := range p.moves {
		from, to := r.sides[n%2], r.sides[1-n%2]
		err := turns(n, func() error {
			err := from.js.DeleteStream(ctx, one.stream)
			if err == nil {
				err = to.makePlain(ctx, one)
			}
			return errors.Join(err, plain.follows(ctx, to))
		}, func() error {
			m, err := r.unload(ctx, from, to, one.topic)
			all = append(all, m)
			return errors.Join(err, moved.follows(ctx, to))
		})
		if err != nil {
			return nil, err
		}
	}
	moved.stop()
	plain.stop()
	if len(moved.gaps) != p.moves || len(plain.gaps) != p.moves {
		return nil, fmt.Errorf("%d moves and as many streams made anew: the producers felt %d and %d",
			p.moves, len(moved.gaps), len(plain.gaps))
	}
	fmt.Fprintf(out, "A small topic, %d times: for how long its producer had nothing acknowledged\n", p.moves)
	for _, row := range []struct {
		name string
		gaps []time.Duration
	}{{"stream deleted, and made anew", plain.gaps}, {"holdfast unload", moved.gaps}} {
		p50, p99 := kit.Median(row.gaps).Milliseconds(), kit.Share(row.gaps, 0.99).Milliseconds()
		fmt.Fprintf(out, "  %-34s p50 %4d ms, p99 %4d ms\n", row.name, p50, p99)
	}
	fmt.Fprintf(out, "  phases: %s\n", phases(all))
	return nil, nil
}
