package agent

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

// lastRenewal is the last confirmed renewal of a sidecar. The sidecar after it knows by this
// until when the broker may serve, should etcd be silent. It is noted without a sync: after
// a crash of the host it means nothing. A note that is too old only fences earlier.
type lastRenewal struct {
	LeaseID int64
	SentAt  lease.Instant
	TTL     time.Duration // as granted
	// Ahead is by how much the wall clock was ahead of the boot clock when the loop took it
	// up; 0: not known.
	Ahead time.Duration
	// Revision is the store's at which it was confirmed; 0: not known.
	Revision int64
}

// leaseOver is noted when a lease was lost: it had ended before anything else began.
var leaseOver = lastRenewal{TTL: time.Nanosecond}

// renewalFile is the note's name in the state directory.
const renewalFile = "renewal"

// renewalForm has one size for all values, so that a note is written over the one before
// and needs no room on the disk: boot, lease, send, TTL and the wall clock's lead in
// nanoseconds, revision, checksum.
const (
	renewalForm = "%-64.64s %016x %020d %020d %020d %020d"
	renewalSize = 64 + 1 + 16 + 4*(1+20) + len(" 00000000\n")
)

func (r lastRenewal) encode(boot string) []byte {
	return summed(fmt.Sprintf(renewalForm, boot, uint64(r.LeaseID), int64(r.SentAt), int64(r.TTL), int64(r.Ahead), r.Revision))
}

func summed(s string) []byte { return fmt.Appendf(nil, "%s %08x\n", s, crc32.ChecksumIEEE([]byte(s))) }

// decodeRenewal returns an error for a note that is torn, or of another boot: its instants
// mean nothing then. What it says of the time and the revision counts all the same.
func decodeRenewal(raw []byte, boot string, now Clocks) (r lastRenewal, was confirmation, err error) {
	text := string(raw[:max(0, len(raw)-len(" 00000000\n"))])
	fields := strings.Fields(text)
	for n := len(fields); n == 4 || n == 5; n++ {
		fields = append(fields, "0") // by a version that noted neither the wall clock nor the revision
	}
	if len(fields) != 6 || string(summed(text)) != string(raw) {
		return r, was, errors.New("not a whole note")
	}
	id, idErr := strconv.ParseUint(fields[1], 16, 64)
	sent, sentErr := strconv.ParseInt(fields[2], 10, 64)
	ttl, ttlErr := strconv.ParseInt(fields[3], 10, 64)
	ahead, aheadErr := strconv.ParseInt(fields[4], 10, 64)
	revision, revisionErr := strconv.ParseInt(fields[5], 10, 64)
	r = lastRenewal{int64(id), lease.Instant(sent), time.Duration(ttl), time.Duration(ahead), revision}
	if err := errors.Join(idErr, sentErr, ttlErr, aheadErr, revisionErr); err != nil {
		return lastRenewal{}, was, errors.New("damaged")
	}
	was = r.confirmation(boot != "" && fields[0] == boot, now)
	switch {
	case boot == "" || fields[0] != boot:
		return lastRenewal{}, was, errors.New("of another boot of the host")
	case r.SentAt > now.Boot || r.TTL <= 0:
		return lastRenewal{}, was, errors.New("of another clock")
	}
	return r, was, nil
}

// lost is the time that the boot clock may not have counted since, as it does not on a machine
// that is paused from outside: by so much the wall clock went ahead, unless somebody has set it.
// One that was set back tells nothing, so the whole lease may have run out meanwhile.
func (r lastRenewal) lost(now Clocks) time.Duration {
	switch d := now.ahead() - r.Ahead; {
	case r.Ahead == 0:
		return 0
	case d >= leastJump:
		return d
	case d <= -leastJump:
		return r.TTL
	}
	return 0
}

// renewalNotes writes the last confirmed renewal where the next sidecar finds it.
type renewalNotes struct {
	put  func(note []byte) error
	boot string
	next chan lastRenewal // the newest that is not written yet
	log  *slog.Logger
}

// openRenewals reads the note of an earlier sidecar, and makes the file ready for ours. doubt
// says that there is no note of this boot.
func openRenewals(dir, boot string, now Clocks, log *slog.Logger) (n *renewalNotes, last lastRenewal, was confirmation, doubt error) {
	file := &noteFile{path: filepath.Join(dir, renewalFile)}
	n = &renewalNotes{put: file.put, boot: boot, next: make(chan lastRenewal, 1), log: log}
	raw, err := os.ReadFile(file.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		doubt = errors.New("no note")
	case err != nil:
		doubt = err
	default:
		last, was, doubt = decodeRenewal(raw, boot, now)
	}
	if doubt != nil || len(raw) != renewalSize { // what is no note of ours has no room either
		ready := []byte(strings.Repeat(" ", renewalSize-1) + "\n")
		if doubt == nil {
			ready = last.encode(boot)
		}
		_ = file.put(ready) // the first note says what fails
	}
	return n, last, was, doubt
}

// noteFile is where the notes are. Whoever removes the file or its directory has them in a
// new one.
type noteFile struct {
	path string
	file *os.File // nil: it could not be opened yet
}

func (f *noteFile) put(note []byte) error {
	if !process.SameFile(f.file, f.path) {
		file, err := os.OpenFile(f.path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		f.file.Close()
		f.file = file
	}
	_, err := f.file.WriteAt(note, 0)
	if info, statErr := f.file.Stat(); err == nil && statErr == nil && info.Size() > int64(renewalSize) {
		err = f.file.Truncate(int64(renewalSize))
	}
	return err
}

// note hands a renewal to the writer, and never waits: what was not written yet is
// overtaken. Only the loop calls it.
func (n *renewalNotes) note(r lastRenewal) {
	select {
	case <-n.next:
	default:
	}
	n.next <- r
}

// run writes what is noted until ctx ends. A disk that hangs holds it up and nobody else,
// so nobody may wait for its end.
func (n *renewalNotes) run(ctx context.Context) {
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-n.next:
			err := n.put(r.encode(n.boot))
			if err != nil && !failed {
				n.log.Error("last renewal not noted: after a restart of this sidecar the broker would be fenced too early, should etcd be silent", "err", err)
			}
			failed = err != nil
		}
	}
}

// hostBoot names the host's present boot; empty: the host does not tell.
func (a *agent) hostBoot() string {
	if a.world.BootID != nil {
		return a.world.BootID()
	}
	boot, _ := process.BootID()
	return boot
}

// recallRenewal takes up until when the broker may serve by the word of an earlier sidecar.
func (a *agent) recallRenewal() {
	if a.shadow != nil || a.cfg.Unleased() { // neither holds a lease that anybody else knows
		return
	}
	now := a.world.Clocks()
	a.clocks.Store(&now)
	notes, last, was, doubt := openRenewals(a.cfg.StateDir, a.hostBoot(), now, a.log)
	a.renewals = notes
	if a.memory.Epoch != 0 { // else it is of another store's, or nobody knows whose
		a.recalled = was
		a.memory.was(was)
	}
	go notes.run(a.life0)
	if doubt == nil {
		a.recall(last, now)
	} else if a.memory.Epoch != 0 && !a.memory.Released {
		a.log.Warn("the last renewal of the sidecar before this one is not known: the broker is fenced as soon as etcd fails to answer", "why", doubt)
	}
}

// recall takes the last renewal of the sidecar before this one for the former one's. What the
// host stood since counts as for one that ran meanwhile, see uncounted.
func (a *agent) recall(last lastRenewal, now Clocks) {
	a.former = lease.Validity{SentAt: last.SentAt, TTL: last.TTL, Margin: a.cfg.LeaseDetachMargin}
	if lost := last.lost(now); lost > 0 {
		a.doubtAt(now.Boot, lost)
		a.log.Warn("the wall clock was moved since the last renewal of the sidecar before this one: the host may have stood as long", "moved_by", lost)
	}
}

// wasRegistered reports whether the broker ever was, by this sidecar or by one before it. The
// state file may be lost, or older than the note.
func (a *agent) wasRegistered() bool { return a.memory.Epoch != 0 || a.former.Known() }

// formerFencePoint is when the broker of an earlier sidecar must be fenced.
func (a *agent) formerFencePoint() lease.Instant { return a.former.FencePoint().Add(-a.uncounted()) }

// noteRenewal has the last confirmed renewal noted. One that was sent before the clocks jumped
// is not: the note before it shows the jump.
func (a *agent) noteRenewal() {
	v, clocks := a.keeper.View(), a.clocks.Load()
	r := lastRenewal{v.Grant.LeaseID, v.Validity.SentAt, v.Validity.TTL, a.lastNoted.Ahead, v.Grant.Revision}
	switch {
	case !v.Validity.Known() && a.lastNoted == (lastRenewal{}):
		return // what the sidecar before this one noted is the last so far
	case !v.Validity.Known():
		r = leaseOver
	case a.doubted():
		return
	case r != a.lastNoted && clocks != nil:
		r.Ahead = clocks.ahead()
	}
	if a.renewals != nil && r != a.lastNoted {
		a.lastNoted = r
		a.renewals.note(r)
	}
}

// noteFormer sees, until we were attached, whether the lease of an earlier sidecar is over:
// its fence point has passed. A process of the broker that was never registered, or that
// renews its lease itself, is left alone until etcd fails to answer: until then the
// registration is only a question away, unless a pause holds it back. So is every broker of
// which no renewal is known, and one whose registration was given up.
// Whatever is known, a TTL after our own start the lease is over for any process that may
// have had it, and another TTL later for every process: it waits for its registration no longer.
func (a *agent) noteFormer() {
	if a.formerOver || a.everAttached || !a.wasRegistered() {
		return
	}
	now := a.clock()
	switch {
	case now.Sub(a.begun) >= a.cfg.LeaseTTL-a.cfg.LeaseDetachMargin+a.patience():
	case !a.memory.Released && now < a.formerFencePoint():
		return
	case a.keeper.View().FailureStreak == 0 && !a.formerServes() && !a.paused():
		return
	}
	a.formerOver = true
}

// formerServes reports whether the process of the broker that was registered may serve: it
// has answered, or nobody has and it was not seen to end.
func (a *agent) formerServes() bool {
	if a.memory.Released || !a.former.Known() {
		return false
	}
	if who, id := a.identity.get(); id != "" {
		return who.Instance == a.memory.Instance
	}
	return a.served.Pid != 0 && !a.served.Gone()
}

// patience is for how long another process of the broker than the one that was registered may
// wait for its own registration, and one that has not answered yet where that was given up.
func (a *agent) patience() time.Duration {
	if who, _ := a.identity.get(); who.Instance == "" && a.memory.Released || who.Instance != "" && a.memory.Instance != "" && who.Instance != a.memory.Instance {
		return a.cfg.LeaseTTL
	}
	return 0
}

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
