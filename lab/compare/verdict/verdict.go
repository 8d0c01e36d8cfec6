// Package verdict says in which faults a cluster is worse with Holdfast than without: rows of
// runs, each with an outcome for both, read from files, judged and drawn as one table. It knows
// nothing of clusters.
//
// A row is worse with Holdfast if its median gap is above MostTimes that of the bare cluster and
// MostMore longer, or if any of its runs lost a message, destroyed a topic, left a consumer hanging, or left a broker dead, stopped or for an
// operator to mend where no run of the bare cluster did as badly. Duplicates are shown and not
// judged: at least once is what both promise. A step that Holdfast asks for by design is shown and not judged either.
package verdict

import (
	"fmt"
	"slices"
)

// The gap of a row may be longer by either of the two.
const (
	MostTimes = 1.5
	MostMore  = 2.0 // seconds
)

// Outcome is what clients and operators saw of one fault, on one cluster.
type Outcome struct {
	GapSeconds   float64 `json:"gap_seconds"` // the longest that a topic was not served
	Acknowledged int     `json:"acknowledged"`
	Lost         int     `json:"lost"` // acknowledged and never received
	Duplicated   int     `json:"duplicated"`
	Hung         int     `json:"hung"` // consumers that received nothing more until they subscribed again
	// Resubscribed is Hung where the gap has what they did not hear: it is shown and not judged.
	Resubscribed int      `json:"resubscribed,omitempty"`
	Destroyed    int      `json:"destroyed,omitempty"` // topics whose metadata went, or that are never served again
	Brokers      int      `json:"brokers"`             // all, also those that the fault took away for good
	Serving      int      `json:"serving"`             // that took a bundle at the end and served it
	Stopped      int      `json:"stopped"`             // ends of brokers that were not the fault's
	Steps        []string `json:"steps"`               // what an operator must do at the end
	Asked        []string `json:"asked,omitempty"`     // what an operator was asked for by design, and did
	Load         float64  `json:"load"`                // of the machine, the highest seen: processes that want to run
	Notes        []string `json:"notes,omitempty"`
	// Topics is the longest time in seconds that each was not served.
	Topics map[string]float64 `json:"topics,omitempty"`
}

// Run is one fault on a cluster without and on one with Holdfast.
type Run struct {
	Row       string  `json:"row"`
	Manager   string  `json:"manager"` // the kind of broker: its load manager, or its release
	Placement string  `json:"placement"`
	Number    int     `json:"number"`
	Bare      Outcome `json:"bare"`
	Holdfast  Outcome `json:"holdfast"`
}

// Row is all runs of one fault, with one kind of broker and one placement.
type Row []Run

func (r Row) gaps(of func(Run) Outcome) (all []float64) {
	for _, run := range r {
		all = append(all, of(run).GapSeconds)
	}
	return all
}

func bare(r Run) Outcome     { return r.Bare }
func holdfast(r Run) Outcome { return r.Holdfast }

// median of an even number is the mean of the two in the middle; of none it is 0.
func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	n := len(all)
	return (all[(n-1)/2] + all[n/2]) / 2
}

// most is the highest of a count over the runs.
func (r Row) most(of func(Run) int) (n int) {
	for _, run := range r {
		n = max(n, of(run))
	}
	return n
}

// Worse says why the row is worse with Holdfast; empty: it is not.
func (r Row) Worse() (why []string) {
	with, without := median(r.gaps(holdfast)), median(r.gaps(bare))
	if with > MostTimes*without && with > without+MostMore {
		why = append(why, fmt.Sprintf("gap %.1f s, not %.1f", with, without))
	}
	for _, count := range []struct {
		what string
		of   func(Outcome) int
	}{
		{"lost", func(o Outcome) int { return o.Lost }},
		{"topics destroyed", func(o Outcome) int { return o.Destroyed }},
		{"consumers hung", func(o Outcome) int { return o.Hung }},
		{"not serving", func(o Outcome) int { return o.Brokers - o.Serving }},
		{"operator's steps", func(o Outcome) int { return len(o.Steps) }},
	} {
		with, without := r.most(func(r Run) int { return count.of(r.Holdfast) }), r.most(func(r Run) int { return count.of(r.Bare) })
		if with > without {
			why = append(why, fmt.Sprintf("%s: %d, not %d", count.what, with, without))
		}
	}
	// Where the bare cluster goes on serving by itself nothing may be stopped. Where it needs an
	// operator, a stop and a start are what the operator would do.
	if n := r.most(func(r Run) int { return r.Holdfast.Stopped }); n > r.most(func(r Run) int { return r.Bare.Stopped }) &&
		r.most(func(r Run) int { return len(r.Bare.Steps) }) == 0 {
		why = append(why, fmt.Sprintf("stopped: %d", n))
	}
	return why
}
