package move

import (
	"context"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"holdfast/lab/bench/kit"
	"holdfast/recovery/moves"
)

// atOnce is how many streams are moved at a time: the default of --moves-at-once.
const atOnce = 4

// turns runs both, first the one and then the other, with nothing left to write before either.
func turns(n int, one, other func() error) error {
	both := []func() error{one, other}
	for i := range both {
		unix.Sync()
		if err := both[(i+n)%2](); err != nil {
			return err
		}
	}
	return nil
}

// large moves one stream there and back.
func large(ctx context.Context, r *rig, out io.Writer, p plan) ([]kit.Limit, error) {
	whole := newPair("whole")
	bytes := p.size * mega
	if err := r.make(ctx, bytes, whole); err != nil {
		return nil, err
	}
	var plain, copied, moved rates
	var all []moves.Move
	for n := range p.rounds {
		from, to := r.sides[n%2], r.sides[1-n%2]
		err := turns(n, func() error {
			began := time.Now()
			if err := r.movePlain(ctx, from, to, whole.stream); err != nil {
				return err
			}
			plain.add(bytes, time.Since(began))
			return from.js.DeleteStream(ctx, whole.stream)
		}, func() error {
			m, err := r.unload(ctx, from, to, whole.topic)
			if err != nil {
				return err
			}
			copied.add(bytes, took(m, moves.Sealed, moves.Copied))
			moved.add(bytes, m.Since[moves.Done].Sub(m.At))
			all = append(all, m)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	fmt.Fprintf(out, "One stream of %d MB, %d times:\n", p.size, p.rounds)
	fmt.Fprintf(out, "  %-34s %7.1f MB/s\n", "snapshot and restore by jsm.go", kit.Median(plain))
	fmt.Fprintf(out, "  %-34s %7.1f MB/s, ratio %.2f\n", "holdfast unload, the copy of it", kit.Median(copied), copied.to(plain))
	fmt.Fprintf(out, "  %-34s %7.1f MB/s, ratio %.2f\n", "holdfast unload, to its end", kit.Median(moved), moved.to(plain))
	fmt.Fprintf(out, "  phases: %s\n", phases(all))
	limits, err := r.judgeMemory(p.memory)
	return append(limits, kit.AtLeast("copy of the large stream, ratio to a plain one", copied.to(plain), p.floor)), err
}

// many drains a broker.
func many(ctx context.Context, r *rig, out io.Writer, p plan) ([]kit.Limit, error) {
	var pairs []pair
	for i := range p.streams {
		pairs = append(pairs, newPair(fmt.Sprintf("t%05d", i)))
	}
	if err := r.make(ctx, mega, pairs...); err != nil {
		return nil, err
	}
	n1, n2 := r.sides[0], r.sides[1]
	bytes := p.streams * mega
	var plain, drained rates
	err := turns(0, func() error {
		began := time.Now()
		var group errgroup.Group
		group.SetLimit(atOnce)
		for _, p := range pairs {
			group.Go(func() error { return r.movePlain(ctx, n1, n2, p.stream) })
		}
		err := group.Wait()
		plain.add(bytes, time.Since(began))
		return err
	}, func() error {
		began := time.Now()
		res, err := n1.Verb(ctx, "drain", "--move", "--to", n2.id, "--deadline", "2h", "--reason", "bench")
		drained.add(bytes, time.Since(began))
		if err == nil && res.Exit != 0 {
			err = fmt.Errorf("drain %s: exit code %d: %s%s", n1.id, res.Exit, res.Stdout, res.Stderr)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	res, err := n2.Verb(ctx, "moves", "--output", "json")
	if err != nil {
		return nil, err
	}
	all, err := shown(res.Stdout, p.streams)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "%d streams of 1 MB, %d at a time:\n", p.streams, atOnce)
	fmt.Fprintf(out, "  %-34s %7.1f MB/s\n", "snapshot and restore by jsm.go", kit.Median(plain))
	fmt.Fprintf(out, "  %-34s %7.1f MB/s, ratio %.2f\n", "holdfast drain --move", kit.Median(drained), drained.to(plain))
	fmt.Fprintf(out, "  phases: %s\n", phases(all))
	limits, err := r.judgeMemory(p.memory)
	return append(limits, kit.AtLeast("drain of many streams, ratio to a plain loop", drained.to(plain), p.drain)), err
}
