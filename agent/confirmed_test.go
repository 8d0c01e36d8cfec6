package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast/agent/process"
)

// A note with a lead of an hour, by a store at revision 40.
func TestWhenARegistrationWasOverIsKnownByItsLastNote(t *testing.T) {
	note := lastRenewal{LeaseID: 7, SentAt: noon - 5, TTL: 30 * time.Second, Ahead: time.Hour, Revision: 40}
	over := time.Unix(0, int64(noon-5)).Add(time.Hour + 30*time.Second)
	for _, c := range []struct {
		name  string
		raw   []byte
		boot  string
		moved time.Duration // the wall clock since
		want  confirmation
	}{
		{"on the same boot", note.encode("boot-1"), "boot-1", 0, confirmation{40, over}},
		{"on another boot", note.encode("boot-1"), "boot-2", 0, confirmation{40, over}},
		{"on another boot, by another clock", note.encode("boot-1"), "boot-2", -time.Hour, confirmation{40, over}},
		{"the wall clock was set forward", note.encode("boot-1"), "boot-1", leastJump, confirmation{Revision: 40}},
		{"the wall clock was set back", note.encode("boot-1"), "boot-1", -leastJump, confirmation{Revision: 40}},
		{"the lease was lost", leaseOver.encode("boot-1"), "boot-1", 0, confirmation{}},
		{"torn", note.encode("boot-1")[1:], "boot-1", 0, confirmation{}},
		{"none", nil, "boot-1", 0, confirmation{}},
		{"by a version that knew no revision", summed(fmt.Sprintf("%-64.64s %016x %020d %020d %020d", "boot-1", 7, int64(note.SentAt), int64(note.TTL), int64(note.Ahead))),
			"boot-1", 0, confirmation{Deadline: over}},
		{"by a version that knew no wall clock", summed(fmt.Sprintf("%-64.64s %016x %020d %020d", "boot-1", 7, int64(note.SentAt), int64(note.TTL))),
			"boot-1", 0, confirmation{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := Clocks{Boot: noon, Wall: time.Unix(0, int64(noon)).Add(time.Hour + c.moved)}
			_, was, _ := decodeRenewal(c.raw, c.boot, now)
			if was.Revision != c.want.Revision || !was.Deadline.Equal(c.want.Deadline) {
				t.Errorf("%+v, want %+v", was, c.want)
			}
		})
	}
}

func TestTheLaterOfTwoConfirmationsCounts(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	m := memory{ConfirmedAt: 30, Deadline: noon}
	m.was(confirmation{})
	m.was(confirmation{29, noon.Add(-1)})
	if m.ConfirmedAt != 30 || !m.Deadline.Equal(noon) {
		t.Errorf("%+v: an older one is believed", m)
	}
	m.was(confirmation{31, noon.Add(1)})
	if m.ConfirmedAt != 31 || !m.Deadline.Equal(noon.Add(1)) {
		t.Errorf("%+v: a younger one is not", m)
	}
}

func TestAStartIsForetoldByTheLastNoteToo(t *testing.T) {
	dir, now := t.TempDir(), hostClocks()
	boot, _ := process.BootID()
	raw := lastRenewal{LeaseID: 7, SentAt: now.Boot - 5, TTL: time.Minute, Ahead: now.ahead(), Revision: 40}.encode(boot)
	if err := os.WriteFile(filepath.Join(dir, renewalFile), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if was := notedConfirmation(dir); was.Revision != 40 || was.Deadline.IsZero() {
		t.Errorf("%+v", was)
	}
	if was := notedConfirmation(t.TempDir()); was != (confirmation{}) {
		t.Errorf("nothing noted, %+v", was)
	}
}
