package main

import (
	"errors"
	"io"
	"testing"
	"time"

	"holdfast/standstill"
)

func TestOnlyARatioAboveTheLimitFailsAndOnlyIfTheMachineRan(t *testing.T) {
	ms := time.Millisecond
	for _, c := range []struct {
		name                string
		judged              bool
		many, still         time.Duration // among few it is 10 ms
		fails, isUnjudgable bool
	}{
		{"as at the limit", true, 15 * ms, 0, false, false},
		{"above it", true, 16 * ms, 0, true, false},
		{"above it because the machine stood still", true, 30 * ms, 16 * ms, true, true},
		{"above it, and it stood still a little", true, 30 * ms, 14 * ms, true, false},
		{"of what has no limit", false, time.Second, 0, false, false},
	} {
		d := deed{name: "deed", judged: c.judged, took: [2][]took{{{whole: 10 * ms}}, {{c.many, c.still}}}}
		err := report(io.Discard, plan{few: 10, many: 1000, turns: 1, limit: 1.5}, []deed{d})
		if (err != nil) != c.fails || errors.Is(err, standstill.ErrUnjudged) != c.isUnjudgable {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
