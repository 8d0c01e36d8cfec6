// Package move measures what it costs to move topics between two NATS servers that are no
// cluster, with a sidecar beside each, on an etcd of one member.
//
// One large stream goes there and back: the bytes a second of the copy and of the whole move, by the
// times in its journal, beside a plain snapshot and restore of an equal stream between the same
// servers by jsm.go, NATS' own client for it, by way of a file.
//
// Many streams of 1 MB: `holdfast drain --move`, from the command to its end, beside a plain loop of
// snapshot and restore of as many, as many at a time as a sidecar moves; only one is restored at a
// time, as a sidecar has it, because more may end nats-server 2.15.3.
//
// A small topic: for how long its producer, which goes to the other server as soon as one refuses it,
// has nothing acknowledged, beside the same where a bare client deletes a stream and makes it there.
//
// Plain and moved take turns, with nothing left to write before either; a ratio is the median over
// all turns. Each part has a lab of its own, and is left out where its number is 0.
//
// To its end a move does what the plain one does not: it seals, compares every message, removes, and
// writes eight steps to etcd. With many small streams that is most of the work, about four times the
// processor of a plain loop, so a drain has a floor of its own: it shows a pause, not a slow copy.
package move

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"holdfast/lab/bench/kit"
	"holdfast/recovery/moves"
)

// plan is what to measure.
type plan struct {
	size, rounds int // of the large stream, in MB
	streams      int
	moves        int
	floor, drain float64
	memory       float64 // MB
	flags        string
}

// Bench declares its flags.
func Bench(flags *flag.FlagSet) kit.Bench {
	p := plan{}
	flags.IntVar(&p.size, "size", 1000, "MB of the large stream")
	flags.IntVar(&p.rounds, "rounds", 3, "how often it is moved")
	flags.IntVar(&p.streams, "streams", 1000, "streams of 1 MB that are drained")
	flags.IntVar(&p.moves, "moves", 20, "how often the small topic is moved")
	flags.Float64Var(&p.floor, "floor", 0.9, "smallest accepted ratio of the large copy to a plain snapshot and restore")
	flags.Float64Var(&p.drain, "drain", 0.1, "smallest accepted ratio of the drain to a plain loop of snapshot and restore")
	flags.Float64Var(&p.memory, "memory", 40, "MB of memory that each sidecar may have, with the large stream or the many")
	flags.StringVar(&p.flags, "flags", "", "more flags of both sidecars")
	return p.run
}

// run runs the parts.
func (p *plan) run(ctx context.Context, out io.Writer) (all []kit.Limit, err error) {
	for _, part := range []struct {
		name   string
		wanted int
		run    func(context.Context, *rig, io.Writer, plan) ([]kit.Limit, error)
	}{{"large stream", p.size, large}, {"small topic", p.moves, small}, {"many streams", p.streams, many}} {
		if part.wanted == 0 {
			continue
		}
		fmt.Fprintf(out, "%s, %d: this takes minutes\n", part.name, part.wanted)
		within, fail := context.WithCancelCause(ctx)
		r, err := newRig(within, fail, strings.Fields(p.flags))
		var limits []kit.Limit
		if err == nil {
			limits, err = part.run(within, r, out, *p)
		}
		if err != nil {
			err = errors.Join(context.Cause(within), err)
		}
		err = r.close(err)
		fail(nil)
		if err != nil {
			return nil, err
		}
		all = append(all, limits...)
	}
	return all, nil
}

const mega = 1e6

// rates are those of one kind of turns, in MB a second.
type rates []float64

func (r *rates) add(bytes int, took time.Duration) {
	*r = append(*r, float64(bytes)/mega/took.Seconds())
}

// to is the median ratio to other turns.
func (r rates) to(others rates) float64 {
	var ratios []float64
	for i := range r {
		ratios = append(ratios, r[i]/others[i])
	}
	return kit.Median(ratios)
}

// phases are how long each phase of some moves took, at the median.
func phases(all []moves.Move) string {
	order := moves.Phases[:slices.Index(moves.Phases, moves.Verified)+1]
	var parts []string
	for i, phase := range order {
		next := moves.Done
		if i+1 < len(order) {
			next = order[i+1]
		}
		var took []time.Duration
		for _, m := range all {
			took = append(took, m.Since[next].Sub(m.Since[phase]))
		}
		parts = append(parts, fmt.Sprintf("%s %v", phase, kit.Median(took)))
	}
	return strings.Join(parts, ", ")
}
