package main

import (
	"errors"
	"io"
	"testing"
	"time"

	"holdfast/standstill"
)

func TestEachLimitIsOfSidecarAndGuardTogether(t *testing.T) {
	parties := []*party{{uses: rate{percent: 0.10, switches: 30}}, {uses: rate{percent: 0.02, switches: 5}}, {uses: rate{percent: 0.03, switches: 9}}}
	for _, row := range []struct {
		name  string
		limit plan
		holds bool
	}{
		{"none", plan{}, true},
		{"all held", plan{cpu: 0.13, switches: 36, ratio: 4.1}, true},
		{"processor", plan{cpu: 0.11}, false},
		{"switches", plan{switches: 34}, false},
		{"ratio", plan{ratio: 3.9}, false},
	} {
		if err := row.limit.report(io.Discard, parties); (err == nil) != row.holds {
			t.Errorf("%s: %v", row.name, err)
		}
	}
}

func TestAFailureIsUnjudgedOnlyOnAMachineThatStoodStill(t *testing.T) {
	broken := errors.New("broken")
	if err := excused(nil, time.Minute, time.Minute); err != nil {
		t.Error(err)
	}
	if err := excused(broken, 600*time.Millisecond, time.Minute); errors.Is(err, standstill.ErrUnjudged) || !errors.Is(err, broken) {
		t.Error(err)
	}
	if err := excused(broken, 601*time.Millisecond, time.Minute); !errors.Is(err, standstill.ErrUnjudged) || !errors.Is(err, broken) {
		t.Error(err)
	}
}
