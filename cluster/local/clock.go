package local

import "time"

// Reading is one reading of the host's clocks, taken together.
type Reading struct {
	Boot time.Duration // since the host started, suspension included
	Mono time.Duration // stands still while the host is suspended
	Wall time.Time     // anybody may set it
}

// unwatchedMost is how long after a call of Watched the leases still age. A loop that runs
// every second is never that late unless it is kept from running.
const unwatchedMost = 5 * time.Second

// clockSlack is by how much the wall clock and the boot clock may differ over a boot
// without the former having been moved: it is slewed.
const clockSlack = time.Second

// clock is the time that leases age by: it runs while somebody watches. It is a value; its
// owner locks.
type clock struct {
	now  time.Time // at the reading
	read Reading
	gap  gap
}

// gap is time that nobody watched and nobody has settled.
type gap struct {
	length  time.Duration
	unknown bool          // longer than length says, by how much cannot be known
	from    time.Duration // boot clock when it began; negative: before this boot
}

func (g gap) open() bool { return g.length > 0 || g.unknown }

// at is the time at a later reading, and how much of the time until then nobody watched.
func (c clock) at(r Reading) (now time.Time, missed time.Duration) {
	missed = max(0, r.Mono-c.read.Mono-unwatchedMost)
	return c.now.Add(r.Boot - c.read.Boot - missed), missed
}

// watched takes a reading by somebody who watches.
func (c *clock) watched(r Reading) {
	now, missed := c.at(r)
	c.now, c.read = now, r
	c.miss(gap{length: missed, from: r.Boot - missed})
}

func (c *clock) miss(g gap) {
	if c.gap.open() {
		g.from = c.gap.from
	}
	g.length, g.unknown = g.length+c.gap.length, g.unknown || c.gap.unknown
	c.gap = g
}

// settle ends the gap. same: the process of the broker is the one from before, so it was
// never away. Else it was away, within the gap, until age ago at the latest; 0: not known,
// so all the while. It reports whether that was too long for any lease.
func (c *clock) settle(same bool, age time.Duration) (forever bool) {
	g := c.gap
	c.gap = gap{}
	switch {
	case same || !g.open():
		return false
	case g.unknown:
		return true
	case age <= 0:
		c.now = c.now.Add(g.length)
	default:
		c.now = c.now.Add(min(max(0, c.read.Boot-age-g.from), g.length))
	}
	return false
}

// stamp is the clock as the file has it.
type stamp struct {
	Now    time.Time     `json:"now"`     // of the leases
	Wall   time.Time     `json:"wall"`    // of the host
	Boot   time.Duration `json:"boot_ns"` // on the boot clock
	BootID string        `json:"boot_id"` // of that boot; empty: not known
	// The gap that was not settled by then.
	Missed     time.Duration `json:"missed_ns,omitempty"`
	MissedFrom time.Duration `json:"missed_from_ns,omitempty"` // on the boot clock
	Unknown    bool          `json:"missed_unknown,omitempty"`
}

// stamp is the clock at a reading.
func (c clock) stamp(r Reading, bootID string) stamp {
	c.watched(r)
	return stamp{Now: c.now, Wall: r.Wall.Round(0), Boot: r.Boot, BootID: bootID,
		Missed: c.gap.length, MissedFrom: c.gap.from, Unknown: c.gap.unknown}
}

// resume goes on from a moment in an earlier process. Nobody has watched since.
func resume(from stamp, r Reading, bootID string) clock {
	c := clock{now: from.Now, read: r}
	sameBoot := bootID != "" && from.BootID == bootID && from.Boot <= r.Boot
	passed := r.Boot - from.Boot
	unknown := false
	if !sameBoot {
		passed = r.Wall.Round(0).Sub(from.Wall)
		otherBoot := bootID != "" && from.BootID != "" && from.BootID != bootID
		unknown = passed < 0 || otherBoot && passed < r.Boot-clockSlack
		passed = max(0, passed)
	}
	began := r.Boot - passed
	if from.Missed > 0 || from.Unknown {
		c.gap = gap{length: from.Missed, unknown: from.Unknown, from: began - (from.Boot - from.MissedFrom)}
	}
	c.miss(gap{length: passed, unknown: unknown, from: began})
	return c
}
