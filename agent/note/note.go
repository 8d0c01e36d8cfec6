// Package note is what a sidecar notes of its last confirmed renewal for the sidecar after it: until when
// the broker may serve, and when its cluster heard of it last. A note is written over the one before, so
// a full disk takes it, and whoever notes waits for no disk. It means nothing after a crash of the host.
package note

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

// Renewal is the last confirmed renewal of a sidecar. The sidecar after it knows by this
// until when the broker may serve, should etcd be silent. It is noted without a sync: after
// a crash of the host it means nothing. A note that is too old only fences earlier.
type Renewal struct {
	LeaseID int64
	SentAt  lease.Instant
	TTL     time.Duration // as granted
	// Ahead is by how much the wall clock was ahead of the boot clock when the loop took it
	// up; 0: not known.
	Ahead time.Duration
	// Revision is the store's at which it was confirmed; 0: not known.
	Revision int64
}

// Over is noted when a lease was lost: it had ended before anything else began.
var Over = Renewal{TTL: time.Nanosecond}

// File is the note's name in the state directory.
const File = "renewal"

// renewalForm has one size for all values, so that a note is written over the one before
// and needs no room on the disk: boot, lease, send, TTL and the wall clock's lead in
// nanoseconds, revision, checksum.
const (
	renewalForm = "%-64.64s %016x %020d %020d %020d %020d"
	renewalSize = 64 + 1 + 16 + 4*(1+20) + len(" 00000000\n")
)

// Encode is the note as it stands in the file. boot names the present boot of the host.
func (r Renewal) Encode(boot string) []byte {
	return summed(fmt.Sprintf(renewalForm, boot, uint64(r.LeaseID), int64(r.SentAt), int64(r.TTL), int64(r.Ahead), r.Revision))
}

func summed(s string) []byte { return fmt.Appendf(nil, "%s %08x\n", s, crc32.ChecksumIEEE([]byte(s))) }

// Decode returns an error for a note that is torn, or of another boot: its instants
// mean nothing then. What it says of the time and the revision counts all the same.
func Decode(raw []byte, boot string, now lease.Clocks) (r Renewal, was Confirmed, err error) {
	text := string(raw[:max(0, len(raw)-len(" 00000000\n"))])
	var of string
	var id uint64
	// A version that noted neither the wall clock nor the revision wrote the first four.
	n, _ := fmt.Sscanf(text, "%s %x %d %d %d %d", &of, &id, &r.SentAt, &r.TTL, &r.Ahead, &r.Revision)
	if n < 4 || string(summed(text)) != string(raw) {
		return Renewal{}, was, errors.New("not a whole note")
	}
	r.LeaseID = int64(id)
	was = r.confirmed(boot != "" && of == boot, now)
	switch {
	case boot == "" || of != boot:
		return Renewal{}, was, errors.New("of another boot of the host")
	case r.SentAt > now.Boot || r.TTL <= 0:
		return Renewal{}, was, errors.New("of another clock")
	}
	return r, was, nil
}

// Lost is the time that the boot clock may not have counted since, as it does not on a machine
// that is paused from outside: by so much the wall clock went ahead, unless somebody has set it.
// One that was set back tells nothing, so the whole lease may have run out meanwhile.
func (r Renewal) Lost(now lease.Clocks) time.Duration {
	switch d := now.Ahead() - r.Ahead; {
	case r.Ahead == 0:
		return 0
	case d >= lease.LeastJump:
		return d
	case d <= -lease.LeastJump:
		return r.TTL
	}
	return 0
}

// Notes writes the last confirmed renewal where the next sidecar finds it.
type Notes struct {
	put  func(note []byte) error
	boot string
	next chan Renewal // the newest that is not written yet
	log  *slog.Logger
}

// Open reads the note of an earlier sidecar, and makes the file ready for ours. doubt
// says that there is no note of this boot.
func Open(dir, boot string, now lease.Clocks, log *slog.Logger) (n *Notes, last Renewal, was Confirmed, doubt error) {
	file := &noteFile{path: filepath.Join(dir, File)}
	n = To(file.put, boot, log)
	raw, err := os.ReadFile(file.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		doubt = errors.New("no note")
	case err != nil:
		doubt = err
	default:
		last, was, doubt = Decode(raw, boot, now)
	}
	if doubt != nil || len(raw) != renewalSize { // what is no note of ours has no room either
		ready := []byte(strings.Repeat(" ", renewalSize-1) + "\n")
		if doubt == nil {
			ready = last.Encode(boot)
		}
		_ = file.put(ready) // the first note says what fails
	}
	return n, last, was, doubt
}

// To hands each note, as it stands in the file, to put.
func To(put func(note []byte) error, boot string, log *slog.Logger) *Notes {
	return &Notes{put: put, boot: boot, next: make(chan Renewal, 1), log: log}
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

// Put hands a renewal to the writer, and never waits: what was not written yet is
// overtaken. Only the loop calls it.
func (n *Notes) Put(r Renewal) {
	select {
	case <-n.next:
	default:
	}
	n.next <- r
}

// Run writes what is noted until ctx ends. A disk that hangs holds it up and nobody else,
// so nobody may wait for its end.
func (n *Notes) Run(ctx context.Context) {
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-n.next:
			err := n.put(r.Encode(n.boot))
			if err != nil && !failed {
				n.log.Error("last renewal not noted: after a restart of this sidecar the broker would be fenced too early, should etcd be silent", "err", err)
			}
			failed = err != nil
		}
	}
}

// confirmed is our last confirmed renewal. Who was declared dead, and who lived on
// meanwhile, is judged by it.
type Confirmed struct {
	Revision int64 // the store's; 0: not known
	// Deadline is when its lease was over at the latest, by our wall clock; zero: not known, or
	// that clock was moved since.
	Deadline time.Time
}

// confirmed is what a note says, at another boot of the host or at this one: then the
// boot clock shows whether the wall clock was moved since.
func (r Renewal) confirmed(sameBoot bool, now lease.Clocks) Confirmed {
	was := Confirmed{Revision: r.Revision}
	moved := now.Ahead() - r.Ahead
	if r.Ahead != 0 && r.SentAt != 0 && !(sameBoot && (moved >= lease.LeastJump || moved <= -lease.LeastJump)) {
		was.Deadline = time.Unix(0, int64(r.SentAt)+int64(r.TTL)+int64(r.Ahead))
	}
	return was
}

// Read is what the last renewal's note in dir says, if there is one.
func Read(dir string) Confirmed {
	raw, _ := os.ReadFile(filepath.Join(dir, File)) // nothing is no whole note
	boot, _ := process.BootID()
	_, was, _ := Decode(raw, boot, lease.HostClocks())
	return was
}
