package agent

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
	"holdfast/agent/process"
	"holdfast/recovery"
)

var discard = slog.New(slog.DiscardHandler)

const noon = lease.Instant(12 * time.Hour)

// read is what the next sidecar on this boot of the host finds in dir.
func read(t *testing.T, dir, boot string) (lastRenewal, error) {
	t.Helper()
	_, last, _, doubt := openRenewals(dir, boot, Clocks{Boot: noon}, discard)
	return last, doubt
}

func TestARenewalThatIsNotedIsFoundByTheNextSidecarOfThisBoot(t *testing.T) {
	dir := t.TempDir()
	if _, doubt := read(t, dir, "boot-1"); doubt == nil {
		t.Error("found a note where none was written")
	}
	want := lastRenewal{LeaseID: -7, SentAt: noon - 5, TTL: 30 * time.Second}
	path := filepath.Join(dir, renewalFile)
	write := func(r lastRenewal) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(r.encode("boot-1"), 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	write(lastRenewal{LeaseID: 1 << 62, SentAt: noon - 9, TTL: time.Hour})
	write(want)
	if got, doubt := read(t, dir, "boot-1"); got != want || doubt != nil {
		t.Errorf("%+v, %v", got, doubt)
	}
	for boot, why := range map[string]string{"boot-2": "another boot", "": "another boot"} {
		if got, doubt := read(t, dir, boot); doubt == nil || !strings.Contains(doubt.Error(), why) || got != (lastRenewal{}) {
			t.Errorf("boot %q: %+v, %v", boot, got, doubt)
		}
		write(want)
	}
}

func TestANoteThatIsNotWholeIsNoNote(t *testing.T) {
	good := lastRenewal{LeaseID: 7, SentAt: noon - 5, TTL: 30 * time.Second}.encode("boot-1")
	older := lastRenewal{LeaseID: 7, SentAt: noon - 1e9, TTL: 30 * time.Second}.encode("boot-1")
	for name, raw := range map[string][]byte{
		"empty":                   {},
		"too short":               good[:len(good)-1],
		"too long":                append(bytes.Clone(good), '\n'),
		"of blanks":               bytes.Repeat([]byte(" "), renewalSize),
		"half old and half new":   append(bytes.Clone(good[:100]), older[100:]...),
		"one bit is another":      bytes.Replace(good, []byte("30000000000"), []byte("31000000000"), 1),
		"from the future":         lastRenewal{LeaseID: 7, SentAt: noon + 1, TTL: time.Second}.encode("boot-1"),
		"granted nothing":         lastRenewal{LeaseID: 7, SentAt: noon - 1}.encode("boot-1"),
		"a name that is too long": lastRenewal{LeaseID: 7, SentAt: noon - 1, TTL: 1}.encode(strings.Repeat("b", 70)),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, renewalFile)
			if err := os.WriteFile(path, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			if got, doubt := read(t, dir, "boot-1"); doubt == nil || got != (lastRenewal{}) {
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
	note := lastRenewal{LeaseID: 7, SentAt: noon - 5, TTL: 30 * time.Second, Ahead: time.Hour}
	for _, row := range []struct {
		name        string
		by, want    time.Duration
		withoutWall bool // the note does not say
	}{
		{name: "nothing"},
		{name: "slewed", by: leastJump - 1},
		{name: "slewed back", by: 1 - leastJump},
		{name: "the host stood, or it was set forward", by: 20 * time.Second, want: 20 * time.Second},
		{name: "for the least", by: leastJump, want: leastJump},
		{name: "set back: nobody knows", by: -leastJump, want: 30 * time.Second},
		{name: "set back by years: nobody knows", by: -1e6 * time.Hour, want: 30 * time.Second},
		{name: "not noted", by: 20 * time.Second, withoutWall: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			now := Clocks{Boot: noon, Wall: time.Unix(0, int64(noon)).Add(time.Hour + row.by)}
			raw := note.encode("boot-1")
			if row.withoutWall { // as the version before wrote it
				raw = summed(fmt.Sprintf("%-64.64s %016x %020d %020d", "boot-1", 7, int64(note.SentAt), int64(note.TTL)))
			}
			got, _, doubt := decodeRenewal(raw, "boot-1", now)
			if doubt != nil || got.lost(now) != row.want || got.SentAt != note.SentAt {
				t.Errorf("%+v, lost %v, %v", got, got.lost(now), doubt)
			}
		})
	}
}

func TestANoteOfTheVersionBeforeIsMadeOneOfOurs(t *testing.T) {
	dir := t.TempDir()
	old := summed(fmt.Sprintf("%-64.64s %016x %020d %020d", "boot-1", 7, int64(noon-5), int64(time.Minute)))
	if err := os.WriteFile(filepath.Join(dir, renewalFile), old, 0o600); err != nil {
		t.Fatal(err)
	}
	want := lastRenewal{LeaseID: 7, SentAt: noon - 5, TTL: time.Minute}
	for range 2 {
		if got, doubt := read(t, dir, "boot-1"); got != want || doubt != nil {
			t.Errorf("%+v, %v", got, doubt)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, renewalFile)); err != nil || info.Size() != int64(renewalSize) {
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
		n := &renewalNotes{put: disk.put, boot: "b", next: make(chan lastRenewal, 1), log: discard}
		go n.run(t.Context())
		begun := time.Now()
		for i := range 1000 {
			n.note(lastRenewal{LeaseID: 7, SentAt: lease.Instant(i), TTL: time.Second})
			synctest.Wait()
		}
		if took := time.Since(begun); took > 0 {
			t.Errorf("held up for %v", took)
		}
		close(disk.released)
		synctest.Wait()
		last := lastRenewal{LeaseID: 7, SentAt: 999, TTL: time.Second}
		if n := len(disk.written); n != 2 || disk.written[1] != string(last.encode("b")) {
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
	n, _, _, _ := openRenewals(dir, "boot-1", Clocks{Boot: noon}, discard)
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	want := lastRenewal{LeaseID: 7, SentAt: noon - 5, TTL: 30 * time.Second}
	if err := n.put(want.encode("boot-1")); err != nil {
		t.Error(err)
	}
	if got, doubt := read(t, dir, "boot-1"); got != want || doubt != nil {
		t.Errorf("%+v, %v", got, doubt)
	}
}

func TestEachConfirmedRenewalIsNotedAndSoIsALoss(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		disk := &hangingDisk{released: make(chan struct{})}
		close(disk.released)
		l.inLoop(func() {
			l.renewals = &renewalNotes{put: disk.put, boot: "b", next: make(chan lastRenewal, 1), log: discard}
		})
		go l.renewals.run(l.life0)
		l.until(l.age() + time.Minute)
		v := l.keeper.View()
		want := lastRenewal{v.Grant.LeaseID, v.Validity.SentAt, v.Validity.TTL, l.world.Clocks().ahead(), v.Grant.Revision}
		if n := len(disk.written); n < 10 || disk.written[n-1] != string(want.encode("b")) {
			t.Errorf("%d notes, the last %q", n, disk.written[n-1])
		}
		l.set(func() { l.lost, l.storeErr = true, true })
		l.becomes(recovery.Detached, l.age()+time.Minute)
		l.until(l.age() + time.Millisecond)
		if got := disk.written[len(disk.written)-1]; got != string(leaseOver.encode("b")) {
			t.Errorf("after the loss: %q", got)
		}
	})
}

// The note would say that no clock has jumped since.
func TestARenewalThatWasSentBeforeAPauseIsNotNotedAfterIt(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		disk := &hangingDisk{released: make(chan struct{})}
		close(disk.released)
		l.inLoop(func() {
			l.renewals = &renewalNotes{put: disk.put, boot: "b", next: make(chan lastRenewal, 1), log: discard}
		})
		go l.renewals.run(l.life0)
		noted := func() lastRenewal {
			r, _, err := decodeRenewal([]byte(disk.written[len(disk.written)-1]), "b", l.world.Clocks())
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		l.until(l.age() + 10*time.Second)
		l.set(func() { l.slow = 1500 * time.Millisecond })
		for l.asks() == l.answers() { // until one is on its way
			l.until(l.age() + 10*time.Millisecond)
		}
		before, sent := noted(), l.keeper.View().Validity.SentAt
		l.paused(20 * time.Second)
		for l.keeper.View().Validity.SentAt == sent {
			l.until(l.age() + 10*time.Millisecond)
		}
		if r := noted(); r != before || r.lost(l.world.Clocks()) != 20*time.Second {
			t.Errorf("noted %+v after %+v", r, before)
		}
		l.until(l.age() + 5*time.Second)
		if r := noted(); r.SentAt == before.SentAt || r.lost(l.world.Clocks()) != 0 {
			t.Errorf("a renewal later: %+v", r)
		}
	})
}

// The sidecar before this one registered the broker's process, its last renewal was sent so
// long ago, and etcd is silent from the start.
func TestABrokerLeftBehindIsFencedAtTheFencePointOfItsOwnLease(t *testing.T) {
	const never = time.Hour
	whole := natsDefaults().Effective().LeaseTTL - natsDefaults().Effective().LeaseDetachMargin
	attempt := natsDefaults().Effective().Timing().AttemptTimeout()
	stood := func(d time.Duration) func(l *sidecarLife) {
		return func(l *sidecarLife) {
			now := l.world.Clocks()
			l.recall(lastRenewal{1, l.former.SentAt, l.former.TTL, now.ahead() - d, 0}, now)
		}
	}
	for _, row := range []struct {
		name   string
		sent   time.Duration // before this sidecar began; 0: there is no note
		change func(l *sidecarLife)
		want   time.Duration // after the sidecar began
	}{
		{"a moment ago", time.Millisecond, nil, whole - time.Millisecond},
		{"half of it", whole / 2, nil, whole / 2},
		{"long ago", time.Hour, nil, 0},
		{"with a longer TTL than we would ask for", time.Second, func(l *sidecarLife) { l.former.TTL *= 2 }, whole},
		{"with a shorter one", time.Second, func(l *sidecarLife) { l.former.TTL -= 5 * time.Second }, whole - 6*time.Second},
		{"a moment ago, and the host stood for longer than the lease: after an attempt", time.Millisecond, stood(time.Hour), attempt},
		{"a moment ago, and the host stood for a part of it", time.Millisecond, stood(whole / 2), whole/2 - time.Millisecond},
		{"a moment ago, the host stood for longer than the lease, and etcd answers", time.Millisecond, func(l *sidecarLife) { l.away = false; stood(time.Hour)(l) }, never},
		{"half of it, and the wall clock was set back: after an attempt", whole / 2, stood(-time.Hour), attempt},
		{"nearly all of it, and the wall clock was set back", whole - time.Second, stood(-time.Hour), time.Second},
		{"not known: when etcd has failed to answer", 0, nil, time.Second},
		{"of another process of the broker: when etcd has failed to answer", time.Hour, func(l *sidecarLife) { l.process = 2 }, time.Second},
		{"not known, and the registration was given up", 0, func(l *sidecarLife) { l.memory.Released = true }, time.Second},
		{"a moment ago, and the registration was given up", time.Millisecond, func(l *sidecarLife) { l.memory.Released = true }, time.Second},
		{"given up, and etcd answers", time.Hour, func(l *sidecarLife) { l.away, l.memory.Released = false, true }, never},
		{"long ago, and the state file is lost: when etcd has failed to answer", time.Hour, func(l *sidecarLife) { l.memory = memory{} }, time.Second},
		{"not known, and it was never registered", 0, func(l *sidecarLife) { l.memory = memory{} }, never},
		{"long ago, and etcd answers", time.Hour, func(l *sidecarLife) { l.away, l.process = false, 2 }, never},
		{"not known, and the registration waits though etcd answers", 0, func(l *sidecarLife) { l.away, l.waits = false, true }, whole},
		{"of another process of the broker, whose registration waits though etcd answers", time.Hour, func(l *sidecarLife) { l.away, l.waits, l.process = false, true, 2 }, whole + natsDefaults().Effective().LeaseTTL},
	} {
		t.Run(row.name, func(t *testing.T) {
			past := func(l *sidecarLife) {
				l.away, l.memory.Epoch, l.memory.Instance = true, 7, "process-1"
				if row.sent > 0 {
					l.former = lease.Validity{SentAt: l.begun.Add(-row.sent), TTL: l.cfg.LeaseTTL, Margin: l.cfg.LeaseDetachMargin}
				}
				if row.change != nil {
					row.change(l)
				}
			}
			lifeFromTheStart(t, stoppable, past, func(l *sidecarLife) {
				// The first health check, of a broker that answers, and the first question to etcd.
				const slack = 1500 * time.Millisecond
				if row.want > slack {
					l.until(row.want - time.Nanosecond)
					if got := l.why("fence"); got != "" {
						t.Errorf("while the lease may live: %s", got)
					}
				}
				if row.want == never {
					l.until(time.Minute)
				} else {
					l.until(row.want + slack)
				}
				if got := l.why("fence"); (got == "quiesced:") == (row.want == never) || row.want == never && got != "" {
					t.Errorf("%v after the sidecar began: %q", l.age(), got)
				}
			})
		})
	}
}

// It does not answer, so nobody knows who it is; but the process that was registered lives.
func TestABrokerLeftBehindThatHangsIsStoppedAtTheFencePoint(t *testing.T) {
	past := func(l *sidecarLife) {
		l.away, l.frozen, l.memory.Epoch, l.memory.Instance = true, true, 7, "process-1"
		l.former = lease.Validity{SentAt: l.begun.Add(-time.Hour), TTL: l.cfg.LeaseTTL, Margin: l.cfg.LeaseDetachMargin}
		self, err := process.TargetOf(os.Getpid())
		if err != nil {
			l.t.Fatal(err)
		}
		l.served = self
	}
	lifeFromTheStart(t, stoppable, past, func(l *sidecarLife) {
		l.until(recovery.LateQuiesce + recovery.LateStop)
		if len(l.stops) != 1 || !l.ended {
			t.Errorf("stopped at %v", l.stops)
		}
	})
}
