//go:build pulsar

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The gap of a row may be longer by either of the two.
const (
	mostTimes = 1.5
	mostMore  = 2.0 // seconds
)

// outcome is what clients and operators saw of one fault, on one cluster.
type outcome struct {
	gap              float64 // seconds: the longest that a topic was not served
	lost             int     // acknowledged and never received
	duplicated       int
	hung             int // consumers that received nothing more until they subscribed again
	brokers, serving int // all, also those that the fault took away for good; those that took a bundle at the end and served it
	stopped          int // ends of brokers that were not the fault's
	steps            []string
	notes            []string
	load             float64 // of the machine, the highest seen
}

// String is what follows the name of the row.
func (o outcome) String() string {
	serving := fmt.Sprintf("%d of %d", o.serving, o.brokers)
	if o.hung > 0 {
		serving += fmt.Sprintf(" (consumers hung: %d)", o.hung)
	}
	if o.stopped > 0 {
		serving += fmt.Sprintf(" (stopped: %d)", o.stopped)
	}
	steps := strings.ReplaceAll(strings.Join(slices.Concat(o.steps, o.notes), "; "), "|", `\|`)
	if steps == "" {
		steps = "nothing"
	}
	return fmt.Sprintf("%.1f s | %d | %d | %s | %s | %.0f", o.gap, o.lost, o.duplicated, serving, steps, o.load)
}

// worse says in what the cluster with Holdfast did worse than the bare one. Duplicates are shown
// and not judged: at least once is what both promise.
func (o outcome) worse(bare outcome) error {
	var why []error
	add := func(worse bool, what string, with, without any) {
		if worse {
			why = append(why, fmt.Errorf("worse with Holdfast: %s %v, not %v", what, with, without))
		}
	}
	add(o.gap > mostTimes*bare.gap && o.gap > bare.gap+mostMore, "gap in seconds", o.gap, bare.gap)
	add(o.lost > bare.lost, "lost", o.lost, bare.lost)
	add(o.hung > bare.hung, "consumers hung", o.hung, bare.hung)
	add(o.brokers-o.serving > bare.brokers-bare.serving, "serving", o.serving, bare.serving)
	add(len(o.steps) > len(bare.steps), "operator's steps", len(o.steps), len(bare.steps))
	// Where the bare cluster goes on by itself nothing may be stopped. Where it needs an operator, a
	// stop and a start are what the operator would do.
	add(o.stopped > bare.stopped && len(bare.steps) == 0, "stopped", o.stopped, bare.stopped)
	return errors.Join(why...)
}
