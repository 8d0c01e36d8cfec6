package note

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/agent/lease"
)

var discard = slog.New(slog.DiscardHandler)

const noon = lease.Instant(12 * time.Hour)

// found is what the next sidecar on this boot of the host finds in dir.
func found(t *testing.T, dir, boot string) (Renewal, error) {
	t.Helper()
	_, last, _, doubt := Open(dir, boot, lease.Clocks{Boot: noon}, discard)
	return last, doubt
}

func TestARenewalThatIsNotedIsFoundByTheNextSidecarOfThisBoot(t *testing.T) {
	dir := t.TempDir()
	if _, doubt := found(t, dir, "boot-1"); doubt == nil {
		t.Error("found a note where none was written")
	}
	want := Renewal{LeaseID: -7, SentAt: noon - 5, TTL: 30 * time.Second}
	path := filepath.Join(dir, File)
	write := func(r Renewal) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(r.Encode("boot-1"), 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	write(Renewal{LeaseID: 1 << 62, SentAt: noon - 9, TTL: time.Hour})
	write(want)
	if got, doubt := found(t, dir, "boot-1"); got != want || doubt != nil {
		t.Errorf("%+v, %v", got, doubt)
	}
	for boot, why := range map[string]string{"boot-2": "another boot", "": "another boot"} {
		if got, doubt := found(t, dir, boot); doubt == nil || !strings.Contains(doubt.Error(), why) || got != (Renewal{}) {
			t.Errorf("boot %q: %+v, %v", boot, got, doubt)
		}
		write(want)
	}
}

func TestANoteThatIsNotWholeIsNoNote(t *testing.T) {
	good := Renewal{LeaseID: 7, SentAt: noon - 5, TTL: 30 * time.Second}.Encode("boot-1")
	older := Renewal{LeaseID: 7, SentAt: noon - 1e9, TTL: 30 * time.Second}.Encode("boot-1")
	for name, raw := range map[string][]byte{
		"empty":                   {},
		"too short":               good[:len(good)-1],
		"too long":                append(bytes.Clone(good), '\n'),
		"of blanks":               bytes.Repeat([]byte(" "), renewalSize),
		"half old and half new":   append(bytes.Clone(good[:100]), older[100:]...),
		"one bit is another":      bytes.Replace(good, []byte("30000000000"), []byte("31000000000"), 1),
		"from the future":         Renewal{LeaseID: 7, SentAt: noon + 1, TTL: time.Second}.Encode("boot-1"),
		"granted nothing":         Renewal{LeaseID: 7, SentAt: noon - 1}.Encode("boot-1"),
		"a name that is too long": Renewal{LeaseID: 7, SentAt: noon - 1, TTL: 1}.Encode(strings.Repeat("b", 70)),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, File)
			if err := os.WriteFile(path, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			if got, doubt := found(t, dir, "boot-1"); doubt == nil || got != (Renewal{}) {
				t.Errorf("%+v, %v", got, doubt)
			}
			if info, err := os.Stat(path); err != nil || info.Size() != int64(renewalSize) {
				t.Errorf("not made ready for the next: %v, %v", info, err)
			}
		})
	}
}

// What the wall clock did since a note of a lead of an hour.
func TestANoteTellsForHowLongTheHostMayHaveStoodSince(t *testing.T) {
	note := Renewal{LeaseID: 7, SentAt: noon - 5, TTL: 30 * time.Second, Ahead: time.Hour}
	for _, row := range []struct {
		name        string
		by, want    time.Duration
		withoutWall bool // the note does not say
	}{
		{name: "nothing"},
		{name: "slewed", by: lease.LeastJump - 1},
		{name: "slewed back", by: 1 - lease.LeastJump},
		{name: "the host stood, or it was set forward", by: 20 * time.Second, want: 20 * time.Second},
		{name: "for the least", by: lease.LeastJump, want: lease.LeastJump},
		{name: "set back: nobody knows", by: -lease.LeastJump, want: 30 * time.Second},
		{name: "set back by years: nobody knows", by: -1e6 * time.Hour, want: 30 * time.Second},
		{name: "not noted", by: 20 * time.Second, withoutWall: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			now := lease.Clocks{Boot: noon, Wall: time.Unix(0, int64(noon)).Add(time.Hour + row.by)}
			raw := note.Encode("boot-1")
			if row.withoutWall { // as the version before wrote it
				raw = summed(fmt.Sprintf("%-64.64s %016x %020d %020d", "boot-1", 7, int64(note.SentAt), int64(note.TTL)))
			}
			got, _, doubt := Decode(raw, "boot-1", now)
			if doubt != nil || got.Lost(now) != row.want || got.SentAt != note.SentAt {
				t.Errorf("%+v, lost %v, %v", got, got.Lost(now), doubt)
			}
		})
	}
}

func TestANoteOfTheVersionBeforeIsMadeOneOfOurs(t *testing.T) {
	dir := t.TempDir()
	old := summed(fmt.Sprintf("%-64.64s %016x %020d %020d", "boot-1", 7, int64(noon-5), int64(time.Minute)))
	if err := os.WriteFile(filepath.Join(dir, File), old, 0o600); err != nil {
		t.Fatal(err)
	}
	want := Renewal{LeaseID: 7, SentAt: noon - 5, TTL: time.Minute}
	for range 2 {
		if got, doubt := found(t, dir, "boot-1"); got != want || doubt != nil {
			t.Errorf("%+v, %v", got, doubt)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, File)); err != nil || info.Size() != int64(renewalSize) {
		t.Errorf("%v, %v", info, err)
	}
}

// hangingDisk takes a write that it does not end before it is released.
type hangingDisk struct {
	mu       sync.Mutex
	written  []string
	released chan struct{}
}

func (d *hangingDisk) put(p []byte) error {
	<-d.released
	d.mu.Lock()
	defer d.mu.Unlock()
	d.written = append(d.written, string(p))
	return nil
}

func TestADiskThatHangsHoldsNobodyUpAndGetsTheNewestNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &hangingDisk{released: make(chan struct{})}
		n := &Notes{put: disk.put, boot: "b", next: make(chan Renewal, 1), log: discard}
		go n.Run(t.Context())
		begun := time.Now()
		for i := range 1000 {
			n.Put(Renewal{LeaseID: 7, SentAt: lease.Instant(i), TTL: time.Second})
			synctest.Wait()
		}
		if took := time.Since(begun); took > 0 {
			t.Errorf("held up for %v", took)
		}
		close(disk.released)
		synctest.Wait()
		last := Renewal{LeaseID: 7, SentAt: 999, TTL: time.Second}
		if n := len(disk.written); n != 2 || disk.written[1] != string(last.Encode("b")) {
			t.Errorf("%d notes, %q", n, disk.written)
		}
	})
}

// A note is written over the one before, so a disk that has filled up since takes it.
func TestAFullDiskTakesTheNextNoteAllTheSame(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs a file system of its own to fill: %v", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	n, _, _, _ := Open(dir, "boot-1", lease.Clocks{Boot: noon}, discard)
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	want := Renewal{LeaseID: 7, SentAt: noon - 5, TTL: 30 * time.Second}
	if err := n.put(want.Encode("boot-1")); err != nil {
		t.Error(err)
	}
	if got, doubt := found(t, dir, "boot-1"); got != want || doubt != nil {
		t.Errorf("%+v, %v", got, doubt)
	}
}
