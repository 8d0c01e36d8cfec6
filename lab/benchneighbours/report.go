package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"holdfast/standstill"
)

// steady is what happened while nothing did.
type steady struct {
	proofs []proof
	lost   int
	cpu    time.Duration
	memory int64
}

// quantile is the smallest of the values that so large a share does not exceed.
func quantile(sorted []time.Duration, share float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}

// times are how long the proofs took, sorted; undisturbed: without the time for which this
// process stood still, where they took longer than the limit.
func (s steady) times(limit time.Duration, undisturbed bool) []time.Duration {
	var times []time.Duration
	for _, p := range s.proofs {
		if undisturbed && p.took > limit {
			p.took -= standstill.For(p.sent, p.sent.Add(p.took))
		}
		times = append(times, p.took)
	}
	slices.Sort(times)
	return times
}

func (s steady) report(out io.Writer, p plan) error {
	thousands := float64(p.sidecars) / 1000
	times := s.times(p.limit, false)
	p99 := quantile(times, 0.99)
	fmt.Fprintf(out, "%-24s %d in %v; from the send to the proof: median %v, 99th percentile %v, longest %v\n", "renewals", len(times), p.length,
		quantile(times, 0.5).Round(10*time.Microsecond), p99.Round(10*time.Microsecond), quantile(times, 1).Round(10*time.Microsecond))
	fmt.Fprintf(out, "%-24s %d\n", "leases lost", s.lost)
	percent := 100 * s.cpu.Seconds() / p.length.Seconds()
	fmt.Fprintf(out, "%-24s %.1f %% of a processor, %.1f %% for each thousand; %d MB of memory, %.0f MB for each thousand\n", "etcd",
		percent, percent/thousands, s.memory>>20, float64(s.memory>>20)/thousands)
	switch {
	case s.lost > 0:
		return fmt.Errorf("%d leases were lost", s.lost)
	case len(times) == 0:
		return errors.New("nothing was renewed")
	case p99 <= p.limit:
		return nil
	}
	if alone := quantile(s.times(p.limit, true), 0.99); alone <= p.limit {
		return fmt.Errorf("%w: 99th percentile %v, without the time for which this process stood still %v", standstill.ErrUnjudged, p99, alone)
	}
	return fmt.Errorf("99th percentile %v is above %v", p99, p.limit)
}

// back is how they came back.
type back struct {
	etcd, attached, watching time.Duration // since the start of etcd: it answers, all are so
	peak                     int           // requests in a second
	lost, detached           int
}

func (b back) report(out io.Writer, p plan) error {
	fmt.Fprintf(out, "%-24s killed, and started after %v; it answered after %v\n", "etcd", p.away, b.etcd.Round(10*time.Millisecond))
	fmt.Fprintf(out, "%-24s %v after its start; %d leases lost\n", "last attached again", b.attached.Round(10*time.Millisecond), b.lost)
	fmt.Fprintf(out, "%-24s %d, whose fence point passed\n", "detached meanwhile", b.detached)
	fmt.Fprintf(out, "%-24s %v after its start\n", "last has its watches", b.watching.Round(10*time.Millisecond))
	fmt.Fprintf(out, "%-24s %d in a second\n", "most requests", b.peak)
	if b.lost > 0 && p.away <= timing.SurvivesExpiry() {
		return fmt.Errorf("%d leases were lost in an outage of %v", b.lost, p.away)
	}
	return nil
}
