package agent

import (
	"os"
	"path/filepath"
	"time"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

// confirmation is our last confirmed renewal. Who was declared dead, and who lived on
// meanwhile, is judged by it.
type confirmation struct {
	Revision int64 // the store's; 0: not known
	// Deadline is when its lease was over at the latest, by our wall clock; zero: not known, or
	// that clock was moved since.
	Deadline time.Time
}

// confirmation is what a note says, at another boot of the host or at this one: then the
// boot clock shows whether the wall clock was moved since.
func (r lastRenewal) confirmation(sameBoot bool, now Clocks) confirmation {
	was := confirmation{Revision: r.Revision}
	moved := now.ahead() - r.Ahead
	if r.Ahead != 0 && r.SentAt != 0 && !(sameBoot && (moved >= leastJump || moved <= -leastJump)) {
		was.Deadline = time.Unix(0, int64(r.SentAt)+int64(r.TTL)+int64(r.Ahead))
	}
	return was
}

// was takes up what another source says of our last confirmation: the later counts.
func (m *memory) was(c confirmation) {
	m.ConfirmedAt = max(m.ConfirmedAt, c.Revision)
	if c.Deadline.After(m.Deadline) {
		m.Deadline = c.Deadline.UTC()
	}
}

// notedConfirmation is what the last renewal's note in dir says, if there is one.
func notedConfirmation(dir string) confirmation {
	raw, _ := os.ReadFile(filepath.Join(dir, renewalFile)) // nothing is no whole note
	boot, _ := process.BootID()
	_, was, _ := decodeRenewal(raw, boot, hostClocks())
	return was
}

// wallAt is what the wall clock showed at a moment of the boot clock.
func (a *agent) wallAt(at lease.Instant) time.Time {
	if now := a.clocks.Load(); now != nil {
		return now.Wall.Add(-now.Boot.Sub(at)).Round(0)
	}
	return time.Now().Add(-a.clock().Sub(at)).Round(0)
}

// confirmed is our last confirmed renewal, as far as the Keeper still knows it.
func (a *agent) confirmed() confirmation {
	v := a.keeper.View()
	c := confirmation{Revision: v.Grant.Revision}
	if v.Validity.Known() {
		c.Deadline = a.wallAt(v.Validity.Deadline())
	}
	return c
}
