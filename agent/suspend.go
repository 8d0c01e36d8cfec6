package agent

import (
	"time"

	"holdfast/agent/lease"
)

const (
	// leastSuspension is the smallest lead of the boot clock that counts. Both clocks
	// are read one after the other, so a busy host shows a small one.
	leastSuspension = 100 * time.Millisecond
	// leastJump is the smallest step of the wall clock that counts. Slewing changes
	// it by half a millisecond in a second.
	leastJump = time.Second
)

// Clocks is one reading of the host's clocks, taken together.
type Clocks struct {
	Boot lease.Instant // runs on while the host is suspended; deadlines count on it
	Mono time.Duration // stands still then; Go's timers count on it
	Wall time.Time     // anybody may set it; nothing counts on it
}

// clockNews is what happened between two readings. Zero: nothing.
type clockNews struct {
	Suspended time.Duration
	Jumped    time.Duration // of the wall clock; negative: backwards
}

// compareClocks says what happened from one reading to the next.
func compareClocks(before, now Clocks) (news clockNews) {
	boot, mono := now.Boot.Sub(before.Boot), now.Mono-before.Mono
	if d := boot - mono; d >= leastSuspension {
		news.Suspended = d
	}
	// Round strips the monotonic reading, which would hide the jump.
	wall := now.Wall.Round(0).Sub(before.Wall.Round(0))
	if d := wall - boot; d >= leastJump || d <= -leastJump {
		news.Jumped = d
	}
	return news
}
