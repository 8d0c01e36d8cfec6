package registration

import (
	"fmt"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/agent/note"
	"holdfast/cluster"
	"holdfast/recovery"
)

// Past is what is remembered of a registration. It is a hint: whatever it says about etcd is verified
// there. It stands in the state file under these names.
type Past struct {
	Incarnation string `json:"incarnation"` // of this state directory, for ever
	// FirstBootDone is the marker of a completed first boot: a registration stood.
	FirstBootDone bool   `json:"first_boot_done"`
	Instance      string `json:"instance"` // broker process at the last registration
	// Data is the identity of the broker's own data, as it was first seen of that process.
	Data        recovery.DataID `json:"data,omitempty"`
	LeaseID     int64           `json:"lease_id"`
	Epoch       int64           `json:"epoch"`
	Revision    int64           `json:"revision"`     // highest store revision seen
	ConfirmedAt int64           `json:"confirmed_at"` // revision of the last confirmed renewal that was noted
	// Deadline is when its lease was over at the latest, by our wall clock; zero: not known.
	// Without an etcd it is from when on the broker is away for too long.
	Deadline time.Time `json:"deadline,omitzero"`
	// Released says that the last stop gave the registration up, and that etcd has confirmed it.
	Released bool   `json:"released,omitempty"`
	Mode     string `json:"mode"`
	Reason   string `json:"reason"`
	By       string `json:"by"`
	// Distrust holds what was wrong with an earlier state file until a decision took
	// it into account.
	Distrust string `json:"distrust,omitempty"`
}

// ModeRecord is the mode that is remembered; zero: none was decided yet.
func (p Past) ModeRecord() recovery.ModeRecord {
	return recovery.ModeRecord{Mode: recovery.Mode(p.Mode), Reason: recovery.Reason(p.Reason), By: p.By}
}

// Confirm takes up what another source says of our last confirmation: the later counts.
func (p *Past) Confirm(c note.Confirmed) {
	p.ConfirmedAt = max(p.ConfirmedAt, c.Revision)
	if c.Deadline.After(p.Deadline) {
		p.Deadline = c.Deadline.UTC()
	}
}

// highest is the highest revision of the store that is remembered.
func (p Past) highest() int64 { return max(p.Revision, p.ConfirmedAt) }

// undone reports whether the registration that was given up stands, or an older one. One that
// is newer was written after the state file was.
func (p Past) undone(seen cluster.Snapshot) bool {
	return p.Released && seen.Registration != nil && seen.Registration.CreateRevision <= p.Epoch
}

// data is the identity of the broker's data as it was before. Without a state file the member
// record knows it.
func (p Past) data(member *cluster.Member) recovery.DataID {
	if p.Data == "" && member != nil {
		return recovery.DataID(member.Data)
	}
	return p.Data
}

// Life is what must be known of the broker and of our own past.
type Life struct {
	Name     string // of the broker, the stable one
	Past     Past
	Mode     recovery.ModeRecord // zero: none was decided yet
	Instance string              // broker process that answers now
	Boot     recovery.BootFacts  // without KnownToCluster
	Data     recovery.DataID     // of data that is the broker's own; empty: not known, or there is none
	Value    []byte              // own: what to register
	// Unseen: the data directory is yet to be looked at for that process.
	Unseen bool
	// Vanished: it was not there at the first look, and is yet to be looked at again.
	Vanished bool
	Silent   bool  // that process does not answer now, or is not well
	Gone     bool  // it has ended
	ModeRev  int64 // the highest revision of the state key that is known; 0: none of this key
	// RetriesUsed: the limit of failed attempts since the loss is reached.
	RetriesUsed bool
	// Leaves: its departure is being noted, or was: see outdated.
	Leaves bool
	// Recalls: a note of the sidecar before this one, that this very process is to be stopped,
	// is followed still.
	Recalls bool
	// Unfenced: the process that answers is yet to be fenced; what it is given now would be
	// taken from it again.
	Unfenced bool
	// Unsure counts the notes of a planned stop that may be written late, since the member
	// record was written last: it is written anew, which refuses them.
	Unsure    int
	CutFrom   time.Time      // since when we were cut off from etcd, until that is noted; zero: we were not
	CutOver   int64          // revision at which we were back; 0: what is read now
	Health    cluster.Health // see standing
	PauseEnds time.Time      // of the maintenance pause in force; zero: there is none
	others    *bool          // whether other brokers are active, where no etcd knows them; nil: it does
}

// had is the mode before the decision: the loop's, or that of the sidecar before.
func (l Life) had() recovery.ModeRecord {
	if l.Mode.Mode != "" {
		return l.Mode
	}
	return l.Past.ModeRecord()
}

func (l Life) paused() bool { return !l.PauseEnds.IsZero() }

// Outcome is what was found and done. The loop takes it up before the lease counts as held.
type Outcome struct {
	Decision recovery.Decision
	Boot     recovery.BootKind // empty: the broker process is the one that was registered
	Evidence []string
	Grant    lease.Grant
	// SeenAt is the store's revision at which the registration was seen or written. The
	// renewal that confirmed the lease may be younger, and says nothing about the key.
	// 0: as old as the grant.
	SeenAt        int64
	Instance      string
	Data          recovery.DataID // that the broker has from now on
	ModeRev       int64           // see Life
	StateRevision int64
	Restored      bool // etcd is older than what we remember
	// Succeeds: the process that answers is registered under another id than the one before.
	Succeeds   bool
	begins     bool // an era: nobody else is registered
	succession recovery.SuccessionFacts
	Former     string    // that one's id; empty: there was none
	Moved      int       // assignments that were handed over
	Repaired   string    // what was wrong with the registration; empty: nothing
	Unread     string    // what could not be read in etcd, and where; empty: nothing
	Value      []byte    // registration as it stands
	Unsure     int       // see Life
	CutFrom    time.Time // of the cut that was noted, or that the registration did not outlive
}

// UnderItsOwn is that the broker has registered itself, and nobody has adopted that yet. Nothing
// is wrong.
const UnderItsOwn = "broker's own lease"

// LeftProcess is a process of the broker that has left and is to be stopped.
type LeftProcess struct {
	Instance string    `json:"instance"`
	At       time.Time `json:"at"`
}

// Rest is for how long its end is still waited for; not positive: it is not. A clock that was
// set meanwhile makes that no longer than --leave-timeout.
func (l LeftProcess) Rest(c config.Config) time.Duration {
	return c.LeaveTimeout - max(0, time.Since(l.At))
}

// Waits says what becomes of it while its end is waited for.
func (l LeftProcess) Waits(c config.Config) string {
	return fmt.Sprintf("this process of the broker has left on purpose: it is registered again if it still runs in %s; "+
		"at once when it is another process, or by 'holdfast activate'", l.Rest(c).Round(time.Second))
}

// SessionEnd is the error that ends a sidecar by its session policy. The broker is
// to be stopped, and nothing is to be written to etcd.
type SessionEnd struct {
	Reason recovery.Reason // session_expired or retries_used_up
	Detail string
}

func (e *SessionEnd) Error() string { return e.Detail }

// Unwrap returns lease.ErrShutdown.
func (e *SessionEnd) Unwrap() error { return lease.ErrShutdown }
