package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/standstill"
)

func TestAReportIsGoodOnlyIfEveryRunWasInTime(t *testing.T) {
	good := outcome{what: "killed", by: "guard", toDeadline: known(time.Second), toGone: known(2 * time.Second), private: 4 << 20}
	broken := errors.New("served past its deadline")
	unknown := fmt.Errorf("%w: who knows", standstill.ErrUnjudged)
	with := func(change func(*outcome)) outcome {
		o := good
		change(&o)
		return o
	}
	for _, c := range []struct {
		name     string
		last     outcome
		ok       bool
		unjudged bool
	}{
		{"in time", good, true, false},
		{"a claim that is broken", with(func(o *outcome) { o.claim(broken) }), false, false},
		{"one that is unjudged", with(func(o *outcome) { o.claim(unknown) }), true, true},
		{"both", with(func(o *outcome) { o.claim(unknown); o.claim(broken) }), false, false},
		{"no deadline", outcome{what: "leader hangs", toGone: known(time.Second)}, true, false},
		{"a key that never went", outcome{what: "leader hangs", kept: true}, true, false},
		{"brought back", outcome{what: "hands", served: known(time.Second), limit: time.Second}, true, false},
		{"nothing measured", with(func(o *outcome) { o.err = errors.New("no lab") }), false, false},
		{"a guard that is too big", with(func(o *outcome) { o.private = maxPrivate + 1 }), false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			ok, err := report(&out, []outcome{good, good, c.last})
			if ok != c.ok || errors.Is(err, standstill.ErrUnjudged) != c.unjudged {
				t.Errorf("%v, %v; want %v, unjudged %v:\n%s", ok, err, c.ok, c.unjudged, out.String())
			}
		})
	}
}
