package lease

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const second = Instant(time.Second)

func TestDeadlineCountsFromTheSend(t *testing.T) {
	v := Validity{Margin: 10 * time.Second}.Extend(100*second, 32*time.Second)
	if got, want := v.Deadline(), 132*second; got != want {
		t.Errorf("deadline %v, want %v", got, want)
	}
	if got, want := v.FencePoint(), 122*second; got != want {
		t.Errorf("fence point %v, want %v", got, want)
	}
}

func TestHeldUpToTheFencePointAndNotAtIt(t *testing.T) {
	v := Validity{SentAt: 100 * second, TTL: 32 * time.Second, Margin: 10 * time.Second}
	for _, c := range []struct {
		name          string
		now           Instant
		held, expired bool
	}{
		{"at the send", 100 * second, true, false},
		{"a nanosecond before the fence point", 122*second - 1, true, false},
		{"at the fence point", 122 * second, false, false},
		{"a nanosecond before the deadline", 132*second - 1, false, false},
		{"at the deadline", 132 * second, false, true},
		{"a day later, after a suspension", 86400 * second, false, true},
	} {
		if got := v.HeldAt(c.now); got != c.held {
			t.Errorf("%s: held %v", c.name, got)
		}
		if got := v.ExpiredAt(c.now); got != c.expired {
			t.Errorf("%s: expired %v", c.name, got)
		}
	}
}

func TestZeroValidityProvesNothing(t *testing.T) {
	var v Validity
	if v.Known() || v.HeldAt(0) || v.HeldAt(-second) || !v.ExpiredAt(0) || !v.ExpiredAt(-second) {
		t.Errorf("%+v: held or not expired", v)
	}
}

func TestAnOlderAnswerNeverBringsTheDeadlineBack(t *testing.T) {
	base := Validity{SentAt: 100 * second, TTL: 32 * time.Second, Margin: time.Second}
	for _, c := range []struct {
		name string
		sent Instant
		ttl  time.Duration
		want Instant
	}{
		{"a later send", 104 * second, 32 * time.Second, 136 * second},
		{"an older send", 96 * second, 32 * time.Second, 132 * second},
		{"an older send with a longer TTL", 99 * second, 60 * time.Second, 159 * second},
		{"a later send with a shorter TTL", 101 * second, 5 * time.Second, 132 * second},
		{"the same again", 100 * second, 32 * time.Second, 132 * second},
	} {
		got := base.Extend(c.sent, c.ttl)
		if got.Deadline() != c.want {
			t.Errorf("%s: deadline %v, want %v", c.name, got.Deadline(), c.want)
		}
		if got.Margin != base.Margin {
			t.Errorf("%s: margin %v", c.name, got.Margin)
		}
	}
}

func TestBootClockIsTheHostsBootTime(t *testing.T) {
	var before, after unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &before); err != nil {
		t.Fatal(err)
	}
	got := BootClock()
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &after); err != nil {
		t.Fatal(err)
	}
	if int64(got) < before.Nano() || int64(got) > after.Nano() {
		t.Errorf("%d is not between %d and %d", got, before.Nano(), after.Nano())
	}
	if wall := time.Now().UnixNano(); int64(got) > wall/2 {
		t.Errorf("%d is near the wall clock %d", got, wall)
	}
}
