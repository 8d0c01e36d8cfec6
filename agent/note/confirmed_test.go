package note

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

// A note with a lead of an hour, by a store at revision 40.
func TestWhenARegistrationWasOverIsKnownByItsLastNote(t *testing.T) {
	note := Renewal{LeaseID: 7, SentAt: noon - 5, TTL: 30 * time.Second, Ahead: time.Hour, Revision: 40}
	over := time.Unix(0, int64(noon-5)).Add(time.Hour + 30*time.Second)
	for _, c := range []struct {
		name  string
		raw   []byte
		boot  string
		moved time.Duration // the wall clock since
		want  Confirmed
	}{
		{"on the same boot", note.Encode("boot-1"), "boot-1", 0, Confirmed{40, over}},
		{"on another boot", note.Encode("boot-1"), "boot-2", 0, Confirmed{40, over}},
		{"on another boot, by another clock", note.Encode("boot-1"), "boot-2", -time.Hour, Confirmed{40, over}},
		{"the wall clock was set forward", note.Encode("boot-1"), "boot-1", lease.LeastJump, Confirmed{Revision: 40}},
		{"the wall clock was set back", note.Encode("boot-1"), "boot-1", -lease.LeastJump, Confirmed{Revision: 40}},
		{"the lease was lost", Over.Encode("boot-1"), "boot-1", 0, Confirmed{}},
		{"torn", note.Encode("boot-1")[1:], "boot-1", 0, Confirmed{}},
		{"none", nil, "boot-1", 0, Confirmed{}},
		{"by a version that knew no revision", summed(fmt.Sprintf("%-64.64s %016x %020d %020d %020d", "boot-1", 7, int64(note.SentAt), int64(note.TTL), int64(note.Ahead))),
			"boot-1", 0, Confirmed{Deadline: over}},
		{"by a version that knew no wall clock", summed(fmt.Sprintf("%-64.64s %016x %020d %020d", "boot-1", 7, int64(note.SentAt), int64(note.TTL))),
			"boot-1", 0, Confirmed{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := lease.Clocks{Boot: noon, Wall: time.Unix(0, int64(noon)).Add(time.Hour + c.moved)}
			_, was, _ := Decode(c.raw, c.boot, now)
			if was.Revision != c.want.Revision || !was.Deadline.Equal(c.want.Deadline) {
				t.Errorf("%+v, want %+v", was, c.want)
			}
		})
	}
}

func TestAStartIsForetoldByTheLastNoteToo(t *testing.T) {
	dir, now := t.TempDir(), lease.HostClocks()
	boot, _ := process.BootID()
	raw := Renewal{LeaseID: 7, SentAt: now.Boot - 5, TTL: time.Minute, Ahead: now.Ahead(), Revision: 40}.Encode(boot)
	if err := os.WriteFile(filepath.Join(dir, File), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if was := Read(dir); was.Revision != 40 || was.Deadline.IsZero() {
		t.Errorf("%+v", was)
	}
	if was := Read(t.TempDir()); was != (Confirmed{}) {
		t.Errorf("nothing noted, %+v", was)
	}
}
