package lease

import (
	"time"

	"golang.org/x/sys/unix"
)

// readTogether is how far apart two readings of one moment may be.
const readTogether = time.Millisecond

// HostClocks reads the host's clocks together: if it was kept from running in
// between, it reads again.
func HostClocks() Clocks {
	for {
		mono := monotonic()
		c := Clocks{Boot: BootClock(), Mono: mono, Wall: time.Now()}
		if monotonic()-mono < readTogether {
			return c
		}
	}
}

func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail for this clock
	return time.Duration(ts.Nano())
}

const (
	// leastSuspension is the smallest lead of the boot clock that counts. Both clocks
	// are read one after the other, so a busy host shows a small one.
	leastSuspension = 100 * time.Millisecond
	// LeastJump is the smallest step of the wall clock that counts. Slewing changes
	// it by half a millisecond in a second.
	LeastJump = time.Second
)

// Clocks is one reading of the host's clocks, taken together.
type Clocks struct {
	Boot Instant       // runs on while the host is suspended; deadlines count on it
	Mono time.Duration // stands still then; Go's timers count on it
	Wall time.Time     // anybody may set it; nothing counts on it
}

// Ahead is by how much the wall clock is ahead of the boot clock.
func (c Clocks) Ahead() time.Duration { return time.Duration(c.Wall.UnixNano() - int64(c.Boot)) }

// ClockNews is what happened between two readings. Zero: nothing.
type ClockNews struct {
	Suspended time.Duration
	Jumped    time.Duration // of the wall clock; negative: backwards
}

// RaisesDoubt reports whether the host may not have run. A wall clock that was set back may
// hide a pause: by how long, nothing tells.
func (n ClockNews) RaisesDoubt() bool { return n.Suspended > 0 || n.Jumped != 0 }

// CompareClocks says what happened from one reading to the next.
func CompareClocks(before, now Clocks) (news ClockNews) {
	boot, mono := now.Boot.Sub(before.Boot), now.Mono-before.Mono
	if d := boot - mono; d >= leastSuspension {
		news.Suspended = d
	}
	// Round strips the monotonic reading, which would hide the jump.
	wall := now.Wall.Round(0).Sub(before.Wall.Round(0))
	if d := wall - boot; d >= LeastJump || d <= -LeastJump {
		news.Jumped = d
	}
	return news
}
