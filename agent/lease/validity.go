package lease

import (
	"time"

	"golang.org/x/sys/unix"
)

// Instant is a moment on the boot clock: the time since the host started,
// suspension included. Only instants of the same boot can be compared.
type Instant time.Duration

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// BootClock reads CLOCK_BOOTTIME. Go's own monotonic clock stands still while the
// host is suspended, and etcd's does not.
func BootClock() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("CLOCK_BOOTTIME: " + err.Error()) // in Linux since 2.6.39; without it no deadline can be kept
	}
	return Instant(ts.Nano())
}

// Validity is what a confirmed renewal proves: the lease lives at least until the
// deadline. The zero Validity proves nothing.
type Validity struct {
	SentAt Instant       // send of the last confirmed renewal, or of the grant
	TTL    time.Duration // as granted in that answer
	Margin time.Duration // how long before the deadline serving must have stopped
}

// Known reports whether there ever was a confirmed renewal.
func (v Validity) Known() bool { return v.TTL > 0 }

// Deadline is the moment from which the lease may be gone.
func (v Validity) Deadline() Instant { return v.SentAt.Add(v.TTL) }

// FencePoint is the moment at which serving must begin to stop.
func (v Validity) FencePoint() Instant { return v.Deadline().Add(-v.Margin) }

// StopAt is when a broker under this lease must have been stopped, whoever stops it: the
// dead-man guard acts then. The fence ladder has from the fence point until here.
func (v Validity) StopAt() Instant { return v.Deadline().Add(-v.Margin / 3) }

// HeldAt reports whether the broker may serve at now.
func (v Validity) HeldAt(now Instant) bool { return v.Known() && now < v.FencePoint() }

// ExpiredAt reports whether the lease may be gone at now.
func (v Validity) ExpiredAt(now Instant) bool { return !v.Known() || now >= v.Deadline() }

// Extend takes a confirmed renewal into account. Answers may come out of order: an
// older send never brings the deadline back.
func (v Validity) Extend(sentAt Instant, granted time.Duration) Validity {
	if v.Known() && sentAt.Add(granted) < v.Deadline() {
		return v
	}
	v.SentAt, v.TTL = sentAt, granted
	return v
}
