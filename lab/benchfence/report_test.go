package main

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestAReportIsGoodOnlyIfEveryRunWasInTime(t *testing.T) {
	good := outcome{what: "killed", by: "guard", toDeadline: known(time.Second), toGone: known(2 * time.Second), private: 4 << 20}
	with := func(change func(*outcome)) outcome {
		o := good
		change(&o)
		return o
	}
	for _, c := range []struct {
		name string
		last outcome
		want bool
	}{
		{"in time", good, true},
		{"served at the deadline", with(func(o *outcome) { o.toDeadline = known(0) }), false},
		{"served after the key was gone", with(func(o *outcome) { o.toGone = known(-time.Millisecond) }), false},
		{"served after the key was gone, this process having stood still for less", with(func(o *outcome) { o.toGone, o.stood = known(-2*time.Second), time.Second }), false},
		{"nobody knows what came first", with(func(o *outcome) { o.toGone, o.stood = known(-time.Second), 2*time.Second }), true},
		{"sent after the key was gone", with(func(o *outcome) { o.late, o.stood = 1, time.Minute }), false},
		{"another fault that has no deadline", outcome{what: "leader hangs", toGone: known(time.Second)}, true},
		{"a key that never went", outcome{what: "leader hangs", kept: true}, true},
		{"brought back and refused", outcome{what: "hands", served: known(time.Second), limit: time.Second}, true},
		{"brought back and served", outcome{what: "hands", served: known(2 * time.Second), limit: time.Second}, false},
		{"nothing measured", with(func(o *outcome) { o.err = errors.New("no lab") }), false},
		{"a guard that is too big", with(func(o *outcome) { o.private = maxPrivate + 1 }), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			if got := report(&out, []outcome{good, good, c.last}); got != c.want {
				t.Errorf("%v, want %v:\n%s", got, c.want, out.String())
			}
		})
	}
}

func TestQuantilesAreValuesOfTheRuns(t *testing.T) {
	var all []time.Duration
	for i := range 50 {
		all = append(all, time.Duration(i+1))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 26, 0.9: 46, 1: 50} {
		if got := quantile(all, q); got != want {
			t.Errorf("%v: %d, want %d", q, got, want)
		}
	}
}
